// Combines the options, the URL and the environment of InitProcessGroup into
// one plan.

#ifndef MUSTER_CLIENT_GROUPS_INIT_METHOD_H_
#define MUSTER_CLIENT_GROUPS_INIT_METHOD_H_

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "client/control/endpoint.h"
#include "muster/base/status.h"

namespace muster::internal {

// getenv, or a test's replacement. Null if the variable is unset.
using Environment = std::function<const char*(const char* name)>;

struct InitRequest {
  // As in InitProcessGroupOptions.
  std::string init_method = {};
  int world_size = -1;
  int rank = -1;
  std::string job = {};
  int min_world_size = -1;
  int max_world_size = -1;
  bool has_last_call = false;
};

struct InitPlan {
  // The coordinator's address; unused with a file.
  Endpoint endpoint = {};
  // The coordinators besides it that may have the job.
  std::vector<Endpoint> others = {};
  // The file in which rank 0 stores the coordinator's address; else empty.
  std::string file = {};
  std::string job = {};
  // -1: the coordinator assigns a rank.
  int rank = -1;
  // -1: any size from min_world_size to max_world_size.
  int world_size = -1;
  int min_world_size = -1;
  int max_world_size = -1;
  // The number of the launcher's attempt if it serves the store for env://; it
  // separates the attempts' keys. 0: none.
  int64_t attempt = 0;
  // Rank 0 serves the coordinator at `endpoint`.
  bool embedded = false;

  // Returns `endpoint` and `others`.
  std::vector<Endpoint> Addresses() const;
};

// Whether the launcher serves the store instead of rank 0: the value of
// TORCHELASTIC_USE_AGENT_STORE. kInvalidArgument: not True or False.
StatusOr<bool> IsAgentsStore(const Environment& environment);

// Errors: kInvalidArgument, with c10d's text if c10d has the same error.
StatusOr<InitPlan> PlanInit(const InitRequest& request,
                            const Environment& environment);

}  // namespace muster::internal

#endif  // MUSTER_CLIENT_GROUPS_INIT_METHOD_H_
