#include "dataplane/cuda/stream.h"

#include <cstddef>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"

namespace muster::dataplane::cuda {
namespace {

// The current streams of this thread, by device.
std::vector<Stream>& Streams() {
  thread_local std::vector<Stream> streams;
  return streams;
}

thread_local bool t_is_own = false;

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

Status CheckIsNotCaptured(const Api& api, int device) {
  CaptureStatus capture = kCaptureNone;
  const Error error = api.StreamIsCapturing(CurrentStream(device), &capture);
  if (error == kSuccess && capture == kCaptureNone) return OkStatus();
  const std::string head =
      absl::StrCat("the current stream of cuda:", device,
                   " is captured into a CUDA graph, which collectives, sends "
                   "and receives cannot be");
  if (error == kSuccess) return FailedPreconditionError(head);
  // CUDA forbids this call for the default stream while another one is
  // captured.
  api.GetLastError();
  return FailedPreconditionError(
      absl::StrCat(head, ": ", api.GetErrorString(error)));
}

void BeginOwnThread(const Api& api) {
  t_is_own = true;
  CaptureMode mode = kCaptureRelaxed;
  api.ThreadExchangeStreamCaptureMode(&mode);
}

Error Query(const Api& api, Event event) {
  const Error error = api.EventQuery(event);
  if (error == kNotReady) api.GetLastError();
  return error;
}

DeviceGuard::DeviceGuard(const Api& api, int device) : api_(api) {
  int current = -1;
  if (api_.GetDevice(&current) == kSuccess && current == device) return;
  before_ = current;
  api_.SetDevice(device);
}

DeviceGuard::~DeviceGuard() {
  if (before_ >= 0 && !t_is_own) api_.SetDevice(before_);
}

}  // namespace muster::dataplane::cuda
