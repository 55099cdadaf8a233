// The types of identifiers in a job. Each kind is a type of its own, so that
// swapped arguments do not compile.

#ifndef MUSTER_COORDINATOR_CORE_IDS_H_
#define MUSTER_COORDINATOR_CORE_IDS_H_

#include <compare>
#include <cstdint>
#include <ostream>
#include <string>
#include <utility>

namespace muster::coordinator::core {

// Id wraps a T so that ids of different Tags neither convert into each other
// nor into T. A default-constructed id holds T's zero, which every kind of id
// below reads as "none".
template <typename Tag, typename T>
class Id {
 public:
  Id() = default;
  explicit Id(T value) : value_(std::move(value)) {}

  const T& value() const { return value_; }

  friend bool operator==(const Id& a, const Id& b) = default;
  friend auto operator<=>(const Id& a, const Id& b) = default;

  template <typename H>
  friend H AbslHashValue(H state, const Id& id) {
    return H::combine(std::move(state), id.value_);
  }

  friend std::ostream& operator<<(std::ostream& out, const Id& id) {
    return out << id.value_;
  }

 private:
  T value_{};
};

// The index of a member in its generation, 0 to world size - 1.
using Rank = Id<struct RankTag, int32_t>;

// The name of a registered process. Empty: a plain client of the store.
using MemberId = Id<struct MemberIdTag, std::string>;

// Random number of one registration. A member that comes back after it was
// lost, failed, left or was replaced needs a new one.
using Incarnation = Id<struct IncarnationTag, uint64_t>;

// One call that waits for its answer. The driver numbers its calls; an id is
// used for one call only. 0: none.
using WaiterId = Id<struct WaiterIdTag, uint64_t>;

// Number of a successful rendezvous, from 1. 0: none yet.
using Generation = Id<struct GenerationTag, int64_t>;

// Number that a member gives to a mutation, from 1. A retry has the same
// number. 0: none, never deduplicated.
using SequenceNumber = Id<struct SequenceNumberTag, uint64_t>;

// Random number of one life of a job. A client that comes back to another life
// has lost its keys, ranks and barriers.
using JobEpoch = Id<struct JobEpochTag, uint64_t>;

// Random number of one start of the coordinator.
using CoordinatorEpoch = Id<struct CoordinatorEpochTag, uint64_t>;

}  // namespace muster::coordinator::core

#endif  // MUSTER_COORDINATOR_CORE_IDS_H_
