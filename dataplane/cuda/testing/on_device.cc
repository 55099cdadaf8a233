#include "dataplane/cuda/testing/on_device.h"

#include <cstddef>
#include <utility>

#include "absl/strings/str_cat.h"
#include "dataplane/cuda/stream.h"
#include "dataplane/testing/tensor_copies.h"
#include "glog/logging.h"

namespace muster::dataplane::cuda::testing {
namespace {

using dataplane::testing::CopyPlace;
using dataplane::testing::TensorCopies;

CopyPlace PlaceOn(const Api& api, int device) {
  return {.device = {DeviceType::kCuda, device},
          .allocate =
              [&api, device](size_t bytes) {
                const DeviceGuard guard(api, device);
                void* memory = nullptr;
                CHECK_EQ(api.Malloc(&memory, bytes), kSuccess);
                return memory;
              },
          .free =
              [&api, device](void* memory) {
                const DeviceGuard guard(api, device);
                // A copy to it may still be running.
                CHECK_EQ(api.StreamSynchronize(CurrentStream(device)),
                         kSuccess);
                api.Free(memory);
              },
          .copy =
              [&api, device](void* to, const void* from, size_t bytes) {
                const DeviceGuard guard(api, device);
                CHECK_EQ(api.MemcpyAsync(to, from, bytes, kMemcpyDefault,
                                         CurrentStream(device)),
                         kSuccess);
              }};
}

class OnDeviceBackend : public Backend {
 public:
  OnDeviceBackend(const Api& api, int device, std::string name,
                  std::unique_ptr<Backend> backend)
      : api_(api),
        device_(device),
        name_(std::move(name)),
        backend_(std::move(backend)) {}

  std::string name() const override { return name_; }
  std::span<const DeviceType> devices() const override {
    static constexpr DeviceType kDevices[] = {DeviceType::kCpu};
    return kDevices;
  }
  Status Supports(const Collective& collective) const override {
    for (const auto* list : collective.lists()) {
      if (list->empty() || list->front().device().type == DeviceType::kCpu) {
        continue;
      }
      return UnimplementedError(absl::StrCat(name_, " takes CPU tensors, got ",
                                             list->front().Describe()));
    }
    return backend_->Supports(
        TensorCopies(collective, PlaceOn(api_, device_)).There());
  }
  size_t fusable_bytes() const override { return backend_->fusable_bytes(); }
  std::shared_ptr<Work> Start(const Collective& collective) override {
    auto copies =
        std::make_shared<TensorCopies>(collective, PlaceOn(api_, device_));
    auto work = std::make_shared<PromisedWork>(collective.Describe());
    const std::shared_ptr<Work> inner = backend_->Start(copies->There());
    inner->OnCompletion([&api = api_, device = device_, copies, work,
                         inner](const Status& status) {
      if (status.ok()) {
        copies->TakeBack();
        work->SetSourceRank(inner->source_rank());
      }
      {
        // The owner of the tensors may free them after this.
        const DeviceGuard guard(api, device);
        CHECK_EQ(api.StreamSynchronize(CurrentStream(device)), kSuccess);
      }
      work->Complete(status);
    });
    return work;
  }
  void Refused(const Collective& collective, const Status& why) override {
    backend_->Refused(collective, why);
  }
  void Abort(Status cause) override { backend_->Abort(std::move(cause)); }

 private:
  const Api& api_;
  const int device_;
  const std::string name_;
  const std::unique_ptr<Backend> backend_;
};

}  // namespace

std::unique_ptr<Backend> OnDevice(const Api& api, int device, std::string name,
                                  std::unique_ptr<Backend> backend) {
  return std::make_unique<OnDeviceBackend>(api, device, std::move(name),
                                           std::move(backend));
}

}  // namespace muster::dataplane::cuda::testing
