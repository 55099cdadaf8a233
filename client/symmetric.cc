#include "muster/symmetric.h"

#include <cstddef>
#include <string>

#include "absl/strings/str_cat.h"
#include "client/control/throw.h"
#include "client/groups/group_state.h"
#include "muster/base/status.h"
#include "muster/distributed.h"

namespace muster {

SymmetricTensor AllocateSymmetric(const std::shared_ptr<ProcessGroup>& group,
                                  DataType data_type,
                                  const std::vector<int64_t>& shape,
                                  const AllocateSymmetricOptions& options) {
  // Any address: only the size is checked.
  alignas(std::max_align_t) std::byte place[1];
  const Tensor wanted(place, data_type, shape);
  Status status = wanted.Validate();
  if (status.ok() && wanted.element_count() == 0) {
    status = InvalidArgumentError(
        absl::StrCat("no elements in ", wanted.Describe()));
  }
  if (!status.ok()) {
    internal::Throw(internal::ErrorSource::kControl,
                    InvalidArgumentError(
                        absl::StrCat("argument shape: ", status.message())));
  }
  internal::CheckNotNegative(options.timeout);
  const auto& state = (group == nullptr ? WorldGroup() : group)->state();
  auto memory =
      state->AllocateSymmetric(wanted.bytes(), options.device, options.timeout);
  if (memory == nullptr) return {};
  Tensor tensor(memory->data(), data_type, shape, memory->device());
  return {std::move(memory), std::move(tensor)};
}

}  // namespace muster
