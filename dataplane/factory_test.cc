#include "muster/dataplane/factory.h"

#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "dataplane/cuda/api.h"
#include "dataplane/nccl/api.h"
#include "dataplane/testing/fake_backend.h"
#include "dataplane/testing/in_memory_store.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "muster/base/clock.h"
#include "muster/dataplane/bootstrap_store.h"

namespace muster::dataplane {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::Each;
using testing::FakeBackend;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr char kPlugins[] = "dataplane/testing/lib";

// The last backend that a test's factory made.
FakeBackend* g_made = nullptr;
std::vector<std::string> g_groups;

StatusOr<std::unique_ptr<Backend>> Make(const BackendOptions& options) {
  auto backend = std::make_unique<FakeBackend>();
  g_made = backend.get();
  g_groups.push_back(options.group_name);
  return backend;
}

StatusOr<std::unique_ptr<Backend>> Fail(const BackendOptions&) {
  return UnavailableError("no network today");
}

std::string Problem(const std::string& spec) {
  const Status status = CheckBackend(spec);
  EXPECT_FALSE(status.ok()) << spec;
  EXPECT_EQ(CreateBackend(spec, {}).status(), status) << spec;
  EXPECT_TRUE(status.ok() || IsInvalidArgument(status)) << status;
  return std::string(status.message());
}

StatusOr<std::unique_ptr<Backend>> MakeNone(const BackendOptions&) {
  return std::unique_ptr<Backend>();
}

StatusOr<std::unique_ptr<Backend>> Throw(const BackendOptions&) {
  throw std::runtime_error("no licence");
}

Collective AllReduceOn(DeviceType device) {
  static float element = 1;
  return {.kind = CollectiveKind::kAllReduce,
          .tensors = {Tensor(&element, {1}, {device, 0})}};
}

TEST(FactoryTest, WhatIsNotThereIsNamedWithWhatIs) {
  for (const std::string name : {"ucc", "xccl", "mpi", "GLOO", ""}) {
    EXPECT_THAT(Problem(name),
                AllOf(HasSubstr("unknown backend \"" + name + "\""),
                      HasSubstr("gloo"), HasSubstr("LoadBackend")));
  }
}

TEST(FactoryTest, AFactoryMayBeAnybodys) {
  ASSERT_TRUE(RegisterBackend("none", {DeviceType::kCpu}, &MakeNone).ok());
  ASSERT_TRUE(RegisterBackend("throws", {DeviceType::kCpu}, &Throw).ok());
  EXPECT_EQ(CreateBackend("none", {}).status(),
            InternalError("backend \"none\": its factory made none"));
  EXPECT_EQ(CreateBackend("cpu:throws", {}).status(),
            InternalError("backend \"throws\": its factory threw: no licence"));
}

TEST(FactoryTest, SpecsThatAreNone) {
  ASSERT_TRUE(RegisterBackend("on-cpu-alone", {DeviceType::kCpu}, Make).ok());
  EXPECT_THAT(Problem("cpu:gloo,cuda"),
              HasSubstr("The custom backend string argument is invalid: "
                        "\"cpu:gloo,cuda\": Invalid device:backend pairing: "
                        "\"cuda\""));
  EXPECT_THAT(Problem("cpu:gloo:nccl"), HasSubstr("Invalid device:backend"));
  EXPECT_THAT(Problem("gloo,nccl"), HasSubstr("Invalid device:backend"));
  EXPECT_THAT(Problem("cpu:gloo,"), HasSubstr("Invalid device:backend"));
  EXPECT_THAT(Problem("cpu:gloo,cpu:gloo"),
              HasSubstr("Duplicate device type cpu"));
  EXPECT_THAT(Problem("tpu:gloo"), HasSubstr("unknown device \"tpu\""));
  EXPECT_THAT(Problem("cpu:"), HasSubstr("unknown backend \"\""));
  EXPECT_THAT(Problem("cuda:on-cpu-alone"),
              HasSubstr("on-cpu-alone takes no cuda tensors"));
}

TEST(FactoryTest, GlooTakesCudaTensorsWhereThereIsADevice) {
  const Status available = cuda::TheRuntime().status();
  if (available.ok()) {
    EXPECT_EQ(CheckBackend("cpu:gloo,cuda:gloo"), OkStatus());
  } else {
    EXPECT_EQ(CheckBackend("cpu:gloo,cuda:gloo"),
              FailedPreconditionError(
                  absl::StrCat("backend \"cuda:gloo\" cannot be used here: ",
                               available.message())));
  }
  EXPECT_EQ(CheckBackend("gloo"), OkStatus());
}

TEST(FactoryTest, NcclIsThereWhereItCanBeUsed) {
  const Status& available = nccl::Available();
  if (available.ok()) {
    EXPECT_THAT(Backends(), Contains("nccl"));
    EXPECT_EQ(CheckBackend("cpu:gloo,cuda:nccl"), OkStatus());
  } else {
    EXPECT_THAT(Backends(), Not(Contains("nccl")));
    EXPECT_EQ(
        CheckBackend("cpu:gloo,cuda:nccl"),
        FailedPreconditionError(absl::StrCat(
            "backend \"nccl\" cannot be used here: ", available.message())));
  }
  EXPECT_TRUE(
      IsAlreadyExists(RegisterBackend("nccl", {DeviceType::kCuda}, Make)));
}

TEST(FactoryTest, WhoNamesNoneGetsWhatIsThere) {
  EXPECT_EQ(DefaultBackend(),
            nccl::Available().ok() ? "cpu:shm,cuda:nccl" : "shm");
}

TEST(FactoryTest, ARegisteredBackendIsOneAsTheOthers) {
  ASSERT_TRUE(RegisterBackend("mine", {DeviceType::kCpu}, Make).ok());
  EXPECT_THAT(Backends(), Contains("mine"));
  EXPECT_TRUE(CheckBackend("mine").ok());
  EXPECT_TRUE(CreateBackend("mine", {.group_name = "g"}).ok());
  EXPECT_EQ(g_groups.back(), "g");

  EXPECT_TRUE(
      IsAlreadyExists(RegisterBackend("mine", {DeviceType::kCpu}, Make)));
  EXPECT_TRUE(
      IsAlreadyExists(RegisterBackend("gloo", {DeviceType::kCpu}, Make)));
  ASSERT_TRUE(RegisterBackend("down", {DeviceType::kCpu}, Fail).ok());
  EXPECT_TRUE(IsUnavailable(CreateBackend("down", {}).status()));
}

TEST(FactoryTest, WhatCannotBeRegistered) {
  for (const std::string& name :
       {std::string(), std::string("Mine"), std::string("a:b"),
        std::string("a,b"), std::string(65, 'a')}) {
    EXPECT_TRUE(
        IsInvalidArgument(RegisterBackend(name, {DeviceType::kCpu}, Make)))
        << name;
  }
  EXPECT_TRUE(IsInvalidArgument(RegisterBackend("none", {}, Make)));
  EXPECT_TRUE(
      IsInvalidArgument(RegisterBackend("none", {DeviceType::kCpu}, nullptr)));
}

TEST(FactoryTest, EachDeviceHasItsBackend) {
  ASSERT_TRUE(RegisterBackend("on-cpu", {DeviceType::kCpu}, Make).ok());
  ASSERT_TRUE(
      RegisterBackend("on-both", {DeviceType::kCuda, DeviceType::kCpu}, Make)
          .ok());
  const std::string spec = "cuda:on-both,cpu:on-cpu";
  auto backend = CreateBackend(spec, {});
  ASSERT_TRUE(backend.ok()) << backend.status();
  FakeBackend* const cpu = g_made;
  EXPECT_EQ((*backend)->name(), spec);
  const auto on_cpu = (*backend)->Start(AllReduceOn(DeviceType::kCpu));
  EXPECT_EQ(cpu->started.size(), 1U);
  // Neither the collective on the other device nor the one without tensors.
  const auto on_cuda = (*backend)->Start(AllReduceOn(DeviceType::kCuda));
  const auto barrier = (*backend)->Start({.kind = CollectiveKind::kBarrier});
  EXPECT_EQ(cpu->started.size(), 1U);
  (*backend)->Refused(AllReduceOn(DeviceType::kCpu),
                      InvalidArgumentError("bad"));
  EXPECT_EQ(cpu->refused.size(), 1U);
  (*backend)->Abort(AbortedError("enough"));
  EXPECT_TRUE(on_cpu->IsCompleted() && on_cuda->IsCompleted() &&
              barrier->IsCompleted());
}

TEST(FactoryTest, OneBackendServesTwoDevices) {
  ASSERT_TRUE(
      RegisterBackend("twice", {DeviceType::kCpu, DeviceType::kCuda}, Make)
          .ok());
  g_groups.clear();
  auto backend = CreateBackend("cpu:twice,cuda:twice", {});
  ASSERT_TRUE(backend.ok());
  EXPECT_EQ(g_groups.size(), 1U);
  const auto a = (*backend)->Start(AllReduceOn(DeviceType::kCpu));
  const auto b = (*backend)->Start(AllReduceOn(DeviceType::kCuda));
  EXPECT_EQ(g_made->started.size(), 2U);
}

TEST(FactoryTest, CpuTensorsAreMadeOneAsFarAsTheirBackendWants) {
  ASSERT_TRUE(RegisterBackend("one-by-one", {DeviceType::kCuda}, Make).ok());
  const auto alone = CreateBackend("gloo", {.world_size = 1});
  const auto beside =
      CreateBackend("cuda:one-by-one,cpu:gloo", {.world_size = 1});
  ASSERT_TRUE(alone.ok() && beside.ok());
  EXPECT_GT((*alone)->fusable_bytes(), 0U);
  EXPECT_EQ((*beside)->fusable_bytes(), (*alone)->fusable_bytes());
}

TEST(FactoryTest, ABackendPreparesOnlyItsOwnTensors) {
  ASSERT_TRUE(RegisterBackend("prepares", {DeviceType::kCuda}, Make).ok());
  const auto both = CreateBackend("cuda:prepares,cpu:gloo", {.world_size = 1});
  ASSERT_TRUE(both.ok());
  EXPECT_EQ((*both)->Prepare(AllReduceOn(DeviceType::kCpu)), nullptr);
  EXPECT_TRUE(g_made->prepared.empty());
}

TEST(FactoryTest, TheLastRunIsThatOfTheDevicesOwnBackend) {
  ASSERT_TRUE(RegisterBackend("says-not-how", {DeviceType::kCuda}, Make).ok());
  const auto both =
      CreateBackend("cpu:gloo,cuda:says-not-how", {.world_size = 1});
  ASSERT_TRUE(both.ok());
  EXPECT_EQ((*both)->last_run(DeviceType::kCpu).backend, "gloo");
  const LastRun on_device = (*both)->last_run(DeviceType::kCuda);
  EXPECT_EQ(on_device.backend, "fake");
  EXPECT_EQ(on_device.algorithm, "");
}

TEST(FactoryTest, BackendsOfDevicesDoNotMeetInTheStore) {
  std::shared_ptr<BootstrapStore> part;
  ASSERT_TRUE(RegisterBackend("meets", {DeviceType::kCuda},
                              [&](const BackendOptions& options) {
                                part = options.store;
                                return Make(options);
                              })
                  .ok());
  std::shared_ptr<BootstrapStore> of_cpu;
  ASSERT_TRUE(RegisterBackend("else", {DeviceType::kCpu},
                              [&](const BackendOptions& options) {
                                of_cpu = options.store;
                                return Make(options);
                              })
                  .ok());
  const auto whole = std::make_shared<testing::InMemoryStore>();
  ASSERT_TRUE(CreateBackend("cuda:meets,cpu:else", {.store = whole}).ok());
  // The same keys as for ranks that have no other backend.
  EXPECT_EQ(of_cpu, whole);
  ASSERT_NE(part, nullptr);
  const Instant now = Clock::now();
  EXPECT_TRUE(part->SetBy("key", "value", now).ok());
  EXPECT_EQ(whole->size(), 1U);
  EXPECT_FALSE(whole->Get({"key"}, now).ok());
  EXPECT_TRUE(part->Get({"key"}, now).ok());
  part->Forget("key", now);
  EXPECT_EQ(whole->size(), 0U);
}

TEST(FactoryTest, ADeviceWithoutABackend) {
  ASSERT_TRUE(RegisterBackend("lone", {DeviceType::kCpu}, Make).ok());
  auto backend = CreateBackend("cpu:lone", {});
  ASSERT_TRUE(backend.ok());
  const Status status = (*backend)->Supports(AllReduceOn(DeviceType::kCuda));
  EXPECT_TRUE(IsUnimplemented(status));
  EXPECT_EQ(status.message(),
            "No backend for float32[1] on cuda:0 in \"cpu:lone\"");
}

TEST(FactoryTest, LibrariesThatAreNoBackends) {
  const auto load = [](const std::string& path) {
    return LoadBackend(path).status();
  };
  EXPECT_TRUE(IsNotFound(load("absent.so")));
  EXPECT_THAT(std::string(load("absent.so").message()),
              AllOf(HasSubstr("backend library \"absent.so\""),
                    HasSubstr("No such file")));
  const Status none = load(kPlugins + std::string("no_backend.so"));
  EXPECT_TRUE(IsFailedPrecondition(none));
  EXPECT_THAT(std::string(none.message()), HasSubstr("muster_backend_plugin"));
  const Status other = load(kPlugins + std::string("other_version.so"));
  EXPECT_TRUE(IsFailedPrecondition(other));
  EXPECT_THAT(std::string(other.message()),
              AllOf(HasSubstr("was built for interface 1000 (compiler ABI "),
                    HasSubstr("this program for interface 11 (compiler ABI ")));
  const Status taken = load(kPlugins + std::string("taken_name.so"));
  EXPECT_TRUE(IsAlreadyExists(taken));
  EXPECT_THAT(std::string(taken.message()),
              HasSubstr("taken_name.so\": backend \"gloo\" is registered"));
  const Status null = load(kPlugins + std::string("null_plugin.so"));
  EXPECT_TRUE(IsFailedPrecondition(null));
  EXPECT_THAT(std::string(null.message()),
              HasSubstr("gives none: muster_backend_plugin returns null"));
  const Status nameless = load(kPlugins + std::string("null_name.so"));
  EXPECT_TRUE(IsFailedPrecondition(nameless));
  EXPECT_THAT(std::string(nameless.message()),
              HasSubstr("gives a backend without a name"));
}

TEST(FactoryTest, ThreadsMayLoadOneLibraryTogether) {
  std::vector<std::string> names(8);
  std::vector<std::thread> threads;
  threads.reserve(names.size());
  for (std::string& name : names) {
    threads.emplace_back([&name] {
      const auto loaded = LoadBackend("dataplane/examples/libstore_backend.so");
      name = loaded.ok() ? *loaded : loaded.status().ToString();
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_THAT(names, Each("store"));
}

}  // namespace
}  // namespace muster::dataplane
