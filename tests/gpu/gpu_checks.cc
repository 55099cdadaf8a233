// Checks that need a GPU: the backends of CUDA tensors over the real CUDA and
// NCCL. Prints a table at its end. Without a device, or without NCCL, it lists
// the checks that it skips. README.md says how to run it on another machine.

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <functional>
#include <iostream>
#include <memory>
#include <string>
#include <thread>
#include <tuple>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "dataplane/cuda/staging.h"
#include "dataplane/cuda/stream.h"
#include "dataplane/cuda/testing/on_device.h"
#include "dataplane/nccl/api.h"
#include "dataplane/testing/backend_conformance.h"
#include "dataplane/testing/in_memory_store.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "muster/base/status.h"
#include "muster/dataplane/factory.h"
#include "muster/dataplane/nccl_options.h"
#include "tests/gpu/platform.h"

namespace muster::dataplane::testing {
namespace {

using cuda::kSuccess;
using ::testing::Combine;
using ::testing::Each;
using ::testing::Values;
using ::testing::ValuesIn;

using Seconds = std::chrono::duration<double>;

const cuda::Api& Cuda() { return gpu::Cuda().api; }

int Devices() { return gpu::CudaAvailable().ok() ? gpu::Cuda().devices : 0; }

// NCCL runs one rank per device.
std::vector<int> NcclSizes() {
  std::vector<int> sizes;
  if (!gpu::NcclAvailable().ok()) return sizes;
  for (const int size : {1, 2, 4, 8}) {
    if (size <= Devices()) sizes.push_back(size);
  }
  return sizes;
}

// Any number of ranks can share a device.
std::vector<int> GlooSizes() {
  return Devices() > 0 ? std::vector<int>{1, 2, 4} : std::vector<int>{};
}

// World sizes whose ranks send to each other.
std::vector<int> GlooPairs() {
  return Devices() > 0 ? std::vector<int>{2, 4} : std::vector<int>{};
}

// Lines of the table that are measurements.
std::vector<std::pair<std::string, std::string>>& Figures() {
  static auto* const figures =
      new std::vector<std::pair<std::string, std::string>>;
  return *figures;
}

bool Register() {
  bool all =
      RegisterBackend("nccl-gpu", {DeviceType::kCpu},
                      [](const BackendOptions& options)
                          -> StatusOr<std::unique_ptr<Backend>> {
                        auto made = gpu::CreateNccl(options);
                        if (!made.ok()) return made.status();
                        return cuda::testing::OnDevice(
                            Cuda(), options.rank, "nccl-gpu", *std::move(made));
                      })
          .ok();
  return all && RegisterBackend("gloo-gpu", {DeviceType::kCpu},
                                [](const BackendOptions& options)
                                    -> StatusOr<std::unique_ptr<Backend>> {
                                  auto gloo = CreateBackend("gloo", options);
                                  if (!gloo.ok()) return gloo.status();
                                  return cuda::testing::OnDevice(
                                      Cuda(), 0, "gloo-gpu",
                                      cuda::CreateStaging(
                                          Cuda(), *std::move(gloo),
                                          {.rank = options.rank,
                                           .world_size = options.world_size,
                                           .group_name = options.group_name}));
                                })
                    .ok();
}

// NCCL rounds at each rank of its rings and trees. For minimum and maximum it
// ignores a NaN if the other value is a number.
bool SetArithmetics() {
  SetArithmetic("nccl-gpu",
                {.rounds_at_each_rank = true, .may_drop_nan = true});
  return true;
}

const bool g_registered = Register() && SetArithmetics();

INSTANTIATE_TEST_SUITE_P(NcclOnGpu, ReductionConformance,
                         Combine(Values("nccl-gpu"), ValuesIn(NcclSizes()),
                                 ValuesIn(kDataTypes)));
INSTANTIATE_TEST_SUITE_P(NcclFloat8OnGpu, ReductionConformance,
                         Combine(Values("nccl-gpu"), ValuesIn(NcclSizes()),
                                 ValuesIn(kFloat8Types)));
INSTANTIATE_TEST_SUITE_P(NcclOnGpu, BackendConformance,
                         Combine(Values("nccl-gpu"), ValuesIn(NcclSizes())));
INSTANTIATE_TEST_SUITE_P(GlooOnGpu, ReductionConformance,
                         Combine(Values("gloo-gpu"), ValuesIn(GlooSizes()),
                                 ValuesIn(kDataTypes)));
INSTANTIATE_TEST_SUITE_P(GlooOnGpu, BackendConformance,
                         Combine(Values("gloo-gpu"), ValuesIn(GlooSizes())));
INSTANTIATE_TEST_SUITE_P(GlooOnGpu, PointToPointConformance,
                         Combine(Values("gloo-gpu"), ValuesIn(GlooPairs())));
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(ReductionConformance);
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(BackendConformance);
// These are for backends that detect lost ranks, and have tags.
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(FailureConformance);
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(DisagreementConformance);
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(PointToPointConformance);
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(ProgramConformance);

// A group of one rank on device 0, with a stream of its own. The parameter is
// the backend.
class OneRank : public ::testing::TestWithParam<std::string> {
 protected:
  OneRank() {
    if (GetParam() == "nccl") {
      backend_ = *gpu::CreateNccl({.group_name = "gpu"});
    } else {
      backend_ = cuda::CreateStaging(Cuda(), *CreateBackend("gloo", {}),
                                     {.group_name = "gpu"});
    }
    EXPECT_EQ(Cuda().SetDevice(0), kSuccess);
    EXPECT_EQ(
        Cuda().StreamCreateWithPriority(&stream_, cuda::kStreamNonBlocking, 0),
        kSuccess);
    cuda::SetCurrentStream(0, stream_);
  }

