#include "client/control/host_members.h"

#include <utility>

#include "client/control/admin_client.h"
#include "muster/v1/admin.pb.h"

namespace muster::internal {
namespace {

using std::chrono::milliseconds;

HostMember::State ToState(v1::MemberState state) {
  switch (state) {
    case v1::MEMBER_STATE_ALIVE:
    case v1::MEMBER_STATE_DISCONNECTED:
      return HostMember::State::kLive;
    case v1::MEMBER_STATE_LOST:
      return HostMember::State::kLost;
    default:
      return HostMember::State::kGone;
  }
}

}  // namespace

StatusOr<std::unique_ptr<HostMembersReader>> HostMembersReader::Open(
    const SessionOptions& options) {
  StatusOr<std::unique_ptr<AdminClient>> control = AdminClient::Open(options);
  if (!control.ok()) return control.status();
  return std::unique_ptr<HostMembersReader>(
      new HostMembersReader(options.job, *std::move(control)));
}

HostMembersReader::HostMembersReader(std::string job,
                                     std::unique_ptr<AdminClient> control)
    : job_(std::move(job)), admin_client_(std::move(control)) {}

HostMembersReader::~HostMembersReader() = default;

StatusOr<HostMembers> HostMembersReader::Read(const std::string& host,
                                              int first_rank, int rank_count) {
  v1::GetJobRequest request;
  request.set_job(job_);
  request.set_host(host);
  request.set_first_rank(first_rank);
  request.set_rank_count(rank_count);
  v1::GetJobResponse response;
  Status status = admin_client_->GetJob(request, &response);
  HostMembers found;
  if (IsNotFound(status)) return found;
  if (!status.ok()) return status;
  found.lease = std::chrono::seconds(response.lease().seconds()) +
                std::chrono::duration_cast<milliseconds>(
                    std::chrono::nanoseconds(response.lease().nanos()));
  found.forming_world_size = response.forming_world_size();
  found.joined = response.joined();
  found.waiting = response.rendezvous_waiting();
  if (host.empty()) return found;
  found.missing_ranks.assign(response.missing_ranks().begin(),
                             response.missing_ranks().end());
  for (const v1::MemberInfo& member : response.members()) {
    // Other implementations may return the members of all hosts.
    if (member.host() != host) continue;
    found.members.push_back({.pid = member.pid(),
                             .incarnation = member.incarnation(),
                             .state = ToState(member.state()),
                             .silent_for = milliseconds(member.silent_ms()),
                             .cause = member.cause()});
  }
  return found;
}

}  // namespace muster::internal
