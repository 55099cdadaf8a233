// The progress of a member's collectives, as it last reported it.

#ifndef MUSTER_COORDINATOR_CORE_PROGRESS_H_
#define MUSTER_COORDINATOR_CORE_PROGRESS_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "coordinator/core/instant.h"

namespace muster::coordinator::core {

// A running send or receive.
struct PeerCall {
  bool sends = false;
  int64_t number = 0;  // among the sends and receives of the group
  int32_t peer = 0;    // a rank of the group; negative: any
};

// GroupProgress is one group's line in a heartbeat.
struct GroupProgress {
  std::string group{};
  int64_t last_enqueued = 0;   // sequence number of the group's collectives
  int64_t last_completed = 0;  // sequence number
  // The oldest collective that is not complete, such as
  // `all_reduce float32[1024]`. Empty: none.
  std::string current{};
  // How long `current` had been running when the heartbeat was sent.
  Duration current_age{};
  // Set if `current` is a send or a receive.
  std::optional<PeerCall> peer_call{};
  // If `current` is a collective: equal on ranks that passed the same
  // arguments. Older clients do not send it.
  std::optional<uint64_t> arguments_hash{};
};

// Returns `group "world": 417 of 418 done, in all_reduce float32[1024] for
// 12s`, or "" if there is no progress. If there are several groups, shows
// `group`. If the rank is in none of that group's collectives but in one of
// another group, adds that one (`; in broadcast #7 on group "tp" for 3s`). If
// `group` is not among them, shows the group that has been in its collective
// for longest. Then `(2 more groups)`. `age` is the time since the heartbeat.
std::string DescribeProgress(const std::vector<GroupProgress>& progress,
                             Duration age, absl::string_view group = "");

// Returns the memory that `progress` takes.
int64_t CountBytes(const std::vector<GroupProgress>& progress);

// Drops all but the group that has been in its collective for longest.
void KeepLongest(std::vector<GroupProgress>& progress);

}  // namespace muster::coordinator::core

#endif  // MUSTER_COORDINATOR_CORE_PROGRESS_H_
