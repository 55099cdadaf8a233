// Backends that are not built in: registered by the program or loaded from
// libraries; the example's, and MPI's under mpirun.

#include "muster/backends.h"

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "client/testing/processes.h"
#include "dataplane/culprit.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "muster/dataplane/backend.h"
#include "muster/distributed.h"
#include "muster/errors.h"

namespace muster {
namespace {

using muster::testing::Process;
using muster::testing::ReservedPort;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::StartsWith;
using ::testing::UnorderedElementsAre;
using ::testing::UnorderedElementsAreArray;

constexpr std::chrono::seconds kSoon(60);
constexpr char kRank[] = "client/testing/backend_rank";
constexpr char kStoreLibrary[] = "dataplane/examples/libstore_backend.so";
constexpr char kMpiLibrary[] = "dataplane/mpi/libmuster_mpi.so";

std::map<std::string, std::string> Environment(const std::string& library,
                                               int port) {
  return {{"MASTER_ADDR", "127.0.0.1"},
          {"MASTER_PORT", std::to_string(port)},
          {"MUSTER_BACKEND_LIBRARIES", library}};
}

std::string Problem(const std::function<void()>& run) {
  try {
    run();
  } catch (const DistError& error) {
    return error.what();
  }
  return "no error";
}

TEST(BackendsTest, WhatIsAvailable) {
  EXPECT_TRUE(IsGlooAvailable());
  EXPECT_FALSE(IsNcclAvailable());
  EXPECT_FALSE(IsMpiAvailable());
  EXPECT_FALSE(IsUccAvailable());
  EXPECT_FALSE(IsXcclAvailable());
  EXPECT_THAT(Problem([] { InitProcessGroup({.backend = "ucc"}); }),
              HasSubstr("unknown backend \"ucc\": this program has gloo"));
  EXPECT_THAT(Problem([] { LoadBackend("absent.so"); }),
              HasSubstr("\"absent.so\""));
  EXPECT_EQ(LoadBackend(kStoreLibrary), "store");
  EXPECT_TRUE(IsBackendAvailable("store"));
  // Loading it again changes nothing.
  EXPECT_EQ(LoadBackend(kStoreLibrary), "store");
  EXPECT_THAT(Problem([] { RegisterBackend("store", {}, nullptr); }),
              HasSubstr("devices"));
}

TEST(BackendsTest, NamesMayHaveCapitalLetters) {
  EXPECT_TRUE(IsBackendAvailable("GLOO"));
  InitProcessGroup({.backend = "Gloo",
                    .init_method = "tcp://127.0.0.1:0?rank=0&world_size=1"});
  EXPECT_EQ(GetBackend(), "gloo");
  EXPECT_EQ(GetBackend(NewGroup({.backend = "cpu:SHM"})), "cpu:shm");
  DestroyProcessGroup();
}

TEST(BackendsTest, TheDefaultForADevice) {
  EXPECT_EQ(GetDefaultBackendForDevice("cpu"), "shm");
  EXPECT_EQ(GetDefaultBackendForDevice("cuda"), "nccl");
  EXPECT_EQ(GetDefaultBackendForDevice("cuda:1"), "nccl");
  for (const std::string device : {"", "cuda:", "cuda:-1", "cuda:x", "CPU"}) {
    EXPECT_THAT(
        Problem([&] { GetDefaultBackendForDevice(device); }),
        StartsWith("Default backend not registered for device : \"" + device));
  }
}

TEST(BackendsTest, ALibraryOfTheEnvironmentThatIsNotThere) {
  setenv("MUSTER_BACKEND_LIBRARIES", "absent.so", 1);
  EXPECT_THAT(Problem([] { InitProcessGroup(); }), HasSubstr("\"absent.so\""));
  unsetenv("MUSTER_BACKEND_LIBRARIES");
}

// A backend whose collectives never complete.
class StuckBackend : public dataplane::Backend {
 public:
  std::string name() const override { return "stuck"; }
  std::span<const dataplane::DeviceType> devices() const override {
    static constexpr dataplane::DeviceType kDevices[] = {
        dataplane::DeviceType::kCpu};
    return kDevices;
  }
  Status Supports(const dataplane::Collective&) const override {
    return OkStatus();
  }
  std::shared_ptr<dataplane::Work> Start(
      const dataplane::Collective& collective) override {
    return std::make_shared<dataplane::PromisedWork>(collective.Describe());
  }
  void Abort(Status) override {}
};

TEST(BackendsTest, WhatABackendNeverCompletesFailsSoonAfterItsTimeout) {
  RegisterBackend("stuck", {dataplane::DeviceType::kCpu},
                  [](const dataplane::BackendOptions&) {
                    return std::make_unique<StuckBackend>();
                  });
  const ReservedPort port;
  InitProcessGroup(
      {.backend = "stuck",
       .init_method = "tcp://127.0.0.1:" + std::to_string(port.port()) +
                      "?rank=0&world_size=1"});
  const std::string error =
      Problem([] { Barrier({.timeout = std::chrono::milliseconds(10)}); });
  EXPECT_THAT(error, StartsWith("barrier #1 on group \"world\": backend "
                                "\"stuck\" of rank 0 did not complete it "
                                "within 10ms, nor in the 2s after that"));
  // The error ends the group.
  EXPECT_EQ(Problem([] { Barrier(); }), error);
  DestroyProcessGroup();
}

// A backend that runs other code within Start; its collectives are complete at
// once.
class NestingBackend : public StuckBackend {
 public:
  explicit NestingBackend(const std::function<void()>& within)
      : within_(within) {}

