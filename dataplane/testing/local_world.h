#ifndef MUSTER_DATAPLANE_TESTING_LOCAL_WORLD_H_
#define MUSTER_DATAPLANE_TESTING_LOCAL_WORLD_H_

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "dataplane/communicator.h"
#include "muster/base/status.h"

namespace muster::dataplane::testing {

struct LocalWorldOptions {
  std::string backend = "gloo";
  int world_size = 2;
  std::string group_name = "world";
  std::chrono::milliseconds default_timeout = std::chrono::seconds(60);
  std::chrono::milliseconds create_timeout = std::chrono::seconds(60);
};

// A group whose ranks are threads of this process, each at its GetAddress.
class LocalWorld {
 public:
  // Creates all ranks' communicators concurrently. CHECK-fails if a rank cannot
  // join.
  explicit LocalWorld(LocalWorldOptions options);

  int world_size() const { return options_.world_size; }
  const std::string& backend() const { return options_.backend; }
  Communicator& at(int rank) { return *communicators_[rank]; }

  // Calls `body` once per rank that is not destroyed, each on its own thread,
  // and waits for all of them.
  void OnEachRank(const std::function<void(Communicator&)>& body);

  // Destroys the communicator of rank `rank`.
  void Destroy(int rank) { communicators_[rank].reset(); }

 private:
  const LocalWorldOptions options_;
  std::vector<std::unique_ptr<Communicator>> communicators_;
};

}  // namespace muster::dataplane::testing

#endif  // MUSTER_DATAPLANE_TESTING_LOCAL_WORLD_H_
