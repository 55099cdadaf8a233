#include "dataplane/backends/gloo/gloo_backend.h"

#include <memory>

#include "absl/status/status.h"

namespace muster::dataplane {

absl::StatusOr<std::unique_ptr<Backend>> CreateGlooBackend(
    const BackendOptions& options) {
  return absl::UnimplementedError("the gloo backend is not built in");
}

}  // namespace muster::dataplane
