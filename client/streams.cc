#include "muster/streams.h"

#include "absl/strings/str_cat.h"
#include "client/control/throw.h"
#include "dataplane/cuda/stream.h"
#include "muster/base/status.h"

namespace muster {
namespace {

int CheckDevice(int device) {
  if (device < 0) {
    internal::Throw(internal::ErrorSource::kControl,
                    InvalidArgumentError(absl::StrCat(
                        "argument device: ", device, " is negative")));
  }
  return device;
}

}  // namespace

Stream CurrentStream(int device) {
  return dataplane::cuda::CurrentStream(CheckDevice(device));
}

void SetCurrentStream(int device, Stream stream) {
  dataplane::cuda::SetCurrentStream(CheckDevice(device), stream);
}

}  // namespace muster
