#ifndef MUSTER_DATAPLANE_TESTING_LOCAL_WORLD_H_
#define MUSTER_DATAPLANE_TESTING_LOCAL_WORLD_H_

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/status.h"
#include "dataplane/communicator.h"

namespace muster::dataplane::testing {

struct LocalWorldOptions {
  std::string backend = "gloo";
  int world_size = 2;
  std::string group_name = "world";
  std::chrono::milliseconds default_timeout = std::chrono::seconds(60);
  std::chrono::milliseconds create_timeout = std::chrono::seconds(60);
};

// A group whose ranks are threads of this process, at AddressOf each.
class LocalWorld {
 public:
  // Creates every rank's communicator, at the same time. A rank that cannot
  // join is a failed CHECK.
  explicit LocalWorld(LocalWorldOptions options);

  int world_size() const { return options_.world_size; }
  const std::string& backend() const { return options_.backend; }
  Communicator& at(int rank) { return *communicators_[rank]; }

  // Calls `body` once per rank that is left, each on a thread of its own, and
  // returns when all have returned.
  void OnEachRank(const std::function<void(Communicator&)>& body);

  // Ends rank `rank`'s membership.
  void Destroy(int rank) { communicators_[rank].reset(); }

 private:
  const LocalWorldOptions options_;
  std::vector<std::unique_ptr<Communicator>> communicators_;
};

}  // namespace muster::dataplane::testing

#endif  // MUSTER_DATAPLANE_TESTING_LOCAL_WORLD_H_
