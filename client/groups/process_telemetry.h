// Serves this process's metrics and debug pages on behalf of the SDK.

#ifndef MUSTER_CLIENT_GROUPS_PROCESS_TELEMETRY_H_
#define MUSTER_CLIENT_GROUPS_PROCESS_TELEMETRY_H_

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "dataplane/observe/metrics.h"
#include "muster/base/status.h"
#include "muster/session.h"

namespace muster::worker {
class Telemetry;
}  // namespace muster::worker

namespace muster::internal {

// Serves while it exists. If the address is not loopback, the pages below
// /debug/ require the token with which this process authenticates to the
// coordinator; without such a token these pages are always refused.
class Telemetry {
 public:
  // Listens on `port` (0: any free one), or else on MUSTER_HTTP_PORT. Returns
  // null if neither is set.
  // Errors: kInvalidArgument (a variable's value), kUnavailable (cannot
  // listen).
  static StatusOr<std::unique_ptr<Telemetry>> Start(std::optional<int> port);

  // host:port.
  const std::string& address() const;

  // May outlive this object.
  std::shared_ptr<dataplane::Metrics> metrics() const;

  void SetRank(int rank, int world_size);

  // Sets the source of /debug/groups.
  void SetProgress(std::function<std::vector<GroupProgress>()> progress);

 private:
  class Groups;

  Telemetry(std::shared_ptr<Groups> groups,
            std::shared_ptr<worker::Telemetry> server);

  const std::shared_ptr<Groups> groups_;
  const std::shared_ptr<worker::Telemetry> server_;
};

}  // namespace muster::internal

#endif  // MUSTER_CLIENT_GROUPS_PROCESS_TELEMETRY_H_