  ~OneRank() override {
    backend_.reset();
    cuda::SetCurrentStream(0, nullptr);
    EXPECT_EQ(Cuda().StreamDestroy(stream_), kSuccess);
    for (void* const data : memory_) EXPECT_EQ(Cuda().Free(data), kSuccess);
  }

  Tensor OnDevice(int64_t count) {
    void* data = nullptr;
    EXPECT_EQ(Cuda().Malloc(&data, static_cast<size_t>(count)), kSuccess);
    memory_.push_back(data);
    return Tensor(data, DataType::kUint8, {count}, {DeviceType::kCuda, 0});
  }

  // `waits`: like the client without async_op.
  std::shared_ptr<Work> AllReduce(const Tensor& tensor, bool waits = false) {
    Collective collective = {.kind = CollectiveKind::kAllReduce,
                             .tensors = {tensor}};
    collective.in_current_stream = waits;
    collective.timeout = std::chrono::minutes(2);
    collective.deadline = Clock::now() + collective.timeout;
    collective.sequence = ++sequence_;
    return backend_->Start(collective);
  }

  std::unique_ptr<Backend> backend_;
  cuda::Stream stream_ = nullptr;
  std::vector<void*> memory_;
  uint64_t sequence_ = 0;
};

std::vector<std::string> Kinds() {
  std::vector<std::string> kinds;
  if (Devices() > 0) kinds.push_back("gloo");
  if (gpu::NcclAvailable().ok()) kinds.push_back("nccl");
  return kinds;
}

INSTANTIATE_TEST_SUITE_P(OnGpu, OneRank, ValuesIn(Kinds()));
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(OneRank);

// The stream is busy for a while before it writes the collective's input; it
// reads the result after the collective.
TEST_P(OneRank, AStreamOrdersWhatIsBeforeAndBehindACollective) {
  const int64_t bytes = (256 << 20) / gpu::Divisor();
  const int64_t part = bytes / 256;
  const Tensor tensor = OnDevice(bytes);
  for (int round = 1; round <= 4; ++round) {
    for (int i = 0; i < 50; ++i) {
      ASSERT_EQ(Cuda().MemsetAsync(tensor.data(), 200, tensor.bytes(), stream_),
                kSuccess);
    }
    ASSERT_EQ(Cuda().MemsetAsync(tensor.data(), round, tensor.bytes(), stream_),
              kSuccess);
    const auto work = AllReduce(tensor, /*waits=*/round % 2 == 0);
    ASSERT_EQ(work->Synchronize(), OkStatus());
    std::vector<uint8_t> seen(static_cast<size_t>(part));
    ASSERT_EQ(Cuda().MemcpyAsync(
                  seen.data(), static_cast<char*>(tensor.data()) + bytes - part,
                  seen.size(), cuda::kMemcpyDefault, stream_),
              kSuccess);
    ASSERT_EQ(Cuda().StreamSynchronize(stream_), kSuccess);
    EXPECT_THAT(seen, Each(round));
    EXPECT_EQ(work->Wait(), OkStatus());
  }
}

TEST_P(OneRank, AnAbortEndsAGroupThatWaitsForItsStream) {
  const Tensor tensor = OnDevice(1 << 20);
  ASSERT_EQ(AllReduce(tensor)->Wait(), OkStatus());
  const int64_t bytes = (1 << 30) / gpu::Divisor();
  const Tensor large = OnDevice(bytes);
  for (int i = 0; i < 2000; ++i) {
    Cuda().MemsetAsync(large.data(), 1, static_cast<size_t>(bytes), stream_);
  }
  const auto work = AllReduce(tensor);
  const Instant began = Clock::now();
  backend_->Abort(AbortedError("enough"));
  EXPECT_EQ(work->Wait(), AbortedError("enough"));
  const Seconds took = Clock::now() - began;
  Figures().emplace_back(absl::StrCat(GetParam(), ": abort, until it is told"),
                         absl::StrFormat("%.3f s", took.count()));
  EXPECT_EQ(AllReduce(tensor)->Wait(), AbortedError("enough"));
  EXPECT_EQ(Cuda().StreamSynchronize(stream_), kSuccess);
}

// The host time of a call of `once`, which puts work into streams: the median
// of several rounds.
double MeasureMicroseconds(const std::function<void()>& once,
                           const std::function<void()>& drain) {
  std::vector<double> rounds;
  for (int round = 0; round < 11; ++round) {
    const Instant began = Clock::now();
    for (int i = 0; i < 200; ++i) once();
    rounds.push_back(Seconds(Clock::now() - began).count() / 200 * 1e6);
    drain();
  }
  std::sort(rounds.begin(), rounds.end());
  return rounds[rounds.size() / 2];
}

class NcclOverhead : public OneRank {};
std::vector<std::string> NcclAlone() {
  return gpu::NcclAvailable().ok() ? std::vector<std::string>{"nccl"}
                                   : std::vector<std::string>{};
}
INSTANTIATE_TEST_SUITE_P(OnGpu, NcclOverhead, ValuesIn(NcclAlone()));
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(NcclOverhead);

// The host time of a bare NCCL call until it is in the stream, with a blocking
// communicator or, like the backend's, a non-blocking one: then NCCL gives each
// call to a thread.
double MicrosecondsOfBare(bool blocks, const Tensor& tensor,
                          cuda::Stream stream,
                          const std::function<void()>& drain) {
  const nccl::Library& library = gpu::Nccl();
  const nccl::Api& api = library.api;
  nccl::UniqueId id;
  EXPECT_EQ(api.GetUniqueId(&id), nccl::kSuccess);
  nccl::Comm comm = nullptr;
  nccl::Config config;
  config.version = static_cast<unsigned>(library.version);
  config.blocking = blocks ? 1 : 0;
  const auto settle = [&](nccl::Result result) {
    while (result == nccl::kInProgress) {
      nccl::Result state = nccl::kSuccess;
      EXPECT_EQ(api.CommGetAsyncError(comm, &state), nccl::kSuccess);
      result = state;
    }
    EXPECT_EQ(result, nccl::kSuccess);
  };
  settle(api.CommInitRankConfig(&comm, 1, id, 0, &config));
  const double took = MeasureMicroseconds(
      [&] {
        settle(api.AllReduce(tensor.data(), tensor.data(), 4, nccl::kUint8,
                             nccl::kSum, comm, stream));
      },
      drain);
  EXPECT_EQ(api.CommDestroy(comm), nccl::kSuccess);
  return took;
}

TEST_P(NcclOverhead, AnAllReduceBesideTheBareCall) {
  const Tensor tensor = OnDevice(4);
  const auto drain = [&] {
    EXPECT_EQ(Cuda().StreamSynchronize(stream_), kSuccess);
  };
  const double blocking = MicrosecondsOfBare(true, tensor, stream_, drain);
  const double bare = MicrosecondsOfBare(false, tensor, stream_, drain);
  ASSERT_EQ(AllReduce(tensor)->Wait(), OkStatus());
  const auto ours = [&](bool waits) {
    return MeasureMicroseconds(
        [&] { EXPECT_EQ(AllReduce(tensor, waits)->Synchronize(), OkStatus()); },
        drain);
  };
  const double waited = ours(true);
  const double in_background = ours(false);
  Figures().emplace_back(
      "nccl: host time of an all_reduce of 4 bytes",
      absl::StrFormat(
          "%.2f us; the bare call %.2f us; %.2f us more (wanted: under 2); "
          "with async_op and a wait %.2f us; the bare call of a communicator "
          "that blocks %.2f us",
          waited, bare, waited - bare, in_background, blocking));
}

// Bytes per rank.
constexpr int64_t kSymmetricBytes = 1 << 20;

// The parameter is the number of ranks, each on a device of its own.
class SymmetricMemoryOnGpu : public ::testing::TestWithParam<int> {
 protected:
  static constexpr int64_t kBytes = kSymmetricBytes;

