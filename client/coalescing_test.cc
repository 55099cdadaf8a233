// Coalesced collectives among ranks that are threads. Tests that they reach the
// data plane, whose own tests check the results.

#include "muster/coalescing.h"

#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "client/testing/local_groups.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "muster/errors.h"

namespace muster {
namespace {

using muster::testing::LocalGroups;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

using Group = std::shared_ptr<ProcessGroup>;
using Values = std::vector<float>;

TEST(CoalescingTest, EveryVerbDoesWhatItsNameSays) {
  LocalGroups world(2);
  EXPECT_THAT(world.OnEachRank([](const Group& group, int rank) {
    const auto own = static_cast<float>(rank);
    Values a = {own, 1};
    Values b = {own + 10};
    AllReduceCoalesced({a, b}, {.op = ReduceOp::kMax, .group = group});
    EXPECT_THAT(a, ElementsAre(1, 1));
    EXPECT_THAT(b, ElementsAre(11));

    Values all_a(2);
    Values all_b(4);
    a = {own};
    b = {own, own};
    AllGatherIntoTensorCoalesced({all_a, all_b}, {a, b}, {.group = group});
    EXPECT_THAT(all_a, ElementsAre(0, 1));
    EXPECT_THAT(all_b, ElementsAre(0, 0, 1, 1));

    // By rank, then by tensor.
    Values from_0 = {-1};
    Values from_1 = {-1};
    Values two_from_0(2, -1);
    Values two_from_1(2, -1);
    b = {own + 2, own + 4};
    AllGatherCoalesced({{from_0, two_from_0}, {from_1, two_from_1}}, {a, b},
                       {.group = group});
    EXPECT_THAT(from_0, ElementsAre(0));
    EXPECT_THAT(from_1, ElementsAre(1));
    EXPECT_THAT(two_from_0, ElementsAre(2, 4));
    EXPECT_THAT(two_from_1, ElementsAre(3, 5));

    all_a = {1, 2};
    all_b = {3, 4, 5, 6};
    ReduceScatterTensorCoalesced({a, b}, {all_a, all_b}, {.group = group});
    EXPECT_THAT(a, ElementsAre(rank == 0 ? 2 : 4));
    EXPECT_THAT(b, ElementsAre(rank == 0 ? 6 : 10, rank == 0 ? 8 : 12));
  }),
              Each(IsEmpty()));
}

TEST(CoalescingTest, OneWorkForAll) {
  LocalGroups world(3);
  EXPECT_THAT(world.OnEachRank([](const Group& group, int rank) {
    std::vector<Values> values(100, {1});
    Work work = Coalesce({.group = group, .async_op = true},
                         [&](CoalescingManager& manager) {
                           for (Values& one : values) manager.AllReduce(one);
                         });
    const auto result = work.GetFuture();
    result.Wait();
    EXPECT_TRUE(work.IsSuccess());
    ASSERT_EQ(result.Value().size(), 100U);
    EXPECT_EQ(result.Value()[99].data(), values[99].data());
    for (const Values& one : values) EXPECT_EQ(one[0], 3);
    Coalesce({.group = group}, [](CoalescingManager&) {}).Wait();
    EXPECT_THROW(Coalesce({.group = group}, nullptr), DistError);
  }),
              Each(IsEmpty()));
}

// Returns the error of Coalesce.
template <typename Add>
std::string CatchText(const Group& group, const Add& add) {
  try {
    Coalesce({.group = group}, add);
  } catch (const std::exception& error) {
    return error.what();
  }
  return "no error";
}

TEST(CoalescingTest, WhoIsNotInTheGroupDoesNothing) {
  Values values = {1};
  Work work = AllReduceCoalesced({values}, {.group = LocalGroups::NonMember()});
  EXPECT_TRUE(work.IsSuccess());
  EXPECT_TRUE(work.GetFuture().Done());
  work.GetFuture().Then([](const auto&) {}).Wait();
  EXPECT_EQ(values[0], 1);
}

TEST(CoalescingTest, MixturesAndBadArgumentsStartNothing) {
  LocalGroups world(2);
  EXPECT_THAT(world.OnEachRank([](const Group& group, int rank) {
    Values a = {1};
    Values b = {1, 1};
    EXPECT_EQ(CatchText(group,
                        [&](CoalescingManager& manager) {
                          manager.AllReduce(a);
                          manager.AllGatherIntoTensor(b, a);
                        }),
              "cannot coalesce all_gather_into_tensor with all_reduce");
    EXPECT_EQ(CatchText(group,
                        [&](CoalescingManager& manager) {
                          manager.AllReduce(a);
                          manager.AllReduce(b, ReduceOp::kMin);
                        }),
              "cannot coalesce reductions by min and sum");
    EXPECT_EQ(
        CatchText(group,
                  [&](CoalescingManager& manager) {
                    manager.AllReduce(a, ReduceOp::kPremulSum, 0.5);
                    manager.AllReduce(a, ReduceOp::kPremulSum, 3);
                  }),
        "cannot coalesce reductions by premul_sum of the factors 3 and 0.5");
    EXPECT_EQ(CatchText(group,
                        [&](CoalescingManager& manager) {
                          manager.AllReduce(a);
                          throw std::runtime_error("on purpose");
                        }),
              "on purpose");
    EXPECT_THAT(CatchText(group,
                          [&](CoalescingManager& manager) {
                            manager.AllGatherIntoTensor(b, a);
                            manager.AllGatherIntoTensor(a, b);
                          }),
                HasSubstr("number 1 of 2: argument outputs[0]: output "
                          "tensor size must be equal to world_size times"));
    EXPECT_THAT(CatchText(group,
                          [&](CoalescingManager& manager) {
                            manager.AllReduce(a);
                            manager.AllReduce(b);
                            manager.AllReduce(a);
                          }),
                HasSubstr("number 2 of 3 overlaps number 0"));
    EXPECT_THROW(AllReduceCoalesced({}, {.group = group}), DistError);
    EXPECT_THROW(AllGatherCoalesced({{a}, {}}, {a}, {.group = group}),
                 DistError);
    EXPECT_THROW(AllGatherIntoTensorCoalesced({b}, {a, a}, {.group = group}),
                 DistError);
    EXPECT_THROW(
        Coalesce({.group = group, .timeout = std::chrono::milliseconds(-1)},
                 [](CoalescingManager&) {}),
        DistError);
    EXPECT_EQ(a[0], 1);
    AllReduceCoalesced({a, b}, {.group = group});
    EXPECT_EQ(a[0], 2);
  }),
              Each(IsEmpty()));
}

TEST(CoalescingTest, AnotherOrderIsAnErrorOnAllRanks) {
  LocalGroups world(2);
  const auto thrown = world.OnEachRank([](const Group& group, int rank) {
    Values a(8);
    Values b(9);
    Coalesce({.group = group}, [&](CoalescingManager& manager) {
      manager.AllReduce(rank == 0 ? a : b);
      manager.AllReduce(rank == 0 ? b : a);
    });
  });
  EXPECT_THAT(thrown, Each(HasSubstr("have coalesced other sizes, or in "
                                     "another order, in all_reduce #1")));
}

}  // namespace
}  // namespace muster
