#include "dataplane/factory.h"

#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "dataplane/backends/gloo/gloo_backend.h"

namespace muster::dataplane {

std::vector<std::string> BuiltInBackends() { return {"gloo"}; }

absl::StatusOr<std::unique_ptr<Backend>> CreateBackend(
    absl::string_view name, const BackendOptions& options) {
  if (name == "gloo") return CreateGlooBackend(options);
  return absl::InvalidArgumentError(absl::StrCat(
      "unknown backend \"", name,
      "\"; this program has: ", absl::StrJoin(BuiltInBackends(), ", ")));
}

}  // namespace muster::dataplane
