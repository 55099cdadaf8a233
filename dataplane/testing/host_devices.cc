// A shared library with a CUDA runtime and an NCCL that run on the host, for
// tests of whole programs on a machine without a GPU:
//
//   MUSTER_CUDA_LIBRARY=.../libhost_devices.so
//   MUSTER_NCCL_LIBRARY=.../libhost_devices.so program
//
// See host_cuda.h and host_nccl.h. There are MUSTER_HOST_DEVICES devices
// (default 2). Each process has its own, and the ranks of an NCCL communicator
// must be threads of one process. At its end a program writes its misuses to
// standard error; if there are any, its exit status is 86.

#include <unistd.h>

#include <cstddef>
#include <cstdlib>
#include <iostream>
#include <string>

#include "dataplane/cuda/api.h"
#include "dataplane/cuda/testing/host_cuda.h"
#include "dataplane/nccl/api.h"
#include "dataplane/nccl/testing/host_nccl.h"

namespace muster::dataplane::testing {
namespace {

constexpr int kMisused = 86;

void TellMisuses() {
  bool misused = false;
  for (const auto& misuses :
       {cuda::testing::TakeMisuses(), nccl::testing::TakeMisuses()}) {
    for (const std::string& misuse : misuses) {
      std::cerr << "libhost_devices.so: misuse: " << misuse << std::endl;
      misused = true;
    }
  }
  if (misused) _exit(kMisused);
}

const cuda::Api& Cuda() {
  static const auto* const api = [] {
    const char* const devices = std::getenv("MUSTER_HOST_DEVICES");
    std::atexit(&TellMisuses);
    return new cuda::Api(cuda::testing::HostCudaApi(
        devices == nullptr ? 2 : std::atoi(devices)));
  }();
  return *api;
}

const nccl::Api& Nccl() {
  static const auto* const api = new nccl::Api(nccl::testing::HostNcclApi());
  return *api;
}

}  // namespace
}  // namespace muster::dataplane::testing

using muster::dataplane::testing::Cuda;
using muster::dataplane::testing::Nccl;
namespace cuda = muster::dataplane::cuda;
namespace nccl = muster::dataplane::nccl;

