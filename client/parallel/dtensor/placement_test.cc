#include "muster/placement.h"

#include <algorithm>
#include <cstdint>
#include <functional>
#include <limits>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "muster/errors.h"

namespace muster {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

using Shape = std::vector<int64_t>;
using Placements = std::vector<Placement>;

std::string CatchError(const std::function<void()>& function) {
  try {
    function();
  } catch (const DistError& error) {
    EXPECT_EQ(error.status().code(), StatusCode::kInvalidArgument);
    return error.what();
  }
  return "no error";
}

std::string BoxText(const Shape& shape, const Placements& placements,
                    const Shape& mesh, const Shape& coordinate) {
  return ComputeShardBox(shape, placements, mesh, coordinate).ToText();
}

TEST(PlacementTest, PartsAreCutAsTorchChunks) {
  // torch.chunk(torch.arange(5), 4): two, two, one; the fourth has none.
  EXPECT_EQ(BoxText({5}, {Shard(0)}, {4}, {0}), "[0:2]");
  EXPECT_EQ(BoxText({5}, {Shard(0)}, {4}, {1}), "[2:4]");
  EXPECT_EQ(BoxText({5}, {Shard(0)}, {4}, {2}), "[4:5]");
  EXPECT_EQ(BoxText({5}, {Shard(0)}, {4}, {3}), "[5:5]");
  EXPECT_EQ(BoxText({5, 3}, {Shard(1), Replicate()}, {2, 2}, {1, 1}),
            "[0:5, 2:3]");
  EXPECT_EQ(BoxText({5, 3}, {Partial(), Shard(0)}, {2, 2}, {1, 1}),
            "[3:5, 0:3]");
  EXPECT_EQ(BoxText({}, {Replicate()}, {2}, {1}), "[]");
  EXPECT_EQ(ComputeShardBox({}, {Replicate()}, {2}, {1}).element_count(), 1);
}

TEST(PlacementTest, LaterMeshDimensionsCutThePartsOfEarlierOnes) {
  // Seven as four and three; four as two and two, three as two and one.
  const Placements both = {Shard(0), Shard(0)};
  EXPECT_EQ(BoxText({7}, both, {2, 2}, {0, 0}), "[0:2]");
  EXPECT_EQ(BoxText({7}, both, {2, 2}, {0, 1}), "[2:4]");
  EXPECT_EQ(BoxText({7}, both, {2, 2}, {1, 0}), "[4:6]");
  EXPECT_EQ(BoxText({7}, both, {2, 2}, {1, 1}), "[6:7]");
}

TEST(PlacementTest, ImpossibleLayoutsAreErrors) {
  const auto check = [](const Shape& shape, const Placements& placements,
                        const Shape& mesh) {
    return CatchError(
        [&] { CheckLayout({.shape = shape, .placements = placements}, mesh); });
  };
  EXPECT_EQ(check({4}, {Shard(0)}, {2}), "no error");
  EXPECT_EQ(check({4}, {Shard(0)}, {2, 2}),
            "argument placements: (S(0)) has 1 placements, the mesh has 2 "
            "dimensions");
  EXPECT_EQ(check({4}, {Shard(1)}, {2}),
            "argument placements: S(1) of a tensor with 1 dimensions");
  EXPECT_EQ(check({4}, {Shard(-1)}, {2}),
            "argument placements: S(-1) of a tensor with 1 dimensions");
  EXPECT_EQ(check({4}, {Partial(ReduceOp::kBand)}, {2}),
            "argument placements: P(band) is not one of sum, avg, min, max, "
            "product");
  EXPECT_EQ(check({4}, {Partial(), Partial(ReduceOp::kMax)}, {2, 2}),
            "argument placements: (P(sum), P(max)) has partial placements of "
            "different operations");
  EXPECT_EQ(check({4, -1}, {Shard(0)}, {2}),
            "argument shape: negative dimension in [4,-1]");
  constexpr int64_t kLarge = int64_t{1} << 52;
  EXPECT_EQ(check({kLarge}, {Shard(0)}, {2}), "no error");
  EXPECT_EQ(check({kLarge / 2, 0, 2}, {Shard(0)}, {2}), "no error");
  EXPECT_EQ(check({kLarge / 2, 3}, {Shard(0)}, {2}),
            "argument shape: too many elements in [2251799813685248,3]");
  EXPECT_EQ(check({kLarge, 1, kLarge, kLarge}, {Shard(0)}, {2}),
            "argument shape: too many elements in "
            "[4503599627370496,1,4503599627370496,4503599627370496]");
  EXPECT_EQ(check({4}, {Shard(0)}, {0}),
            "argument mesh_shape: (0) has a dimension without ranks");
  EXPECT_THAT(
      CatchError([] { ComputeShardBox({4}, {Shard(0)}, {2}, {2}); }),
      HasSubstr("argument coordinate: (2) is not in a mesh of shape (2)"));
}

std::string PlanText(const Shape& shape, const Placements& from,
                     const Placements& to, const Shape& mesh) {
  return PlanRedistribute({.shape = shape, .placements = from}, to, mesh)
      .ToText();
}

TEST(PlanTest, TheDryRunPrintsStepsAndBytes) {
  EXPECT_EQ(PlanText({8, 16}, {Shard(0), Replicate()}, {Replicate(), Shard(1)},
                     {2, 2}),
            "float32[8,16] (S(0), R) to (R, S(1)) on mesh (2, 2): 128 bytes "
            "per rank\n"
            "  mesh dim 1: R to S(1), slice, 0 bytes\n"
            "  mesh dim 0: S(0) to R, all_gather, 128 bytes\n");
  EXPECT_EQ(PlanText({8, 16}, {Shard(0)}, {Shard(1)}, {4}),
            "float32[8,16] (S(0)) to (S(1)) on mesh (4): 96 bytes per rank\n"
            "  mesh dim 0: S(0) to S(1), all_to_all, 96 bytes\n");
  EXPECT_EQ(PlanText({8, 16}, {Partial()}, {Shard(1)}, {4}),
            "float32[8,16] (P(sum)) to (S(1)) on mesh (4): 384 bytes per rank\n"
            "  mesh dim 0: P(sum) to S(1), reduce_scatter, 384 bytes\n");
  EXPECT_EQ(PlanText({8, 16}, {Partial()}, {Replicate()}, {4}),
            "float32[8,16] (P(sum)) to (R) on mesh (4): 768 bytes per rank\n"
            "  mesh dim 0: P(sum) to R, all_reduce, 768 bytes\n");
  EXPECT_EQ(PlanText({8, 16}, {Shard(0)}, {Shard(0)}, {4}),
            "float32[8,16] (S(0)) to (S(0)) on mesh (4): 0 bytes per rank\n");
}

TEST(PlanTest, WhatIsCutTwiceIsGatheredFromTheLastCut) {
  EXPECT_EQ(
      PlanText({8}, {Shard(0), Shard(0)}, {Replicate(), Shard(0)}, {2, 2}),
      "float32[8] (S(0), S(0)) to (R, S(0)) on mesh (2, 2): 24 bytes per "
      "rank\n"
      "  mesh dim 1: S(0) to R, all_gather, 8 bytes\n"
      "  mesh dim 0: S(0) to R, all_gather, 16 bytes\n"
      "  mesh dim 1: R to S(0), slice, 0 bytes\n");
}

TEST(PlanTest, TwoSumsAreReducedHierarchically) {
  EXPECT_EQ(PlanText({8, 16}, {Partial(), Partial()},
                     {Replicate(), Replicate()}, {2, 2}),
            "float32[8,16] (P(sum), P(sum)) to (R, R) on mesh (2, 2): 768 "
            "bytes per rank\n"
            "  mesh dim 1: P(sum) to S(0), reduce_scatter, 256 bytes\n"
            "  mesh dim 0: P(sum) to R, all_reduce, 256 bytes\n"
            "  mesh dim 1: S(0) to R, all_gather, 256 bytes\n");
}

TEST(PlanTest, TheLargestTensorHasAPlan) {
  const RedistributePlan plan =
      PlanRedistribute({.shape = {int64_t{1} << 26, int64_t{1} << 26},
                        .placements = {Partial(), Partial(), Shard(0)},
                        .data_type = DataType::kComplex128},
                       {Replicate(), Replicate(), Replicate()}, {2, 2, 2});
  // 2^55 bytes are reduced twice, and 2^56 gathered from halves, at most.
  EXPECT_GT(plan.bytes(), 0);
  EXPECT_LE(plan.bytes(), (int64_t{1} << 56) * 3);
}

TEST(PlanTest, OneRankNeedsNoCollective) {
  EXPECT_EQ(
      PlanText({8}, {Partial(), Shard(0)}, {Replicate(), Shard(0)}, {1, 2}),
      "float32[8] (P(sum), S(0)) to (R, S(0)) on mesh (1, 2): 0 bytes "
      "per rank\n"
      "  mesh dim 0: P(sum) to R, slice, 0 bytes\n");
}

// An independent account of one step's bytes; none if it is not possible.
std::optional<int64_t> CountBytes(const Shape& shape, const Shape& mesh,
                                  const Placements& from, size_t dim,
                                  const Placement& to,
                                  const Placements& target) {
  const Placement old = from[dim];
  if (old == to) return std::nullopt;
  for (size_t later = dim + 1; later < mesh.size(); ++later) {
    if (!from[later].is_shard()) continue;
    if (from[later] == old || from[later] == to) return std::nullopt;
  }
  Placements after = from;
  after[dim] = to;
  if (to.is_partial()) {
    if (to != target[dim] || old.is_partial()) return std::nullopt;
    if (old.is_shard() && to.op() == ReduceOp::kAvg) return std::nullopt;
    for (size_t other = 0; other < mesh.size(); ++other) {
      if (other != dim && from[other].is_partial() && from[other] != to) {
        return std::nullopt;
      }
    }
    return 0;
  }
  if (old.is_replicate() || mesh[dim] == 1) return 0;
  const Shape first(mesh.size(), 0);
  const int64_t before_bytes =
      4 * ComputeShardBox(shape, from, mesh, first).element_count();
  const int64_t after_bytes =
      4 * ComputeShardBox(shape, after, mesh, first).element_count();
  const auto others = [&](int64_t bytes) { return bytes - bytes / mesh[dim]; };
  if (old.is_partial() && to.is_replicate()) return 2 * others(before_bytes);
  if (to.is_replicate()) return others(after_bytes);
  return others(std::max(before_bytes, after_bytes));
}

using Cost = std::pair<int64_t, int64_t>;

void TryAll(const Shape& shape, const Shape& mesh, const Placements& now,
            const Placements& target, Cost cost, int depth, Cost& best) {
  if (cost >= best) return;
  if (now == target) {
    best = cost;
    return;
  }
  if (depth == 0) return;
  for (size_t dim = 0; dim < mesh.size(); ++dim) {
    for (const Placement& to : {Replicate(), Shard(0), Shard(1), target[dim]}) {
      const auto bytes = CountBytes(shape, mesh, now, dim, to, target);
      if (!bytes.has_value()) continue;
      Placements after = now;
      after[dim] = to;
      TryAll(shape, mesh, after, target, {cost.first + *bytes, cost.second + 1},
             depth - 1, best);
    }
  }
}

TEST(PlanTest, NoSequenceOfUpToFiveStepsIsCheaper) {
  std::mt19937 random(5);
  const Placements all = {Replicate(), Shard(0), Shard(1), Partial(),
                          Partial(ReduceOp::kAvg)};
  const auto draw = [&](size_t count) { return random() % count; };
  int found = 0;
  while (found < 300) {
    const Shape mesh = {static_cast<int64_t>(1 + draw(3)),
                        static_cast<int64_t>(1 + draw(3))};
    const Shape shape = {static_cast<int64_t>(draw(9)),
                         static_cast<int64_t>(draw(9))};
    const Placements from = {all[draw(5)], all[draw(5)]};
    const Placements to = {all[draw(5)], all[draw(5)]};
    const auto is_mixed = [](const Placements& placements) {
      return placements[0].is_partial() && placements[1].is_partial() &&
             placements[0] != placements[1];
    };
    if (is_mixed(from) || is_mixed(to)) continue;
    ++found;
    const RedistributePlan plan =
        PlanRedistribute({.shape = shape, .placements = from}, to, mesh);
    Cost best = {std::numeric_limits<int64_t>::max(), 0};
    TryAll(shape, mesh, from, to, {0, 0}, 5, best);
    EXPECT_EQ(best, Cost(plan.bytes(), plan.steps.size())) << plan.ToText();
  }
}

TEST(PlanTest, ThreeDimensionsAreSearchedToo) {
  const Placements from = {Shard(0), Shard(0), Partial()};
  const Placements to = {Shard(2), Replicate(), Shard(1)};
  const RedistributePlan plan = PlanRedistribute(
      {.shape = {8, 8, 8, 8}, .placements = from}, to, {2, 2, 2});
  std::vector<int> dims;
  for (const RedistributeStep& step : plan.steps) dims.push_back(step.mesh_dim);
  EXPECT_THAT(dims, ElementsAre(2, 1, 0)) << plan.ToText();
}

}  // namespace
}  // namespace muster
