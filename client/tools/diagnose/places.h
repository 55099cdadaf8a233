// The progress of each rank of a job in each group, as the rank last reported
// it to the coordinator.

#ifndef MUSTER_CLIENT_TOOLS_DIAGNOSE_PLACES_H_
#define MUSTER_CLIENT_TOOLS_DIAGNOSE_PLACES_H_

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

// "34.0s".
std::string SecondsText(std::chrono::milliseconds duration);

// Whether the coordinator has given it up, or it has left.
bool IsGone(const v1::MemberInfo& member);

// After so long one of a member's heartbeats is missing: they are a third of
// the lease apart.
std::chrono::milliseconds SilentAfter(const v1::GetJobResponse& job);

// What is new with a member is told within so long: it looks at its groups ten
// times in a lease.
std::chrono::milliseconds ToldWithin(const v1::GetJobResponse& job);

// As peer of a receive: whoever sends first.
inline constexpr int kAnyPeer = -1;

// One rank's place in one group. Refers to the job that it is of.
struct Place {
  int rank = -1;
  const v1::MemberInfo* member = nullptr;
  const v1::MemberProgress* progress = nullptr;  // of all its groups
  const v1::GroupProgress* group = nullptr;      // null: it has said nothing
  std::chrono::milliseconds age{0};              // of both
  // Whether it is so old that the rank may be elsewhere by now.
  bool stale = false;
  // What runs, if that is a send or a receive. The peer is a rank of the job.
  std::optional<v1::PeerCall> peer_call;

  // Whether the coordinator has heard of any group of it. It has not, of all
  // of a job, for some seconds after it was restarted.
  bool told() const { return progress != nullptr && progress->has_age(); }
  int64_t enqueued() const;
  int64_t completed() const;
  // Whether any call of the group runs; a collective; the call that makes the
  // group; what it is.
  bool in_call() const;
  bool in_collective() const;
  bool connecting() const;
  const std::string& call() const;
  // How long it has been in it. What is stale tells how long it had been.
  std::chrono::milliseconds running_for() const;
};

// Of all ranks of the group, ascending.
std::vector<Place> PlacesIn(const v1::GetJobResponse& job,
                            const std::string& group);

// The groups that anybody has told of.
std::set<std::string> GroupNames(const v1::GetJobResponse& job);

}  // namespace muster::tools

#endif  // MUSTER_CLIENT_TOOLS_DIAGNOSE_PLACES_H_
