// Combines the options, the URL and the environment of InitProcessGroup into
// one plan.

#ifndef MUSTER_CLIENT_GROUPS_INIT_METHOD_H_
#define MUSTER_CLIENT_GROUPS_INIT_METHOD_H_

#include <cstdint>
#include <functional>
#include <string>

#include "absl/strings/string_view.h"
#include "base/status.h"
#include "client/control/endpoint.h"

namespace muster::internal {

// getenv, or a test's stand-in: null when unset.
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
  // Of the coordinator; not with a file.
  Endpoint endpoint = {};
  // In which rank 0 tells where it serves the coordinator; else empty.
  std::string file = {};
  std::string job = {};
  // -1: the coordinator gives one out.
  int rank = -1;
  // -1: as many as come, between the next two.
  int world_size = -1;
  int min_world_size = -1;
  int max_world_size = -1;
  // With env:// and a launcher that serves the store: the number of the
  // launcher's attempt, whose keys are apart from those of others; 0: none.
  int64_t attempt = 0;
  // Rank 0 serves the coordinator at `endpoint`.
  bool embedded = false;
};

// Whether the launcher serves the store, so that rank 0 does not: what
// TORCHELASTIC_USE_AGENT_STORE says. kInvalidArgument: it is not True or False.
StatusOr<bool> IsAgentsStore(const Environment& environment);

// Errors: kInvalidArgument, with c10d's words where it has the same error.
StatusOr<InitPlan> PlanInit(const InitRequest& request,
                            const Environment& environment);

}  // namespace muster::internal

#endif  // MUSTER_CLIENT_GROUPS_INIT_METHOD_H_