  // Calls `body` for every rank.
  void OnRanks(const std::function<void(int)>& body) {
    std::vector<std::thread> threads;
    for (int rank = 0; rank < GetParam(); ++rank) {
      threads.emplace_back([&, rank] {
        cuda::Stream stream = nullptr;
        EXPECT_EQ(Cuda().SetDevice(rank), kSuccess);
        EXPECT_EQ(Cuda().StreamCreateWithPriority(&stream,
                                                  cuda::kStreamNonBlocking, 0),
                  kSuccess);
        cuda::SetCurrentStream(rank, stream);
        body(rank);
        EXPECT_EQ(Cuda().StreamSynchronize(stream), kSuccess);
        EXPECT_EQ(Cuda().StreamDestroy(stream), kSuccess);
      });
    }
    for (std::thread& thread : threads) thread.join();
  }

  std::unique_ptr<Backend> Join(int rank) {
    BackendOptions options = {.rank = rank,
                              .world_size = GetParam(),
                              .group_name = "symmetric",
                              .store = store_,
                              .device = rank};
    if (gpu::Nccl().version >= kZeroCtaVersion) {
      options.nccl = std::make_shared<NcclOptions>(
          NcclOptions{.cta_policy = NcclOptions::CtaPolicy::kZero});
    }
    return *gpu::CreateNccl(options);
  }

