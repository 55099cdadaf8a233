// Measures how long starting a collective takes the caller, with a fake CUDA
// and NCCL that do nothing: the time of the backend or, in the Group
// benchmarks, of all layers of a group.

#include <chrono>
#include <memory>
#include <utility>

#include "benchmark/benchmark.h"
#include "dataplane/communicator.h"
#include "dataplane/guarded_backend.h"
#include "dataplane/nccl/nccl_backend.h"
#include "dataplane/observe/recorder.h"
#include "glog/logging.h"

namespace muster::dataplane::nccl {
namespace {

int g_something = 0;

Platform Idle() {
  Platform platform;
  cuda::Api& cuda = platform.cuda;
  cuda.GetErrorName = [](int) { return ""; };
  cuda.GetErrorString = [](int) { return ""; };
  cuda.GetLastError = [] { return cuda::kSuccess; };
  cuda.GetDevice = [](int* device) {
    *device = 0;
    return cuda::kSuccess;
  };
  cuda.SetDevice = [](int) { return cuda::kSuccess; };
  cuda.DeviceGetStreamPriorityRange = [](int*, int*) { return cuda::kSuccess; };
  cuda.StreamCreateWithPriority = [](cuda::Stream* stream, unsigned, int) {
    *stream = &g_something;
    return cuda::kSuccess;
  };
  cuda.StreamDestroy = [](cuda::Stream) { return cuda::kSuccess; };
  cuda.StreamWaitEvent = [](cuda::Stream, cuda::Event, unsigned) {
    return cuda::kSuccess;
  };
  cuda.StreamIsCapturing = [](cuda::Stream, cuda::CaptureStatus* status) {
    *status = cuda::kCaptureNone;
    return cuda::kSuccess;
  };
  cuda.ThreadExchangeStreamCaptureMode = [](cuda::CaptureMode*) {
    return cuda::kSuccess;
  };
  cuda.EventCreateWithFlags = [](cuda::Event* event, unsigned) {
    *event = &g_something;
    return cuda::kSuccess;
  };
  cuda.EventDestroy = [](cuda::Event) { return cuda::kSuccess; };
  cuda.EventRecord = [](cuda::Event, cuda::Stream) { return cuda::kSuccess; };
  cuda.EventQuery = [](cuda::Event) { return cuda::kSuccess; };
  cuda.Malloc = [](void** data, size_t) {
    *data = &g_something;
    return cuda::kSuccess;
  };
  cuda.Free = [](void*) { return cuda::kSuccess; };
  Api& nccl = platform.nccl;
  nccl.GetErrorString = [](int) { return ""; };
  nccl.GetLastError = [](Comm) { return ""; };
  nccl.GetUniqueId = [](UniqueId*) { return kSuccess; };
  nccl.CommInitRankConfig = [](Comm* comm, int, UniqueId, int, Config*) {
    *comm = &g_something;
    return kSuccess;
  };
  nccl.CommFinalize = [](Comm) { return kSuccess; };
  nccl.CommDestroy = [](Comm) { return kSuccess; };
  nccl.CommAbort = [](Comm) { return kSuccess; };
  nccl.CommGetAsyncError = [](Comm, Result* error) {
    *error = kSuccess;
    return kSuccess;
  };
  nccl.GroupStart = [] { return kSuccess; };
  nccl.GroupEnd = [] { return kSuccess; };
  nccl.AllReduce = [](const void*, void*, size_t, DataType, RedOp, Comm,
                      cuda::Stream) { return kSuccess; };
  platform.nccl_version = 22809;
  return platform;
}

std::unique_ptr<Backend> Make() {
  auto backend = CreateNcclBackend(Idle(), {.group_name = "benchmark"});
  CHECK(backend.ok()) << backend.status();
  return *std::move(backend);
}

Collective MakeAllReduce(float* number, bool waits) {
  Collective collective = {
      .kind = CollectiveKind::kAllReduce,
      .tensors = {Tensor(number, dataplane::DataType::kFloat32, {1},
                         {DeviceType::kCuda, 0})}};
  collective.in_current_stream = waits;
  return collective;
}

// Argument: whether the caller waits for it at once.
void BM_Backend(benchmark::State& state) {
  float number = 0;
  const auto backend = Make();
  const Collective collective = MakeAllReduce(&number, state.range(0) == 1);
  CHECK(backend->Start(collective)->Wait().ok());
  for (auto _ : state) {
    CHECK(backend->Start(collective)->Synchronize().ok());
  }
}
BENCHMARK(BM_Backend)->Arg(1)->Arg(0);

void BM_Group(benchmark::State& state) {
  float number = 0;
  Communicator communicator(
      {.group_name = "benchmark", .default_timeout = std::chrono::minutes(1)},
      std::make_unique<Recorder>(
          std::make_unique<ExceptionGuard>(Make(), "benchmark"),
          std::make_shared<FlightRecorder>(2000), FlightRecorder::Group{},
          /*metrics=*/nullptr, /*on_failure=*/nullptr));
  const Collective collective = MakeAllReduce(&number, state.range(0) == 1);
  CHECK(communicator.Start(collective)->Wait().ok());
  for (auto _ : state) {
    CHECK(communicator.Start(collective)->Synchronize().ok());
  }
}
BENCHMARK(BM_Group)->Arg(1)->Arg(0);

}  // namespace
}  // namespace muster::dataplane::nccl

BENCHMARK_MAIN();
