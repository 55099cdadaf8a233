#include "client/control/throw.h"

#include <algorithm>
#include <chrono>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "client/control/convert.h"
#include "muster/v1/common.pb.h"
#include "proto/muster/v1/status_wire.h"

namespace muster::internal {

void Throw(ErrorSource source, Status status) {
  auto [culprits, others] = ToCulprits(status);
  if (IsUnavailable(status)) {
    throw DistNetworkError(std::move(status), std::move(culprits), others);
  }
  switch (source) {
    case ErrorSource::kStore:
      throw DistStoreError(std::move(status), std::move(culprits), others);
    case ErrorSource::kBackend:
      throw DistBackendError(std::move(status), std::move(culprits), others);
    case ErrorSource::kControl:
      break;
  }
  throw DistError(std::move(status), std::move(culprits), others);
}

void Invalid(std::string text) {
  Throw(ErrorSource::kControl, InvalidArgumentError(std::move(text)));
}

std::string ItemOrThrow(StatusOr<std::string> item) {
  if (IsNotFound(item.status())) {
    throw QueueEmptyError(item.status());
  }
  return ValueOrThrow(ErrorSource::kStore, std::move(item));
}

void ThrowNegative(std::chrono::milliseconds timeout, absl::string_view name) {
  Throw(ErrorSource::kControl,
        InvalidArgumentError(absl::StrCat(
            name, " must not be negative but was ", timeout.count(), " ms")));
}

size_t Culprits::size() const {
  size_t size = members.size();
  for (const RankRange& range : others) {
    size += static_cast<size_t>(range.count);
  }
  return size;
}

bool Culprits::Include(int rank) const {
  return std::any_of(members.begin(), members.end(),
                     [&](const MemberInfo& m) { return m.rank == rank; }) ||
         std::any_of(others.begin(), others.end(), [&](const RankRange& range) {
           return rank >= range.first && rank - range.first < range.count;
         });
}

Status WithCulprits(Status status, const Culprits& culprits) {
  if (culprits.empty()) return status;
  v1::Culprits proto;
  for (const MemberInfo& member : culprits.members) {
    *proto.add_members() = ToProto(member);
  }
  *proto.mutable_others() = ToProto(culprits.others);
  v1::SetCulprits(proto, &status);
  return status;
}

Culprits ToCulprits(const Status& status) {
  Culprits culprits;
  const absl::optional<v1::Culprits> proto = v1::GetCulprits(status);
  if (!proto.has_value()) return culprits;
  for (const v1::MemberInfo& member : proto->members()) {
    culprits.members.push_back(FromProto(member));
  }
  culprits.others = FromProto(proto->others());
  return culprits;
}

}  // namespace muster::internal
