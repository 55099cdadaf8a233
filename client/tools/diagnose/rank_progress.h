// The progress of each rank of a job in each group, as the rank last reported
// it to the coordinator.

#ifndef MUSTER_CLIENT_TOOLS_DIAGNOSE_RANK_PROGRESS_H_
#define MUSTER_CLIENT_TOOLS_DIAGNOSE_RANK_PROGRESS_H_

#include <chrono>
#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "google/protobuf/duration.pb.h"
#include "muster/v1/admin.pb.h"

namespace muster::tools {

std::chrono::milliseconds Ms(const google::protobuf::Duration& duration);

// Returns "34.0s".
std::string SecondsText(std::chrono::milliseconds duration);

// Whether the member has left, or the coordinator has given it up.
bool IsGone(const v1::MemberInfo& member);

// A member is silent after this time: at least one heartbeat is missing, since
// they are a third of the lease apart.
std::chrono::milliseconds SilentAfter(const v1::GetJobResponse& job);

// News of a member takes at most this long: it checks its groups ten times per
// lease.
std::chrono::milliseconds ToldWithin(const v1::GetJobResponse& job);

// The peer of a receive from any sender.
inline constexpr int kAnyPeer = -1;

// One rank's position in one group. Refers to the job's snapshot.
struct RankProgress {
  int rank = -1;
  const v1::MemberInfo* member = nullptr;
  const v1::MemberProgress* progress = nullptr;  // in all its groups
  const v1::GroupProgress* group = nullptr;      // null: no report
  std::chrono::milliseconds age{0};              // of both reports
  // Whether the report is so old that the rank may be elsewhere.
  bool stale = false;
  // The running send or receive, if any. The peer is a rank of the job.
  std::optional<v1::PeerCall> peer_call;

  // Whether the coordinator has a report about any group of this rank. It has
  // none of any rank for some seconds after its restart.
  bool told() const { return progress != nullptr && progress->has_age(); }
  int64_t enqueued() const;
  int64_t completed() const;
  // Whether the rank is in any call of the group, in a collective, or in the
  // call that makes the group.
  bool in_call() const;
  bool in_collective() const;
  bool connecting() const;
  const std::string& call() const;
  // How long the rank has been in the call; for a stale report, how long at
  // that time.
  std::chrono::milliseconds running_for() const;
};

// All ranks of the group, ascending.
std::vector<RankProgress> FindRankProgress(const v1::GetJobResponse& job,
                                           const std::string& group);

// All groups in the members' reports.
std::set<std::string> GroupNames(const v1::GetJobResponse& job);

}  // namespace muster::tools

#endif  // MUSTER_CLIENT_TOOLS_DIAGNOSE_RANK_PROGRESS_H_