  std::string name() const override { return "nesting"; }
  std::shared_ptr<dataplane::Work> Start(
      const dataplane::Collective& collective) override {
    if (within_ != nullptr) within_();
    auto work =
        std::make_shared<dataplane::PromisedWork>(collective.Describe());
    work->Complete(OkStatus());
    return work;
  }

 private:
  const std::function<void()>& within_;
};

TEST(BackendsTest, ACallWithinACallLeavesItItsGroup) {
  std::function<void()> within;
  RegisterBackend("nesting", {dataplane::DeviceType::kCpu},
                  [&](const dataplane::BackendOptions&) {
                    return std::make_unique<NestingBackend>(within);
                  });
  const ReservedPort port;
  InitProcessGroup(
      {.backend = "nesting",
       .init_method = "tcp://127.0.0.1:" + std::to_string(port.port()) +
                      "?rank=0&world_size=1"});
  const std::weak_ptr<ProcessGroup> group = WorldGroup();
  std::thread ends;
  int calls = 0;
  within = [&] {
    ++calls;
    EXPECT_EQ(GetRank(), 0);
    EXPECT_EQ(WorldGroup(), group.lock());
    ends = std::thread([] { DestroyProcessGroup(); });
    while (IsInitialized()) std::this_thread::yield();
    const int64_t keepers = group.use_count();
    EXPECT_THAT(Problem([] { GetRank(); }),
                HasSubstr("has not been initialized"));
    // Including the call that contains this one.
    EXPECT_EQ(group.use_count(), keepers);
  };
  Barrier();
  EXPECT_EQ(calls, 1);
  ends.join();
  EXPECT_THAT(Problem([] { GetRank(); }),
              HasSubstr("has not been initialized"));
  EXPECT_EQ(group.use_count(), 0);
}

TEST(BackendsTest, WhoKeepsTheDefaultGroupFromFormingIsNamed) {
  RegisterBackend("lonely", {dataplane::DeviceType::kCpu},
                  [](const dataplane::BackendOptions&)
                      -> StatusOr<std::unique_ptr<dataplane::Backend>> {
                    Status status =
                        DeadlineExceededError("rank 0 did not come");
                    dataplane::SetCulpritRank(status, 0);
                    return status;
                  });
  const ReservedPort port;
  try {
    InitProcessGroup(
        {.backend = "lonely",
         .init_method = "tcp://127.0.0.1:" + std::to_string(port.port()) +
                        "?rank=0&world_size=1",
         .timeout = kSoon});
    ADD_FAILURE() << "nothing was thrown";
  } catch (const DistBackendError& error) {
    EXPECT_THAT(error.culprit_ranks(), ElementsAre(0));
    EXPECT_THAT(std::string(error.what()),
                StartsWith("group \"world\" of 1 ranks did not form within 60s "
                           "(InitProcessGroupOptions::timeout): rank 0 did not "
                           "come; rank 0 ("));
  }
}

class StoreBackendTest : public ::testing::TestWithParam<std::string> {};

TEST_P(StoreBackendTest, ThreeRanksMeetThroughAnExampleOfABackend) {
  const ReservedPort port;
  std::vector<std::unique_ptr<Process>> ranks;
  for (int rank = 0; rank < 3; ++rank) {
    auto environment = Environment(kStoreLibrary, port.port());
    environment["RANK"] = std::to_string(rank);
    environment["WORLD_SIZE"] = "3";
    ranks.push_back(std::make_unique<Process>(
        std::vector<std::string>{kRank, GetParam(), "some"}, environment));
  }
  for (int rank = 0; rank < 3; ++rank) {
    Process& process = *ranks[static_cast<size_t>(rank)];
    const std::string me = "rank " + std::to_string(rank) + " ";
    EXPECT_EQ(process.ReadLine(kSoon),
              me + GetParam() + " sum 4.500000 root 1");
    EXPECT_THAT(process.ReadLine(kSoon),
                AllOf(StartsWith("error DistError"),
                      HasSubstr("the store backend has no reduce: it has "
                                "all_reduce, broadcast and barrier")));
    // Rank 0 detects rank 1, the others rank 0; the first error counts for all.
    EXPECT_THAT(
        process.ReadLine(kSoon),
        AllOf(StartsWith("error DistBackendError"),
              HasSubstr("all_reduce #5: rank "), HasSubstr(" bytes, rank ")));
    EXPECT_EQ(process.ReadLine(kSoon), me + "done");
  }
  for (const auto& rank : ranks) EXPECT_EQ(rank->Wait(kSoon).code, 0);
}

INSTANTIATE_TEST_SUITE_P(Specs, StoreBackendTest,
                         ::testing::Values("store", "cpu:store"),
                         [](const auto& info) {
                           return info.index == 0 ? "Alone" : "ByDevice";
                         });

// All ranks of a group take part when groups of the same backend are made from
// it, except groups that only their members know.
TEST(BackendsTest, ABackendHearsOfTheGroupsThatAreMadeOfItsOwn) {
  const ReservedPort port;
  std::vector<std::unique_ptr<Process>> ranks;
  for (int rank = 0; rank < 3; ++rank) {
    auto environment = Environment("", port.port());
    environment["RANK"] = std::to_string(rank);
    environment["WORLD_SIZE"] = "3";
    ranks.push_back(std::make_unique<Process>(
        std::vector<std::string>{kRank, "telling", "parts"}, environment));
  }
  const auto lines = [&](size_t rank, size_t count) {
    std::vector<std::string> all;
    for (size_t i = 0; i < count; ++i) {
      all.push_back(ranks[rank]->ReadLine(kSoon));
    }
    return all;
  };
  EXPECT_THAT(
      lines(0, 10),
      ElementsAre("world from nowhere", "split world: 1 part 0", "1 from world",
                  "split world: world:split:0:0 part 0",
                  "world:split:0:0 from world", "split 1: 1:split:0:1 part 1",
                  "1:split:0:1 from 1", "local from nowhere",
                  "shrink 1: 1:shrink:1 without 1", "1:shrink:1 from 1"));
  EXPECT_THAT(
      lines(1, 7),
      ElementsAre("world from nowhere", "split world: 1 part 0", "1 from world",
                  "split world: world:split:0:-1 part -1",
                  "split 1: 1:split:0:0 part 0", "1:split:0:0 from 1",
                  "local from nowhere"));
  EXPECT_THAT(lines(2, 4),
              ElementsAre("world from nowhere", "split world: 1 part -1",
                          "split world: world:split:0:0 part 0",
                          "world:split:0:0 from world"));
  for (const auto& rank : ranks) EXPECT_EQ(rank->Wait(kSoon).code, 0);
}

class Mpirun {
 public:
  Mpirun(int size, const std::string& what,
         const std::map<std::string, std::string>& more = {})
      : process_({"/usr/bin/env", "mpirun", "--oversubscribe", "-n",
                  std::to_string(size), kRank, "mpi", what},
                 [&] {
                   auto environment = Environment(kMpiLibrary, port_.port());
                   environment["OMPI_ALLOW_RUN_AS_ROOT"] = "1";
                   environment["OMPI_ALLOW_RUN_AS_ROOT_CONFIRM"] = "1";
                   environment["HOME"] = ::testing::TempDir();
                   // A folder with a short path, for the names of sockets.
                   environment["TMPDIR"] = "/tmp";
                   // MPI leaks memory, and unfinished operations cannot free
                   // theirs.
                   environment["ASAN_OPTIONS"] = "detect_leaks=0";
                   environment.insert(more.begin(), more.end());
                   return environment;
                 }()) {}

