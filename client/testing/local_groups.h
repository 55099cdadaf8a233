// A process group whose ranks are threads of one process, for tests of code
// that uses a group and needs no coordinator.

#ifndef MUSTER_CLIENT_TESTING_LOCAL_GROUPS_H_
#define MUSTER_CLIENT_TESTING_LOCAL_GROUPS_H_

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "muster/process_group.h"

namespace muster::testing {

// A non-default group of global ranks 0, 10, 20, ... over gloo. It has no
// session, so no monitored barriers. Over another backend rank i has device i.
class LocalGroups {
 public:
  explicit LocalGroups(
      int size, std::chrono::milliseconds timeout = std::chrono::seconds(60),
      const std::string& backend = "gloo");
  // Has these global ranks, which ascend, over gloo.
  explicit LocalGroups(const std::vector<int>& ranks);
  ~LocalGroups();

  LocalGroups(const LocalGroups&) = delete;
  LocalGroups& operator=(const LocalGroups&) = delete;

  // Rank `rank`'s object of the group.
  const std::shared_ptr<ProcessGroup>& at(int rank) const;

  static int GlobalRank(int rank) { return 10 * rank; }

  // The object that represents a group without this process.
  static std::shared_ptr<ProcessGroup> NonMember();

  // Calls `body` for each rank on a thread of its own, with the rank in the
  // group. Returns the DistError's text for each rank, or "".
  std::vector<std::string> OnEachRank(
      const std::function<void(const std::shared_ptr<ProcessGroup>&, int)>&
          body);

  // Ends rank `rank`'s membership.
  void Leave(int rank);

 private:
  LocalGroups(const std::vector<int>& ranks, std::chrono::milliseconds timeout,
              const std::string& backend);

  std::vector<std::shared_ptr<ProcessGroup>> groups_;
};

}  // namespace muster::testing

#endif  // MUSTER_CLIENT_TESTING_LOCAL_GROUPS_H_
