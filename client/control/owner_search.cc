#include "client/control/owner_search.h"

#include <algorithm>
#include <utility>

#include "proto/muster/v1/status_wire.h"

namespace muster::internal {
namespace {

// How many coordinators besides the list's may be asked without a pause.
constexpr size_t kNamedMax = 4;

}  // namespace

OwnerSearch::OwnerSearch(std::vector<Endpoint> addresses, uint64_t seed)
    : addresses_(std::move(addresses)), backoff_(seed) {
  current_ = TakeFromList();
}

void OwnerSearch::Found() {
  asked_.clear();
  backoff_.Reset();
}

std::chrono::milliseconds OwnerSearch::Next(const Status& why) {
  asked_.insert(current_.ToString());
  if (std::optional<Endpoint> owner = NamedOwner(why)) {
    current_ = *std::move(owner);
    const std::string name = current_.ToString();
    if (std::none_of(
            addresses_.begin(), addresses_.end(),
            [&](const Endpoint& each) { return each.ToString() == name; })) {
      owner_ = current_;
    }
  } else {
    current_ = TakeFromList();
  }
  if (!asked_.contains(current_.ToString()) &&
      asked_.size() < addresses_.size() + kNamedMax) {
    return std::chrono::milliseconds(0);
  }
  asked_.clear();
  return backoff_.Next();
}

Endpoint OwnerSearch::TakeFromList() {
  const size_t size = addresses_.size() + (owner_ ? 1 : 0);
  const auto at = [&](size_t i) -> const Endpoint& {
    return i < addresses_.size() ? addresses_[i] : *owner_;
  };
  next_ %= size;
  // If all were asked, it is the one whose turn it is.
  for (size_t i = 0; i < size; ++i) {
    const size_t each = (next_ + i) % size;
    if (asked_.contains(at(each).ToString())) continue;
    next_ = each;
    break;
  }
  return at(std::exchange(next_, (next_ + 1) % size));
}

std::optional<Endpoint> NamedOwner(const Status& why) {
  const absl::optional<v1::JobOwner> owner = v1::GetJobOwner(why);
  if (!owner || owner->address().empty()) return std::nullopt;
  StatusOr<Endpoint> endpoint = ParseEndpoint(owner->address());
  if (!endpoint.ok() || endpoint->port == 0) return std::nullopt;
  return *std::move(endpoint);
}

}  // namespace muster::internal