  // Returns the next lines of all ranks, in any order.
  std::vector<std::string> Lines(int count) {
    std::vector<std::string> lines;
    lines.reserve(static_cast<size_t>(count));
    for (int i = 0; i < count; ++i) lines.push_back(process_.ReadLine(kSoon));
    return lines;
  }

  testing::Exit Wait() { return process_.Wait(kSoon); }

 private:
  const ReservedPort port_;
  Process process_;
};

std::string Me(int rank) { return "rank " + std::to_string(rank) + " "; }

class MpiBackendTest : public ::testing::TestWithParam<int> {};

TEST_P(MpiBackendTest, EveryVerbTypeAndOperationUnderMpirun) {
  const int size = GetParam();
  Mpirun mpirun(size, "all");
  std::vector<std::string> expected;
  const double sum = size * (size - 1) / 2.0 + size * 0.5;
  for (int rank = 0; rank < size; ++rank) {
    expected.push_back(Me(rank) + "mpi sum " + std::to_string(sum) + " root " +
                       std::to_string(1 % size));
    expected.push_back(Me(rank) + "done");
  }
  EXPECT_THAT(mpirun.Lines(2 * size), UnorderedElementsAreArray(expected));
  EXPECT_EQ(mpirun.Wait().code, 0);
}

INSTANTIATE_TEST_SUITE_P(Sizes, MpiBackendTest, ::testing::Values(1, 3, 4));

// MPI cannot cancel an operation, but the ranks end anyway.
TEST(MpirunTest, ATimeoutEndsTheGroup) {
  Mpirun mpirun(2, "late");
  const auto late = AllOf(StartsWith("error DistBackendError"),
                          HasSubstr("all_reduce #4: timed out after 300ms"));
  EXPECT_THAT(mpirun.Lines(6),
              UnorderedElementsAre(Me(0) + "mpi sum 2.000000 root 1",
                                   Me(1) + "mpi sum 2.000000 root 1",
                                   Me(0) + "done", late, late, Me(1) + "done"));
  EXPECT_EQ(mpirun.Wait().signal, 0);
}

// MPI itself would not notice, and leave parts of the outputs as they were.
TEST(MpirunTest, CountsAndOperationsThatDifferBetweenRanksAreAnErrorOnAll) {
  const std::pair<std::string, std::string> calls[] = {
      {"gather_counts", "all_gather #4"},
      {"scatter_counts", "reduce_scatter #4"},
      {"function_counts", "all_reduce #4"},
      {"operations", "reduce_scatter #4"}};
  for (const auto& [what, label] : calls) {
    SCOPED_TRACE(what);
    Mpirun mpirun(2, what);
    const auto differ = AllOf(
        StartsWith("error DistBackendError"),
        HasSubstr(label + ": the ranks differ in counts, type or operation"));
    EXPECT_THAT(mpirun.Lines(6),
                UnorderedElementsAre(Me(0) + "mpi sum 2.000000 root 1",
                                     Me(1) + "mpi sum 2.000000 root 1", differ,
                                     differ, Me(0) + "done", Me(1) + "done"));
    EXPECT_EQ(mpirun.Wait().signal, 0);
  }
}

// Their ranks in MPI differ, so MPI alone would wait forever.
TEST(MpirunTest, ProcessesOfTwoMpirunsAreNoGroup) {
  const ReservedPort first;
  const ReservedPort second;
  const std::map<std::string, std::string> ports = {
      {"PORT_1", std::to_string(first.port())},
      {"PORT_2", std::to_string(second.port())}};
  std::map<std::string, std::string> of_second = ports;
  of_second["SECOND"] = "yes";
  Mpirun one(2, "strangers", ports);
  Mpirun other(2, "strangers", of_second);
  for (Mpirun* const mpirun : {&one, &other}) {
    for (const std::string& line : mpirun->Lines(2)) {
      // The text is that of the rank that detected it, or of the coordinator.
      EXPECT_THAT(line,
                  AllOf(StartsWith("error DistBackendError ["),
                        HasSubstr("the processes of group \"world\" are "
                                  "not those of one mpirun: rank 0, which "
                                  "is rank 0 of MPI, does not reach rank "
                                  "1 by MPI")));
    }
    EXPECT_EQ(mpirun->Wait().code, 0);
  }
}

// MPI itself would wait for it in MPI_Init.
TEST(MpirunTest, WhoDoesNotComeIsNamedWhenTheTimeoutHasPassed) {
  Mpirun mpirun(2, "alone");
  EXPECT_THAT(mpirun.Lines(1),
              ElementsAre(HasSubstr(
                  "1 of 2 ranks came to the rendezvous in time; missing rank "
                  "1")));
  EXPECT_EQ(mpirun.Wait().code, 0);
}

}  // namespace
}  // namespace muster
