#ifndef MUSTER_DATAPLANE_FACTORY_H_
#define MUSTER_DATAPLANE_FACTORY_H_

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "dataplane/backend.h"

namespace muster::dataplane {

// Names of the backends in this program, sorted.
std::vector<std::string> BuiltInBackends();

// Joins the group that `options` describes and returns this rank's backend,
// connected to every peer. Blocks until then, at most until options.deadline.
// Errors: kInvalidArgument (unknown `name`, bad options), kDeadlineExceeded
// (naming the ranks that did not come or did not connect), kUnavailable (no
// usable address, connection refused), and what the store answers.
absl::StatusOr<std::unique_ptr<Backend>> CreateBackend(
    absl::string_view name, const BackendOptions& options);

}  // namespace muster::dataplane

#endif  // MUSTER_DATAPLANE_FACTORY_H_
