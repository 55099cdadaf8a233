// Futures, continuations, outstanding works and aborts, among ranks that are
// threads.

#include "muster/future.h"

#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "client/testing/local_groups.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "muster/coalescing.h"
#include "muster/errors.h"
#include "muster/process_group.h"

namespace muster {
namespace {

using muster::testing::LocalGroups;
using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::StartsWith;

using Group = std::shared_ptr<ProcessGroup>;
using std::chrono::milliseconds;
using std::chrono::seconds;
using Tensors = Future<std::vector<Tensor>>;

template <typename Call>
std::string CatchText(const Call& call) {
  try {
    call();
  } catch (const std::exception& error) {
    return error.what();
  }
  return "no error";
}

TEST(FutureTest, ItsValueIsTheTensorsWritten) {
  LocalGroups world(2);
  EXPECT_THAT(world.OnEachRank([](const Group& group, int rank) {
    std::vector<int> sum = {rank + 1};
    std::vector<int> own = {rank};
    std::vector<int> all(2);
    Work reduce = group->AllReduce(sum, {.async_op = true});
    Work gather = group->AllGatherIntoTensor(all, own, {.async_op = true});
    const Tensors future = reduce.GetFuture();
    future.Wait();
    EXPECT_TRUE(future.Done());
    EXPECT_EQ(future.Exception(), nullptr);
    ASSERT_EQ(future.Value().size(), 1U);
    EXPECT_EQ(future.Value()[0].data(), sum.data());
    EXPECT_EQ(sum[0], 3);
    EXPECT_TRUE(gather.GetFuture().WaitFor(seconds(30)));
    EXPECT_EQ(gather.GetFuture().Value()[0].data(), all.data());
  }),
              Each(IsEmpty()));
}

TEST(FutureTest, HowACollectiveEndedIsAValue) {
  LocalGroups world(2);
  EXPECT_THAT(world.OnEachRank([](const Group& group, int rank) {
    std::vector<int> sum = {rank};
    Work work = group->AllReduce(sum, {.async_op = true});
    Future<WorkResult> done = work.GetFutureResult();
    done.Wait();
    EXPECT_EQ(done.Value(), WorkResult::kSuccess);
    work.Synchronize();
    if (rank == 1) return;
    Work alone = group->Irecv(sum, LocalGroups::GlobalRank(1),
                              {.timeout = milliseconds(50)});
    Future<WorkResult> late = alone.GetFutureResult();
    late.Wait();
    EXPECT_EQ(late.Value(), WorkResult::kTimeout);
  }),
              Each(IsEmpty()));
}

TEST(FutureTest, AGroupThatWasAbortedIsAnErrorOfCommunication) {
  LocalGroups world(2);
  EXPECT_THAT(world.OnEachRank([](const Group& group, int rank) {
    std::vector<int> value = {rank};
    Work work = group->Irecv(value, LocalGroups::GlobalRank(1 - rank));
    group->Abort("enough");
    Future<WorkResult> ended = work.GetFutureResult();
    ended.Wait();
    EXPECT_EQ(ended.Value(), WorkResult::kCommError);
  }),
              Each(IsEmpty()));
}

TEST(FutureTest, ContinuationsMakeFuturesOfWhatTheyReturn) {
  LocalGroups world(2);
  EXPECT_THAT(world.OnEachRank([](const Group& group, int rank) {
    std::vector<int> sum = {rank + 1};
    Work work = group->AllReduce(sum, {.async_op = true});
    const auto caller = std::this_thread::get_id();
    std::thread::id runner;
    const Future<int> twice = work.GetFuture().Then([&](const Tensors& done) {
      runner = std::this_thread::get_id();
      return 2 * *static_cast<int*>(done.Value()[0].data());
    });
    const Future<std::string> text = twice.Then(
        [](const Future<int>& done) { return std::to_string(done.Value()); });
    bool after = false;
    const Future<void> nothing =
        text.Then([&](const Future<std::string>&) { after = true; });
    nothing.Wait();
    nothing.Value();
    EXPECT_TRUE(after);
    EXPECT_EQ(text.Value(), "6");
    EXPECT_NE(runner, caller);
    // A Work that is complete runs it on the same thread, too.
    work.GetFuture()
        .Then([&](const Tensors&) {
          EXPECT_EQ(std::this_thread::get_id(), runner);
        })
        .Wait();
  }),
              Each(IsEmpty()));
}

TEST(FutureTest, ContinuationsRunInTheOrderOfWorksAndOfThen) {
  LocalGroups world(3);
  EXPECT_THAT(world.OnEachRank([](const Group& group, int rank) {
    constexpr int kWorks = 20;
    std::vector<std::vector<int64_t>> values(kWorks);
    std::vector<Work> works;
    std::vector<int> order;
    std::vector<Future<void>> last;
    for (int i = 0; i < kWorks; ++i) {
      values[i].assign(i % 3 == 0 ? 20'000 : 2, i);
      works.push_back(group->AllReduce(values[i], {.async_op = true}));
      const Tensors future = works.back().GetFuture();
      future.AddDoneCallback(
          [&, i](const Tensors&) { order.push_back(3 * i); });
      const Future<void> second =
          future.Then([&, i](const Tensors&) { order.push_back(3 * i + 1); });
      last.push_back(second.Then(
          [&, i](const Future<void>&) { order.push_back(3 * i + 2); }));
    }
    for (int i = kWorks - 1; i >= 0; --i) {
      works[i].Wait();
      EXPECT_EQ(values[i].back(), 3 * i);
      last[i].Wait();
    }
    ASSERT_EQ(order.size(), static_cast<size_t>(3 * kWorks));
    for (int i = 0; i < 3 * kWorks; ++i) EXPECT_EQ(order[i], i);
  }),
              Each(IsEmpty()));
}

TEST(FutureTest, AContinuationMayRunCollectives) {
  LocalGroups world(3);
  EXPECT_THAT(world.OnEachRank([](const Group& group, int rank) {
    std::vector<int> sum = {1};
    Work work = group->AllReduce(sum, {.async_op = true});
    work.GetFuture()
        .Then([&](const Tensors&) { group->AllReduce(sum); })
        .Wait();
    EXPECT_EQ(sum[0], 9);
  }),
              Each(IsEmpty()));
}

TEST(FutureTest, WhatAContinuationThrowsGoesDownTheChain) {
  LocalGroups world(1);
  const Group& group = world.at(0);
  std::vector<int> value = {1};
  Work work = group->AllReduce(value, {.async_op = true});
  const Future<int> bad = work.GetFuture().Then(
      [](const Tensors&) -> int { throw std::runtime_error("on purpose"); });
  const Future<int> next =
      bad.Then([](const Future<int>& done) { return done.Value() + 1; });
  const Future<int> healed = bad.Then(
      [](const Future<int>& done) { return done.Exception() ? 7 : 0; });
  EXPECT_EQ(CatchText([&] { bad.Wait(); }), "on purpose");
  EXPECT_EQ(CatchText([&] { next.Wait(); }), "on purpose");
  EXPECT_EQ(CatchText([&] { (void)next.Value(); }), "on purpose");
  healed.Wait();
  EXPECT_EQ(healed.Value(), 7);
  // The error goes only to the log; the thread goes on.
  bad.AddDoneCallback([](const Future<int>& done) { done.Wait(); });
  bad.Then([](const Future<int>&) {}).Wait();
  EXPECT_TRUE(group->status().ok());
}

TEST(FutureTest, AFailedCollectiveIsTheErrorOfItsFuture) {
  LocalGroups world(2, seconds(30));
  const auto thrown = world.OnEachRank([](const Group& group, int rank) {
    std::vector<float> values(3);
    group->Broadcast(values, 0, {.async_op = true}).Wait();
    // The failure is found without a call on the Work.
    EXPECT_THAT(CatchText([&] {
                  group->AllReduce(values,
                                   {.op = ReduceOp::kBand, .async_op = true});
                }),
                HasSubstr("Cannot use ReduceOp.BAND"));
    Work work = group->Irecv(values, 10 - 10 * rank);
    const Tensors future = work.GetFuture();
    if (rank == 1) {
      EXPECT_FALSE(future.Done());
      EXPECT_FALSE(future.WaitFor(milliseconds(1)));
      EXPECT_EQ(future.Exception(), nullptr);
      EXPECT_THAT(CatchText([&] { (void)future.Value(); }),
                  StartsWith("Future needs to be completed"));
    }
    const Future<bool> seen = future.Then([](const Tensors& done) {
      (void)done.Value();
      return true;
    });
    if (rank == 1) group->Abort("enough");
    EXPECT_THAT(CatchText([&] { seen.Wait(); }),
                HasSubstr("aborted by global rank 10: enough"));
    EXPECT_NE(future.Exception(), nullptr);
    EXPECT_EQ(CatchText([&] { seen.Wait(); }), CatchText([&] { work.Wait(); }));
  });
  EXPECT_THAT(thrown, Each(IsEmpty()));
}

TEST(FutureTest, AContinuationMayNotWaitForALaterOne) {
  LocalGroups world(1);
  std::vector<int> value = {1};
  Work work = world.at(0)->AllReduce(value, {.async_op = true});
  const Future<std::string> text =
      work.GetFuture().Then([](const Tensors& done) {
        const Future<void> later = done.Then([](const Tensors&) {});
        return CatchText([&] { later.Wait(); });
      });
  text.Wait();
  EXPECT_THAT(text.Value(),
              StartsWith("a continuation cannot wait for another future"));
}

TEST(FutureTest, AfterTheEndOfTheGroupTheyRunAtOnce) {
  LocalGroups world(1);
  std::vector<int> value = {1};
  Work work = world.at(0)->AllReduce(value, {.async_op = true});
  const Tensors future = work.GetFuture();
  future.Wait();
  world.Leave(0);
  std::thread::id runner;
  const Future<void> last =
      future.Then([&](const Tensors&) { runner = std::this_thread::get_id(); });
  EXPECT_TRUE(last.Done());
  EXPECT_EQ(runner, std::this_thread::get_id());
}

// Such a Work knows only the number of its group's continuations.
TEST(FutureTest, ThoseOfACompleteCollectiveRunOnTheThreadOfItsGroup) {
  std::vector<int> value = {1};
  Work outlives;
  {
    LocalGroups world(2);
    const std::vector<std::string> errors =
        world.OnEachRank([&](const Group& group, int rank) {
          std::vector<int> own = {rank};
          Work complete = group->AllReduce(own);
          Work started = group->AllReduce(own, {.async_op = true});
          const auto runner_of = [](Work& work) {
            const Future<std::thread::id> runner = work.GetFuture().Then(
                [](const Tensors&) { return std::this_thread::get_id(); });
            runner.Wait();
            return runner.Value();
          };
          Work moved;
          moved = std::move(complete);
          Work together = AllReduceCoalesced({own}, {.group = group});
          EXPECT_EQ(runner_of(together), runner_of(started));
          EXPECT_EQ(moved.GetFuture().Value()[0].data(), own.data());
          EXPECT_EQ(runner_of(moved), runner_of(started));
          EXPECT_NE(runner_of(moved), std::this_thread::get_id());
          Work last =
              rank == 0 ? group->AllReduce(value) : group->AllReduce(own);
          if (rank == 0) outlives = std::move(last);
        });
    EXPECT_THAT(errors, Each(IsEmpty()));
  }
  std::thread::id runner;
  const Future<void> last = outlives.GetFuture().Then(
      [&](const Tensors&) { runner = std::this_thread::get_id(); });
  EXPECT_TRUE(last.Done());
  EXPECT_EQ(runner, std::this_thread::get_id());
}

TEST(FutureTest, AnyTimeoutOfAWaitThatIsNotNegative) {
  LocalGroups world(2, seconds(60));
  EXPECT_THAT(world.OnEachRank([](const Group& group, int rank) {
    std::vector<float> value(1);
    Work work = rank == 0 ? group->Irecv(value, 10) : Work();
    const Tensors future = work.GetFuture();
    for (const auto& wait : std::vector<std::function<bool(milliseconds)>>{
             [&](milliseconds timeout) { return work.WaitFor(timeout); },
             [&](milliseconds timeout) { return future.WaitFor(timeout); }}) {
      EXPECT_EQ(CatchText([&] { wait(milliseconds(-1)); }),
                "timeout must not be negative but was -1 ms");
    }
    if (rank == 1) {
      EXPECT_TRUE(work.WaitFor(milliseconds(0)));
      // Not before the other rank is about to wait.
      group->Recv(value, 0, {.tag = 1});
      return group->Send(value, 0);
    }
    std::vector<float> go(1);
    Work going = group->Isend(go, 10, {.tag = 1});
    EXPECT_TRUE(future.WaitFor(milliseconds::max()));
    EXPECT_TRUE(work.WaitFor(milliseconds::max()));
  }),
              Each(IsEmpty()));
}

TEST(FutureTest, AWorkThatIsReplacedIsWaitedFor) {
  LocalGroups world(2);
  const auto thrown = world.OnEachRank([&](const Group& group, int rank) {
    std::vector<int> value(1 << 20, rank);
    if (rank == 1) {
      std::vector<int> go(1);
      group->Recv(go, 0, {.tag = 1});
      return group->Send(value, 0, {.tag = 2});
    }
    std::vector<int> go(1);
    Work work = group->Irecv(value, 10, {.tag = 2});
    group->Send(go, 10, {.tag = 1});
    work = Work();
    EXPECT_THAT(value, Each(1));
  });
  EXPECT_THAT(thrown, Each(""));
}

TEST(FutureTest, AnAbortAfterTheEndDoesNothing) {
  LocalGroups world(1);
  world.Leave(0);
  world.at(0)->Abort("too late");
  EXPECT_TRUE(world.at(0)->status().ok());
}

TEST(FutureTest, AContinuationMayEndTheGroup) {
  LocalGroups world(1);
  std::vector<int> value = {1};
  Work work = world.at(0)->AllReduce(value, {.async_op = true});
  const Future<void> last = work.GetFuture().Then([&](const Tensors&) {
    world.at(0)->state();
    world.Leave(0);
  });
  last.Wait();
  EXPECT_THAT(CatchText([&] { world.at(0)->Barrier(); }),
              HasSubstr("was destroyed"));
}

}  // namespace
}  // namespace muster
