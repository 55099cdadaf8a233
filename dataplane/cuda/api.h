// The CUDA runtime as a table of function pointers, loaded at run time.

#ifndef MUSTER_DATAPLANE_CUDA_API_H_
#define MUSTER_DATAPLANE_CUDA_API_H_

#include <cstddef>
#include <string>

#include "absl/strings/string_view.h"
#include "muster/base/status.h"

namespace muster::dataplane::cuda {

// The CUDA runtime's types, for builds without its headers. api_abi_check.cc
// compares them with the headers where there are any.
using Error = int;       // cudaError_t
using Stream = void*;    // cudaStream_t; null is the default stream
using Event = void*;     // cudaEvent_t
using MemcpyKind = int;  // cudaMemcpyKind
inline constexpr Error kSuccess = 0;
inline constexpr Error kNotReady = 600;
inline constexpr MemcpyKind kMemcpyDefault = 4;
inline constexpr unsigned kEventDisableTiming = 2;
inline constexpr unsigned kStreamNonBlocking = 1;
inline constexpr unsigned kHostAllocPortable = 1;
using DeviceAttribute = int;  // cudaDeviceAttr
inline constexpr DeviceAttribute kComputeCapabilityMajor = 75;
using CaptureStatus = int;  // cudaStreamCaptureStatus
inline constexpr CaptureStatus kCaptureNone = 0;
using CaptureMode = int;  // cudaStreamCaptureMode
inline constexpr CaptureMode kCaptureGlobal = 0;
inline constexpr CaptureMode kCaptureRelaxed = 2;

// Api holds the functions of the CUDA runtime that are used here. All calls go
// through it, so that one program runs with and without CUDA, and tests can
// substitute a fake. CUDA documents them under the same names with the prefix
// `cuda`.
struct Api {
  Error (*RuntimeGetVersion)(int* version) = nullptr;
  Error (*DriverGetVersion)(int* version) = nullptr;
  const char* (*GetErrorName)(Error error) = nullptr;
  const char* (*GetErrorString)(Error error) = nullptr;
  Error (*GetLastError)() = nullptr;

  Error (*GetDeviceCount)(int* count) = nullptr;
  Error (*GetDevice)(int* device) = nullptr;
  Error (*SetDevice)(int device) = nullptr;
  Error (*DeviceGetPCIBusId)(char* id, int bytes, int device) = nullptr;
  Error (*DeviceGetAttribute)(int* value, DeviceAttribute attribute,
                              int device) = nullptr;
  Error (*DeviceGetStreamPriorityRange)(int* least, int* greatest) = nullptr;

  Error (*StreamCreateWithPriority)(Stream* stream, unsigned flags,
                                    int priority) = nullptr;
  Error (*StreamDestroy)(Stream stream) = nullptr;
  Error (*StreamSynchronize)(Stream stream) = nullptr;
  Error (*StreamWaitEvent)(Stream stream, Event event,
                           unsigned flags) = nullptr;
  Error (*StreamIsCapturing)(Stream stream, CaptureStatus* status) = nullptr;
  Error (*ThreadExchangeStreamCaptureMode)(CaptureMode* mode) = nullptr;

  Error (*EventCreateWithFlags)(Event* event, unsigned flags) = nullptr;
  Error (*EventDestroy)(Event event) = nullptr;
  Error (*EventRecord)(Event event, Stream stream) = nullptr;
  Error (*EventQuery)(Event event) = nullptr;
  Error (*EventSynchronize)(Event event) = nullptr;

  Error (*Malloc)(void** data, size_t bytes) = nullptr;
  Error (*Free)(void* data) = nullptr;
  Error (*HostAlloc)(void** data, size_t bytes, unsigned flags) = nullptr;
  Error (*FreeHost)(void* data) = nullptr;
  Error (*MemcpyAsync)(void* to, const void* from, size_t bytes,
                       MemcpyKind kind, Stream stream) = nullptr;
  Error (*MemsetAsync)(void* data, int value, size_t bytes,
                       Stream stream) = nullptr;
};

// The result of Load.
struct Runtime {
  Api api;
  std::string path;         // the library's file
  int runtime_version = 0;  // 13000 is 13.0
  int driver_version = 0;   // the newest runtime that it supports
  int devices = 0;          // at least one
};

// Loads the CUDA runtime for the rest of the process and probes for devices.
// The library is the one that the environment variable MUSTER_CUDA_LIBRARY
// names or, without it, libcudart.so.13, .12 or .11, also from CUDA_HOME (or
// /usr/local/cuda) if the system does not find it.
// Errors, each with the names tried and the results: kNotFound (no such
// library), kFailedPrecondition (functions are missing, or the driver is too
// old), kUnavailable (no device, or none that works).
StatusOr<Runtime> Load();

// The result of one call of Load; later calls return the same.
const StatusOr<Runtime>& TheRuntime();

// OK, or kInternal with `what`, which failed, and CUDA's name and text.
Status ToStatus(const Api& api, Error error, absl::string_view what);

// "13.0".
std::string VersionText(int version);

}  // namespace muster::dataplane::cuda

#endif  // MUSTER_DATAPLANE_CUDA_API_H_
