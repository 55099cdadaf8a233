// The contents of answers, besides their status.

#ifndef MUSTER_COORDINATOR_CORE_PAYLOAD_H_
#define MUSTER_COORDINATOR_CORE_PAYLOAD_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "coordinator/core/ids.h"
#include "coordinator/core/instant.h"
#include "coordinator/core/rank_ranges.h"
#include "muster/base/status.h"

namespace muster::coordinator::core {

// The immutable bytes of a key. Shared, so that a thousand released waiters
// need one copy. Null: there is no such key.
using Value = std::shared_ptr<const std::string>;

// Set, Append, MultiSet, QueuePush. Revisions count the changes of a job's
// store.
struct RevisionReply {
  int64_t revision = 0;
};

// Get, TryGet. QueuePop: the item, and the revision in which it was taken.
struct ValueReply {
  Value value;           // null only from TryGet
  int64_t revision = 0;  // of the key's last mutation
};

// MultiGet, in the order of its keys.
struct ValuesReply {
  std::vector<ValueReply> values;
};

// Add: the sum. NumKeys: the number of keys. DeletePrefix: how many keys were
// deleted. QueueLen: the number of items.
struct NumberReply {
  int64_t number = 0;
  int64_t revision = 0;
};

// Check: all keys are there. DeleteKey: there was something to delete.
struct FlagReply {
  bool flag = false;
  int64_t revision = 0;  // of the store
};

struct CompareSetReply {
  Value value;  // see StoreEngine::CompareSet and CompareAndSet
  bool stored = false;
  int64_t revision = 0;  // of the key; 0 when it is absent
};

struct KeysReply {
  std::vector<std::string> keys;  // ascending
  bool more = false;              // there are keys after the last one
  int64_t revision = 0;           // of the store: a watch can go on from it
};

// How a key changed. All kinds but kPut are deletions and name the cause.
enum class ChangeKind : uint8_t {
  kPut,       // written, by any verb
  kDeleted,   // DeleteKey, DeletePrefix
  kExpired,   // its time to live was over
  kOrphaned,  // it was ephemeral, and its member has departed
};

// One change of one key's value.
struct StoreChange {
  ChangeKind kind = ChangeKind::kPut;
  std::string key;
  Value value;           // null unless kPut
  int64_t revision = 0;  // several keys of one MultiSet have the same
};

// Watch: all selected changes after the request's revision and up to
// `revision`, in the order in which they happened.
struct WatchReply {
  std::vector<std::shared_ptr<const StoreChange>> changes;
  int64_t revision = 0;  // where to continue
};

struct RegisterReply {
  CoordinatorEpoch epoch;
  Duration lease{};
  Generation generation;            // the newest one
  bool generation_running = false;  // it has not ended
  std::optional<Rank> rank;         // the caller's in that generation
  int32_t waiting = 0;              // members in the rendezvous
};

struct HeartbeatReply {
  Generation generation;
  bool generation_running = false;
  int32_t waiting = 0;  // members in the rendezvous
};

// One member's place in a formation.
struct Seat {
  MemberId member;
  Incarnation incarnation;
  std::string host;
  int64_t pid = 0;
  std::string address;  // the opaque bytes that the member passed to Join
};

// Formation is the outcome of a rendezvous, the same for all its members.
struct Formation {
  Generation generation;
  std::vector<Seat> world;                      // by rank
  absl::flat_hash_map<MemberId, Rank> ranks{};  // by member; see RankAll
};

// Fills in `ranks` when `world` is complete.
inline void RankAll(Formation& formation) {
  for (size_t i = 0; i < formation.world.size(); ++i) {
    formation.ranks.emplace(formation.world[i].member,
                            Rank(static_cast<int32_t>(i)));
  }
}

using FormationReply = std::shared_ptr<const Formation>;

enum class BarrierOutcome {
  kReleased,    // OK
  kTimedOut,    // DEADLINE_EXCEEDED
  kMemberLost,  // ABORTED: a participant was lost, failed, left or replaced
  kConflict,    // INVALID_ARGUMENT: two callers disagree about the arguments
  kAborted,     // ABORTED: a new generation began
};

enum class MissingCause {
  kLate,      // registered and heard of, but it did not arrive
  kLost,      // no heartbeat, or its connection closed
  kFailed,    // it reported a failure
  kLeft,      // it left
  kReplaced,  // another incarnation has taken its name
};

struct MissingRank {
  Rank rank;
  MemberId member;
  std::string host;
  int64_t pid = 0;
  MissingCause cause = MissingCause::kLate;
  std::string cause_text;     // empty for kLate
  std::string last_progress;  // DescribeProgress; empty when it never sent any
  Duration last_heard_ago{};
};

// BarrierResult is the decision about one barrier instance, the same for every
// caller.
struct BarrierResult {
  std::string group;
  std::string barrier;
  int64_t instance = 0;  // from 1 within (generation, group, barrier)
  BarrierOutcome outcome = BarrierOutcome::kReleased;
  int32_t expected = 0;
  int32_t arrived = 0;
  Rank first_to_arrive;
  Duration waited{};  // from the first arrival to the decision
  // Descriptions of some of the `expected - arrived` missing ranks, by rank. If
  // more are missing than a text names (kRanksInTextMax), first the ranks that
  // cannot arrive any more, then the others. Every caller gets the
  // descriptions, so there are at most kMissingInResultMax, and they hold not
  // much more than kMissingInResultBytes.
  std::vector<MissingRank> missing;
  // All other missing ranks.
  RankRanges others;
};

inline constexpr size_t kMissingInResultMax = 32;
inline constexpr size_t kMissingInResultBytes = 16 << 10;

// The memory of a result while it is kept.
inline size_t CountBytes(const MissingRank& missing) {
  return sizeof(missing) + missing.member.value().size() + missing.host.size() +
         missing.cause_text.size() + missing.last_progress.size();
}
inline int64_t CountBytes(const BarrierResult& result) {
  size_t bytes = sizeof(result) + result.group.size() + result.barrier.size();
  for (const MissingRank& missing : result.missing)
    bytes += CountBytes(missing);
  bytes += sizeof(result.others[0]) * result.others.size();
  return static_cast<int64_t>(bytes);
}

using BarrierReply = std::shared_ptr<const BarrierResult>;

// A rank that no member joined for in a rendezvous that timed out.
struct AbsentRank {
  Rank rank;
  // The last holder of the rank; empty: none.
  MemberId member;
  std::string host;
  int64_t pid = 0;
  // Why the last holder is gone; empty: it is not.
  std::string cause;
};

// All absent ranks. The first kMissingInResultMax are described.
struct Absence {
  std::vector<AbsentRank> described;
  RankRanges others;
};

using AbsenceReply = std::shared_ptr<const Absence>;

// RegisterGroups, in the order of its groups: the number of ranks that have
// registered each group, the caller included.
struct GroupsReply {
  std::vector<int32_t> registered;
};

// A member's report that it cannot go on, or an error that ends a group.
struct FailureReport {
  std::string text{};  // for people
  // The error's code and payloads, opaque here. OK if there is only the text,
  // and the member itself is to blame. The message is not used.
  Status verdict{};
  // Replaces the culprits in `verdict`: `missing` and `others` of a result.
  BarrierReply culprits{};
  // Without `culprits`: ranks of those in `verdict`; of very many some. Not
  // kept in records.
  std::vector<Rank> blames{};
};

// The end of a group, the same for all its members. If the verdict in `error`
// is OK there is none yet, and `error.text` tells why it is sought.
struct GroupFailure {
  Generation generation{};
  std::string group{};
  std::string instance{};
  FailureReport error{};
};

// ReportGroupFailure: the verdict; null: none yet.
using GroupFailureReply = std::shared_ptr<const GroupFailure>;

// A failed call has std::monostate, except a failed barrier, which has its
// result, and a join that timed out.
using Payload =
    std::variant<std::monostate, RevisionReply, ValueReply, ValuesReply,
                 NumberReply, FlagReply, CompareSetReply, KeysReply, WatchReply,
                 RegisterReply, HeartbeatReply, FormationReply, BarrierReply,
                 AbsenceReply, GroupsReply, GroupFailureReply>;

}  // namespace muster::coordinator::core

#endif  // MUSTER_COORDINATOR_CORE_PAYLOAD_H_
