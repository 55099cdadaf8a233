// Shared libraries that look like the CUDA runtime and NCCL, for tests of
// loading. Their answers are fixed when they are built: FAKE_DEVICES,
// FAKE_ERROR, FAKE_DRIVER, FAKE_NCCL, and FAKE_INCOMPLETE for a library that
// lacks functions. Nothing else works.

extern "C" {

int cudaRuntimeGetVersion(int* version) {
  *version = 12040;
  return 0;
}
int cudaDriverGetVersion(int* version) {
  *version = FAKE_DRIVER;
  return 0;
}
const char* cudaGetErrorName(int) { return "cudaErrorFake"; }
const char* cudaGetErrorString(int) { return "as the test wants it"; }
int cudaGetLastError() { return 0; }
int cudaGetDeviceCount(int* count) {
  *count = FAKE_DEVICES;
  return FAKE_ERROR;
}
int ncclGetVersion(int* version) {
  *version = FAKE_NCCL;
  return 0;
}

#ifndef FAKE_INCOMPLETE
#define FAKE(name) \
  int name() { return 1; }
FAKE(cudaGetDevice)
FAKE(cudaSetDevice)
FAKE(cudaDeviceGetAttribute)
FAKE(cudaDeviceGetPCIBusId)
FAKE(cudaDeviceGetStreamPriorityRange)
FAKE(cudaStreamCreateWithPriority)
FAKE(cudaStreamDestroy)
FAKE(cudaStreamSynchronize)
FAKE(cudaStreamWaitEvent)
FAKE(cudaStreamIsCapturing)
FAKE(cudaThreadExchangeStreamCaptureMode)
FAKE(cudaEventCreateWithFlags)
FAKE(cudaEventDestroy)
FAKE(cudaEventRecord)
FAKE(cudaEventQuery)
FAKE(cudaEventSynchronize)
FAKE(cudaMalloc)
FAKE(cudaFree)
FAKE(cudaHostAlloc)
FAKE(cudaFreeHost)
FAKE(cudaMemcpyAsync)
FAKE(cudaMemsetAsync)
FAKE(ncclGetErrorString)
FAKE(ncclGetLastError)
FAKE(ncclGetUniqueId)
FAKE(ncclCommInitRankConfig)
FAKE(ncclCommSplit)
FAKE(ncclCommFinalize)
FAKE(ncclCommDestroy)
FAKE(ncclCommAbort)
FAKE(ncclCommGetAsyncError)
FAKE(ncclRedOpCreatePreMulSum)
FAKE(ncclRedOpDestroy)
FAKE(ncclGroupStart)
FAKE(ncclGroupEnd)
FAKE(ncclAllReduce)
FAKE(ncclBroadcast)
FAKE(ncclReduce)
FAKE(ncclAllGather)
FAKE(ncclReduceScatter)
FAKE(ncclSend)
FAKE(ncclRecv)
#undef FAKE
#endif

}  // extern "C"
