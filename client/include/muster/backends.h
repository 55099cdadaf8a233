// Lists the backends that a process group can use, and adds others.

#ifndef MUSTER_BACKENDS_H_
#define MUSTER_BACKENDS_H_

#include <string>
#include <vector>

#include "muster/base/export.h"
#include "muster/dataplane/backend.h"
#include "muster/dataplane/factory.h"
#include "muster/dataplane/nccl_options.h"
#include "muster/dataplane/tensor.h"

namespace MUSTER_EXPORT muster {

// Settings of the nccl backend.
using dataplane::NcclOptions;

// Adds a backend to this process for good. From then on
// InitProcessGroupOptions::backend and NewGroupOptions::backend accept its
// name, alone or for some devices ("cpu:mine,cuda:nccl"). All ranks of a group
// must have the backend. dataplane/backend.h is the interface that a backend
// implements; dataplane/examples/store_backend.cc is an example. Thread-safe.
// Throws DistError: kInvalidArgument (`name` is not 1 to 64 lower-case letters,
// digits, `_` and `-`; no devices; no factory), kAlreadyExists (the name is
// taken).
void RegisterBackend(const std::string& name,
                     const std::vector<dataplane::DeviceType>& devices,
                     dataplane::BackendFactory factory);

// Loads a backend from a shared library (dataplane/plugin.h), registers it and
// returns its name. InitProcessGroup does this with every library that the
// environment variable MUSTER_BACKEND_LIBRARIES lists (paths separated by `:`).
// Loading a library again changes nothing.
// Throws DistError: kNotFound (there is no such library, or it does not load),
// kFailedPrecondition (it is not a backend library, or was built for another
// version), and what RegisterBackend throws.
std::string LoadBackend(const std::string& path);

// Returns whether groups can use the backend: it is built in and works here, or
// it is registered or loaded. The case of `name` does not matter.
bool IsBackendAvailable(const std::string& name);

inline bool IsGlooAvailable() { return IsBackendAvailable("gloo"); }
inline bool IsNcclAvailable() { return IsBackendAvailable("nccl"); }
inline bool IsMpiAvailable() { return IsBackendAvailable("mpi"); }
inline bool IsUccAvailable() { return IsBackendAvailable("ucc"); }
inline bool IsXcclAvailable() { return IsBackendAvailable("xccl"); }

// Returns the backend that handles tensors on `device` ("cpu", "cuda",
// "cuda:1") in a group that names no backend: "shm" or "nccl". Throws DistError
// (kInvalidArgument) for another device.
std::string GetDefaultBackendForDevice(const std::string& device);

}  // namespace muster

#endif  // MUSTER_BACKENDS_H_
