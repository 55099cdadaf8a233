#include "dataplane/nccl/testing/host_nccl.h"

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "dataplane/cuda/testing/host_cuda.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace muster::dataplane::nccl::testing {
namespace {

using cuda::Stream;
using ::testing::AllOf;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::UnorderedElementsAre;

// Floats on a device.
class Floats {
 public:
  Floats(const cuda::Api& cuda, size_t count, float value)
      : cuda_(cuda), count_(count) {
    void* data = nullptr;
    EXPECT_EQ(cuda_.Malloc(&data, count * sizeof(float)), cuda::kSuccess);
    data_ = static_cast<float*>(data);
    std::fill(data_, data_ + count, value);
  }
  ~Floats() { cuda_.Free(data_); }
  Floats(const Floats&) = delete;
  Floats& operator=(const Floats&) = delete;

  float* data() { return data_; }
  std::vector<float> values() const { return {data_, data_ + count_}; }

 private:
  const cuda::Api& cuda_;
  const size_t count_;
  float* data_ = nullptr;
};

// One rank with its communicator and a stream.
struct Rank {
  int rank = -1;
  int size = 0;
  Comm comm = nullptr;
  Stream stream = nullptr;
};

class HostNcclTest : public ::testing::Test {
 protected:
  ~HostNcclTest() override {
    EXPECT_EQ(CountLeaks().comms, 0U);
    EXPECT_EQ(CountLeaks().ops, 0U);
    EXPECT_EQ(cuda::testing::CountLeaks().streams, 0U);
    EXPECT_EQ(cuda::testing::CountLeaks().memory, 0U);
    EXPECT_THAT(cuda::testing::TakeMisuses(), IsEmpty());
  }

  // Calls `body` on one thread per rank. Then destroys the rank's stream and,
  // unless `body` has set it to null, its communicator.
  void OnRanks(int size, const std::function<void(Rank&)>& body) {
    UniqueId id;
    ASSERT_EQ(api_.GetUniqueId(&id), kSuccess);
    std::vector<std::thread> threads;
    for (int rank = 0; rank < size; ++rank) {
      threads.emplace_back([&, rank] {
        Rank self = {.rank = rank, .size = size};
        Config config;
        EXPECT_EQ(api_.CommInitRankConfig(&self.comm, size, id, rank, &config),
                  kSuccess);
        EXPECT_EQ(cuda_.StreamCreateWithPriority(&self.stream,
                                                 cuda::kStreamNonBlocking, 0),
                  cuda::kSuccess);
        body(self);
        EXPECT_EQ(cuda_.StreamDestroy(self.stream), cuda::kSuccess);
        if (self.comm != nullptr) {
          EXPECT_EQ(api_.CommDestroy(self.comm), kSuccess);
        }
        EXPECT_EQ(OpenGroups(), 0);
      });
    }
    for (std::thread& thread : threads) thread.join();
  }

  void Synchronize(const Rank& rank) {
    EXPECT_EQ(cuda_.StreamSynchronize(rank.stream), cuda::kSuccess);
  }

