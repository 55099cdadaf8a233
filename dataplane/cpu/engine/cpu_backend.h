#ifndef MUSTER_DATAPLANE_CPU_ENGINE_CPU_BACKEND_H_
#define MUSTER_DATAPLANE_CPU_ENGINE_CPU_BACKEND_H_

#include <functional>
#include <memory>
#include <stop_token>

#include "absl/strings/string_view.h"
#include "dataplane/cpu/engine/engine.h"
#include "muster/base/status.h"
#include "muster/dataplane/backend.h"

namespace muster::dataplane {

// Makes the gloo backend: CPU tensors over a transport. See CreateBackend.
StatusOr<std::unique_ptr<Backend>> CreateGlooBackend(
    const BackendOptions& options);

namespace cpu {

// Parts of this backend, for backends built on it. JoinGroup connects the group
// and returns when all ranks are connected, each with backend `name`.
// MakeBackend makes the backend that runs the engine; `name` must outlive it.
StatusOr<std::shared_ptr<Engine>> JoinGroup(absl::string_view name,
                                            const BackendOptions& options);
std::unique_ptr<Backend> MakeBackend(absl::string_view name,
                                     std::shared_ptr<Engine> engine);

// While it lives, aborts `engine` when the forming of its group is interrupted.
// Both arguments must outlive it.
class InterruptedAbort {
 public:
  InterruptedAbort(const BackendOptions& options, Engine& engine);

 private:
  const std::stop_callback<std::function<void()>> callback_;
};

}  // namespace cpu

}  // namespace muster::dataplane

#endif  // MUSTER_DATAPLANE_CPU_ENGINE_CPU_BACKEND_H_
