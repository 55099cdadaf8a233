// The state of a job as shown to operators.

#ifndef MUSTER_COORDINATOR_CORE_SNAPSHOT_H_
#define MUSTER_COORDINATOR_CORE_SNAPSHOT_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "coordinator/core/ids.h"
#include "coordinator/core/instant.h"
#include "coordinator/core/membership.h"
#include "coordinator/core/payload.h"
#include "coordinator/core/progress.h"
#include "coordinator/core/rank_ranges.h"

namespace muster::coordinator::core {

// The largest number of open barriers in a snapshot, and of ranks listed per
// barrier or group as missing. They are limited because a snapshot is made
// under the job's lock.
inline constexpr size_t kBarriersInSnapshotMax = 256;
inline constexpr size_t kMissingInSnapshotMax = 64;
inline constexpr int64_t kRanksInSnapshotMax = 1 << 17;
// The largest number of calls waiting for keys in a snapshot, the bytes shown
// of one key, and the number of keys looked up.
inline constexpr size_t kKeyWaitsInSnapshotMax = 1024;
inline constexpr size_t kKeyBytesInSnapshotMax = 256;
inline constexpr int64_t kLookupsInSnapshotMax = 1 << 17;

struct MemberSnapshot {
  MemberId id;
  Incarnation incarnation;
  MemberState state = MemberState::kAlive;
  std::optional<Rank> rank;  // in the newest generation
  Registration registration;
  Duration heard_ago{};
  std::string cause;          // why it departed
  std::string last_progress;  // DescribeProgress
  std::vector<GroupProgress> progress;
  Duration progress_age{};  // age of `progress`
};

struct BarrierSnapshot {
  std::string group;
  std::string barrier;
  int64_t instance = 0;
  int32_t expected = 0;
  int32_t arrived = 0;
  bool wait_all_ranks = false;
  Duration open_for{};
  Duration remaining{};
  std::vector<MissingRank> missing;  // the first ones, by rank
  // The missing ranks that are not in `missing`. Only for the first barriers,
  // whose participants are at most kRanksInSnapshotMax together.
  RankRanges others;
};

struct GroupSnapshot {
  std::string name;
  std::string description;
  std::shared_ptr<const std::vector<Rank>> ranks;
  int32_t registered = 0;
  std::vector<Rank> missing;  // the first ranks that have not registered
  // Time since the first registration; none: all were registered once, and
  // `missing` have left.
  std::optional<Duration> forming_for;
};

// A member's call that waits for keys.
struct KeyWaitSnapshot {
  MemberId member;
  std::string key;      // a missing key; its first bytes
  int64_t missing = 0;  // number of missing keys
  bool item = false;    // the key is a queue
  Duration waiting_for{};
};

struct JobSnapshot {
  Duration lease{};
  CoordinatorEpoch epoch;
  std::vector<MemberSnapshot> members;  // by name; the departed ones too

  Generation generation;
  bool generation_running = false;
  int32_t world_size = 0;                // of that generation
  int32_t forming_world_size = 0;        // of the current rendezvous; 0: none
  int32_t forming_min_world_size = 0;    // equal if it is static
  int32_t joined = 0;                    // members that wait in it
  std::vector<MemberId> joined_members;  // the first of them, by name
  std::vector<Rank> missing_ranks;       // if it is static; the first ones
  std::optional<Duration> last_call_remaining;  // until it forms; none: unknown
  std::string rendezvous_closed;                // by whom and why; empty: open
  std::string rendezvous_waiting;  // text about it; empty: nobody waits
  std::string generation_end;      // why it ended; empty: it has not

  std::vector<GroupSnapshot> groups;  // by name; of the newest generation
  int64_t open_barriers = 0;
  std::vector<BarrierSnapshot> barriers;   // those with the earliest deadlines
  std::vector<KeyWaitSnapshot> key_waits;  // the oldest
  int64_t more_key_waits = 0;              // not in `key_waits`

  int64_t keys = 0;
  int64_t queue_items = 0;
  int64_t store_bytes = 0;
  int64_t revision = 0;
  int64_t waiters = 0;
  int64_t retained_replies = 0;
};

// The few numbers that metrics read often; cheap.
struct JobCounts {
  int64_t live_members = 0;
  // By MemberState. Departed members count while they are remembered.
  std::array<int64_t, kMemberStateCount> members{};
  int32_t world_size = 0;  // of the newest generation
  int64_t keys = 0;
  int64_t store_bytes = 0;
  int64_t waiters = 0;
  int64_t open_barriers = 0;
  int64_t groups = 0;
  int64_t queue_items = 0;
  Generation generation;
  bool generation_running = false;
};

}  // namespace muster::coordinator::core

#endif  // MUSTER_COORDINATOR_CORE_SNAPSHOT_H_