  const cuda::Api cuda_ = cuda::testing::HostCudaApi();
  const Api api_ = HostNcclApi();
};

TEST_F(HostNcclTest, CollectivesDoWhatTheirNamesSay) {
  OnRanks(3, [&](Rank& self) {
    const float mine = static_cast<float>(1 << self.rank);
    Floats in(cuda_, 6, mine);
    Floats sum(cuda_, 6, 0);
    Floats part(cuda_, 2, 0);
    Floats all(cuda_, 18, 0);
    Floats root(cuda_, 6, -1);
    Floats sent(cuda_, 6, mine);
    EXPECT_EQ(api_.AllReduce(in.data(), sum.data(), 6, kFloat32, kSum,
                             self.comm, self.stream),
              kSuccess);
    EXPECT_EQ(api_.ReduceScatter(in.data(), part.data(), 2, kFloat32, kMax,
                                 self.comm, self.stream),
              kSuccess);
    EXPECT_EQ(api_.AllGather(in.data(), all.data(), 6, kFloat32, self.comm,
                             self.stream),
              kSuccess);
    EXPECT_EQ(api_.Reduce(in.data(), root.data(), 6, kFloat32, kAvg, 1,
                          self.comm, self.stream),
              kSuccess);
    EXPECT_EQ(api_.Broadcast(sent.data(), sent.data(), 6, kFloat32, 2,
                             self.comm, self.stream),
              kSuccess);
    Synchronize(self);
    EXPECT_THAT(in.values(), Each(mine));
    EXPECT_THAT(sum.values(), Each(7));
    EXPECT_THAT(part.values(), Each(4));
    for (size_t i = 0; i < 18; ++i) EXPECT_EQ(all.values()[i], 1 << i / 6);
    EXPECT_THAT(root.values(), Each(self.rank == 1 ? 7.0F / 3 : -1));
    EXPECT_THAT(sent.values(), Each(4));
  });
  EXPECT_THAT(TakeMisuses(), IsEmpty());
}

TEST_F(HostNcclTest, EachRankScalesItsOwnInAPremultipliedSum) {
  OnRanks(2, [&](Rank& self) {
    Floats value(cuda_, 1, 10);
    float factor = self.rank == 0 ? 0.5F : 3;
    RedOp op = 0;
    EXPECT_EQ(api_.RedOpCreatePreMulSum(&op, &factor, kFloat32,
                                        kScalarHostImmediate, self.comm),
              kSuccess);
    EXPECT_EQ(api_.AllReduce(value.data(), value.data(), 1, kFloat32, op,
                             self.comm, self.stream),
              kSuccess);
    Synchronize(self);
    EXPECT_EQ(api_.RedOpDestroy(op, self.comm), kSuccess);
    EXPECT_THAT(value.values(), ElementsAre(35));
  });
  EXPECT_THAT(TakeMisuses(), IsEmpty());
}

TEST_F(HostNcclTest, SendsAndReceivesOfAGroupGoOnTogether) {
  OnRanks(3, [&](Rank& self) {
    Floats out(cuda_, 1, static_cast<float>(self.rank));
    Floats in(cuda_, 1, -1);
    EXPECT_EQ(api_.GroupStart(), kSuccess);
    EXPECT_EQ(api_.Send(out.data(), 1, kFloat32, (self.rank + 1) % 3, self.comm,
                        self.stream),
              kSuccess);
    EXPECT_EQ(api_.Recv(in.data(), 1, kFloat32, (self.rank + 2) % 3, self.comm,
                        self.stream),
              kSuccess);
    EXPECT_EQ(OpenGroups(), 1);
    EXPECT_EQ(api_.GroupEnd(), kSuccess);
    Synchronize(self);
    EXPECT_EQ(in.values()[0], static_cast<float>((self.rank + 2) % 3));
  });
  EXPECT_THAT(TakeMisuses(), IsEmpty());
}

TEST_F(HostNcclTest, SplitsAndShrunkOnes) {
  OnRanks(4, [&](Rank& self) {
    Config config;
    Comm half = nullptr;
    EXPECT_EQ(api_.CommSplit(self.comm, self.rank == 3 ? kSplitNoColor : 1,
                             -self.rank, &half, &config),
              kSuccess);
    Comm rest = nullptr;
    int excluded = 3;
    if (self.rank == 3) {
      EXPECT_EQ(half, nullptr);
      return;
    }
    EXPECT_EQ(api_.CommShrink(self.comm, &excluded, 1, &rest, &config,
                              kShrinkDefault),
              kSuccess);
    // Ranks are ordered by key: rank 2 is the first.
    Floats value(cuda_, 1, static_cast<float>(self.rank));
    EXPECT_EQ(api_.Broadcast(value.data(), value.data(), 1, kFloat32, 0, half,
                             self.stream),
              kSuccess);
    Synchronize(self);
    EXPECT_THAT(value.values(), ElementsAre(2));
    EXPECT_EQ(api_.AllReduce(value.data(), value.data(), 1, kFloat32, kSum,
                             rest, self.stream),
              kSuccess);
    Synchronize(self);
    EXPECT_THAT(value.values(), ElementsAre(6));
    EXPECT_EQ(api_.CommDestroy(half), kSuccess);
    EXPECT_EQ(api_.CommDestroy(rest), kSuccess);
  });
  EXPECT_THAT(TakeMisuses(), IsEmpty());
}

TEST_F(HostNcclTest, WithoutBlockingAllComesLater) {
  UniqueId id;
  ASSERT_EQ(api_.GetUniqueId(&id), kSuccess);
  Config config;
  config.blocking = 0;
  Comm first = nullptr;
  EXPECT_EQ(api_.CommInitRankConfig(&first, 2, id, 0, &config), kInProgress);
  Result error = kSuccess;
  EXPECT_EQ(api_.CommGetAsyncError(first, &error), kSuccess);
  EXPECT_EQ(error, kInProgress);
  Floats value(cuda_, 1, 1);
  EXPECT_NE(api_.AllReduce(value.data(), value.data(), 1, kFloat32, kSum, first,
                           nullptr),
            kSuccess);
  Comm second = nullptr;
  EXPECT_EQ(api_.CommInitRankConfig(&second, 2, id, 1, &config), kInProgress);
  EXPECT_EQ(api_.CommGetAsyncError(first, &error), kSuccess);
  EXPECT_EQ(error, kSuccess);
  SetAsyncError(second, 6);
  EXPECT_EQ(api_.CommGetAsyncError(second, &error), kSuccess);
  EXPECT_EQ(error, 6);
  EXPECT_EQ(api_.CommDestroy(first), kSuccess);
  EXPECT_EQ(api_.CommAbort(second), kSuccess);
  EXPECT_THAT(TakeMisuses(),
              ElementsAre("AllReduce while something is in progress"));
}

// On a non-blocking communicator.
TEST_F(HostNcclTest, ASplitLeavesTheOldOneInProgressUntilAllHaveCome) {
  UniqueId id;
  ASSERT_EQ(api_.GetUniqueId(&id), kSuccess);
  Config config;
  config.blocking = 0;
  Comm comms[2] = {};
  for (int rank = 0; rank < 2; ++rank) {
    EXPECT_EQ(api_.CommInitRankConfig(&comms[rank], 2, id, rank, &config),
              kInProgress);
  }
  const auto state = [&](Comm comm) {
    Result error = kSuccess;
    EXPECT_EQ(api_.CommGetAsyncError(comm, &error), kSuccess);
    return error;
  };
  EXPECT_EQ(state(comms[0]), kSuccess);
  TakeMade();
  Comm half = nullptr;
  Comm none = nullptr;
  EXPECT_EQ(api_.CommSplit(comms[0], 3, 0, &half, &config), kInProgress);
  EXPECT_EQ(state(comms[0]), kInProgress);
  EXPECT_EQ(half, nullptr);
  EXPECT_NE(api_.CommSplit(comms[0], 3, 0, &none, &config), kSuccess);
  EXPECT_NE(api_.CommSplit(comms[1], -2, 0, &none, &config), kSuccess);
  EXPECT_EQ(api_.CommSplit(comms[1], kSplitNoColor, 0, &none, &config),
            kInProgress);
  EXPECT_EQ(state(comms[1]), kSuccess);
  EXPECT_EQ(state(comms[0]), kSuccess);
  EXPECT_EQ(none, nullptr);
  ASSERT_NE(half, nullptr);
  EXPECT_EQ(state(half), kSuccess);
  EXPECT_EQ(TakeMade(), Made{.by_split = 1});
  for (const Comm comm : {comms[0], comms[1], half}) {
    EXPECT_EQ(api_.CommDestroy(comm), kSuccess);
  }
  EXPECT_THAT(TakeMisuses(),
              ElementsAre("CommSplit while something is in progress",
                          "CommSplit of color -2"));
}

TEST_F(HostNcclTest, ANameThatDoesNotOutliveItsCommunicatorIsAMisuse) {
  UniqueId id;
  ASSERT_EQ(api_.GetUniqueId(&id), kSuccess);
  std::string name = "world";
  Config config;
  config.comm_name = name.c_str();
  Comm comm = nullptr;
  EXPECT_EQ(api_.CommInitRankConfig(&comm, 1, id, 0, &config), kSuccess);
  name = "other";
  EXPECT_NE(api_.CommDestroy(comm), kSuccess);
  EXPECT_THAT(TakeMisuses(), ElementsAre("CommDestroy: its name is gone"));
}

TEST_F(HostNcclTest, WhileACallOfOneThatBlocksIsUnderWayItIsNobodyElses) {
  UniqueId id;
  ASSERT_EQ(api_.GetUniqueId(&id), kSuccess);
  Config config;
  config.blocking = 1;
  Comm comm = nullptr;
  EXPECT_EQ(api_.CommInitRankConfig(&comm, 1, id, 0, &config), kSuccess);
  Floats value(cuda_, 1, 1);
  SetConnectHook([&] {
    Result error = kSuccess;
    EXPECT_EQ(api_.CommGetAsyncError(comm, &error), kSuccess);
    EXPECT_NE(api_.AllReduce(value.data(), value.data(), 1, kFloat32, kSum,
                             comm, nullptr),
              kSuccess);
    EXPECT_EQ(api_.CommAbort(comm), kSuccess);
  });
  EXPECT_EQ(api_.AllReduce(value.data(), value.data(), 1, kFloat32, kSum, comm,
                           nullptr),
            kSuccess);
  SetConnectHook(nullptr);
  EXPECT_THAT(TakeMisuses(),
              ElementsAre("CommGetAsyncError while a call is under way",
                          "AllReduce while something is in progress",
                          "CommAbort while a call is under way"));
}

TEST_F(HostNcclTest, AConfigurationThatNcclRefusesIsAMisuse) {
  UniqueId id;
  ASSERT_EQ(api_.GetUniqueId(&id), kSuccess);
  Comm comm = nullptr;
  Config config;
  config.split_share = 2;
  EXPECT_NE(api_.CommInitRankConfig(&comm, 1, id, 0, &config), kSuccess);
  config = {};
  config.min_ctas = 4;
  EXPECT_NE(api_.CommInitRankConfig(&comm, 1, id, 0, &config), kSuccess);
  config = {};
  config.magic = 0;
  EXPECT_NE(api_.CommInitRankConfig(&comm, 1, id, 0, &config), kSuccess);
  EXPECT_THAT(
      TakeMisuses(),
      ElementsAre(
          "CommInitRank with splitShare 2",
          "CommInitRank with minCTAs 4, maxCTAs -2147483648",
          "CommInitRank with a configuration that was not initialized"));
}

TEST_F(HostNcclTest, AnAbortEndsWhatWaitsThereAndNowhereElse) {
  OnRanks(2, [&](Rank& self) {
    if (self.rank == 1) return;
    Floats value(cuda_, 1, 5);
    EXPECT_EQ(api_.AllReduce(value.data(), value.data(), 1, kFloat32, kSum,
                             self.comm, self.stream),
              kSuccess);
    EXPECT_EQ(api_.CommAbort(self.comm), kSuccess);
    Synchronize(self);
    EXPECT_THAT(value.values(), ElementsAre(5));
    EXPECT_NE(api_.AllReduce(value.data(), value.data(), 1, kFloat32, kSum,
                             self.comm, self.stream),
              kSuccess);
    self.comm = nullptr;
  });
  EXPECT_THAT(TakeMisuses(), ElementsAre("AllReduce on no communicator"));
}

TEST_F(HostNcclTest, WhatNcclForbidsIsAMisuse) {
  OnRanks(2, [&](Rank& self) {
    if (self.rank == 0) {
      EXPECT_NE(api_.GroupEnd(), kSuccess);
      float local = 0;
      EXPECT_NE(api_.Send(&local, 1, kFloat32, 1, self.comm, self.stream),
                kSuccess);
      EXPECT_NE(api_.Recv(&local, 1, kFloat32, 2, self.comm, self.stream),
                kSuccess);
    }
    Floats value(cuda_, 2, 1);
    EXPECT_EQ(api_.AllReduce(value.data(), value.data(), self.rank == 0 ? 1 : 2,
                             kFloat32, kSum, self.comm, self.stream),
              kSuccess);
    Synchronize(self);
  });
  const std::vector<std::string> misuses = TakeMisuses();
  ASSERT_EQ(misuses.size(), 5U);
  EXPECT_EQ(misuses[0], "GroupEnd without GroupStart");
  EXPECT_EQ(misuses[1], "Send of memory that is not on a device");
  EXPECT_EQ(misuses[2], "Recv from rank 2");
  EXPECT_THAT(misuses[3], AllOf(HasSubstr("AllReduce of "),
                                HasSubstr(" meets AllReduce of ")));
}

TEST_F(HostNcclTest, WindowsAreOfItsOwnMemoryAndGoFirst) {
  OnRanks(2, [&](Rank& self) {
    void* memory = nullptr;
    EXPECT_EQ(api_.MemAlloc(&memory, kWindowAlignment), kSuccess);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(memory) % kWindowAlignment, 0U);
    Window window = nullptr;
    Floats other(cuda_, kWindowAlignment, 0);
    if (self.rank == 0) {
      // Memory that is not from MemAlloc; too much; not a multiple of the
      // alignment.
      for (const auto& [data, bytes] :
           {std::pair<void*, size_t>(other.data(), kWindowAlignment),
            {memory, 2 * kWindowAlignment},
            {memory, 4}}) {
        EXPECT_NE(api_.CommWindowRegister(self.comm, data, bytes, &window,
                                          kWindowSymmetric),
                  kSuccess);
      }
      EXPECT_NE(api_.CommWindowDeregister(self.comm, nullptr), kSuccess);
    }
    EXPECT_EQ(api_.CommWindowRegister(self.comm, memory, kWindowAlignment,
                                      &window, kWindowSymmetric),
              kSuccess);
    EXPECT_NE(window, nullptr);
    if (self.rank == 0) {
      EXPECT_NE(api_.CommDestroy(self.comm), kSuccess);
      self.comm = nullptr;
      EXPECT_EQ(api_.MemFree(memory), kSuccess);
    } else {
      EXPECT_NE(api_.MemFree(memory), kSuccess);
      EXPECT_NE(api_.MemFree(memory), kSuccess);
      EXPECT_EQ(api_.CommWindowDeregister(self.comm, window), kSuccess);
    }
  });
  EXPECT_THAT(TakeMisuses(),
              UnorderedElementsAre("CommWindowRegister of what is no piece",
                                   "CommWindowRegister of what is no piece",
                                   "CommWindowRegister of what is no piece",
                                   "CommWindowDeregister of no window",
                                   "CommDestroy before CommWindowDeregister",
                                   "MemFree of memory that is registered",
                                   "MemFree of no memory"));
}

