// Property test: what is saved in one random layout is loaded in another.

#include <algorithm>
#include <array>
#include <cstdint>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "client/parallel/checkpoint/box.h"
#include "client/parallel/checkpoint/test_parts.h"
#include "client/testing/local_groups.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "muster/checkpoint.h"
#include "muster/checkpoint_storage.h"

namespace muster::testing {
namespace {

using internal::Box;
using ::testing::Each;

using Random = std::mt19937;

int64_t Draw(Random& random, int64_t from, int64_t to) {
  return std::uniform_int_distribution<int64_t>(from, to)(random);
}

// Cuts the box in two at a random point of a random dimension, and the halves
// again, so that boxes need not form a grid.
void Cut(Random& random, const Box& box, int64_t cuts,
         std::vector<Box>& pieces) {
  std::vector<size_t> dimensions;
  for (size_t d = 0; d < box.lengths.size(); ++d) {
    if (box.lengths[d] > 1) dimensions.push_back(d);
  }
  if (cuts == 0 || dimensions.empty()) {
    pieces.push_back(box);
    return;
  }
  const size_t d = dimensions[static_cast<size_t>(
      Draw(random, 0, static_cast<int64_t>(dimensions.size()) - 1))];
  Box left = box;
  Box right = box;
  left.lengths[d] = Draw(random, 1, box.lengths[d] - 1);
  right.offsets[d] += left.lengths[d];
  right.lengths[d] -= left.lengths[d];
  Cut(random, left, (cuts - 1) / 2, pieces);
  Cut(random, right, (cuts - 1) - (cuts - 1) / 2, pieces);
}

// Divides one tensor over the ranks; some pieces have several holders.
void AddRandomly(Random& random, const std::string& name, DataType type,
                 const std::vector<int64_t>& shape, std::vector<Parts>& ranks) {
  std::vector<Box> pieces;
  Cut(random, internal::MakeWholeBox(shape), Draw(random, 0, 9), pieces);
  const auto last = static_cast<int64_t>(ranks.size()) - 1;
  for (const Box& piece : pieces) {
    const int64_t first = Draw(random, 0, last);
    const int64_t holders = Draw(random, 0, 3) == 0 ? last + 1 : 1;
    for (int64_t i = 0; i < holders; ++i) {
      ranks[static_cast<size_t>((first + i) % (last + 1))].Add(name, type,
                                                               shape, piece);
    }
  }
}

struct TensorKind {
  std::string name;
  DataType type;
  std::vector<int64_t> shape;
};

std::vector<TensorKind> DrawTensors(Random& random) {
  constexpr std::array kTypes = {DataType::kFloat32, DataType::kBfloat16,
                                 DataType::kUint8, DataType::kFloat64};
  std::vector<TensorKind> tensors;
  for (int64_t i = Draw(random, 1, 5); i > 0; --i) {
    std::vector<int64_t> shape;
    for (int64_t d = Draw(random, 0, 4); d > 0; --d) {
      shape.push_back(Draw(random, 1, 9));
    }
    tensors.push_back({"layers." + std::to_string(i) + ".weight",
                       kTypes[static_cast<size_t>(Draw(random, 0, 3))], shape});
  }
  // Larger than a block, and its rows end inside of blocks.
  if (Draw(random, 0, 9) == 0) {
    tensors.push_back({"big", DataType::kFloat32, {700, 601}});
  }
  return tensors;
}

TEST(LayoutsTest, AnyLayoutIsLoadedInAnyOther) {
  const TemporaryFolder folder;
  const auto storage = DirectoryStorage(folder.path());
  Random random(49);
  int64_t step = 0;
  for (const int size : {1, 2, 3, 4}) {
    LocalGroups groups(size);
    for (int i = 0; i < 12; ++i) {
      const std::vector<TensorKind> tensors = DrawTensors(random);
      std::vector<Parts> saved(static_cast<size_t>(size));
      std::vector<Parts> loaded(static_cast<size_t>(Draw(random, 1, 5)));
      for (const auto& [name, type, shape] : tensors) {
        AddRandomly(random, name, type, shape, saved);
        AddRandomly(random, name, type, shape, loaded);
      }
      for (Parts& parts : saved) parts.Fill();
      ++step;
      ASSERT_THAT(groups.OnEachRank([&](const auto& group, int rank) {
        SaveCheckpoint(*storage, step,
                       saved[static_cast<size_t>(rank)].shards(),
                       {.group = group, .keep_newest = 1});
      }),
                  Each(""));
      for (Parts& parts : loaded) {
        LoadCheckpoint(*storage, step, parts.shards());
        ASSERT_EQ(parts.CountWrong(), 0) << "step " << step;
      }
    }
  }
}

}  // namespace
}  // namespace muster::testing
