#ifndef MUSTER_DATAPLANE_BACKENDS_GLOO_GLOO_BACKEND_H_
#define MUSTER_DATAPLANE_BACKENDS_GLOO_GLOO_BACKEND_H_

#include <memory>

#include "absl/status/statusor.h"
#include "dataplane/backend.h"

namespace muster::dataplane {

// CPU tensors over TCP, with Gloo as the transport. See CreateBackend.
absl::StatusOr<std::unique_ptr<Backend>> CreateGlooBackend(
    const BackendOptions& options);

}  // namespace muster::dataplane

#endif  // MUSTER_DATAPLANE_BACKENDS_GLOO_GLOO_BACKEND_H_
