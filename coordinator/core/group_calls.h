// Compares the calls in which ranks of a generation wait for each other.

#ifndef MUSTER_COORDINATOR_CORE_GROUP_CALLS_H_
#define MUSTER_COORDINATOR_CORE_GROUP_CALLS_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/container/btree_map.h"
#include "absl/container/btree_set.h"
#include "coordinator/core/ids.h"
#include "coordinator/core/instant.h"
#include "coordinator/core/limits.h"
#include "coordinator/core/membership.h"
#include "coordinator/core/outbox.h"
#include "coordinator/core/payload.h"
#include "muster/base/status.h"

namespace muster::coordinator::core {

// A rank's state in a call, as in GroupCall of the protocol.
enum class GroupCallState { kWaits, kStillWaits, kPasses, kRefused, kGaveUp };

struct GroupCall {
  // Names the counter of `number`, or what the call makes.
  std::string series{};
  // Counts the calls of `series` that all ranks make in the same order, from 1;
  // 0: a call that only some ranks make.
  int64_t number = 0;
  // Distinguishes repetitions of a call without a number.
  int64_t instance = 0;
  GroupCallState state = GroupCallState::kWaits;
  // The ranks that wait for each other, ascending; empty: the whole world.
  std::vector<Rank> ranks{};
  // How many ranks make the call; 0: those that wait.
  int32_t callers = 0;
  // kRefused: the reason. Else the action: `makes group "1" of 1 rank (0)`.
  std::string arguments{};
  uint64_t arguments_hash = 0;
};

// GroupCallTable tells ranks that would wait for ever because they disagree:
//
//  - A rank waits in a call to which a rank that it waits for came with other
//    arguments, or which that rank refused.
//  - Two ranks wait for each other in different calls.
//
// A rank is compared with others when it says kStillWaits. Until then its
// partner may come in another thread, or with another number: numbers differ
// after a call that failed only on some ranks.
//
// One text then counts for all ranks that wait with the two, or come later; it
// is told to each once. Ranks that are gone count for nothing: one of the two
// ranks is about to learn that they are gone.
//
// A call is forgotten when all its callers have come and none waits in vain,
// and before that if there are too many (Limits). kStillWaits in a
// forgotten call is ignored. Nothing is durable: calls disagree only in a
// program with a bug, which ends with a timeout if the coordinator restarts
// just then. Once the table does not know all calls of a generation, it leaves
// different calls alone: a rank may have come to one that was forgotten.
class GroupCallTable {
 public:
  // Both must outlive the table.
  GroupCallTable(const Limits* limits, const Membership* membership);
  ~GroupCallTable();
  GroupCallTable(const GroupCallTable&) = delete;
  GroupCallTable& operator=(const GroupCallTable&) = delete;

  // Forgets all calls. Later ones are of `formation`. `is_new`: none of it was
  // made before.
  void Reset(FormationReply formation, bool is_new);

  // Notes what `rank` tells of a call. Errors: INVALID_ARGUMENT (malformed, or
  // the rank waits in vain: the text says which rank called what).
  Status Note(Rank rank, GroupCall call, Instant now, Outbox& out);

  // The rank cannot do the call, in which it waits; what counts in `call` is
  // what identifies it, and `callers`. Returns the error for the rank: that the
  // calls differ or, if it is not known that they do, `why`.
  Status NoteFailure(Rank rank, GroupCall call, const Status& why, Instant now,
                     Outbox& out);

  int64_t size() const { return static_cast<int64_t>(calls_.size()); }
  int64_t bytes() const { return bytes_; }

  Status CheckInvariants() const;

 private:
  struct Disagreement {
    std::string text;
    absl::btree_set<Rank> told;
  };

  // The arguments that some callers of a call pass. A refusal has one of its
  // own, without ranks.
  struct Variant {
    std::vector<Rank> ranks;
    std::string text;
    std::shared_ptr<Disagreement> disagreement;
    int32_t callers = 0;
  };

  // The refusing rank or -1, and the arguments' hash.
  using VariantKey = std::pair<int32_t, uint64_t>;

  enum class Stage { kWaits, kPasses, kEnded };

  struct Caller {
    VariantKey key;
    Variant* variant = nullptr;
    Stage stage = Stage::kWaits;
    std::optional<Instant> still_waits_at;
  };

  using CallKey = std::tuple<std::string, int64_t, int64_t>;

  struct NotedCall {
    int32_t callers_max = 0;
    absl::btree_map<VariantKey, std::unique_ptr<Variant>> variants;
    absl::btree_map<Rank, Caller> callers;
    int64_t bytes = 0;
    uint64_t used_at = 0;
  };

  using Calls = absl::btree_map<CallKey, std::unique_ptr<NotedCall>>;

  Status Check(const GroupCall& call) const;
  void Come(NotedCall& noted, Rank rank, GroupCall call);
  void Remove(NotedCall& noted, Rank rank);
  void Compare(NotedCall& noted, Rank rank, Outbox& out);
  void CompareWithOtherCalls(NotedCall& noted, Rank rank, Instant now,
                             Outbox& out);
  bool HasCome(Rank rank, const VariantKey& arguments) const;
  void Disagree(Rank rank, Variant& own, Rank other, Variant& theirs,
                Outbox& out);
  Status Tell(NotedCall& noted, Rank rank);
  bool IsOver(const NotedCall& noted) const;
  bool IsLive(Rank rank) const;
  // Whether the variants differ in more than ranks that are gone.
  bool Differ(const Variant& one, const Variant& other) const;
  std::string RankText(Rank rank) const;
  void Count(NotedCall& noted, int64_t bytes);
  void Use(const CallKey& key, NotedCall& noted);
  void Forget(const CallKey& key);

  const Limits& limits_;
  const Membership& membership_;
  FormationReply formation_;
  // No call of the generation was forgotten before all had come.
  bool knows_all_ = true;
  Calls calls_;
  // By used_at.
  absl::btree_map<uint64_t, CallKey> oldest_;
  uint64_t used_ = 0;
  int64_t bytes_ = 0;
};

}  // namespace muster::coordinator::core

#endif  // MUSTER_COORDINATOR_CORE_GROUP_CALLS_H_