  static constexpr int kZeroCtaVersion = 22800;
  std::shared_ptr<InMemoryStore> store_ = std::make_shared<InMemoryStore>();
};
INSTANTIATE_TEST_SUITE_P(OnGpu, SymmetricMemoryOnGpu, ValuesIn(NcclSizes()));
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(SymmetricMemoryOnGpu);

Status RunOn(Backend& backend, Collective collective) {
  collective.timeout = std::chrono::minutes(2);
  collective.deadline = Clock::now() + collective.timeout;
  return backend.Start(collective)->Wait();
}

// Copies the tensor's bytes to the host, after the stream's earlier work.
std::vector<uint8_t> Read(const Tensor& tensor) {
  std::vector<uint8_t> bytes(tensor.bytes());
  const cuda::Stream stream = cuda::CurrentStream(tensor.device().index);
  Cuda().MemcpyAsync(bytes.data(), tensor.data(), bytes.size(),
                     cuda::kMemcpyDefault, stream);
  EXPECT_EQ(Cuda().StreamSynchronize(stream), kSuccess);
  return bytes;
}

// The first index that does not have 1 in rank 0's part, 2 in rank 1's, and so
// on; -1: none.
int64_t FirstNotOfItsRank(const Tensor& tensor) {
  const std::vector<uint8_t> seen = Read(tensor);
  for (size_t i = 0; i < seen.size(); ++i) {
    const size_t rank = i / static_cast<size_t>(kSymmetricBytes);
    if (seen[i] != rank + 1) return static_cast<int64_t>(i);
  }
  return -1;
}

// Uses copy engines, if NCCL has that.
TEST_P(SymmetricMemoryOnGpu, AnAllGatherInIt) {
  OnRanks([&](int rank) {
    const auto backend = Join(rank);
    const int64_t all = kBytes * GetParam();
    const auto memory = backend->AllocateSymmetric(
        {.bytes = static_cast<size_t>(kBytes + all),
         .deadline = Clock::now() + std::chrono::minutes(2)});
    if (IsUnimplemented(memory.status())) {
      if (rank > 0) return;
      Figures().emplace_back("nccl: symmetric memory",
                             std::string(memory.status().message()));
      return;
    }
    ASSERT_EQ(memory.status(), OkStatus());
    char* const data = static_cast<char*>((*memory)->data());
    const Tensor in(data, DataType::kUint8, {kBytes}, (*memory)->device());
    const Tensor out(data + kBytes, DataType::kUint8, {all},
                     (*memory)->device());
    EXPECT_EQ(Cuda().MemsetAsync(data, rank + 1, in.bytes(),
                                 cuda::CurrentStream(rank)),
              kSuccess);
    EXPECT_EQ(RunOn(*backend, {.kind = CollectiveKind::kAllGatherIntoTensor,
                               .inputs = {in},
                               .outputs = {out}}),
              OkStatus());
    EXPECT_EQ(FirstNotOfItsRank(out), -1);
  });
}

// The same for an all_to_all and a scatter, each from the first part of the
// memory to the second.
TEST_P(SymmetricMemoryOnGpu, AnExchangeInIt) {
  OnRanks([&](int rank) {
    const auto backend = Join(rank);
    const int64_t all = kBytes * GetParam();
    const auto memory = backend->AllocateSymmetric(
        {.bytes = static_cast<size_t>(2 * all),
         .deadline = Clock::now() + std::chrono::minutes(2)});
    if (IsUnimplemented(memory.status())) return;
    ASSERT_EQ(memory.status(), OkStatus());
    char* const data = static_cast<char*>((*memory)->data());
    const Tensor in(data, DataType::kUint8, {all}, (*memory)->device());
    const Tensor out(data + all, DataType::kUint8, {all}, (*memory)->device());
    EXPECT_EQ(Cuda().MemsetAsync(data, rank + 1, in.bytes(),
                                 cuda::CurrentStream(rank)),
              kSuccess);
    EXPECT_EQ(RunOn(*backend, {.kind = CollectiveKind::kAllToAllSingle,
                               .inputs = {in},
                               .outputs = {out}}),
              OkStatus());
    EXPECT_EQ(FirstNotOfItsRank(out), -1);
    const Tensor part(data + all, DataType::kUint8, {kBytes},
                      (*memory)->device());
    Collective scatter = {.kind = CollectiveKind::kScatter,
                          .outputs = {part},
                          .root = GetParam() - 1};
    for (int each = 0; rank == scatter.root && each < GetParam(); ++each) {
      scatter.inputs.push_back(Tensor(data + each * kBytes, DataType::kUint8,
                                      {kBytes}, (*memory)->device()));
    }
    EXPECT_EQ(RunOn(*backend, scatter), OkStatus());
    const std::vector<uint8_t> got = Read(part);
    EXPECT_EQ(std::count(got.begin(), got.end(), GetParam()), kBytes);
  });
}

// The sum of 256 from rank 0 and 1 from each other rank. A single 1 is lost by
// rounding.
TEST_P(SymmetricMemoryOnGpu, HowOftenASumOfBfloat16IsRounded) {
  OnRanks([&](int rank) {
    const auto backend = Join(rank);
    const auto memory = backend->AllocateSymmetric(
        {.bytes = 2, .deadline = Clock::now() + std::chrono::minutes(2)});
    if (IsUnimplemented(memory.status())) return;
    ASSERT_EQ(memory.status(), OkStatus());
    const Tensor number((*memory)->data(), DataType::kBfloat16, {1},
                        (*memory)->device());
    const uint16_t bits = rank == 0 ? 0x4380 : 0x3f80;
    EXPECT_EQ(
        Cuda().MemcpyAsync(number.data(), &bits, sizeof(bits),
                           cuda::kMemcpyDefault, cuda::CurrentStream(rank)),
        kSuccess);
    EXPECT_EQ(RunOn(*backend,
                    {.kind = CollectiveKind::kAllReduce, .tensors = {number}}),
              OkStatus());
    const std::vector<uint8_t> seen = Read(number);
    // Above 256, bfloat16 has only every second integer.
    EXPECT_EQ(seen[1], 0x43);
    const int sum = 256 + 2 * (seen[0] - 0x80);
    const int exact = 256 + GetParam() - 1;
    EXPECT_LE(std::abs(sum - exact), GetParam());
    if (rank == 0 && GetParam() > 2) {
      Figures().emplace_back(
          absl::StrCat("nccl: 256 and ", GetParam() - 1,
                       " x 1 in bfloat16, in symmetric memory"),
          absl::StrCat(sum, std::abs(sum - exact) <= 1 ? ": rounded once"
                                                       : ": rounded often"));
    }
  });
}

class StagingRate : public OneRank {};
std::vector<std::string> GlooAlone() {
  return Devices() > 0 ? std::vector<std::string>{"gloo"}
                       : std::vector<std::string>{};
}
INSTANTIATE_TEST_SUITE_P(OnGpu, StagingRate, ValuesIn(GlooAlone()));
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(StagingRate);

// Copies a whole tensor from the device and back, as gloo does for an
// all_reduce of one rank.
TEST_P(StagingRate, BesideTheBarePinnedCopies) {
  const int64_t bytes = (1 << 30) / gpu::Divisor();
  const auto half = static_cast<size_t>(bytes / 2);
  const Tensor tensor = OnDevice(bytes);
  void* pinned = nullptr;
  ASSERT_EQ(Cuda().HostAlloc(&pinned, tensor.bytes(), cuda::kHostAllocPortable),
            kSuccess);
  cuda::Stream back = nullptr;
  ASSERT_EQ(Cuda().StreamCreateWithPriority(&back, cuda::kStreamNonBlocking, 0),
            kSuccess);
  const auto rate_of = [&](const std::function<void()>& once) {
    std::vector<double> rates;
    once();
    for (int round = 0; round < 7; ++round) {
      const Instant began = Clock::now();
      once();
      rates.push_back(static_cast<double>(bytes) /
                      Seconds(Clock::now() - began).count() / 1e9);
    }
    std::sort(rates.begin(), rates.end());
    return rates[rates.size() / 2];
  };
  // Both directions at once.
  const double bare = rate_of([&] {
    Cuda().MemcpyAsync(pinned, tensor.data(), half, cuda::kMemcpyDefault,
                       stream_);
    Cuda().MemcpyAsync(static_cast<char*>(tensor.data()) + half,
                       static_cast<char*>(pinned) + half, half,
                       cuda::kMemcpyDefault, back);
    Cuda().MemcpyAsync(static_cast<char*>(pinned) + half,
                       static_cast<char*>(tensor.data()) + half, half,
                       cuda::kMemcpyDefault, stream_);
    Cuda().MemcpyAsync(tensor.data(), pinned, half, cuda::kMemcpyDefault, back);
    EXPECT_EQ(Cuda().StreamSynchronize(stream_), kSuccess);
    EXPECT_EQ(Cuda().StreamSynchronize(back), kSuccess);
  });
  const double ours =
      rate_of([&] { EXPECT_EQ(AllReduce(tensor)->Wait(), OkStatus()); });
  Figures().emplace_back(
      absl::StrCat("gloo: a tensor of ", bytes >> 10,
                   " KiB through the host and back"),
      absl::StrFormat("%.1f GB/s; bare pinned copies both ways %.1f GB/s; "
                      "%.0f %% (wanted: at least 80)",
                      ours, bare, 100 * ours / bare));
  EXPECT_EQ(Cuda().StreamDestroy(back), kSuccess);
  EXPECT_EQ(Cuda().FreeHost(pinned), kSuccess);
}

// Prints the available devices and libraries, and the checks that were skipped.
void PrintWhatIsHere() {
  if (Status status = gpu::CudaAvailable(); status.ok()) {
    const cuda::Runtime& runtime = gpu::Cuda();
    std::cout << "cuda: runtime " << cuda::VersionText(runtime.runtime_version)
              << ", driver " << cuda::VersionText(runtime.driver_version)
              << ", devices: " << runtime.devices << "\n";
  } else {
    std::cout << "no CUDA tensors here: " << status.message() << "\n";
  }
  if (Status status = gpu::NcclAvailable(); status.ok()) {
    std::cout << "nccl: " << nccl::VersionText(gpu::Nccl().version) << "\n";
  } else {
    std::cout << "no nccl here: " << status.message() << "\n";
  }
}

void PrintTable() {
  std::cout << "\n| check | result |\n|---|---|\n";
  const auto& tests = *::testing::UnitTest::GetInstance();
  for (int i = 0; i < tests.total_test_suite_count(); ++i) {
    const ::testing::TestSuite& suite = *tests.GetTestSuite(i);
    if (suite.test_to_run_count() == 0) continue;
    const int passed = suite.successful_test_count();
    const int all = suite.test_to_run_count();
    std::cout << "| " << suite.name() << " | "
              << (passed == all ? "" : "FAILED: ") << passed << " of " << all
              << " |\n";
  }
  for (const auto& [what, figure] : Figures()) {
    std::cout << "| " << what << " | " << figure << " |\n";
  }
}

}  // namespace
}  // namespace muster::dataplane::testing

int main(int argc, char** argv) {
  ::testing::InitGoogleMock(&argc, argv);
  muster::dataplane::testing::PrintWhatIsHere();
  const int failed = RUN_ALL_TESTS();
  muster::dataplane::testing::PrintTable();
  return failed;
}
