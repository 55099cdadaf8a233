// Bad arguments, ranks that differ and ranks that leave.

#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "client/parallel/shard/testing.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "muster/errors.h"
#include "muster/fully_shard.h"

namespace muster::testing {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

// Two groups of one parameter of `rows`.
class TwoGroups {
 public:
  explicit TwoGroups(int64_t rows0 = 4, int64_t rows1 = 4)
      : a_(rows0, 1), b_(rows1, 2) {}
  std::vector<ShardGroup> groups() {
    return {{"a", {{"pa", Tensor(a_)}}}, {"b", {{"pb", Tensor(b_)}}}};
  }

 private:
  std::vector<float> a_;
  std::vector<float> b_;
};

// Constructs on each rank what `change` makes of the arguments.
std::vector<std::string> Construct(
    int shards, int replicas,
    const std::function<void(const ShardRank&, std::vector<ShardGroup>&,
                             FullyShardOptions&)>& change) {
  ShardWorld world(shards, replicas);
  return world.OnEachRank([&](const ShardRank& rank) {
    TwoGroups two;
    std::vector<ShardGroup> groups = two.groups();
    FullyShardOptions options = rank.options;
    change(rank, groups, options);
    FullyShard model(groups, options);
  });
}

TEST(FullyShardFailuresTest, EveryRankLearnsWhatDiffersAndOnWhichRank) {
  std::vector<float> other(6);
  EXPECT_THAT(Construct(3, 1,
                        [&](const ShardRank& rank, auto& groups, auto&) {
                          if (rank.shard != 1) return;
                          groups[1].parameters[0].value = Tensor(other);
                        }),
              Each("FullyShard: parameter \"pb\" of group \"b\": rank 10 has "
                   "float32[6], rank 0 has float32[4]"));
  EXPECT_THAT(Construct(2, 1,
                        [&](const ShardRank& rank, auto& groups, auto&) {
                          if (rank.shard == 1) groups.pop_back();
                        }),
              Each(HasSubstr("rank 10 has nothing more, rank 0 has parameter "
                             "\"pb\"")));
  EXPECT_THAT(Construct(2, 1,
                        [&](const ShardRank& rank, auto&, auto& options) {
                          if (rank.shard == 0) return;
                          options.compute_type = DataType::kBfloat16;
                        }),
              Each("FullyShard: the types of group \"a\": rank 10 has bfloat16 "
                   "to compute, float32 to reduce, rank 0 has float32 to "
                   "compute, float32 to reduce"));
}

TEST(FullyShardFailuresTest, ADifferenceInOneLineOfTheMeshReachesAllRanks) {
  std::vector<float> other(6);
  // Between the shards of one replica.
  EXPECT_THAT(Construct(2, 2,
                        [&](const ShardRank& rank, auto& groups, auto&) {
                          if (rank.shard == 1 && rank.replica == 1) {
                            groups[0].parameters[0].value = Tensor(other);
                          }
                        }),
              Each(HasSubstr("float32[6]")));
  // Between replicas.
  EXPECT_THAT(Construct(2, 2,
                        [&](const ShardRank& rank, auto& groups, auto&) {
                          if (rank.replica == 1) {
                            groups[0].parameters[0].value = Tensor(other);
                          }
                        }),
              Each(HasSubstr("float32[6]")));
}

TEST(FullyShardFailuresTest, BadArgumentsOfOneRankFailOnAll) {
  std::vector<int> integers(4);
  std::vector<double> doubles(4);
  float scalar = 0;
  struct Bad {
    std::function<void(std::vector<ShardGroup>&, FullyShardOptions&)> change;
    std::string text;
  };
  const auto value = [](std::vector<ShardGroup>& groups) -> Tensor& {
    return groups[1].parameters[0].value;
  };
  const std::vector<Bad> all = {
      {[&](auto& groups, auto&) { value(groups) = Tensor(integers); },
       "parameter \"pb\" of group \"b\": int32[4]: it must be float32, "
       "float64, "
       "float16 or bfloat16"},
      {[&](auto& groups, auto&) {
         groups[1].parameters.push_back({"pc", Tensor(doubles)});
       },
       "\"pc\" of group \"b\": float64[4]: the group's first one is float32"},
      {[&](auto& groups, auto&) { groups[1].parameters[0].name = "pa"; },
       "float32[4]: another one has this name"},
      {[&](auto& groups, auto&) { value(groups) = Tensor(&scalar, {}); },
       "it has no dimension"},
      {[&](auto& groups, auto&) {
         value(groups) = Tensor(&scalar, {3, 0});
       },
       "it has no elements"},
      {[&](auto& groups, auto&) {
         value(groups) = Tensor(&scalar, {4}, {DeviceType::kCuda, 0});
       },
       "it is not on the CPU"},
      {[&](auto& groups, auto&) { groups[0].parameters.clear(); },
       "group \"a\" has no parameters"},
      {[&](auto&, auto& options) { options.compute_type = DataType::kFloat64; },
       "argument compute_type: float64 for float32 parameters of group \"a\""},
      {[&](auto&, auto& options) { options.reduce_type = DataType::kBfloat16; },
       "argument reduce_type: bfloat16 for float32 parameters"},
  };
  for (const Bad& bad : all) {
    EXPECT_THAT(
        Construct(2, 1,
                  [&](const ShardRank& rank, auto& groups, auto& options) {
                    if (rank.shard == 1) bad.change(groups, options);
                  }),
        Each(AllOf(HasSubstr("FullyShard: rank 10: "), HasSubstr(bad.text))));
  }
}

TEST(FullyShardFailuresTest, BadCallsStartNothing) {
  ShardWorld world(2);
  EXPECT_THAT(world.OnEachRank([&](const ShardRank& rank) {
    TwoGroups two;
    FullyShard model(two.groups(), rank.options);
    const auto refuses = [](const auto& call, const std::string& text) {
      try {
        call();
        ADD_FAILURE() << "no error: " << text;
      } catch (const DistError& error) {
        EXPECT_THAT(error.what(), HasSubstr(text));
      }
    };
    refuses([&] { model.WaitUnshard(2); }, "argument group: 2 of 2 groups");
    refuses([&] { model.Unshard(-1); }, "argument group: -1");
    refuses([&] { model.SetPrefetchOrder({0, 3}); }, "argument group: 3");
    refuses([&] { model.Value(0, 1); },
            "argument parameter: 1 of 1 parameters of group \"a\"");
    refuses([&] { model.Gradient(0, -1); }, "argument parameter: -1");
    refuses([&] { model.Value(0, 0); },
            "Value of group \"a\", which is sharded: call WaitUnshard before");
    refuses([&] { model.GradientNorm(0); }, "argument norm_type: 0");
    model.GradientsReady(0);
    refuses([&] { model.ZeroGradients(); }, "ZeroGradients before FinishStep");
    refuses([&] { model.ClipGradientNorm(1); },
            "GradientNorm before FinishStep");
    // All goes on.
    model.FinishStep();
    model.WaitUnshard(1);
    EXPECT_EQ(ToDoubles(model.Value(1, 0))[3], 2);
  }),
              Each(""));
  // There is no default group.
  EXPECT_THROW(FullyShard(std::vector<ShardGroup>()), DistError);
}

// No rank waits until its timeout, whose text would be another one.
TEST(FullyShardFailuresTest, AReplicateGroupOfSomeRanksIsAnErrorOfAllRanks) {
  for (int lacks = 0; lacks < 6; ++lacks) {
    EXPECT_THAT(Construct(3, 2,
                          [&](const ShardRank& rank, auto&, auto& options) {
                            if (rank.replica * 3 + rank.shard != lacks) return;
                            options.replicate_group = nullptr;
                          }),
                Each(AllOf(HasSubstr("argument replicate_group: "),
                           HasSubstr("has none"), HasSubstr("has a group"))));
  }
  EXPECT_THAT(Construct(2, 2,
                        [&](const ShardRank& rank, auto&, auto& options) {
                          if (rank.replica == 0 || rank.shard == 0) return;
                          options.replicate_group = LocalGroups::NonMember();
                        }),
              Each(HasSubstr("argument replicate_group: this process is in "
                             "group, but not in replicate_group")));
}

// As the groups of a mesh whose ranks do not ascend.
TEST(FullyShardFailuresTest, ReplicasOfDifferentShardsAreAnErrorOfAllRanks) {
  LocalGroups equal(2);
  LocalGroups other(2);
  EXPECT_THAT(Construct(2, 2,
                        [&](const ShardRank& rank, auto&, auto& options) {
                          const LocalGroups& replicas =
                              rank.replica == rank.shard ? equal : other;
                          options.replicate_group = replicas.at(rank.replica);
                        }),
              Each(HasSubstr("argument replicate_group: its ranks are ranks 0 "
                             "to 1 of their groups; they must hold one "
                             "shard")));
}

TEST(FullyShardFailuresTest, ARankWithoutMemoryFailsOnAll) {
  const auto construct = [](const AllocateFunction& allocate) {
    return Construct(2, 2, [&](const ShardRank& rank, auto&, auto& options) {
      if (rank.replica == 0 || rank.shard == 0) return;
      options.allocate_shards = allocate;
    });
  };
  EXPECT_THAT(construct([](size_t) { return nullptr; }),
              Each(HasSubstr("FullyShard: rank 10: no memory: the "
                             "function that allocates returned null for 8 "
                             "bytes")));
  EXPECT_THAT(construct([](size_t) -> std::shared_ptr<void> {
                throw std::runtime_error("the disk is full");
              }),
              Each(HasSubstr("no memory: the disk is full")));
}

// An optimizer's step after the values were gathered.
TEST(FullyShardFailuresTest, ValuesFromBeforeTheOptimizersStepAreAnError) {
  for (const bool waits : {false, true}) {
    for (const auto type : {DataType::kFloat32, DataType::kBfloat16}) {
      ShardWorld world(2);
      EXPECT_THAT(
          world.OnEachRank([&](const ShardRank& rank) {
            TwoGroups two;
            FullyShardOptions options = rank.options;
            options.compute_type = type;
            FullyShard model(two.groups(), options);
            Optimizer optimizer(Sgd(), model.Tensors());
            for (int step = 0; step < 2; ++step) {
              model.WaitUnshard(0);
              // Only the last row's gradient, which is rank 1's.
              AddDoubles(model.Gradient(0, 0), {0, 0, 0, 1});
              model.GradientsReady(0);
              model.FinishStep();
              if (step == 0) {
                // Nothing has changed.
                model.WaitUnshard(1);
                model.Reshard(1);
              } else {
                waits ? model.WaitUnshard(0) : model.Unshard(0);
              }
              optimizer.Step(0.25);
            }
            model.WaitUnshard(0);
            // Rank 0, which has the values already, may go on until it meets
            // rank 1.
            model.FinishStep();
          }),
          Each(HasSubstr("the shards of group \"a\" have changed since it was "
                         "gathered: call Unshard and WaitUnshard after "
                         "Optimizer::Step")));
    }
  }
}

// A rank may get its own error, or that of the rank that was first.
auto SaysThatOrdersDiffer() {
  return AllOf(HasSubstr("ranks gather groups in different orders: global "
                         "rank 10 gathers \"b\""),
               HasSubstr("global rank 0 gathers \"a\""));
}

TEST(FullyShardFailuresTest, GroupsInDifferentOrdersAreAnErrorNotWrongValues) {
  for (const int ranks : {2, 4}) {
    ShardWorld world(ranks);
    EXPECT_THAT(world.OnEachRank([&](const ShardRank& rank) {
      TwoGroups two;
      FullyShard model(two.groups(), rank.options);
      const int first = rank.shard == 1 ? 1 : 0;
      model.WaitUnshard(first);
      model.WaitUnshard(1 - first);
    }),
                Each(SaysThatOrdersDiffer()));
  }
}

TEST(FullyShardFailuresTest, GroupsGatheredAheadInDifferentOrders) {
  ShardWorld world(2);
  EXPECT_THAT(world.OnEachRank([&](const ShardRank& rank) {
    TwoGroups two;
    FullyShard model(two.groups(), rank.options);
    model.Unshard(rank.shard);
    model.Unshard(1 - rank.shard);
    // The same group, but not the first call.
    model.WaitUnshard(0);
  }),
              Each(SaysThatOrdersDiffer()));
}

TEST(FullyShardFailuresTest, GroupsOfOtherSizesInDifferentOrdersDoNotHang) {
  ShardWorld world(3);
  EXPECT_THAT(world.OnEachRank([&](const ShardRank& rank) {
    TwoGroups two(40, 4);
    FullyShard model(two.groups(), rank.options);
    model.WaitUnshard(rank.shard == 2 ? 1 : 0);
    model.WaitUnshard(rank.shard == 2 ? 0 : 1);
  }),
              Each(Not(IsEmpty())));
}

TEST(FullyShardFailuresTest, GradientsInDifferentOrdersEndTheStep) {
  for (const int replicas : {1, 2}) {
    ShardWorld world(2, replicas);
    EXPECT_THAT(
        world.OnEachRank([&](const ShardRank& rank) {
          TwoGroups two;
          FullyShard model(two.groups(), rank.options);
          // Between shards, or between replicas alone.
          const int first = replicas == 1 ? rank.shard : rank.replica;
          model.GradientsReady(first);
          model.GradientsReady(1 - first);
          model.FinishStep();
        }),
        Each("FullyShard: ranks differ in the calls of a step: call 1: rank 10 "
             "has reduced \"b\", rank 0 has reduced \"a\""));
  }
}

TEST(FullyShardFailuresTest, ReplicasThatGatherInDifferentOrders) {
  ShardWorld world(2, 2);
  EXPECT_THAT(world.OnEachRank([&](const ShardRank& rank) {
    TwoGroups two;
    FullyShard model(two.groups(), rank.options);
    model.WaitUnshard(rank.replica);
    model.WaitUnshard(1 - rank.replica);
    model.FinishStep();
  }),
              Each(HasSubstr("rank 10 has gathered \"b\"")));
}

TEST(FullyShardFailuresTest, ADifferenceWithinOneReplicaReachesTheOther) {
  ShardWorld world(2, 2);
  EXPECT_THAT(world.OnEachRank([&](const ShardRank& rank) {
    TwoGroups two;
    FullyShard model(two.groups(), rank.options);
    const int first = rank.replica == 1 && rank.shard == 1 ? 1 : 0;
    model.WaitUnshard(first);
    model.WaitUnshard(1 - first);
    model.FinishStep();
  }),
              Each(SaysThatOrdersDiffer()));
}

TEST(FullyShardFailuresTest, ARankThatLeavesFailsTheOthersForGood) {
  for (const int replicas : {1, 2}) {
    ShardWorld world(2, replicas);
    const auto errors = world.OnEachRank([&](const ShardRank& rank) {
      TwoGroups two;
      FullyShard model(two.groups(), rank.options);
      const auto step = [&] {
        for (const int group : {0, 1}) {
          model.WaitUnshard(group);
          model.Reshard(group);
        }
        for (const int group : {1, 0}) {
          model.WaitUnshard(group);
          model.GradientsReady(group);
        }
        model.FinishStep();
      };
      step();
      model.WaitUnshard(0);
      if (rank.shard == 1 && rank.replica == 0) {
        world.Leave(rank);
        return;
      }
      std::string first;
      try {
        for (;;) step();
      } catch (const DistError& error) {
        first = error.what();
      }
      const std::function<void()> calls[] = {
          [&] { model.Unshard(0); },
          [&] { model.WaitUnshard(0); },
          [&] { model.SetPrefetchOrder({}); },
          [&] { model.Value(0, 0); },
          [&] { model.Gradient(0, 0); },
          [&] { model.Reshard(0); },
          [&] { model.SetGradientSync(true); },
          [&] { model.FinishStep(); },
          [&] { model.ZeroGradients(); },
          [&] { model.GradientNorm(); },
          [&] { model.ClipGradientNorm(1); },
          [&] { model.GatherFullState(nullptr); },
          [&] { model.GradientsReady(0); }};
      for (const auto& call : calls) {
        try {
          call();
          ADD_FAILURE() << "no error";
        } catch (const DistError& error) {
          EXPECT_EQ(error.what(), first);
        }
      }
      model.FinishStep();
    });
    for (size_t i = 0; i < errors.size(); ++i) {
      EXPECT_EQ(errors[i].empty(), i == 1) << errors[i];
    }
  }
}

TEST(FullyShardFailuresTest, AnExceptionOfTheProgramEndsTheStepOfAllRanks) {
  ShardWorld world(2);
  EXPECT_THAT(world.OnEachRank([&](const ShardRank& rank) {
    TwoGroups two;
    FullyShard model(two.groups(), rank.options);
    try {
      model.GatherFullState([](const std::string&, const Tensor&) {
        throw std::runtime_error("the disk is full");
      });
    } catch (const DistError&) {
      // On rank 1.
    } catch (const std::runtime_error&) {
      return;
    }
    model.FinishStep();
  }),
              ::testing::ElementsAre("", HasSubstr("the disk is full")));
}

}  // namespace
}  // namespace muster::testing
