// Which backends there are, and how one is made.

#ifndef MUSTER_DATAPLANE_FACTORY_H_
#define MUSTER_DATAPLANE_FACTORY_H_

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "dataplane/backend.h"
#include "dataplane/tensor.h"

namespace muster::dataplane {

// Joins the group that the options describe and returns this rank's backend,
// connected to every peer. Blocks until then, at most until options.deadline.
// The rank is in the group, and a group of several has a store.
using BackendFactory = std::function<StatusOr<std::unique_ptr<Backend>>(
    const BackendOptions& options)>;

// All functions are thread-safe.

// Names of the backends in this program that can be used here and of those that
// were registered, sorted. May look for devices.
std::vector<std::string> Backends();

// Makes `factory` known as `name`, for tensors on `devices`, to this process
// for good. All processes of a group must do so.
// Errors: kInvalidArgument (`name` is not of 1 to 64 lower-case letters,
// digits, `_` and `-`; no devices; no factory), kAlreadyExists.
Status RegisterBackend(const std::string& name, std::vector<DeviceType> devices,
                       BackendFactory factory);

// Loads a shared library that has a backend (plugin.h), registers it and
// returns its name. The library stays loaded; loading it again changes nothing.
// Errors: kNotFound (no such library, or it does not load; the system says
// why), kFailedPrecondition (it is no such library, or was built for another
// version), and what RegisterBackend answers.
StatusOr<std::string> LoadBackend(const std::string& path);

// The backends of a group that names none: "cpu:shm,cuda:nccl" where nccl can
// be used, else "shm", which is gloo where ranks share no memory. Looks for
// devices, once. Groups of ranks with the one and ranks with the other have CPU
// tensors in common.
std::string DefaultBackend();

// Whether `spec` says which backend to use: a name, or one for each device,
// "cpu:gloo,cuda:nccl".
// Errors: kInvalidArgument (malformed, or an unknown backend or device, or a
// backend for a device that it does not take), kFailedPrecondition (a backend
// that cannot be used here: why).
Status CheckBackend(std::string_view spec);

// The backend that `spec` names; of several, one that gives each collective to
// that of its tensors' device, and those without tensors to the first.
// Errors: those of CheckBackend; kInvalidArgument (bad options),
// kDeadlineExceeded (naming the ranks that did not come or did not connect),
// kUnavailable (no usable address, connection refused), and what the store
// answers.
StatusOr<std::unique_ptr<Backend>> CreateBackend(std::string_view spec,
                                                 const BackendOptions& options);

}  // namespace muster::dataplane

#endif  // MUSTER_DATAPLANE_FACTORY_H_
