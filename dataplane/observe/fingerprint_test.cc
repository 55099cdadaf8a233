#include "dataplane/observe/fingerprint.h"

#include <cstdint>
#include <string>
#include <vector>

#include "dataplane/communicator.h"
#include "dataplane/culprit.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace muster::dataplane {
namespace {

using ::testing::ElementsAre;
using ::testing::EndsWith;
using ::testing::HasSubstr;

std::vector<float> g_floats(1024);
std::vector<int64_t> g_integers(1024);

Tensor Floats(std::initializer_list<int64_t> shape) {
  return {g_floats.data(), shape};
}

Collective AllReduce(Tensor tensor) {
  Collective collective;
  collective.kind = CollectiveKind::kAllReduce;
  collective.tensors = {std::move(tensor)};
  collective.sequence = 12;
  return collective;
}

// The result of Compare for these collectives, after serialisation.
Status Compared(const std::vector<Collective>& collectives) {
  std::vector<Fingerprint> prints;
  for (const Collective& collective : collectives) {
    const Fingerprint print =
        MakeFingerprint(collective, static_cast<int>(collectives.size()));
    const auto parsed = Fingerprint::Parse(print.Serialize());
    EXPECT_TRUE(parsed.ok()) << parsed.status();
    EXPECT_EQ(parsed->common, print.common);
    EXPECT_EQ(parsed->given, print.given);
    EXPECT_EQ(parsed->taken, print.taken);
    prints.push_back(*parsed);
    EXPECT_EQ(ArgumentsHash(collective) == ArgumentsHash(collectives.front()),
              print.common == prints.front().common)
        << print.description;
  }
  return Compare(prints);
}

std::string Text(const std::vector<Collective>& collectives) {
  return std::string(Compared(collectives).message());
}

TEST(FingerprintTest, WhoRefusesIsNamedWithItsReason) {
  const Fingerprint good = MakeFingerprint(AllReduce(Floats({8})), 3);
  const auto refusal = Fingerprint::Parse(
      MakeRefusal(AllReduce(Floats({8})), "bad\nroot=7").Serialize());
  ASSERT_TRUE(refusal.ok()) << refusal.status();
  Status status = Compare({{good, *refusal, good}});
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(status.message(),
            "rank 1 refused all_reduce #12 float32[8] sum: bad\\nroot=7");
  EXPECT_EQ(CulpritRank(status), 1);
  status = Compare({{good, *refusal, *refusal}});
  EXPECT_EQ(
      status.message(),
      "rank 1 refused all_reduce #12 float32[8] sum: bad\\nroot=7; so did "
      "rank 2");
  EXPECT_THAT(CulpritRanks(status), ElementsAre(1, 2));
}

TEST(FingerprintTest, TheMajorityIsShownAndWhoDiffers) {
  const Collective good = AllReduce(Floats({8}));
  const Status status = Compared({good, AllReduce(Floats({4})), good, good});
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(status.message(),
            "Detected mismatch between collectives on ranks. ranks 0, 2, 3 of "
            "4 run all_reduce #12 float32[8] sum; rank 1 runs all_reduce #12 "
            "float32[4] sum (different shape)");
  EXPECT_EQ(CulpritRank(status), 1);
  EXPECT_TRUE(Compared({good, good, good}).ok());
}

TEST(FingerprintTest, FunctionsThatDifferAreNamed) {
  const auto with = [](bool is_commutative) {
    Collective collective = AllReduce(Floats({8}));
    collective.reduce_op = ReduceOp::kUser;
    collective.function = ReduceFunction([](const void*, void*, size_t) {},
                                         {.is_commutative = is_commutative});
    return collective;
  };
  EXPECT_THAT(Text({with(true), with(false), with(true)}),
              HasSubstr("(different commutative)"));
}

TEST(FingerprintTest, OpaqueElementsOfOtherSizesAreNamed) {
  const auto with = [](size_t element_bytes) {
    Collective collective;
    collective.kind = CollectiveKind::kAllGather;
    const Tensor tensor =
        Tensor::Opaque(g_floats.data(), element_bytes, {4}, {});
    collective.inputs = {tensor};
    collective.outputs = {tensor, tensor, tensor};
    // As the communicator does, before it compares.
    OpaqueToBytes(collective);
    return collective;
  };
  EXPECT_THAT(Text({with(8), with(16), with(8)}),
              HasSubstr("(different element bytes, shape)"));
}

TEST(FingerprintTest, WithoutAMajorityAllAreToBlame) {
  const Collective good = AllReduce(Floats({8}));
  const Collective other = AllReduce(Floats({4}));
  EXPECT_THAT(CulpritRanks(Compared({good, other, other, good})),
              ElementsAre(0, 1, 2, 3));
  EXPECT_THAT(
      CulpritRanks(Compared({good, other, AllReduce(Floats({2})), good})),
      ElementsAre(0, 1, 2, 3));
}

TEST(FingerprintTest, WhoDiffersFromMostRanksIsToBlameForAFailure) {
  const auto print = [](int64_t elements, uint64_t sequence = 12) {
    Collective collective = AllReduce(Floats({elements}));
    collective.sequence = sequence;
    return MakeFingerprint(collective, 4);
  };
  // All are known: as Compare.
  const auto all = base::FindOdd(
      {{0, print(8)}, {1, print(8)}, {2, print(4)}, {3, print(8)}}, 4,
      /*suspects=*/{1});
  ASSERT_TRUE(all.has_value());
  EXPECT_THAT(all->text,
              HasSubstr("ranks 0, 1, 3 of 4 run all_reduce #12 float32[8] sum; "
                        "rank 2 runs all_reduce #12 float32[4] sum"));
  EXPECT_THAT(all->culprits, ElementsAre(2));
  // One has not reported, or has a higher sequence and so has completed this
  // one.
  EXPECT_THAT(
      base::FindOdd(
          {{0, print(8)}, {1, print(8)}, {2, print(8)}, {3, print(4, 13)}}, 4,
          /*suspects=*/{3})
          ->culprits,
      ElementsAre(3));
  EXPECT_THAT(base::FindOdd(
                  {{0, print(8)}, {1, print(8)}, {3, print(8)}, {4, print(4)}},
                  5, /*suspects=*/{0})
                  ->culprits,
              ElementsAre(4));
  // No majority.
  EXPECT_THAT(base::FindOdd({{0, print(8)}, {2, print(4)}}, 4,
                            /*suspects=*/{1})
                  ->culprits,
              ElementsAre(0, 1, 2));
  // All are equal, and no other rank is suspected.
  EXPECT_EQ(base::FindOdd({{0, print(8)}, {1, print(8)}, {2, print(8)}}, 4,
                          /*suspects=*/{1}),
            std::nullopt);
}

TEST(FingerprintTest, WithoutAMajorityTheLowestRankIsTheModel) {
  Collective late = AllReduce(Floats({8}));
  late.sequence = 13;
  EXPECT_EQ(Text({AllReduce(Floats({8})), late}),
            "Detected mismatch between collectives on ranks. rank 0 of 2 runs "
            "all_reduce #12 float32[8] sum; rank 1 runs all_reduce #13 "
            "float32[8] sum (different sequence)");
}

TEST(FingerprintTest, EverythingThatMustBeEqualIsCompared) {
  const Collective good = AllReduce(Floats({8}));
  Collective other = good;
  other.reduce_op = ReduceOp::kMax;
  EXPECT_THAT(Text({good, other}), EndsWith("(different reduce op)"));
  other = AllReduce(Tensor(g_integers.data(), {8}));
  EXPECT_THAT(Text({good, other}), EndsWith("(different dtype)"));
  other = AllReduce(Tensor(g_floats.data(), {8}, {DeviceType::kCuda, 0}));
  EXPECT_THAT(Text({good, other}), EndsWith("(different device)"));
  other = AllReduce(Floats({2, 4}));
  EXPECT_THAT(Text({good, other}), EndsWith("(different shape)"));
  other = good;
  other.kind = CollectiveKind::kBroadcast;
  EXPECT_THAT(Text({good, other}), EndsWith("(different op, reduce op, root)"));
  Collective root_of_one = other;
  root_of_one.root = 1;
  EXPECT_THAT(Text({other, root_of_one}), EndsWith("(different root)"));
  Collective barrier;
  barrier.sequence = 12;
  EXPECT_TRUE(Compared({barrier, barrier}).ok());
  EXPECT_THAT(Text({good, barrier}),
              EndsWith("(different op, dtype, device, shape, reduce op)"));
}

TEST(FingerprintTest, WhatMayDifferIsNotCompared) {
  // Only the root has gather's list; all_gather's inputs may differ in size.
  Collective root = {.kind = CollectiveKind::kGather,
                     .inputs = {Floats({3})},
                     .outputs = {Floats({3}), Floats({3})}};
  Collective other = root;
  other.outputs.clear();
  EXPECT_TRUE(Compared({root, other}).ok());
  Collective zero = {.kind = CollectiveKind::kAllGather,
                     .inputs = {Floats({1})},
                     .outputs = {Floats({1}), Floats({2})}};
  Collective one = zero;
  one.inputs = {Floats({2})};
  EXPECT_TRUE(Compared({zero, one}).ok());
  one.outputs = {Floats({1}), Floats({3})};
  EXPECT_THAT(Text({zero, one}), EndsWith("(different shape)"));
  // Only the root has scatter's list; all ranks have an output.
  zero = {.kind = CollectiveKind::kScatter,
          .inputs = {Floats({3}), Floats({3})},
          .outputs = {Floats({3})}};
  one = zero;
  one.inputs.clear();
  EXPECT_TRUE(Compared({zero, one}).ok());
  one.outputs = {Floats({4})};
  EXPECT_THAT(Text({zero, one}), EndsWith("(different shape)"));
  Collective premul = AllReduce(Floats({1}));
  premul.reduce_op = ReduceOp::kPremulSum;
  other = premul;
  other.factor = 3;
  EXPECT_TRUE(Compared({premul, other}).ok());
}

TEST(FingerprintTest, WhatOneGivesAnotherMustTake) {
  Collective zero = {.kind = CollectiveKind::kAllToAll,
                     .inputs = {Floats({1}), Floats({2})},
                     .outputs = {Floats({1}), Floats({4})}};
  Collective one = {.kind = CollectiveKind::kAllToAll,
                    .inputs = {Floats({4}), Floats({0})},
                    .outputs = {Floats({2}), Floats({0})}};
  EXPECT_TRUE(Compared({zero, one}).ok());
  one.outputs[0] = Floats({3});
  const Status status = Compared({zero, one});
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("rank 0 gives rank 1 2 elements, rank 1 takes 3 "
                        "(different splits): all_to_all #0"));
  // Either of the two may be wrong.
  EXPECT_THAT(CulpritRanks(status), ElementsAre(0, 1));
  Collective single = {.kind = CollectiveKind::kAllToAllSingle,
                       .inputs = {Floats({3, 2})},
                       .outputs = {Floats({2, 2})},
                       .input_splits = {1, 2},
                       .output_splits = {1, 1}};
  Collective peer = single;
  peer.inputs = {Floats({2, 2})};
  peer.outputs = {Floats({4, 2})};
  peer.input_splits = {};
  peer.output_splits = {2, 1};
  EXPECT_EQ(MakeFingerprint(single, 2).given, (std::vector<int64_t>{2, 4}));
  EXPECT_EQ(MakeFingerprint(peer, 2).given, (std::vector<int64_t>{2, 2}));
  peer.output_splits = {2, 1};
  EXPECT_TRUE(Compared({single, peer}).ok()) << Text({single, peer});
}

