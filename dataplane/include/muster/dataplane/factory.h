// Lists, registers and makes backends.

#ifndef MUSTER_DATAPLANE_FACTORY_H_
#define MUSTER_DATAPLANE_FACTORY_H_

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "muster/base/export.h"
#include "muster/base/status.h"
#include "muster/dataplane/backend.h"
#include "muster/dataplane/tensor.h"

namespace MUSTER_EXPORT muster {
namespace dataplane {

// Joins the group that the options describe and returns this rank's backend,
// connected to every peer. Blocks until then, at most until options.deadline.
// The caller guarantees that the rank is in the group and that a group of
// several ranks has a store.
using BackendFactory = std::function<StatusOr<std::unique_ptr<Backend>>(
    const BackendOptions& options)>;

// All functions are thread-safe.

// The names, sorted, of the built-in backends that can be used on this machine
// and of those that were registered. May probe for devices.
std::vector<std::string> Backends();

// Registers `factory` as the backend `name` for tensors on `devices`, for the
// rest of this process. All processes of a group must do so.
// Errors: kInvalidArgument (`name` is not 1 to 64 lower-case letters, digits,
// `_` and `-`; no devices; no factory), kAlreadyExists.
Status RegisterBackend(const std::string& name, std::vector<DeviceType> devices,
                       BackendFactory factory);

// Loads a shared library that contains a backend (plugin.h), registers the
// backend and returns its name. The library stays loaded; loading it again
// changes nothing.
// Errors: kNotFound (no such library, or it does not load; the text is the
// system's), kFailedPrecondition (not such a library, or built for another
// version), and the errors of RegisterBackend.
StatusOr<std::string> LoadBackend(const std::string& path);

// The backends of a group that names none: "cpu:shm,cuda:nccl" where nccl can
// be used, otherwise "shm". (shm works as gloo where ranks share no memory.)
// Probes for devices once. If the default differs between the ranks of a group,
// the group can still run collectives of CPU tensors.
std::string DefaultBackend();

// Checks that `spec` names a backend, or one backend per device as in
// "cpu:gloo,cuda:nccl".
// Errors: kInvalidArgument (malformed; an unknown backend or device; a backend
// for a device that it does not take), kFailedPrecondition (a backend cannot be
// used here; the text says why).
Status CheckBackend(std::string_view spec);

// Checks BackendOptions::cpu_transport.
// Errors: kInvalidArgument.
Status CheckCpuTransport(std::string_view name);

// Makes the backend that `spec` names. If `spec` names several, the result
// passes each collective to the backend for its tensors' device, and a
// collective without tensors to the first.
// Errors: those of CheckBackend; kInvalidArgument (bad options),
// kDeadlineExceeded (naming the ranks that did not come or did not connect),
// kUnavailable (no usable address, connection refused), and the store's errors.
StatusOr<std::unique_ptr<Backend>> CreateBackend(std::string_view spec,
                                                 const BackendOptions& options);

}  // namespace dataplane
}  // namespace muster

#endif  // MUSTER_DATAPLANE_FACTORY_H_
