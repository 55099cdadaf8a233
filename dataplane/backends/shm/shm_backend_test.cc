#include "dataplane/backends/shm/shm_backend.h"

#include <cstdlib>
#include <fstream>
#include <string>
#include <vector>

#include "dataplane/communicator.h"
#include "dataplane/factory.h"
#include "dataplane/testing/local_world.h"
#include "dataplane/testing/process_world.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace muster::dataplane {
namespace {

using ::testing::HasSubstr;
using testing::LocalWorld;

constexpr int kRanks = 3;

// How much of this process's memory is that of a group.
int Segments() {
  std::ifstream file("/proc/self/maps");
  std::string line;
  int found = 0;
  while (std::getline(file, line)) {
    found += line.find("/memfd:muster-") != std::string::npos;
  }
  return found;
}

void ExpectRightSums(LocalWorld& world) {
  world.OnEachRank([](Communicator& communicator) {
    for (const size_t count : {size_t{1}, size_t{5'000}, size_t{1'000'000}}) {
      std::vector<float> values(count,
                                static_cast<float>(communicator.rank() + 1));
      const absl::Status status =
          communicator
              .Start({.kind = CollectiveKind::kAllReduce,
                      .tensors = {Tensor(values)}})
              ->Wait();
      EXPECT_TRUE(status.ok()) << status;
      EXPECT_EQ(values.front(), 6);
      EXPECT_EQ(values.back(), 6);
    }
  });
}

class ShmBackendTest : public ::testing::Test {
 protected:
  ~ShmBackendTest() override {
    for (const char* const name :
         {"MUSTER_SHM", "MUSTER_SHM_HOSTS", "MUSTER_LOCAL_WORLD_HOSTS"}) {
      unsetenv(name);
    }
  }

  // One for each rank.
  static void SetHosts(const char* digits) {
    setenv("MUSTER_SHM_HOSTS", "address", 1);
    setenv("MUSTER_LOCAL_WORLD_HOSTS", digits, 1);
  }
};

TEST_F(ShmBackendTest, EachRankHasTheGroupsMemoryAndLetsGoOfIt) {
  {
    LocalWorld world({.backend = "shm", .world_size = kRanks});
    EXPECT_EQ(Segments(), kRanks);
    ExpectRightSums(world);
    LocalWorld another({.backend = "shm", .world_size = 2});
    EXPECT_EQ(Segments(), kRanks + 2);
  }
  EXPECT_EQ(Segments(), 0);
}

TEST_F(ShmBackendTest, WithoutSharedMemoryItTakesConnections) {
  setenv("MUSTER_SHM", "0", 1);
  LocalWorld world({.backend = "shm", .world_size = kRanks});
  EXPECT_EQ(Segments(), 0);
  ExpectRightSums(world);
}

TEST_F(ShmBackendTest, TheRanksOfEachHostHaveMemoryOfTheirOwn) {
  SetHosts("010");
  {
    LocalWorld world({.backend = "shm", .world_size = kRanks});
    EXPECT_EQ(Segments(), kRanks);
    ExpectRightSums(world);
  }
  EXPECT_EQ(Segments(), 0);
}

TEST_F(ShmBackendTest, RanksOnHostsOfTheirOwnTakeConnections) {
  SetHosts("012");
  LocalWorld world({.backend = "shm", .world_size = kRanks});
  EXPECT_EQ(Segments(), 0);
  ExpectRightSums(world);
}

TEST_F(ShmBackendTest, ABadValueOfItsVariableIsAnError) {
  setenv("MUSTER_SHM", "yes", 1);
  const absl::Status status = CreateBackend("shm", {}).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("environment variable MUSTER_SHM must be 0 or 1 but "
                        "was \"yes\""));
  unsetenv("MUSTER_SHM");
  setenv("MUSTER_SHM_HOSTS", "name", 1);
  EXPECT_THAT(std::string(CreateBackend("shm", {}).status().message()),
              HasSubstr("environment variable MUSTER_SHM_HOSTS must be address "
                        "but was \"name\""));
}

TEST(ShmAlgorithmTest, RanksThatAreToldToGoDifferentWaysAreAllTold) {
  ASSERT_TRUE(RegisterBackend("shm-odd", {DeviceType::kCpu},
                              [](const BackendOptions& options) {
                                if (options.rank == 1) {
                                  setenv("MUSTER_SHM_ALGORITHM", "staged", 1);
                                }
                                return CreateShmBackend(options);
                              })
                  .ok());
  testing::ProcessWorld world("shm-odd", kRanks,
                              [](Communicator&) { return "formed"; });
  const auto outcomes = world.Join();
  for (int rank = 0; rank < kRanks; ++rank) {
    EXPECT_THAT(
        outcomes[rank].report,
        HasSubstr(rank == 1 ? "MUSTER_SHM_ALGORITHM must be the same on all "
                              "ranks: on rank 0 it is not set, on rank 1 "
                              "\"staged\""
                            : "MUSTER_SHM_ALGORITHM must be the same on all "
                              "ranks: on rank 1 it is \"staged\", on rank "))
        << rank;
  }
}

}  // namespace
}  // namespace muster::dataplane
