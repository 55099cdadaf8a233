// The conformance suites on the nccl backend, with the fake NCCL and CUDA: all
// ranks are threads and share two devices.

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "dataplane/cuda/testing/host_cuda.h"
#include "dataplane/cuda/testing/on_device.h"
#include "dataplane/nccl/nccl_backend.h"
#include "dataplane/nccl/testing/host_nccl.h"
#include "dataplane/per_device.h"
#include "dataplane/testing/backend_conformance.h"
#include "dataplane/testing/in_memory_store.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "muster/dataplane/backend.h"
#include "muster/dataplane/factory.h"
#include "muster/dataplane/nccl_options.h"

namespace muster::dataplane::testing {
namespace {

using ::testing::Combine;
using ::testing::IsEmpty;
using ::testing::Values;
using ::testing::ValuesIn;

const nccl::Platform& ThePlatform() {
  static const auto* const platform =
      new nccl::Platform{.cuda = cuda::testing::HostCudaApi(),
                         .nccl = nccl::testing::HostNcclApi(),
                         .nccl_version = 22809};
  return *platform;
}

// Checks for misuses and leaks after each test.
class Tidy : public ::testing::EmptyTestEventListener {
  void OnTestEnd(const ::testing::TestInfo&) override {
    EXPECT_THAT(nccl::testing::TakeMisuses(), IsEmpty());
    EXPECT_THAT(cuda::testing::TakeMisuses(), IsEmpty());
    EXPECT_EQ(nccl::testing::CountLeaks().comms, 0U);
    EXPECT_EQ(nccl::testing::CountLeaks().ops, 0U);
    EXPECT_EQ(cuda::testing::CountLeaks().streams, 0U);
    EXPECT_EQ(cuda::testing::CountLeaks().events, 0U);
    EXPECT_EQ(cuda::testing::CountLeaks().memory, 0U);
  }
};

// A group made from a larger one, which lives as long. The last rank of the
// larger one is in no part; rank 0's object also holds that rank's backend.
class MadeOfAnother : public BackendDecorator {
 public:
  using Others = std::vector<std::unique_ptr<Backend>>;
  MadeOfAnother(Others others, std::unique_ptr<Backend> backend)
      : BackendDecorator(std::move(backend)), others_(std::move(others)) {}
  ~MadeOfAnother() override { DestroyInner(); }

 private:
  const Others others_;
};

std::unique_ptr<Backend> Part(const BackendOptions& options, int device,
                              bool shrinks) {
  BackendOptions other = options;
  other.group_name = "larger";
  other.world_size = options.world_size + 1;
  other.store = PrefixedStore(options.store, "larger/");
  if (other.store == nullptr) other.store = std::make_shared<InMemoryStore>();
  other.device = device;
  MadeOfAnother::Others others;
  others.push_back(*nccl::CreateNcclBackend(ThePlatform(), other));
  BackendOptions own = options;
  own.device = device;
  if (options.rank == 0) {
    other.rank = options.world_size;
    others.push_back(*nccl::CreateNcclBackend(ThePlatform(), other));
  }
  SplitOptions split = {.group_name = options.group_name};
  if (shrinks) {
    split.excluded = {options.world_size};
    // Runs a barrier, so that there is a communicator.
    std::vector<std::shared_ptr<Work>> works;
    for (const auto& each : others) {
      works.push_back(each->Start({.kind = CollectiveKind::kBarrier}));
    }
    for (const auto& work : works) {
      EXPECT_EQ(work->Synchronize(), OkStatus());
    }
  } else if (options.rank == 0) {
    others[1]->Split({.part = kNoPart});
  }
  own.parent_handle = others[0]->Split(split);
  return std::make_unique<MadeOfAnother>(
      std::move(others), *nccl::CreateNcclBackend(ThePlatform(), own));
}

bool Register() {
  const auto add = [](const std::string& name, const auto& make) {
    return RegisterBackend(name, {DeviceType::kCpu},
                           [=](const BackendOptions& options) {
                             const int device = options.rank % 2;
                             return cuda::testing::OnDevice(
                                 ThePlatform().cuda, device, name,
                                 make(options, device));
                           })
        .ok();
  };
  const bool registered =
      add("nccl-host",
          [](const BackendOptions& options, int) {
            return *nccl::CreateNcclBackend(ThePlatform(), options);
          }) &&
      add("nccl-host-zero-cta",
          [](const BackendOptions& options, int) {
            BackendOptions zero = options;
            zero.nccl = std::make_shared<NcclOptions>(
                NcclOptions{.cta_policy = NcclOptions::CtaPolicy::kZero});
            return *nccl::CreateNcclBackend(ThePlatform(), zero);
          }) &&
      add("nccl-host-blocking",
          [](const BackendOptions& options, int) {
            BackendOptions blocking = options;
            blocking.nccl =
                std::make_shared<NcclOptions>(NcclOptions{.blocking = true});
            return *nccl::CreateNcclBackend(ThePlatform(), blocking);
          }) &&
      add("nccl-host-split",
          [](const BackendOptions& options, int device) {
            return Part(options, device, /*shrinks=*/false);
          }) &&
      add("nccl-host-shrunk", [](const BackendOptions& options, int device) {
        return Part(options, device, /*shrinks=*/true);
      });
  // NCCL's calls may be in progress when they return.
  nccl::testing::SetPolls(1);
  ::testing::UnitTest::GetInstance()->listeners().Append(new Tidy);
  return registered;
}

const bool g_registered = Register();

INSTANTIATE_TEST_SUITE_P(Nccl, ReductionConformance,
                         Combine(Values("nccl-host"), Values(1, 2, 3, 4),
                                 ValuesIn(kDataTypes)));

INSTANTIATE_TEST_SUITE_P(NcclFloat8, ReductionConformance,
                         Combine(Values("nccl-host"), Values(1, 2, 3, 4),
                                 ValuesIn(kFloat8Types)));

INSTANTIATE_TEST_SUITE_P(Nccl, BackendConformance,
                         Combine(Values("nccl-host", "nccl-host-split",
                                        "nccl-host-shrunk"),
                                 Values(1, 2, 3, 4)));
INSTANTIATE_TEST_SUITE_P(NcclZeroCta, BackendConformance,
                         Combine(Values("nccl-host-zero-cta"), Values(3)));
INSTANTIATE_TEST_SUITE_P(NcclBlocking, BackendConformance,
                         Combine(Values("nccl-host-blocking"), Values(1, 3)));

// NCCL does not detect ranks that are gone or run something else; the
// coordinator and debug level DETAIL do. It has no tags and no receive from any
// rank.
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(FailureConformance);
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(DisagreementConformance);
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(PointToPointConformance);
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(ProgramConformance);

}  // namespace
}  // namespace muster::dataplane::testing
