// User-defined reductions, opaque elements, pairs and the V collectives among
// ranks that are threads. Tests that their arguments reach the data plane,
// whose own tests check the results.

#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "client/testing/local_groups.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "muster/coalescing.h"
#include "muster/errors.h"
#include "muster/prepared.h"

namespace muster {
namespace {

using muster::testing::LocalGroups;
using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

using Group = std::shared_ptr<ProcessGroup>;
using Values = std::vector<float>;

// Keeps the left operand: the result is that of the lowest rank.
ReduceFunction Left() {
  return ReduceFunction::ForElements<float>([](float a, float) { return a; },
                                            {.is_commutative = false});
}

TEST(UserReductionsTest, EveryReductionTakesAFunction) {
  LocalGroups world(3);
  EXPECT_THAT(world.OnEachRank([](const Group& group, int rank) {
    const auto own = static_cast<float>(rank + 1);
    const auto fill = [own](Values& values) {
      values.assign(values.size(), own);
    };
    Values values = {own, own};
    group->AllReduce(values, {.op = Left()});
    EXPECT_THAT(values, Each(1));
    fill(values);
    group->Reduce(values, {}, {.op = Left(), .group_dst = 2});
    EXPECT_THAT(values, Each(rank == 2 ? 1 : own));
    Values whole(6, own);
    fill(values);
    group->ReduceScatterTensor(values, whole, {.op = Left()});
    EXPECT_THAT(values, Each(1));
    Values a(2, own);
    Values b(2, own);
    fill(values);
    group->ReduceScatter(values, {a, b, a}, {.op = Left()});
    EXPECT_THAT(values, Each(1));
    fill(values);
    PreparedCollective prepared =
        group->PrepareAllReduce(values, {.op = Left()});
    prepared.Run();
    EXPECT_THAT(values, Each(1));
    fill(values);
    prepared.Start().Wait();
    EXPECT_THAT(values, Each(1));
    fill(values);
    Values more = {own};
    AllReduceCoalesced({values, more}, {.op = Left(), .group = group});
    EXPECT_THAT(values, Each(1));
    EXPECT_THAT(more, Each(1));
    fill(values);
    // The Work keeps the function.
    Work work = group->AllReduce(values, {.op = Left(), .async_op = true});
    work.Wait();
    EXPECT_THAT(values, Each(1));
  }),
              Each(IsEmpty()));
}

struct Record {
  uint16_t key;
  uint8_t bytes[10];
};

TEST(UserReductionsTest, OpaqueElementsComeBackAsTheyAre) {
  LocalGroups world(2);
  EXPECT_THAT(world.OnEachRank([](const Group& group, int rank) {
    std::vector<Record> records(3);
    for (auto& record : records) record.key = static_cast<uint16_t>(rank);
    const Tensor tensor = Tensor::Opaque(records.data(), sizeof(Record), {3});
    const ReduceFunction larger(
        [](const void* in, void* inout, size_t count) {
          const auto* const a = static_cast<const Record*>(in);
          auto* const b = static_cast<Record*>(inout);
          for (size_t i = 0; i < count; ++i) {
            if (b[i].key < a[i].key) b[i] = a[i];
          }
        },
        {.element_bytes = sizeof(Record)});
    const Work sync = group->AllReduce(tensor, {.op = larger});
    EXPECT_EQ(sync.Result()[0].Describe(), "opaque[3] of 12 bytes");
    EXPECT_EQ(records[2].key, 1);
    Work async =
        group->Broadcast(tensor, {}, {.async_op = true, .group_src = 0});
    async.Wait();
    EXPECT_EQ(async.Result()[0].Describe(), "opaque[3] of 12 bytes");
    PreparedCollective prepared =
        group->PrepareAllReduce(tensor, {.op = larger});
    Work started = prepared.Start();
    started.Wait();
    EXPECT_EQ(started.Result()[0].Describe(), "opaque[3] of 12 bytes");
    if (rank == 0) {
      group->Send(tensor, {}, {.group_dst = 1});
    } else {
      group->Recv(tensor, {}, {.group_src = 0});
    }
  }),
              Each(IsEmpty()));
}

TEST(UserReductionsTest, OpaqueElementsNeedAFunctionOfTheirSize) {
  LocalGroups world(2);
  for (const std::string& error : world.OnEachRank([](const Group&group, int) {
         std::vector<Record> records(3);
         group->AllReduce(Tensor::Opaque(records.data(), sizeof(Record), {3}));
       })) {
    EXPECT_THAT(error, HasSubstr("sum does not reduce opaque elements, only a "
                                 "function of the user does, got opaque[3] of "
                                 "12 bytes"));
  }
  for (const std::string& error : world.OnEachRank([](const Group&group, int) {
         std::vector<Record> records(3);
         group->AllReduce(Tensor::Opaque(records.data(), sizeof(Record), {3}),
                          {.op = Left()});
       })) {
    EXPECT_THAT(error, HasSubstr("is for elements of 4 bytes, not of 12"));
  }
  for (const std::string& error : world.OnEachRank([](const Group&group, int) {
         Values values(3);
         group->AllReduce(values, {.op = ReduceFunction()});
       })) {
    EXPECT_THAT(error, HasSubstr("no function given"));
  }
}

TEST(UserReductionsTest, AnExceptionOfTheFunctionNamesTheRank) {
  LocalGroups world(2);
  const auto errors = world.OnEachRank([](const Group& group, int rank) {
    const ReduceFunction function(
        [rank](const void*, void*, size_t) {
          if (rank == 1) throw std::runtime_error("no such record");
        },
        {.name = "merge"});
    Values values(3);
    for (int i = 0; i < 3; ++i) group->AllReduce(values, {.op = function});
  });
  for (const std::string& error : errors) {
    EXPECT_THAT(error, HasSubstr("rank 1: the reduction \"merge\" threw \"no "
                                 "such record\""));
  }
}

TEST(UserReductionsTest, PairsGiveTheLocation) {
  LocalGroups world(3);
  EXPECT_THAT(world.OnEachRank([](const Group& group, int rank) {
    using Pair = ValueIndex<float, int32_t>;
    std::vector<Pair> best = {{static_cast<float>(5 - rank), rank}, {7, rank}};
    group->AllReduce(best, {.op = ReduceOp::kMinloc});
    EXPECT_THAT(best, ElementsAre(Pair{3, 2}, Pair{7, 0}));
  }),
              Each(IsEmpty()));
}

TEST(UserReductionsTest, AllGatherVPutsPartsWhereTheyBelong) {
  LocalGroups world(3);
  EXPECT_THAT(world.OnEachRank([](const Group& group, int rank) {
    // 1, 0 and 2 elements.
    const std::vector<int64_t> counts = {1, 0, 2};
    Values input(static_cast<size_t>(counts[static_cast<size_t>(rank)]),
                 static_cast<float>(rank));
    Values output(3, -1);
    group->AllGatherV(output, input, counts);
    EXPECT_THAT(output, ElementsAre(0, 2, 2));
    // With gaps, and in another order; differs between ranks.
    Values wide(6, -1);
    group->AllGatherV(wide, input, counts,
                      {.displacements = {rank == 1 ? 5 : 4, 0, 1}});
    EXPECT_THAT(wide, rank == 1 ? ElementsAre(-1, 2, 2, -1, -1, 0)
                                : ElementsAre(-1, 2, 2, -1, 0, -1));
    // In place, prepared.
    Values own(3, static_cast<float>(rank));
    const std::vector<int64_t> ones = {1, 1, 1};
    PreparedCollective prepared =
        group->PrepareAllGatherV(own, Tensor(own.data() + rank, {1}), ones);
    prepared.Run();
    EXPECT_THAT(own, ElementsAre(0, 1, 2));
  }),
              Each(IsEmpty()));
}

TEST(UserReductionsTest, ReduceScatterVReducesUnevenParts) {
  LocalGroups world(3);
  EXPECT_THAT(world.OnEachRank([](const Group& group, int rank) {
    const std::vector<int64_t> counts = {1, 0, 2};
    Values input = {1, 10, 100};
    Values output(static_cast<size_t>(counts[static_cast<size_t>(rank)]));
    group->ReduceScatterV(output, input, counts);
    if (rank == 0) {
      EXPECT_THAT(output, ElementsAre(3));
    }
    if (rank == 2) {
      EXPECT_THAT(output, ElementsAre(30, 300));
    }
    // Parts may overlap: they are read alone.
    group->ReduceScatterV(output, input, counts,
                          {.op = ReduceOp::kMax, .displacements = {2, 0, 1}});
    if (rank == 0) {
      EXPECT_THAT(output, ElementsAre(100));
    }
    if (rank == 2) {
      EXPECT_THAT(output, ElementsAre(10, 100));
    }
    PreparedCollective prepared =
        group->PrepareReduceScatterV(output, input, counts, {.op = Left()});
    prepared.Run();
    if (rank == 0) {
      EXPECT_THAT(output, ElementsAre(1));
    }
    // Opaque elements, as LightGBM's blocks of histograms are.
    std::vector<uint8_t> bytes(9, static_cast<uint8_t>(rank + 1));
    std::vector<uint8_t> result(output.size() * 3);
    group->ReduceScatterV(
        Tensor::Opaque(result.data(), 3, {static_cast<int64_t>(output.size())}),
        Tensor::Opaque(bytes.data(), 3, {3}), counts,
        {.op = ReduceFunction([](const void* in, void* inout, size_t count) {
           for (size_t i = 0; i < 3 * count; ++i) {
             static_cast<uint8_t*>(inout)[i] =
                 static_cast<uint8_t>(static_cast<uint8_t*>(inout)[i] +
                                      static_cast<const uint8_t*>(in)[i]);
           }
         })});
    EXPECT_THAT(result, Each(6));
  }),
              Each(IsEmpty()));
}

// Runs AllGatherV of 2 elements per rank on 2 ranks with these arguments and
// returns rank 0's error.
std::string GatherError(const std::vector<int64_t>& counts,
                        const std::vector<int64_t>& displacements) {
  LocalGroups world(2);
  std::vector<std::string> errors(2);
  EXPECT_THAT(world.OnEachRank([&](const Group& group, int rank) {
    Values input(2);
    Values output(4);
    try {
      group->AllGatherV(output, input, counts,
                        {.displacements = displacements});
    } catch (const DistError& error) {
      errors[static_cast<size_t>(rank)] = error.what();
      EXPECT_TRUE(IsInvalidArgument(error.status()));
    }
    // The group goes on: the call has used up a number on all ranks.
    group->AllGatherIntoTensor(output, input);
  }),
              Each(IsEmpty()));
  return errors[0];
}

TEST(UserReductionsTest, BadCountsAndDisplacementsAreNamedWithTheirValues) {
  const std::string head = "all_gather #1 on group ";
  EXPECT_THAT(GatherError({2, 2, 2}, {}),
              HasSubstr("argument counts: has 3 values for 2 ranks"));
  EXPECT_THAT(GatherError({2, 2}, {}), IsEmpty());
  EXPECT_THAT(GatherError({2, -2}, {}),
              AllOf(HasSubstr(head),
                    HasSubstr("argument counts[1]: negative value -2")));
  EXPECT_THAT(GatherError({2, 3}, {}),
              HasSubstr("argument counts[1]: 3 elements from 2 on are beyond "
                        "the 4 of output, float32[4]"));
  EXPECT_THAT(GatherError({2, 2}, {0}),
              HasSubstr("argument displacements: has 1 values for 2 ranks"));
  EXPECT_THAT(GatherError({2, 2}, {0, -1}),
              HasSubstr("argument displacements[1]: negative value -1"));
  EXPECT_THAT(GatherError({2, 2}, {0, 3}),
              HasSubstr("argument displacements[1]: 2 elements from 3 on are "
                        "beyond the 4 of output, float32[4]"));
  EXPECT_THAT(GatherError({2, 2}, {0, 9223372036854775807}),
              HasSubstr("argument displacements[1]: 2 elements from "
                        "9223372036854775807 on are beyond"));
  EXPECT_THAT(GatherError({2, 2}, {2, 1}),
              HasSubstr("argument displacements[0]: 2 elements from 2 on "
                        "overlap the 2 from displacements[1] = 1"));
  EXPECT_THAT(GatherError({1, 1}, {}),
              HasSubstr("1 elements, but this rank's input is float32[2]"));
}

// Runs `call` on 2 ranks, with other counts on rank 1, and expects that both
// are told so.
void ExpectCountsDiffer(
    const std::function<void(const Group&, const std::vector<int64_t>& counts)>&
        call,
    const std::string& kind) {
  LocalGroups world(2);
  const auto errors = world.OnEachRank([&](const Group& group, int rank) {
    call(group,
         rank == 0 ? std::vector<int64_t>{2, 3} : std::vector<int64_t>{2, 2});
    // A rank that has all it needs is told here.
    group->Barrier();
  });
  // The rank that gives or takes another size, and the one that does not.
  EXPECT_THAT(
      errors,
      Each(AnyOf(HasSubstr(" float32 in " + kind + " #1, rank "),
                 HasSubstr(" expect different sizes of other ranks in " + kind +
                           " #1"))));
}

TEST(UserReductionsTest, CountsThatDifferBetweenRanksAreAnErrorOnAll) {
  ExpectCountsDiffer(
      [](const Group& group, const std::vector<int64_t>& counts) {
        Values input(2);
        Values output(5);
        group->AllGatherV(output, input, counts);
      },
      "all_gather");
  ExpectCountsDiffer(
      [](const Group& group, const std::vector<int64_t>& counts) {
        Values input(5);
        Values output(2);
        group->ReduceScatterV(output, input, counts);
      },
      "reduce_scatter");
}

TEST(UserReductionsTest, ARankOutsideTheGroupDoesNothing) {
  const Group group = LocalGroups::NonMember();
  Values values(2);
  EXPECT_TRUE(group->AllGatherV(values, values, {}).IsSuccess());
  EXPECT_TRUE(group->ReduceScatterV(values, values, {}).IsSuccess());
}

}  // namespace
}  // namespace muster
