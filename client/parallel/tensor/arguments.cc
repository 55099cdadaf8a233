#include "client/parallel/tensor/arguments.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "client/control/throw.h"
#include "client/groups/group_state.h"
#include "client/parallel/dtensor/mesh_position.h"
#include "client/parallel/dtensor/tensor_memory.h"
#include "glog/logging.h"
#include "muster/base/status.h"
#include "muster/distributed.h"
#include "muster/errors.h"

namespace muster::internal {

std::shared_ptr<ProcessGroup> FindGroup(const TensorParallelOptions& options,
                                        const char* function) {
  auto group = options.group == nullptr ? WorldGroup() : options.group;
  if (group->rank() >= 0) return group;
  LOG(WARNING) << "Running " << function
               << " on a rank which does not belong to the given group.";
  return nullptr;
}

void CheckOnAllRanks(const std::shared_ptr<ProcessGroup>& group,
                     const char* function, dataplane::CollectiveKind kind,
                     const TensorParallelOptions& options,
                     const std::function<void(Agreement&)>& check) {
  Agreement agreement(function);
  const Status own = CatchError([&] { check(agreement); });
  if (group->size() == 1) {
    ThrowIfFailed(ErrorSource::kControl, own);
  } else if (options.compare && !group->state()->is_cuda_only()) {
    agreement.AddFault(own);
    agreement.Check({group});
  } else if (!own.ok()) {
    group->state()->UseUpNumber(kind, own);
    Throw(ErrorSource::kControl, own);
  }
}

std::string DescribeForAllRanks(const Tensor& tensor) {
  const DeviceType device = tensor.device().type;
  return absl::StrCat(
      dataplane::DataTypeName(tensor.data_type()), "[",
      absl::StrJoin(tensor.shape(), ","), "]",
      device == DeviceType::kCpu
          ? ""
          : absl::StrCat(" on ", dataplane::DeviceTypeName(device)));
}

void CheckValid(const char* name, const Tensor& tensor) {
  const Status status = tensor.Validate();
  if (!status.ok()) {
    Invalid(absl::StrCat("argument ", name, ": ", status.message()));
  }
}

void CheckHost(const char* name, const Tensor& tensor) {
  CheckValid(name, tensor);
  if (tensor.device().type == DeviceType::kCpu) return;
  Throw(ErrorSource::kControl,
        UnimplementedError(absl::StrCat(
            "argument ", name, ": ", tensor.Describe(), " is not on the CPU")));
}

void CheckFloats(const char* name, const Tensor& tensor) {
  CheckHost(name, tensor);
  if (IsFloat(tensor.data_type())) return;
  Invalid(absl::StrCat("argument ", name, ": ", tensor.Describe(),
                       " is not float16, bfloat16, float32 or float64"));
}

void CheckShape(const char* name, const Tensor& tensor,
                std::span<const int64_t> leading,
                const std::vector<int64_t>& trailing) {
  std::vector<int64_t> wanted(leading.begin(), leading.end());
  wanted.insert(wanted.end(), trailing.begin(), trailing.end());
  const auto shape = tensor.shape();
  if (std::equal(shape.begin(), shape.end(), wanted.begin(), wanted.end())) {
    return;
  }
  Invalid(absl::StrCat("argument ", name, ": ", tensor.Describe(),
                       ", but the shape must be [", absl::StrJoin(wanted, ","),
                       "]"));
}

void CheckSameType(const char* name, const Tensor& tensor,
                   const char* other_name, const Tensor& other) {
  if (tensor.data_type() == other.data_type()) return;
  Invalid(absl::StrCat("argument ", name, ": ", tensor.Describe(), ", but ",
                       other_name, " is ", other.Describe()));
}

std::span<const int64_t> CheckIds(const char* name, const Tensor& ids,
                                  int64_t vocabulary) {
  CheckHost(name, ids);
  if (ids.data_type() != DataType::kInt64) {
    Invalid(
        absl::StrCat("argument ", name, ": ", ids.Describe(), " is not int64"));
  }
  const std::span<const int64_t> all(static_cast<const int64_t*>(ids.data()),
                                     static_cast<size_t>(ids.element_count()));
  for (size_t i = 0; i < all.size(); ++i) {
    if (all[i] >= 0 && all[i] < vocabulary) continue;
    Invalid(absl::StrCat("argument ", name, ": ", all[i], " at index ", i,
                         " is not in a vocabulary of ", vocabulary));
  }
  return all;
}

}  // namespace muster::internal
