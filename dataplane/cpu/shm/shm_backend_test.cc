#include "dataplane/cpu/shm/shm_backend.h"

#include <sched.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <latch>
#include <memory>
#include <numeric>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "dataplane/communicator.h"
#include "dataplane/cpu/shm/round_buffer.h"
#include "dataplane/testing/local_world.h"
#include "dataplane/testing/process_world.h"
#include "dataplane/testing/sample.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "muster/dataplane/factory.h"

namespace muster::dataplane {
namespace {

using ::testing::HasSubstr;
using testing::LocalWorld;
using testing::Sample;

constexpr int kRanks = 3;

// The number of this process's mappings that belong to segments.
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
      const Status status = communicator
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

  // One digit per rank.
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

// The algorithm that ran, and the bits of the result.
std::pair<std::string, std::string> RunSample(Communicator& communicator,
                                              CollectiveKind kind,
                                              size_t count) {
  Sample sample(
      kind,
      {.rank = communicator.rank(), .world_size = kRanks, .count = count});
  for (const Tensor& tensor : sample.collective.read()) {
    auto* const values = static_cast<float*>(tensor.data());
    for (int64_t i = 0; i < tensor.element_count(); ++i) {
      values[i] =
          1 / static_cast<float>(1 + (i * 7 + communicator.rank()) % 1009);
    }
  }
  const Status status = communicator.Start(sample.collective)->Wait();
  EXPECT_TRUE(status.ok()) << status;
  std::string bits;
  for (const Tensor& tensor : sample.collective.written()) {
    bits.append(static_cast<const char*>(tensor.data()), tensor.bytes());
  }
  return {communicator.last_run(DeviceType::kCpu).algorithm, std::move(bits)};
}

TEST_F(ShmBackendTest, EveryRunTakesTheSamePathToTheSameBits) {
  std::vector<std::pair<std::string, std::string>> first[kRanks];
  for (int group = 0; group < 2; ++group) {
    LocalWorld world({.backend = "shm", .world_size = kRanks});
    world.OnEachRank([&](Communicator& communicator) {
      size_t number = 0;
      for (const CollectiveKind kind :
           {CollectiveKind::kAllReduce, CollectiveKind::kBroadcast,
            CollectiveKind::kAllGatherIntoTensor,
            CollectiveKind::kReduceScatterTensor,
            CollectiveKind::kAllToAllSingle, CollectiveKind::kScatter}) {
        for (const size_t count :
             {size_t{1}, size_t{20'000}, size_t{300'000}}) {
          for (int run = 0; run < 8; ++run) {
            auto ran = RunSample(communicator, kind, count);
            auto& expected = first[communicator.rank()];
            if (group == 0 && run == 0) expected.push_back(ran);
            EXPECT_EQ(ran.first, expected[number].first)
                << CollectiveKindName(kind) << " of " << count;
            EXPECT_TRUE(ran.second == expected[number].second)
                << CollectiveKindName(kind) << " of " << count;
          }
          ++number;
        }
      }
    });
  }
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
  const Status status = CreateBackend("shm", {}).status();
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
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

// While it lives, this process has one processor, so its ranks are crowded.
class OneProcessor {
 public:
  OneProcessor() {
    sched_getaffinity(0, sizeof(before_), &before_);
    int first = 0;
    while (!CPU_ISSET(first, &before_)) ++first;
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(first, &one);
    sched_setaffinity(0, sizeof(one), &one);
  }
  ~OneProcessor() { sched_setaffinity(0, sizeof(before_), &before_); }

 private:
  cpu_set_t before_;
};

// Ranks learn the others' sizes in the first round.
TEST_F(ShmBackendTest, ManyRanksTakeTheirPartsOfALargeAllToAll) {
  constexpr int kMany = 9;
  const OneProcessor crowd;
  LocalWorld world({.backend = "shm", .world_size = kMany});
  world.OnEachRank([](Communicator& communicator) {
    const int rank = communicator.rank();
    // Only rank 1 has much data, and only for rank 3.
    for (const int64_t much : {int64_t{7}, int64_t{20'000}, int64_t{900'000}}) {
      const auto given = [&](int from, int to) {
        return from == 1 && to == 3 ? much : 2;
      };
      Collective exchange = {.kind = CollectiveKind::kAllToAllSingle};
      for (int peer = 0; peer < kMany; ++peer) {
        exchange.input_splits.push_back(given(rank, peer));
        exchange.output_splits.push_back(given(peer, rank));
      }
      const auto sum = [](const std::vector<int64_t>& splits) {
        return std::accumulate(splits.begin(), splits.end(), int64_t{0});
      };
      std::vector<float> input(sum(exchange.input_splits),
                               static_cast<float>(rank));
      std::vector<float> output(sum(exchange.output_splits), -1);
      exchange.inputs = {Tensor(input)};
      exchange.outputs = {Tensor(output)};
      const Status status = communicator.Start(exchange)->Wait();
      EXPECT_TRUE(status.ok()) << status;
      std::vector<float> expected;
      for (int peer = 0; peer < kMany; ++peer) {
        expected.insert(expected.end(), given(peer, rank),
                        static_cast<float>(peer));
      }
      EXPECT_EQ(output, expected);
      EXPECT_EQ(communicator.last_run(DeviceType::kCpu).algorithm,
                much == 900'000 ? "single_copy" : "staged");
    }
  });
}

// A round of these carries some 500 KiB.
TEST_F(ShmBackendTest, WhatTakesManyRoundsComesWholeAndInItsPlace) {
  // The elements in each part of a rank.
  constexpr int64_t kCount = 300'000;
  LocalWorld world({.backend = "shm", .world_size = kRanks});
  world.OnEachRank([](Communicator& communicator) {
    const int rank = communicator.rank();
    const auto value = [](int from, int64_t place) {
      return from * kRanks * kCount + place;
    };
    std::vector<int64_t> input(kRanks * kCount);
    std::vector<int64_t> output(kRanks * kCount);
    const auto run = [&](Collective collective) {
      for (int64_t i = 0; i < kRanks * kCount; ++i) input[i] = value(rank, i);
      std::ranges::fill(output, -1);
      const Status status = communicator.Start(std::move(collective))->Wait();
      EXPECT_TRUE(status.ok()) << status;
    };
    const auto expect = [](const int64_t* results, int64_t count,
                           const auto& expected) {
      int64_t wrong = 0;
      for (int64_t i = 0; i < count; ++i) wrong += results[i] != expected(i);
      EXPECT_EQ(wrong, 0);
    };
    // The sum of all ranks' values.
    const auto sum = [&](int64_t place) {
      return value(1, 0) * kRanks * (kRanks - 1) / 2 + kRanks * place;
    };
    run({.kind = CollectiveKind::kAllReduce, .tensors = {Tensor(input)}});
    expect(input.data(), kRanks * kCount, sum);
    run({.kind = CollectiveKind::kReduceScatterTensor,
         .inputs = {Tensor(input)},
         .outputs = {Tensor(output.data(), {kCount})}});
    expect(output.data(), kCount,
           [&](int64_t i) { return sum(rank * kCount + i); });
    run({.kind = CollectiveKind::kAllGatherIntoTensor,
         .inputs = {Tensor(input.data(), {kCount})},
         .outputs = {Tensor(output)}});
    expect(output.data(), kRanks * kCount,
           [&](int64_t i) { return value(i / kCount, i % kCount); });
    run({.kind = CollectiveKind::kAllToAllSingle,
         .inputs = {Tensor(input)},
         .outputs = {Tensor(output)}});
    expect(output.data(), kRanks * kCount, [&](int64_t i) {
      return value(i / kCount, rank * kCount + i % kCount);
    });
  });
}

// A root waits after it has run ahead as far as it can.
TEST_F(ShmBackendTest, WhoWaitsForARankKeepsNobodyFromStarting) {
  constexpr uint64_t kSlots = shm::RoundBuffer::kSlots;
  constexpr uint64_t kCalls = 2 * kSlots;
  LocalWorld world({.backend = "shm", .world_size = 2});
  std::latch comes(1);
  world.OnEachRank([&](Communicator& communicator) {
    std::vector<int64_t> value = {7 - 7 * communicator.rank()};
    const Collective broadcast = {.kind = CollectiveKind::kBroadcast,
                                  .tensors = {Tensor(value)}};
    const auto run = [&](uint64_t calls) {
      for (uint64_t i = 0; i < calls; ++i) {
        EXPECT_TRUE(communicator.Run(Collective(broadcast)).ok());
      }
    };
    if (communicator.rank() == 1) {
      comes.wait();
      run(kCalls + 1);
      EXPECT_EQ(value[0], 7);
      return;
    }
    std::thread caller([&] { run(kCalls); });
    // Wait until the caller waits for the other rank's posts.
    while (communicator.progress().last_enqueued < kSlots) {
      std::this_thread::yield();
    }
    const std::shared_ptr<Work> work = communicator.Start(broadcast);
    EXPECT_FALSE(work->IsCompleted());
    comes.count_down();
    EXPECT_TRUE(work->Wait().ok());
    caller.join();
  });
}

}  // namespace
}  // namespace muster::dataplane
