#include "client/internal/throw.h"

#include <chrono>
#include <cstdint>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "client/internal/convert.h"
#include "muster/v1/common.pb.h"
#include "proto/muster/v1/status_wire.h"

namespace muster::internal {

void Throw(Origin origin, absl::Status status) {
  std::vector<MemberInfo> culprits = CulpritsOf(status);
  if (absl::IsUnavailable(status)) {
    throw DistNetworkError(std::move(status), std::move(culprits));
  }
  switch (origin) {
    case Origin::kStore:
      throw DistStoreError(std::move(status), std::move(culprits));
    case Origin::kBackend:
      throw DistBackendError(std::move(status), std::move(culprits));
    case Origin::kControl:
      break;
  }
  throw DistError(std::move(status), std::move(culprits));
}

std::chrono::milliseconds CheckNotNegative(std::chrono::milliseconds timeout,
                                           absl::string_view name) {
  if (timeout.count() < 0) {
    Throw(Origin::kControl,
          absl::InvalidArgumentError(absl::StrCat(
              name, " must not be negative but was ", timeout.count(), " ms")));
  }
  return timeout;
}

absl::Status WithCulprits(absl::Status status,
                          const std::vector<MemberInfo>& culprits,
                          size_t omitted) {
  if (culprits.empty()) return status;
  v1::Culprits proto;
  for (const MemberInfo& culprit : culprits) {
    *proto.add_members() = ToProto(culprit);
  }
  proto.set_omitted(static_cast<int32_t>(omitted));
  v1::SetCulprits(proto, &status);
  return status;
}

size_t OmittedCulprits(const absl::Status& status) {
  const absl::optional<v1::Culprits> proto = v1::GetCulprits(status);
  return proto.has_value() && proto->omitted() > 0
             ? static_cast<size_t>(proto->omitted())
             : 0;
}

std::vector<MemberInfo> CulpritsOf(const absl::Status& status) {
  std::vector<MemberInfo> culprits;
  const absl::optional<v1::Culprits> proto = v1::GetCulprits(status);
  if (!proto.has_value()) return culprits;
  for (const v1::MemberInfo& member : proto->members()) {
    culprits.push_back(FromProto(member));
  }
  return culprits;
}

}  // namespace muster::internal
