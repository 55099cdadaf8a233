// The monitored barrier of a group.

#include <cstddef>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "client/errors.h"
#include "client/control/deadline.h"
#include "client/groups/error_resolver.h"
#include "client/groups/group_state.h"
#include "client/control/stream_session.h"
#include "client/control/throw.h"
#include "client/control/verbs.h"

namespace muster::internal {

using std::chrono::milliseconds;

std::string GroupState::BarrierText(const absl::Status& status,
                                    milliseconds timeout) const {
  const Culprits missing = CulpritsOf(status);
  if (missing.empty()) return std::string(status.message());
  std::vector<int> ranks;
  for (const MemberInfo& member : missing.members) {
    if (ranks.size() < kRanksInTextMax) ranks.push_back(member.rank);
  }
  const size_t count = missing.size();
  const std::string more =
      count > ranks.size()
          ? absl::StrCat(" and ", count - ranks.size(), " more")
          : "";
  return absl::StrCat(
      "[Rank ", global_rank(), "]: ", count == 1 ? "Rank " : "Ranks ",
      absl::StrJoin(ranks, ", "), more, " failed to pass monitoredBarrier in ",
      timeout.count(), " ms: ", status.message());
}

void GroupState::MonitoredBarrier(milliseconds timeout, bool wait_all_ranks) {
  if (IsForOthers("monitored_barrier")) return;
  auto* const live = &LiveCommunicator();
  if (const absl::Status broken = live->status(); !broken.ok()) {
    ThrowFailure(broken);
  }
  if (size() == 1) return;
  const std::string name = timeout.count() == 0
                               ? options_.timeout_name
                               : "MonitoredBarrierOptions::timeout";
  if (timeout.count() == 0) timeout = options_.timeout;
  const absl::Status status = AwaitBarrier(
      session_->stream(), options_.name, BarrierName("monitored_barrier"),
      options_.generation, global_rank(), wait_all_ranks,
      Deadline::After(timeout, name));
  if (status.ok()) return;
  // The ranks do not mean the same; whoever is not there yet has no part in it.
  if (absl::IsInvalidArgument(status)) {
    Throw(Origin::kControl, absl::Status(status.code(), status.message()));
  }
  Throw(Origin::kControl,
        WithCulprits(absl::Status(status.code(), BarrierText(status, timeout)),
                     CulpritsOf(status)));
}

}  // namespace muster::internal
