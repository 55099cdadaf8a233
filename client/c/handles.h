// The structs behind the handles that several files of this folder use, and
// tensors.

#ifndef MUSTER_CLIENT_C_HANDLES_H_
#define MUSTER_CLIENT_C_HANDLES_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "client/c/error.h"
#include "muster/backends.h"
#include "muster/distributed.h"
#include "muster/muster.h"
#include "muster/process_group.h"
#include "muster/session.h"
#include "muster/store.h"

struct muster_group {
  std::shared_ptr<muster::ProcessGroup> group;
};

struct muster_work {
  muster::Work work;
  // The result that was asked for: the caller uses its shapes.
  std::vector<muster::Tensor> result = {};
};

struct muster_store {
  std::shared_ptr<muster::Store> store;
};

struct muster_session {
  std::shared_ptr<muster::Session> session;
};

namespace muster::c {

// The group of a call: that of a handle, or the default group for null. Throws
// DistError if there is none.
class GroupRef {
 public:
  explicit GroupRef(muster_group* handle)
      : default_(handle == nullptr ? WorldGroup() : nullptr),
        group_(handle == nullptr ? default_ : handle->group) {}

  ProcessGroup& operator*() const { return *group_; }
  ProcessGroup* operator->() const { return group_.get(); }
  const std::shared_ptr<ProcessGroup>& shared() const { return group_; }

 private:
  // Keeps the default group alive during the call.
  const std::shared_ptr<ProcessGroup> default_;
  const std::shared_ptr<ProcessGroup>& group_;
};

// Null for the default group, as the C++ functions want it.
inline std::shared_ptr<ProcessGroup> ToGroup(muster_group* handle) {
  return handle == nullptr ? nullptr : handle->group;
}

inline muster_group* MakeGroup(std::shared_ptr<ProcessGroup> group) {
  return new muster_group{std::move(group)};
}

// Calls `start` and returns a handle of its Work. The handle is made first: if
// there is no memory for it, nothing is started.
template <typename Start>
muster_work* MakeWork(Start start) {
  auto handle = std::make_unique<muster_work>();
  handle->work = start();
  return handle.release();
}

// Throws ArgumentError for a type or device that does not exist. Whether the
// tensor is valid is checked where it is used.
Tensor ToTensor(const muster_tensor* tensor, const char* name);
std::vector<Tensor> ToTensors(const muster_tensor* tensors, size_t count,
                              const char* name);
// The shape is that of `tensor`.
muster_tensor FromTensor(const Tensor& tensor);

DataType ToDataType(muster_dtype dtype, const char* name);
DeviceType ToDeviceType(muster_device_type type, const char* name);

// Makes the ranks that C++ takes as a global rank and an option.
struct RankChoice {
  RankChoice(int32_t rank, int32_t is_group_rank)
      : global(is_group_rank != 0 ? std::nullopt : std::optional<int>(rank)),
        in_group(is_group_rank != 0 ? std::optional<int>(rank) : std::nullopt) {
  }

  std::optional<int> global;
  std::optional<int> in_group;
};

std::optional<NcclOptions> ToNcclOptions(const muster_nccl_options* options,
                                         const char* name);

}  // namespace muster::c

#endif  // MUSTER_CLIENT_C_HANDLES_H_
