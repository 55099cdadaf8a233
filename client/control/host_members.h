// Lists the members of a job on one host, for a program that supervises their
// processes.

#ifndef MUSTER_CLIENT_CONTROL_HOST_MEMBERS_H_
#define MUSTER_CLIENT_CONTROL_HOST_MEMBERS_H_

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/status.h"
#include "client/session.h"

namespace muster::internal {

class AdminClient;

// One that is registered, or was until a while ago.
struct HostMember {
  enum class State {
    kLive,
    // The others were told that it is gone, and it did not say so itself.
    kLost,
    // It left, or reported its own failure.
    kGone,
  };
  int64_t pid = 0;
  uint64_t incarnation = 0;
  State state = State::kLive;
  // Since the coordinator last heard of it.
  std::chrono::milliseconds silent_for{0};
  // Of its departure.
  std::string cause = {};
};

struct HostMembers {
  std::vector<HostMember> members;
  // A member that is silent for this long is lost; 0: there is no such job, so
  // there are no members.
  std::chrono::milliseconds lease{0};
  // The rendezvous in progress, on all hosts: the world size that it is for (0:
  // none is in progress), and how many wait in it.
  int forming_world_size = 0;
  int joined = 0;
  // The asked ranks that it waits for, ascending, where each rank has a place
  // of its own.
  std::vector<int> missing_ranks = {};
  // For people, of no host in particular: whom that rendezvous waits for.
  std::string waiting = {};
};

// HostMembersReader fetches them from the coordinator with unary calls and does
// not join the job. Used by one thread.
class HostMembersReader {
 public:
  // As Control::Open.
  static StatusOr<std::unique_ptr<HostMembersReader>> Open(
      const SessionOptions& options);

  ~HostMembersReader();
  HostMembersReader(const HostMembersReader&) = delete;
  HostMembersReader& operator=(const HostMembersReader&) = delete;

  // Of options.job on `host`; empty: no members, and `waiting`. Which of
  // `rank_count` ranks from `first_rank` on are missing goes with a host.
  // Errors: kUnavailable, and what the coordinator says.
  StatusOr<HostMembers> Read(const std::string& host, int first_rank = 0,
                             int rank_count = 0);

 private:
  HostMembersReader(std::string job, std::unique_ptr<AdminClient> control);

  const std::string job_;
  const std::unique_ptr<AdminClient> admin_client_;
};

}  // namespace muster::internal

#endif  // MUSTER_CLIENT_CONTROL_HOST_MEMBERS_H_
