#include "dataplane/cuda/stream.h"

#include <cstddef>
#include <vector>

namespace muster::dataplane::cuda {
namespace {

// By device.
std::vector<Stream>& Streams() {
  thread_local std::vector<Stream> streams;
  return streams;
}

}  // namespace

Stream CurrentStream(int device) {
  const auto place = static_cast<size_t>(device);
  const std::vector<Stream>& streams = Streams();
  return place < streams.size() ? streams[place] : nullptr;
}

void SetCurrentStream(int device, Stream stream) {
  const auto place = static_cast<size_t>(device);
  std::vector<Stream>& streams = Streams();
  if (place >= streams.size()) streams.resize(place + 1);
  streams[place] = stream;
}

DeviceGuard::DeviceGuard(const Api& api, int device) : api_(api) {
  int current = -1;
  if (api_.GetDevice(&current) == kSuccess && current == device) return;
  before_ = current;
  api_.SetDevice(device);
}

DeviceGuard::~DeviceGuard() {
  if (before_ >= 0) api_.SetDevice(before_);
}

}  // namespace muster::dataplane::cuda
