// Compares api.h with the CUDA runtime's headers, if this program is built with
// them.

#ifdef MUSTER_HAVE_CUDA

#include <cuda_runtime_api.h>

#include "dataplane/cuda/api.h"
#include "dataplane/cuda/same_function.h"

namespace muster::dataplane::cuda {
namespace {

#define MUSTER_SAME(name) \
  static_assert(kSameFunction<decltype(Api::name), decltype(&cuda##name)>)

MUSTER_SAME(RuntimeGetVersion);
MUSTER_SAME(DriverGetVersion);
MUSTER_SAME(GetErrorName);
MUSTER_SAME(GetErrorString);
MUSTER_SAME(GetLastError);
MUSTER_SAME(GetDeviceCount);
MUSTER_SAME(GetDevice);
MUSTER_SAME(SetDevice);
MUSTER_SAME(DeviceGetPCIBusId);
MUSTER_SAME(DeviceGetAttribute);
MUSTER_SAME(DeviceGetStreamPriorityRange);
MUSTER_SAME(StreamCreateWithPriority);
MUSTER_SAME(StreamDestroy);
MUSTER_SAME(StreamSynchronize);
MUSTER_SAME(StreamWaitEvent);
MUSTER_SAME(StreamIsCapturing);
MUSTER_SAME(ThreadExchangeStreamCaptureMode);
MUSTER_SAME(EventCreateWithFlags);
MUSTER_SAME(EventDestroy);
MUSTER_SAME(EventRecord);
MUSTER_SAME(EventQuery);
MUSTER_SAME(EventSynchronize);
MUSTER_SAME(Malloc);
MUSTER_SAME(Free);
MUSTER_SAME(HostAlloc);
MUSTER_SAME(FreeHost);
MUSTER_SAME(MemcpyAsync);
MUSTER_SAME(MemsetAsync);

#undef MUSTER_SAME

static_assert(kSuccess == cudaSuccess);
static_assert(kNotReady == cudaErrorNotReady);
static_assert(kMemcpyDefault == cudaMemcpyDefault);
static_assert(kEventDisableTiming == cudaEventDisableTiming);
static_assert(kStreamNonBlocking == cudaStreamNonBlocking);
static_assert(kHostAllocPortable == cudaHostAllocPortable);
static_assert(kComputeCapabilityMajor == cudaDevAttrComputeCapabilityMajor);
static_assert(kCaptureNone == cudaStreamCaptureStatusNone);
static_assert(kCaptureGlobal == cudaStreamCaptureModeGlobal &&
              kCaptureRelaxed == cudaStreamCaptureModeRelaxed);

}  // namespace
}  // namespace muster::dataplane::cuda

#endif  // MUSTER_HAVE_CUDA
