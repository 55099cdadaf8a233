#include "dataplane/cuda/testing/on_device.h"

#include <algorithm>
#include <cstddef>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "dataplane/cuda/stream.h"
#include "glog/logging.h"

namespace muster::dataplane::cuda::testing {
namespace {

// Host memory, and its copy on the device.
struct Piece {
  char* begin = nullptr;
  char* end = nullptr;
  char* copy = nullptr;
};

// The memory of one collective's tensors, on the device.
class Copies {
 public:
  Copies(const Api& api, int device, const Collective& collective)
      : api_(api), device_(device), on_host_(collective) {
    const DeviceGuard guard(api_, device_);
    for (const auto* list : Lists(on_host_)) {
      for (const Tensor& tensor : *list) {
        char* const begin = static_cast<char*>(tensor.data());
        if (tensor.bytes() > 0) {
          pieces_.push_back({.begin = begin, .end = begin + tensor.bytes()});
        }
      }
    }
    Merge();
    for (Piece& piece : pieces_) {
      void* copy = nullptr;
      const size_t bytes = static_cast<size_t>(piece.end - piece.begin);
      CHECK_EQ(api_.Malloc(&copy, bytes), kSuccess);
      piece.copy = static_cast<char*>(copy);
      CHECK_EQ(api_.MemcpyAsync(copy, piece.begin, bytes, kMemcpyDefault,
                                CurrentStream(device_)),
               kSuccess);
    }
  }

  ~Copies() {
    const DeviceGuard guard(api_, device_);
    CHECK_EQ(api_.StreamSynchronize(CurrentStream(device_)), kSuccess);
    for (const Piece& piece : pieces_) api_.Free(piece.copy);
  }

  Copies(const Copies&) = delete;
  Copies& operator=(const Copies&) = delete;

  // The collective on the device.
  Collective OnDevice() const {
    Collective collective = on_host_;
    for (auto* list :
         {&collective.tensors, &collective.inputs, &collective.outputs}) {
      for (Tensor& tensor : *list) {
        tensor = Tensor(CopyOf(tensor), tensor.data_type(), tensor.shape(),
                        {DeviceType::kCuda, device_});
      }
    }
    return collective;
  }

  // What was written comes back.
  void TakeBack() {
    const DeviceGuard guard(api_, device_);
    for (const auto* list : {&on_host_.tensors, &on_host_.outputs}) {
      for (const Tensor& tensor : *list) {
        if (tensor.bytes() == 0) continue;
        CHECK_EQ(api_.MemcpyAsync(tensor.data(), CopyOf(tensor), tensor.bytes(),
                                  kMemcpyDefault, CurrentStream(device_)),
                 kSuccess);
      }
    }
    CHECK_EQ(api_.StreamSynchronize(CurrentStream(device_)), kSuccess);
  }

 private:
  static std::vector<const Collective::Tensors*> Lists(
      const Collective& collective) {
    return {&collective.tensors, &collective.inputs, &collective.outputs};
  }

  // Pieces that touch become one.
  void Merge() {
    std::sort(pieces_.begin(), pieces_.end(),
              [](const Piece& a, const Piece& b) { return a.begin < b.begin; });
    std::vector<Piece> merged;
    for (const Piece& piece : pieces_) {
      if (!merged.empty() && piece.begin <= merged.back().end) {
        merged.back().end = std::max(merged.back().end, piece.end);
      } else {
        merged.push_back(piece);
      }
    }
    pieces_ = std::move(merged);
  }

  void* CopyOf(const Tensor& tensor) const {
    char* const begin = static_cast<char*>(tensor.data());
    for (const Piece& piece : pieces_) {
      if (tensor.bytes() > 0 && begin >= piece.begin && begin < piece.end) {
        return piece.copy + (begin - piece.begin);
      }
    }
    return nullptr;
  }

  const Api& api_;
  const int device_;
  const Collective on_host_;
  std::vector<Piece> pieces_;
};

class OnDeviceBackend : public Backend {
 public:
  OnDeviceBackend(const Api& api, int device, std::string name,
                  std::unique_ptr<Backend> backend)
      : api_(api),
        device_(device),
        name_(std::move(name)),
        backend_(std::move(backend)) {}

  absl::string_view name() const override { return name_; }
  absl::Span<const DeviceType> devices() const override {
    static constexpr DeviceType kDevices[] = {DeviceType::kCpu};
    return kDevices;
  }
  absl::Status Supports(const Collective& collective) const override {
    for (const auto* list :
         {&collective.tensors, &collective.inputs, &collective.outputs}) {
      if (list->empty() || list->front().device().type == DeviceType::kCpu) {
        continue;
      }
      return absl::UnimplementedError(absl::StrCat(
          name_, " takes CPU tensors, got ", list->front().Describe()));
    }
    return backend_->Supports(Copies(api_, device_, collective).OnDevice());
  }
  size_t fusable_bytes() const override { return backend_->fusable_bytes(); }
  std::shared_ptr<Work> Start(const Collective& collective) override {
    auto copies = std::make_shared<Copies>(api_, device_, collective);
    auto work = std::make_shared<PromisedWork>(collective.Describe());
    const std::shared_ptr<Work> inner = backend_->Start(copies->OnDevice());
    inner->OnCompletion([copies, work, inner](const absl::Status& status) {
      if (status.ok()) {
        copies->TakeBack();
        work->SetSourceRank(inner->source_rank());
      }
      work->Complete(status);
    });
    return work;
  }
  void Refused(const Collective& collective, const absl::Status& why) override {
    backend_->Refused(collective, why);
  }
  void Abort(absl::Status cause) override { backend_->Abort(std::move(cause)); }

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
