// Which backends a process group can have, and how others are added.

#ifndef MUSTER_CLIENT_BACKENDS_H_
#define MUSTER_CLIENT_BACKENDS_H_

#include <string>
#include <vector>

#include "dataplane/backend.h"
#include "dataplane/factory.h"
#include "dataplane/tensor.h"

namespace muster {

// Of the nccl backend.
using dataplane::NcclOptions;

// Adds a backend to this process, for good: from then on it can be named in
// InitProcessGroupOptions::backend and NewGroupOptions::backend, alone or for
// some devices ("cpu:mine,cuda:nccl"). All ranks of a group need it.
// dataplane/backend.h says what one has to do;
// dataplane/examples/store_backend.cc is one. Thread-safe. Throws DistError:
// kInvalidArgument (`name` is not of 1 to 64 lower-case letters, digits, `_`
// and `-`; no devices; no factory), kAlreadyExists.
void RegisterBackend(const std::string& name,
                     const std::vector<dataplane::DeviceType>& devices,
                     dataplane::BackendFactory factory);

// The same with a backend from a shared library (dataplane/plugin.h); returns
// its name. InitProcessGroup does this with each library of the environment
// variable MUSTER_BACKEND_LIBRARIES (paths with `:` between them). Loading it
// again changes nothing.
// Throws DistError: kNotFound (no such library, or it does not load),
// kFailedPrecondition (it is none, or was built for another version), and as
// RegisterBackend.
std::string LoadBackend(const std::string& path);

// Whether groups can have the backend: it is built in, registered or loaded.
// In small or capital letters.
bool IsBackendAvailable(const std::string& name);

inline bool IsGlooAvailable() { return IsBackendAvailable("gloo"); }
inline bool IsNcclAvailable() { return IsBackendAvailable("nccl"); }
inline bool IsMpiAvailable() { return IsBackendAvailable("mpi"); }
inline bool IsUccAvailable() { return IsBackendAvailable("ucc"); }
inline bool IsXcclAvailable() { return IsBackendAvailable("xccl"); }

// The backend that takes the tensors of `device` ("cpu", "cuda", "cuda:1") in a
// group that names none: "shm", "nccl". Throws DistError (kInvalidArgument)
// for another device.
std::string GetDefaultBackendForDevice(const std::string& device);

}  // namespace muster

#endif  // MUSTER_CLIENT_BACKENDS_H_
