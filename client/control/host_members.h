// Lists the members of a job on one host, for a program that supervises their
// processes.

#ifndef MUSTER_CLIENT_CONTROL_HOST_MEMBERS_H_
#define MUSTER_CLIENT_CONTROL_HOST_MEMBERS_H_

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "muster/base/status.h"
#include "muster/session.h"

namespace muster::internal {

class AdminClient;

// A member that is registered, or was a while ago.
struct HostMember {
  enum class State {
    kLive,
    // Declared lost by the coordinator; it did not say that it leaves.
    kLost,
    // Left, or reported its own failure.
    kGone,
  };
  int64_t pid = 0;
  uint64_t incarnation = 0;
  State state = State::kLive;
  // Time since the coordinator last heard from the member.
  std::chrono::milliseconds silent_for{0};
  // Why it departed; empty if it is live.
  std::string cause = {};
};

struct HostMembers {
  std::vector<HostMember> members;
  // A member that is silent for this long is lost; 0: there is no such job, so
  // there are no members.
  std::chrono::milliseconds lease{0};
  // The rendezvous in progress, on all hosts: its world size (0: none is in
  // progress), and how many members wait in it.
  int forming_world_size = 0;
  int joined = 0;
  // The ranks that have not come, ascending. Only of a static rendezvous, in
  // which every waiting member claims a rank.
  std::vector<int> missing_ranks = {};
  // The members that the rendezvous waits for, on all hosts, as text.
  std::string waiting = {};
};

// Reads the members from the coordinator with unary calls. Does not join the
// job. Used by one thread.
class HostMembersReader {
 public:
  // As AdminClient::Open.
  static StatusOr<std::unique_ptr<HostMembersReader>> Open(
      const SessionOptions& options);

  ~HostMembersReader();
  HostMembersReader(const HostMembersReader&) = delete;
  HostMembersReader& operator=(const HostMembersReader&) = delete;

  // Reads the members of options.job on `host`. If `host` is empty, reads no
  // members, only the state of the rendezvous. missing_ranks is about the
  // `rank_count` ranks from `first_rank` on and needs a host.
  // Errors: kUnavailable, and the coordinator's errors.
  StatusOr<HostMembers> Read(const std::string& host, int first_rank = 0,
                             int rank_count = 0);

 private:
  HostMembersReader(std::string job, std::unique_ptr<AdminClient> control);

  const std::string job_;
  const std::unique_ptr<AdminClient> admin_client_;
};

}  // namespace muster::internal

#endif  // MUSTER_CLIENT_CONTROL_HOST_MEMBERS_H_
