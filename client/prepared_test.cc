#include "muster/prepared.h"

#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include "client/testing/local_groups.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "muster/errors.h"

namespace muster {
namespace {

using muster::testing::LocalGroups;
using std::chrono::seconds;
using ::testing::Each;
using ::testing::HasSubstr;

constexpr int kRuns = 3;

using Values = std::vector<int64_t>;

class PreparedVerbsTest
    : public ::testing::TestWithParam<std::tuple<const char*, int>> {
 protected:
  void OnEachRank(
      const std::function<void(ProcessGroup&, int rank, int size)>& body) {
    const char* const backend = std::get<0>(GetParam());
    const int size = std::get<1>(GetParam());
    LocalGroups groups(size, seconds(60), backend);
    EXPECT_THAT(
        groups.OnEachRank([&](const std::shared_ptr<ProcessGroup>& group,
                              int rank) { body(*group, rank, size); }),
        Each(""));
  }
};

// The values of rank `rank` for rank `to` in a run.
int64_t MakeValue(int rank, int to, int run) {
  return 10'000 * run + 100 * rank + to;
}

Values FromAll(int to, int size, int run) {
  Values values;
  for (int rank = 0; rank < size; ++rank) {
    values.push_back(MakeValue(rank, to, run));
  }
  return values;
}

Values ToAll(int rank, int size, int run) {
  Values values;
  for (int to = 0; to < size; ++to) values.push_back(MakeValue(rank, to, run));
  return values;
}

int64_t Sum(const Values& values) {
  int64_t sum = 0;
  for (const int64_t value : values) sum += value;
  return sum;
}

std::vector<Tensor> Cut(Values& values) {
  std::vector<Tensor> tensors;
  for (int64_t& value : values) tensors.push_back(Tensor(&value, {1}));
  return tensors;
}

TEST_P(PreparedVerbsTest, Reductions) {
  OnEachRank([](ProcessGroup& group, int rank, int size) {
    const int last = size - 1;
    Values one(1);
    Values all(size);
    auto all_reduce = group.PrepareAllReduce(one);
    auto greatest = group.PrepareAllReduce(one, {.op = ReduceOp::kMax});
    auto reduce = group.PrepareReduce(one, LocalGroups::GlobalRank(last));
    auto scatter = group.PrepareReduceScatter(one, Cut(all));
    auto scatter_tensor = group.PrepareReduceScatterTensor(one, all);
    for (int run = 0; run < kRuns; ++run) {
      one[0] = MakeValue(rank, 0, run);
      all_reduce.Run();
      EXPECT_EQ(one[0], Sum(FromAll(0, size, run)));
      one[0] = MakeValue(rank, 0, run);
      greatest.Run();
      EXPECT_EQ(one[0], MakeValue(last, 0, run));
      one[0] = MakeValue(rank, 0, run);
      reduce.Run();
      EXPECT_EQ(one[0], rank == last ? Sum(FromAll(0, size, run))
                                     : MakeValue(rank, 0, run));
      const Values given = ToAll(rank, size, run);
      std::copy(given.begin(), given.end(), all.begin());
      scatter.Run();
      EXPECT_EQ(one[0], Sum(FromAll(rank, size, run)));
      one[0] = 0;
      scatter_tensor.Run();
      EXPECT_EQ(one[0], Sum(FromAll(rank, size, run)));
    }
  });
}

TEST_P(PreparedVerbsTest, Movements) {
  OnEachRank([](ProcessGroup& group, int rank, int size) {
    const int root = size - 1;
    const int global_root = LocalGroups::GlobalRank(root);
    Values one(1);
    Values given(size);
    Values taken(size);
    const std::vector<Tensor> none;
    auto broadcast = group.PrepareBroadcast(one, global_root);
    auto gather = group.PrepareGather(one, rank == root ? Cut(taken) : none,
                                      std::nullopt, {.group_dst = root});
    auto scatter = group.PrepareScatter(one, rank == root ? Cut(given) : none,
                                        global_root);
    auto all_gather = group.PrepareAllGather(Cut(taken), one);
    auto all_gather_tensor = group.PrepareAllGatherIntoTensor(taken, one);
    auto all_to_all = group.PrepareAllToAll(Cut(taken), Cut(given));
    auto all_to_all_single =
        group.PrepareAllToAllSingle(taken, given,
                                    {.output_split_sizes = Values(size, 1),
                                     .input_split_sizes = Values(size, 1)});
    auto barrier = group.PrepareBarrier();
    for (int run = 0; run < kRuns; ++run) {
      const auto fill = [&] {
        one[0] = MakeValue(rank, 0, run);
        const Values values = ToAll(rank, size, run);
        std::copy(values.begin(), values.end(), given.begin());
        std::fill(taken.begin(), taken.end(), -1);
      };
      fill();
      broadcast.Run();
      EXPECT_EQ(one[0], MakeValue(root, 0, run));
      fill();
      gather.Run();
      EXPECT_EQ(taken, rank == root ? FromAll(0, size, run) : Values(size, -1));
      fill();
      scatter.Run();
      EXPECT_EQ(one[0], MakeValue(root, rank, run));
      fill();
      all_gather.Run();
      EXPECT_EQ(taken, FromAll(0, size, run));
      fill();
      all_gather_tensor.Run();
      EXPECT_EQ(taken, FromAll(0, size, run));
      fill();
      all_to_all.Run();
      EXPECT_EQ(taken, FromAll(rank, size, run));
      fill();
      all_to_all_single.Run();
      EXPECT_EQ(taken, FromAll(rank, size, run));
      barrier.Run();
    }
  });
}

TEST_P(PreparedVerbsTest, AStartedOneHasAWork) {
  OnEachRank([](ProcessGroup& group, int rank, int size) {
    Values one(1);
    auto sum = group.PrepareAllReduce(one);
    for (int run = 0; run < kRuns; ++run) {
      one[0] = MakeValue(rank, 0, run);
      Work work = sum.Start();
      work.Wait();
      EXPECT_EQ(one[0], Sum(FromAll(0, size, run)));
      EXPECT_EQ(work.Result().at(0).data(), one.data());
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Backends, PreparedVerbsTest,
                         ::testing::Combine(::testing::Values("gloo", "shm"),
                                            ::testing::Values(1, 2, 4)),
                         [](const auto& info) {
                           return std::string(std::get<0>(info.param)) +
                                  std::to_string(std::get<1>(info.param));
                         });

// Returns the text of the DistError that `call` throws, or "".
template <typename Call>
std::string GetError(const Call& call) {
  try {
    call();
  } catch (const DistError& error) {
    return error.what();
  }
  return "";
}

TEST(PreparedTest, OneRunAtATime) {
  LocalGroups groups(2, seconds(60), "shm");
  Values values[2] = {{1}, {2}};
  auto sum = groups.at(0)->PrepareAllReduce(values[0]);
  Work work = sum.Start();
  // Both use up a number.
  EXPECT_THAT(GetError([&] { sum.Run(); }),
              HasSubstr("this prepared collective still runs, as all_reduce "
                        "#1, and has one run at a time"));
  EXPECT_THAT(GetError([&] { (void)sum.Start(); }), HasSubstr("all_reduce #3"));
  EXPECT_TRUE(groups.at(0)->status().ok());
  groups.at(1)->AllReduce(values[1]);
  work.Wait();
  EXPECT_EQ(values[0], Values{3});
}

TEST(PreparedTest, BadArgumentsThrowAtOnce) {
  LocalGroups groups(1);
  Values values(2);
  EXPECT_THAT(GetError([&] {
                (void)groups.at(0)->PrepareAllGatherIntoTensor(
                    values, values, {.timeout = seconds(1)});
              }),
              ::testing::IsEmpty());
  EXPECT_THAT(GetError([&] {
                std::vector<float> floats(2);
                (void)groups.at(0)->PrepareAllReduce(floats,
                                                     {.op = ReduceOp::kBand});
              }),
              HasSubstr("all_reduce on group"));
  EXPECT_NE(GetError([&] {
              (void)groups.at(0)->PrepareBarrier({.timeout = seconds(-1)});
            }),
            "");
  EXPECT_TRUE(groups.at(0)->status().ok());
}

TEST(PreparedTest, AFailedGroupThrowsItsError) {
  LocalGroups groups(2, seconds(60), "shm");
  Values values[2] = {{1}, {2}};
  auto sum = groups.at(0)->PrepareAllReduce(values[0]);
  groups.Leave(1);
  const std::string first = GetError([&] { sum.Run(); });
  EXPECT_NE(first, "");
  EXPECT_FALSE(groups.at(0)->status().ok());
  EXPECT_EQ(GetError([&] { sum.Run(); }), first);
  EXPECT_EQ(GetError([&] { sum.Start().Wait(); }), first);
  EXPECT_EQ(GetError([&] { groups.at(0)->AllReduce(values[0]); }), first);
  EXPECT_EQ(GetError([&] { (void)groups.at(0)->PrepareBarrier(); }), first);
}

TEST(PreparedTest, ATimeoutIsThatOfItsOptions) {
  LocalGroups groups(2, seconds(60), "shm");
  Values values = {1};
  auto sum = groups.at(0)->PrepareAllReduce(
      values, {.timeout = std::chrono::milliseconds(50)});
  EXPECT_THAT(GetError([&] { sum.Run(); }),
              HasSubstr("timed out after 50ms waiting for rank 1"));
}

TEST(PreparedTest, ItMayOutliveItsGroup) {
  PreparedCollective sum;
  Values values = {1};
  {
    LocalGroups groups(1, seconds(60), "shm");
    sum = groups.at(0)->PrepareAllReduce(values);
    sum.Run();
    groups.Leave(0);
    const std::string ordinary =
        GetError([&] { groups.at(0)->AllReduce(values); });
    EXPECT_NE(ordinary, "");
    EXPECT_EQ(GetError([&] { sum.Run(); }), ordinary);
    EXPECT_EQ(GetError([&] { (void)sum.Start(); }), ordinary);
    EXPECT_EQ(GetError([&] { (void)groups.at(0)->PrepareBarrier(); }),
              ordinary);
  }
  EXPECT_NE(GetError([&] { sum.Run(); }), "");
  std::thread([moved = std::move(sum)] {}).join();
}

TEST(PreparedTest, AnEmptyOneRefusesItsRuns) {
  LocalGroups groups(1);
  Values values = {1};
  PreparedCollective empty;
  EXPECT_THAT(GetError([&] { empty.Run(); }), HasSubstr("holds nothing"));
  PreparedCollective sum = groups.at(0)->PrepareAllReduce(values);
  empty = std::move(sum);
  EXPECT_THAT(GetError([&] { (void)sum.Start(); }),  // NOLINT: moved
              HasSubstr("holds nothing"));
  empty.Run();
}

TEST(PreparedTest, ARankOutsideTheGroupOnlyWarns) {
  Values values = {1};
  auto sum = LocalGroups::NonMember()->PrepareAllReduce(values);
  sum.Run();
  EXPECT_TRUE(sum.Start().IsCompleted());
  EXPECT_EQ(values, Values{1});
}

TEST(PreparedTest, AForkedChildIsRefused) {
  LocalGroups groups(1);
  Values values = {1};
  auto sum = groups.at(0)->PrepareAllReduce(values);
  const pid_t child = fork();
  if (child == 0) {
    const std::string error = GetError([&] { sum.Run(); });
    sum = PreparedCollective();
    _exit(error.find("forked this one off") != std::string::npos ? 0 : 1);
  }
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  sum.Run();
}

}  // namespace
}  // namespace muster
