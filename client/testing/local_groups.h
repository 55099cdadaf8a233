// A process group whose ranks are threads of one process, for tests of what is
// built on a group and needs no coordinator.

#ifndef MUSTER_CLIENT_TESTING_LOCAL_GROUPS_H_
#define MUSTER_CLIENT_TESTING_LOCAL_GROUPS_H_

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "client/process_group.h"

namespace muster::testing {

// The group of global ranks 0, 10, 20, ... over gloo, as one beside a default
// group is: it has no session, so no monitored barriers. Over another backend
// rank i has device i.
class LocalGroups {
 public:
  explicit LocalGroups(
      int size, std::chrono::milliseconds timeout = std::chrono::seconds(60),
      const std::string& backend = "gloo");
  ~LocalGroups();

  LocalGroups(const LocalGroups&) = delete;
  LocalGroups& operator=(const LocalGroups&) = delete;

  // The end of the group's rank `rank`.
  const std::shared_ptr<ProcessGroup>& at(int rank) const;

  static int GlobalRank(int rank) { return 10 * rank; }

  // What stands for a group that a process is not in.
  static std::shared_ptr<ProcessGroup> NonMember();

  // Calls `body` once per rank, each on a thread of its own, with the rank in
  // the group. Returns what each has thrown: "" or the DistError's text.
  std::vector<std::string> OnEachRank(
      const std::function<void(const std::shared_ptr<ProcessGroup>&, int)>&
          body);

  // Ends rank `rank`'s membership.
  void Leave(int rank);

 private:
  std::vector<std::shared_ptr<ProcessGroup>> groups_;
};

}  // namespace muster::testing

#endif  // MUSTER_CLIENT_TESTING_LOCAL_GROUPS_H_