extern "C" {

cuda::Error cudaRuntimeGetVersion(int* a0) {
  return Cuda().RuntimeGetVersion(a0);
}
cuda::Error cudaDriverGetVersion(int* a0) {
  return Cuda().DriverGetVersion(a0);
}
cuda::Error cudaGetDeviceCount(int* a0) { return Cuda().GetDeviceCount(a0); }
cuda::Error cudaGetDevice(int* a0) { return Cuda().GetDevice(a0); }
cuda::Error cudaSetDevice(int a0) { return Cuda().SetDevice(a0); }
cuda::Error cudaDeviceGetAttribute(int* a0, int a1, int a2) {
  return Cuda().DeviceGetAttribute(a0, a1, a2);
}
cuda::Error cudaDeviceGetPCIBusId(char* a0, int a1, int a2) {
  return Cuda().DeviceGetPCIBusId(a0, a1, a2);
}
cuda::Error cudaDeviceGetStreamPriorityRange(int* a0, int* a1) {
  return Cuda().DeviceGetStreamPriorityRange(a0, a1);
}
cuda::Error cudaStreamCreateWithPriority(cuda::Stream* a0, unsigned a1,
                                         int a2) {
  return Cuda().StreamCreateWithPriority(a0, a1, a2);
}
cuda::Error cudaStreamDestroy(cuda::Stream a0) {
  return Cuda().StreamDestroy(a0);
}
cuda::Error cudaStreamSynchronize(cuda::Stream a0) {
  return Cuda().StreamSynchronize(a0);
}
cuda::Error cudaStreamWaitEvent(cuda::Stream a0, cuda::Event a1, unsigned a2) {
  return Cuda().StreamWaitEvent(a0, a1, a2);
}
cuda::Error cudaStreamIsCapturing(cuda::Stream a0, int* a1) {
  return Cuda().StreamIsCapturing(a0, a1);
}
cuda::Error cudaThreadExchangeStreamCaptureMode(int* a0) {
  return Cuda().ThreadExchangeStreamCaptureMode(a0);
}
cuda::Error cudaEventCreateWithFlags(cuda::Event* a0, unsigned a1) {
  return Cuda().EventCreateWithFlags(a0, a1);
}
cuda::Error cudaEventDestroy(cuda::Event a0) { return Cuda().EventDestroy(a0); }
cuda::Error cudaEventRecord(cuda::Event a0, cuda::Stream a1) {
  return Cuda().EventRecord(a0, a1);
}
cuda::Error cudaEventQuery(cuda::Event a0) { return Cuda().EventQuery(a0); }
cuda::Error cudaEventSynchronize(cuda::Event a0) {
  return Cuda().EventSynchronize(a0);
}
cuda::Error cudaMalloc(void** a0, size_t a1) { return Cuda().Malloc(a0, a1); }
cuda::Error cudaFree(void* a0) { return Cuda().Free(a0); }
cuda::Error cudaHostAlloc(void** a0, size_t a1, unsigned a2) {
  return Cuda().HostAlloc(a0, a1, a2);
}
cuda::Error cudaFreeHost(void* a0) { return Cuda().FreeHost(a0); }
cuda::Error cudaMemcpyAsync(void* a0, const void* a1, size_t a2,
                            cuda::MemcpyKind a3, cuda::Stream a4) {
  return Cuda().MemcpyAsync(a0, a1, a2, a3, a4);
}
cuda::Error cudaMemsetAsync(void* a0, int a1, size_t a2, cuda::Stream a3) {
  return Cuda().MemsetAsync(a0, a1, a2, a3);
}
const char* cudaGetErrorName(cuda::Error a0) { return Cuda().GetErrorName(a0); }
const char* cudaGetErrorString(cuda::Error a0) {
  return Cuda().GetErrorString(a0);
}
cuda::Error cudaGetLastError() { return Cuda().GetLastError(); }

nccl::Result ncclGetVersion(int* a0) { return Nccl().GetVersion(a0); }
nccl::Result ncclGetUniqueId(nccl::UniqueId* a0) {
  return Nccl().GetUniqueId(a0);
}
nccl::Result ncclCommInitRankConfig(nccl::Comm* a0, int a1, nccl::UniqueId a2,
                                    int a3, nccl::Config* a4) {
  return Nccl().CommInitRankConfig(a0, a1, a2, a3, a4);
}
nccl::Result ncclCommSplit(nccl::Comm a0, int a1, int a2, nccl::Comm* a3,
                           nccl::Config* a4) {
  return Nccl().CommSplit(a0, a1, a2, a3, a4);
}
nccl::Result ncclCommShrink(nccl::Comm a0, int* a1, int a2, nccl::Comm* a3,
                            nccl::Config* a4, int a5) {
  return Nccl().CommShrink(a0, a1, a2, a3, a4, a5);
}
nccl::Result ncclMemAlloc(void** a0, size_t a1) {
  return Nccl().MemAlloc(a0, a1);
}
nccl::Result ncclMemFree(void* a0) { return Nccl().MemFree(a0); }
nccl::Result ncclCommWindowRegister(nccl::Comm a0, void* a1, size_t a2,
                                    nccl::Window* a3, int a4) {
  return Nccl().CommWindowRegister(a0, a1, a2, a3, a4);
}
nccl::Result ncclCommWindowDeregister(nccl::Comm a0, nccl::Window a1) {
  return Nccl().CommWindowDeregister(a0, a1);
}
nccl::Result ncclCommFinalize(nccl::Comm a0) { return Nccl().CommFinalize(a0); }
nccl::Result ncclCommDestroy(nccl::Comm a0) { return Nccl().CommDestroy(a0); }
nccl::Result ncclCommAbort(nccl::Comm a0) { return Nccl().CommAbort(a0); }
nccl::Result ncclCommGetAsyncError(nccl::Comm a0, nccl::Result* a1) {
  return Nccl().CommGetAsyncError(a0, a1);
}
nccl::Result ncclRedOpCreatePreMulSum(nccl::RedOp* a0, void* a1,
                                      nccl::DataType a2, int a3,
                                      nccl::Comm a4) {
  return Nccl().RedOpCreatePreMulSum(a0, a1, a2, a3, a4);
}
nccl::Result ncclRedOpDestroy(nccl::RedOp a0, nccl::Comm a1) {
  return Nccl().RedOpDestroy(a0, a1);
}
nccl::Result ncclGroupStart() { return Nccl().GroupStart(); }
nccl::Result ncclGroupEnd() { return Nccl().GroupEnd(); }
nccl::Result ncclAllReduce(const void* a0, void* a1, size_t a2,
                           nccl::DataType a3, nccl::RedOp a4, nccl::Comm a5,
                           cuda::Stream a6) {
  return Nccl().AllReduce(a0, a1, a2, a3, a4, a5, a6);
}
nccl::Result ncclBroadcast(const void* a0, void* a1, size_t a2,
                           nccl::DataType a3, int a4, nccl::Comm a5,
                           cuda::Stream a6) {
  return Nccl().Broadcast(a0, a1, a2, a3, a4, a5, a6);
}
nccl::Result ncclReduce(const void* a0, void* a1, size_t a2, nccl::DataType a3,
                        nccl::RedOp a4, int a5, nccl::Comm a6,
                        cuda::Stream a7) {
  return Nccl().Reduce(a0, a1, a2, a3, a4, a5, a6, a7);
}
nccl::Result ncclAllGather(const void* a0, void* a1, size_t a2,
                           nccl::DataType a3, nccl::Comm a4, cuda::Stream a5) {
  return Nccl().AllGather(a0, a1, a2, a3, a4, a5);
}
nccl::Result ncclReduceScatter(const void* a0, void* a1, size_t a2,
                               nccl::DataType a3, nccl::RedOp a4, nccl::Comm a5,
                               cuda::Stream a6) {
  return Nccl().ReduceScatter(a0, a1, a2, a3, a4, a5, a6);
}
nccl::Result ncclSend(const void* a0, size_t a1, nccl::DataType a2, int a3,
                      nccl::Comm a4, cuda::Stream a5) {
  return Nccl().Send(a0, a1, a2, a3, a4, a5);
}
nccl::Result ncclRecv(void* a0, size_t a1, nccl::DataType a2, int a3,
                      nccl::Comm a4, cuda::Stream a5) {
  return Nccl().Recv(a0, a1, a2, a3, a4, a5);
}
nccl::Result ncclAlltoAll(const void* a0, void* a1, size_t a2,
                          nccl::DataType a3, nccl::Comm a4, cuda::Stream a5) {
  return Nccl().AlltoAll(a0, a1, a2, a3, a4, a5);
}
nccl::Result ncclScatter(const void* a0, void* a1, size_t a2, nccl::DataType a3,
                         int a4, nccl::Comm a5, cuda::Stream a6) {
  return Nccl().Scatter(a0, a1, a2, a3, a4, a5, a6);
}
const char* ncclGetErrorString(nccl::Result a0) {
  return Nccl().GetErrorString(a0);
}
const char* ncclGetLastError(nccl::Comm a0) { return Nccl().GetLastError(a0); }

}  // extern "C"
