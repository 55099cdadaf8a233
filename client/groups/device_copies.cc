#include "client/groups/device_copies.h"

#include <chrono>

#include "absl/strings/str_cat.h"
#include "base/text.h"
#include "client/control/throw.h"
#include "client/groups/group_state.h"
#include "dataplane/cuda/api.h"
#include "muster/base/status.h"

namespace muster::internal {

DeviceCopies::DeviceCopies(const ProcessGroup& group) {
  const GroupState& state = *group.state();
  if (!state.is_cuda_only()) return;
  const auto& runtime = dataplane::cuda::TheRuntime();
  if (!runtime.ok()) {
    Throw(ErrorSource::kControl,
          FailedPreconditionError(absl::StrCat(
              "backend ", base::Quote(group.backend()), " of group ",
              base::Quote(group.name()),
              " takes no CPU tensors, and there is no CUDA device to bring "
              "objects to: ",
              runtime.status().message())));
  }
  device_ = state.options().device;
  if (device_ < 0) {
    ThrowIfFailed(
        ErrorSource::kControl,
        dataplane::cuda::ToStatus(
            runtime->api, runtime->api.GetDevice(&device_), "cudaGetDevice"));
  }
}

Tensor DeviceCopies::Allocate(const Tensor& tensor) {
  const DeviceMemory& memory = memory_.emplace_back(device_, tensor.bytes());
  return Tensor(memory.data(), tensor.data_type(), tensor.shape(),
                {DeviceType::kCuda, device_});
}

Tensor DeviceCopies::In(const Tensor& tensor) {
  if (device_ < 0) return tensor;
  Tensor copies = Allocate(tensor);
  memory_.back().Write(tensor.data(), tensor.bytes());
  return copies;
}

Tensor DeviceCopies::Out(const Tensor& tensor) {
  if (device_ < 0) return tensor;
  Tensor copies = Allocate(tensor);
  written_.emplace_back(tensor, memory_.size() - 1);
  return copies;
}

std::vector<Tensor> DeviceCopies::In(const std::vector<Tensor>& tensors) {
  std::vector<Tensor> copies;
  copies.reserve(tensors.size());
  for (const Tensor& tensor : tensors) copies.push_back(In(tensor));
  return copies;
}

std::vector<Tensor> DeviceCopies::Out(const std::vector<Tensor>& tensors) {
  std::vector<Tensor> copies;
  copies.reserve(tensors.size());
  for (const Tensor& tensor : tensors) copies.push_back(Out(tensor));
  return copies;
}

int DeviceCopies::End(Work work) {
  work.Wait();
  if (device_ >= 0) {
    // The collective's own timeout ends the loop.
    while (!work.WaitFor(std::chrono::minutes(1))) {
    }
    for (const auto& [tensor, index] : written_) {
      memory_[index].Read(tensor.data(), tensor.bytes());
    }
    SynchronizeCurrentStream(device_);
  }
  return work.SourceRank();
}

}  // namespace muster::internal