TEST_F(HostNcclTest, WindowsOfDifferentSizesAreAMisuse) {
  OnRanks(2, [&](Rank& self) {
    const size_t bytes = static_cast<size_t>(self.rank + 1) * kWindowAlignment;
    void* memory = nullptr;
    EXPECT_EQ(api_.MemAlloc(&memory, bytes), kSuccess);
    Window window = nullptr;
    EXPECT_EQ(api_.CommWindowRegister(self.comm, memory, bytes, &window,
                                      kWindowSymmetric),
              kSuccess);
    EXPECT_EQ(api_.CommWindowDeregister(self.comm, window), kSuccess);
    EXPECT_EQ(api_.MemFree(memory), kSuccess);
  });
  EXPECT_THAT(TakeMisuses(),
              ElementsAre("CommWindowRegister meets something else",
                          "CommWindowRegister meets something else"));
}

TEST_F(HostNcclTest, AnOlderOneHasLess) {
  const Api old = HostNcclApi(21800);
  int version = 0;
  EXPECT_EQ(old.GetVersion(&version), kSuccess);
  EXPECT_EQ(version, 21800);
  EXPECT_EQ(old.CommShrink, nullptr);
  EXPECT_EQ(old.MemAlloc, nullptr);
  EXPECT_EQ(old.CommWindowRegister, nullptr);
  EXPECT_NE(HostNcclApi().CommShrink, nullptr);
}

}  // namespace
}  // namespace muster::dataplane::nccl::testing
