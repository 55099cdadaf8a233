#include "client/errors.h"

#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace muster {

struct DistError::Detail {
  absl::Status status;
  std::vector<MemberInfo> culprits;
};

DistError::DistError(absl::Status status, std::vector<MemberInfo> culprits)
    : std::runtime_error(std::string(status.message())),
      detail_(std::make_shared<const Detail>(
          Detail{std::move(status), std::move(culprits)})) {}

const absl::Status& DistError::status() const noexcept {
  return detail_->status;
}

const std::vector<MemberInfo>& DistError::culprits() const noexcept {
  return detail_->culprits;
}

}  // namespace muster