TEST(FingerprintTest, ManyRanksAreCut) {
  std::vector<Collective> collectives(20, AllReduce(Floats({8})));
  for (int i = 0; i < 6; ++i) {
    collectives[static_cast<size_t>(i)] = AllReduce(Floats({i + 20}));
  }
  const std::string text = Text(collectives);
  EXPECT_THAT(text, HasSubstr("ranks 6, 7, 8, 9, 10, 11, 12, 13 and 6 more of "
                              "20 run "));
  EXPECT_THAT(text, EndsWith("; and 2 more kinds"));
  // The payload has all of them.
  EXPECT_THAT(CulpritRanks(Compared(collectives)),
              ElementsAre(0, 1, 2, 3, 4, 5));
}

TEST(FingerprintTest, WhoDisagreesWithMostIsToBlameForTheSplits) {
  Collective good = {.kind = CollectiveKind::kAllToAll,
                     .inputs = {Floats({2}), Floats({2}), Floats({2})},
                     .outputs = {Floats({2}), Floats({2}), Floats({2})}};
  Collective bad = good;
  bad.inputs = {Floats({3}), Floats({3}), Floats({3})};
  bad.outputs = bad.inputs;
  EXPECT_THAT(CulpritRanks(Compared({good, good, bad})), ElementsAre(2));
}

TEST(FingerprintTest, PartsForRanksThatAreNotInTheGroupAreLeftOut) {
  Fingerprint print;
  print.given = std::vector<int64_t>(1 << 20, 1);
  print.taken = {1, 1};
  EXPECT_TRUE(Compare({print, print}).ok());
}

TEST(FingerprintTest, OtherTextIsNone) {
  EXPECT_FALSE(Fingerprint::Parse("").ok());
  EXPECT_FALSE(Fingerprint::Parse("a\nb\n\nop=x").ok());
}

}  // namespace
}  // namespace muster::dataplane
