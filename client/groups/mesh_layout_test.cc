#include "client/groups/mesh_layout.h"

#include <cstdint>
#include <set>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace muster::internal {
namespace {

using ::testing::ElementsAre;

TEST(MeshLayoutTest, WalksOfARowMajorMesh) {
  const std::vector<MeshDim> dims = RowMajor({2, 3});
  EXPECT_THAT(
      ComputeWalks(dims[0], 6),
      ElementsAre(ElementsAre(0, 3), ElementsAre(1, 4), ElementsAre(2, 5)));
  EXPECT_THAT(ComputeWalks(dims[1], 6),
              ElementsAre(ElementsAre(0, 1, 2), ElementsAre(3, 4, 5)));
}

// Every place is in one sequence, at the index of its coordinate.
TEST(MeshLayoutTest, WalksCoverEveryPlaceOnce) {
  const std::vector<std::vector<int64_t>> shapes = {
      {1}, {5}, {1, 4}, {4, 1}, {2, 3, 4}, {3, 1, 2, 2}};
  for (const auto& shape : shapes) {
    const std::vector<MeshDim> dims = RowMajor(shape);
    int64_t places = 1;
    for (const int64_t size : shape) places *= size;
    // Every set of dimensions, flattened.
    for (size_t choice = 0; choice < size_t{1} << dims.size(); ++choice) {
      std::vector<MeshDim> chosen;
      for (size_t i = 0; i < dims.size(); ++i) {
        if ((choice >> i) % 2 == 1) chosen.push_back(dims[i]);
      }
      EXPECT_FALSE(Overlap(chosen));
      const MeshDim dim = Flatten(chosen);
      std::set<int64_t> seen;
      for (const std::vector<int64_t>& walk : ComputeWalks(dim, places)) {
        ASSERT_EQ(static_cast<int64_t>(walk.size()), dim.size());
        for (size_t i = 0; i < walk.size(); ++i) {
          EXPECT_TRUE(seen.insert(walk[i]).second);
          EXPECT_EQ(dim.ComputeCoordinate(walk[i]), static_cast<int64_t>(i));
        }
      }
      EXPECT_EQ(static_cast<int64_t>(seen.size()), places);
      EXPECT_EQ(*seen.rbegin(), places - 1);
    }
  }
}

TEST(MeshLayoutTest,
     DimensionsThatDoNotFollowEachOtherAreFlattenedInTheirOrder) {
  const std::vector<MeshDim> dims = RowMajor({2, 3, 2});
  const MeshDim ends = Flatten({dims[0], dims[2]});
  EXPECT_EQ(ends.loops().size(), 2U);
  EXPECT_THAT(ComputeOffsets(ends), ElementsAre(0, 1, 6, 7));
  EXPECT_EQ(Flatten(dims), RowMajor({12})[0]);
  EXPECT_EQ(Flatten({dims[1], dims[2]}).loops().size(), 1U);
}

TEST(MeshLayoutTest, WhatGoesOverTheSamePlacesOverlaps) {
  const std::vector<MeshDim> dims = RowMajor({2, 3, 2});
  EXPECT_TRUE(Overlap({dims[0], Flatten({dims[0], dims[1]})}));
  EXPECT_TRUE(Overlap({dims[2], dims[2]}));
  EXPECT_FALSE(Overlap({dims[2], Flatten({dims[0], dims[1]})}));
}

TEST(MeshLayoutTest, UnflattenUndoesFlatten) {
  const std::vector<MeshDim> dims = RowMajor({2, 3, 4, 2});
  EXPECT_EQ(*Unflatten(Flatten(dims), {2, 3, 4, 2}), dims);
  EXPECT_EQ(*Unflatten(Flatten(dims), {6, 8}), RowMajor({6, 8}));
  // Across non-adjacent dimensions, and within one.
  const MeshDim ends = Flatten({dims[0], dims[2], dims[3]});
  EXPECT_EQ(*Unflatten(ends, {2, 4, 2}),
            (std::vector<MeshDim>{dims[0], dims[2], dims[3]}));
  EXPECT_EQ(*Unflatten(ends, {4, 1, 4}),
            (std::vector<MeshDim>{MeshDim({{2, 24}, {2, 4}}), MeshDim(),
                                  MeshDim({{4, 1}})}));
}

TEST(MeshLayoutTest, UnflattenRefusesSizesThatDoNotFit) {
  const MeshDim dim = RowMajor({6})[0];
  EXPECT_EQ(Unflatten(dim, {2, 2}).status(),
            InvalidArgumentError(
                "a mesh dimension of 6 ranks cannot be unflattened to sizes "
                "[2, 2]: their product must equal it"));
  EXPECT_FALSE(Unflatten(dim, {-2, -3}).ok());
  EXPECT_FALSE(Unflatten(dim, {int64_t{1} << 62, 4}).ok());
  // The loops have sizes 2 and 3: sizes 3 and 2 would cut across them.
  const std::vector<MeshDim> dims = RowMajor({2, 5, 3});
  EXPECT_FALSE(Unflatten(Flatten({dims[0], dims[2]}), {3, 2}).ok());
  EXPECT_TRUE(Unflatten(Flatten({dims[0], dims[2]}), {2, 3}).ok());
}

}  // namespace
}  // namespace muster::internal
