// The conformance suites over gloo on CUDA tensors, with the fake CUDA: all
// ranks share two devices.

#include <memory>

#include "dataplane/cpu/engine/cpu_backend.h"
#include "dataplane/cuda/staging.h"
#include "dataplane/cuda/testing/host_cuda.h"
#include "dataplane/cuda/testing/on_device.h"
#include "dataplane/testing/backend_conformance.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "muster/dataplane/factory.h"

namespace muster::dataplane::testing {
namespace {

using ::testing::Combine;
using ::testing::IsEmpty;
using ::testing::Values;
using ::testing::ValuesIn;

const cuda::Api& TheApi() {
  static const auto* const api = new cuda::Api(cuda::testing::HostCudaApi());
  return *api;
}

// Checks for misuses and leaks after each test.
class Tidy : public ::testing::EmptyTestEventListener {
  void OnTestEnd(const ::testing::TestInfo&) override {
    EXPECT_THAT(cuda::testing::TakeMisuses(), IsEmpty());
    EXPECT_EQ(cuda::testing::CountLeaks().streams, 0U);
    EXPECT_EQ(cuda::testing::CountLeaks().events, 0U);
    EXPECT_EQ(cuda::testing::CountLeaks().memory, 0U);
  }
};

StatusOr<std::unique_ptr<Backend>> Make(const BackendOptions& options,
                                        size_t chunk_bytes) {
  auto gloo = CreateGlooBackend(options);
  if (!gloo.ok()) return gloo.status();
  return cuda::testing::OnDevice(
      TheApi(), options.rank % 2, "gloo-staged",
      cuda::CreateStaging(TheApi(), *std::move(gloo),
                          {.rank = options.rank,
                           .world_size = options.world_size,
                           .group_name = options.group_name,
                           .chunk_bytes = chunk_bytes}));
}

bool Register() {
  bool all = true;
  // With chunks that hold most tensors, and with small ones.
  for (const auto& [name, bytes] : {std::pair("gloo-staged", 4 << 20),
                                    std::pair("gloo-chunks", 48 << 10)}) {
    all =
        all && RegisterBackend(name, {DeviceType::kCpu},
                               [bytes = bytes](const BackendOptions& options) {
                                 return Make(options, bytes);
                               })
                   .ok();
  }
  ::testing::UnitTest::GetInstance()->listeners().Append(new Tidy);
  return all;
}

const bool g_registered = Register();

INSTANTIATE_TEST_SUITE_P(Staged, ReductionConformance,
                         Combine(Values("gloo-staged"), Values(2),
                                 ValuesIn(kDataTypes)));

INSTANTIATE_TEST_SUITE_P(Chunks, ReductionConformance,
                         Combine(Values("gloo-chunks"), Values(3),
                                 ValuesIn(kDataTypes)));

INSTANTIATE_TEST_SUITE_P(Staged, BackendConformance,
                         Combine(Values("gloo-chunks"), Values(1, 2, 3, 4)));

INSTANTIATE_TEST_SUITE_P(Staged, DisagreementConformance,
                         Combine(Values("gloo-staged"), Values(2, 3)));

INSTANTIATE_TEST_SUITE_P(Staged, PointToPointConformance,
                         Combine(Values("gloo-staged"), Values(2, 3)));

INSTANTIATE_TEST_SUITE_P(Staged, FailureConformance,
                         Combine(Values("gloo-staged"), Values(3)));

INSTANTIATE_TEST_SUITE_P(Staged, ProgramConformance,
                         Combine(Values("gloo-chunks"), Values(3)));

}  // namespace
}  // namespace muster::dataplane::testing
