// DTensors among ranks that are threads, against plain loops over the whole
// tensor.

#include "muster/dtensor.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "client/parallel/dtensor/local_mesh.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "muster/errors.h"

namespace muster {
namespace {

using muster::testing::LocalMesh;
using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

using Shape = std::vector<int64_t>;
using Placements = std::vector<Placement>;

int64_t Count(const Shape& shape) {
  int64_t count = 1;
  for (const int64_t size : shape) count *= size;
  return count;
}

// The coordinate of an index in an array.
Shape ToCoordinate(int64_t index, const Shape& shape) {
  Shape coordinate(shape.size());
  for (size_t dim = shape.size(); dim-- > 0;) {
    coordinate[dim] = index % shape[dim];
    index /= shape[dim];
  }
  return coordinate;
}

// For each dimension of the tensor the indices that the rank at `at` has,
// found by cutting a list of all indices again and again.
std::vector<std::vector<int64_t>> FindIndices(const Shape& shape,
                                              const Placements& placements,
                                              const Shape& mesh,
                                              const Shape& at) {
  std::vector<std::vector<int64_t>> indices(shape.size());
  for (size_t k = 0; k < shape.size(); ++k) {
    for (int64_t i = 0; i < shape[k]; ++i) indices[k].push_back(i);
    for (size_t dim = 0; dim < mesh.size(); ++dim) {
      if (placements[dim] != Shard(static_cast<int>(k))) continue;
      const auto size = static_cast<int64_t>(indices[k].size());
      const int64_t chunk = static_cast<int64_t>(std::ceil(
          static_cast<double>(size) / static_cast<double>(mesh[dim])));
      std::vector<int64_t> mine;
      for (int64_t i = 0; i < size; ++i) {
        if (i / std::max<int64_t>(chunk, 1) == at[dim]) {
          mine.push_back(indices[k][static_cast<size_t>(i)]);
        }
      }
      indices[k] = mine;
    }
  }
  return indices;
}

// The indices in the whole tensor of the elements of a part, in its order.
std::vector<int64_t> FindElements(const Shape& shape,
                                  const Placements& placements,
                                  const Shape& mesh, const Shape& at) {
  std::vector<int64_t> elements = {0};
  const auto indices = FindIndices(shape, placements, mesh, at);
  for (size_t k = 0; k < shape.size(); ++k) {
    std::vector<int64_t> longer;
    for (const int64_t element : elements) {
      for (const int64_t index : indices[k]) {
        longer.push_back(element * shape[k] + index);
      }
    }
    elements = longer;
  }
  return elements;
}

Shape FindLocalShape(const Shape& shape, const Placements& placements,
                     const Shape& mesh, const Shape& at) {
  Shape local;
  for (const auto& indices : FindIndices(shape, placements, mesh, at)) {
    local.push_back(static_cast<int64_t>(indices.size()));
  }
  return local;
}

// The coordinates with those along placements that are not partial set to 0:
// ranks with the same result contribute the same.
int64_t FindContributor(const Placements& placements, const Shape& mesh,
                        const Shape& at) {
  int64_t index = 0;
  for (size_t dim = 0; dim < mesh.size(); ++dim) {
    index = index * mesh[dim] + (placements[dim].is_partial() ? at[dim] : 0);
  }
  return index;
}

double Reduce(ReduceOp op, const std::vector<double>& values) {
  double result = values[0];
  for (size_t i = 1; i < values.size(); ++i) {
    switch (op) {
      case ReduceOp::kMin:
        result = std::min(result, values[i]);
        break;
      case ReduceOp::kMax:
        result = std::max(result, values[i]);
        break;
      case ReduceOp::kProduct:
        result *= values[i];
        break;
      default:
        result += values[i];
    }
  }
  if (op == ReduceOp::kAvg) result /= static_cast<double>(values.size());
  return result;
}

ReduceOp FindOp(const Placements& placements) {
  for (const Placement& one : placements) {
    if (one.is_partial()) return one.op();
  }
  return ReduceOp::kSum;
}

// Small numbers, whose sums, products and averages over 2 and 4 are exact.
double Contribution(int64_t contributor, int64_t element) {
  return static_cast<double>((contributor * 7 + element * 3) % 8 + 1);
}

// The whole tensor that ranks of `placements` have together.
std::vector<double> MakeWhole(const Shape& shape, const Placements& placements,
                              const Shape& mesh) {
  std::vector<double> whole;
  for (int64_t element = 0; element < Count(shape); ++element) {
    std::map<int64_t, double> values;
    for (int64_t rank = 0; rank < Count(mesh); ++rank) {
      const int64_t contributor =
          FindContributor(placements, mesh, ToCoordinate(rank, mesh));
      values[contributor] = Contribution(contributor, element);
    }
    std::vector<double> list;
    for (const auto& [contributor, value] : values) list.push_back(value);
    whole.push_back(Reduce(FindOp(placements), list));
  }
  return whole;
}

// All placements of a tensor of `dims` dimensions.
std::vector<Placements> AllPlacements(size_t mesh_dims, int dims) {
  Placements each = {Replicate(), Partial()};
  for (int dim = 0; dim < dims; ++dim) each.push_back(Shard(dim));
  std::vector<Placements> all = {{}};
  for (size_t i = 0; i < mesh_dims; ++i) {
    std::vector<Placements> longer;
    for (const Placements& some : all) {
      for (const Placement& one : each) {
        longer.push_back(some);
        longer.back().push_back(one);
      }
    }
    all = longer;
  }
  return all;
}

// One redistribution.
struct Case {
  Shape shape;
  Placements from;
  Placements to;
};

// A rank's local tensor after a case.
struct Result {
  Shape local_shape;
  std::vector<double> values;
};

void CheckCase(const Case& one, const Shape& mesh,
               const std::vector<Result>& results) {
  const std::vector<double> whole = MakeWhole(one.shape, one.from, mesh);
  // By element: what the ranks contribute to it, by contributor.
  std::map<int64_t, std::map<int64_t, double>> partial;
  const std::string text = ToText(one.from) + " to " + ToText(one.to);
  for (int64_t rank = 0; rank < Count(mesh); ++rank) {
    const Shape at = ToCoordinate(rank, mesh);
    const Result& result = results[static_cast<size_t>(rank)];
    ASSERT_EQ(result.local_shape, FindLocalShape(one.shape, one.to, mesh, at))
        << text << " rank " << rank;
    const auto elements = FindElements(one.shape, one.to, mesh, at);
    ASSERT_EQ(result.values.size(), elements.size()) << text;
    const int64_t contributor = FindContributor(one.to, mesh, at);
    for (size_t i = 0; i < elements.size(); ++i) {
      auto& known = partial[elements[i]];
      const auto [entry, is_new] =
          known.try_emplace(contributor, result.values[i]);
      // Ranks that must have the same do.
      EXPECT_EQ(entry->second, result.values[i]) << text << " rank " << rank;
    }
  }
  ASSERT_EQ(partial.size(), whole.size()) << text;
  for (const auto& [element, values] : partial) {
    std::vector<double> list;
    for (const auto& [contributor, value] : values) list.push_back(value);
    EXPECT_EQ(Reduce(FindOp(one.to), list), whole[static_cast<size_t>(element)])
        << text << " element " << element;
  }
}

template <typename T>
void RunCases(const Shape& mesh_shape, const std::vector<Case>& cases) {
  LocalMesh world(mesh_shape);
  // By case and rank.
  std::vector<std::vector<Result>> results(
      cases.size(), std::vector<Result>(static_cast<size_t>(world.size())));
  EXPECT_THAT(world.OnEachRank([&](const DeviceMesh& mesh, int rank) {
    const Shape at = ToCoordinate(rank, mesh_shape);
    for (size_t i = 0; i < cases.size(); ++i) {
      const Case& one = cases[i];
      const int64_t contributor = FindContributor(one.from, mesh_shape, at);
      std::vector<T> local;
      for (const int64_t element :
           FindElements(one.shape, one.from, mesh_shape, at)) {
        local.push_back(static_cast<T>(Contribution(contributor, element)));
      }
      const std::vector<T> copy = local;
      const Shape local_shape =
          FindLocalShape(one.shape, one.from, mesh_shape, at);
      const DTensor before =
          DTensor::FromLocal(Tensor(local.data(), local_shape), mesh, one.from,
                             {.shape = one.shape});
      const DTensor after = before.Redistribute(one.to);
      EXPECT_EQ(local, copy);
      EXPECT_EQ(after.placements(), one.to);
      EXPECT_EQ(after.shape(), one.shape);
      const Tensor tensor = after.ToLocal();
      EXPECT_EQ(after.box().lengths,
                Shape(tensor.shape().begin(), tensor.shape().end()));
      const auto* const values = static_cast<const T*>(tensor.data());
      results[i][static_cast<size_t>(rank)] = {
          after.box().lengths,
          std::vector<double>(values, values + tensor.element_count())};
    }
  }),
              Each(IsEmpty()));
  for (size_t i = 0; i < cases.size(); ++i) {
    CheckCase(cases[i], mesh_shape, results[i]);
  }
}

std::vector<Case> MakeCases(const std::vector<Shape>& shapes,
                            size_t mesh_dims) {
  std::vector<Case> cases;
  for (const Shape& shape : shapes) {
    const auto all = AllPlacements(mesh_dims, static_cast<int>(shape.size()));
    for (const Placements& from : all) {
      for (const Placements& to : all) cases.push_back({shape, from, to});
    }
  }
  return cases;
}

TEST(DTensorTest, EveryPlacementBecomesEveryOtherOnTwoRanks) {
  RunCases<float>({2},
                  MakeCases({{5, 3}, {4, 6}, {1, 7}, {0, 3}, {3, 1, 5}}, 1));
}

TEST(DTensorTest, EveryPlacementBecomesEveryOtherOnThreeRanks) {
  RunCases<float>({3}, MakeCases({{5, 3}, {4, 6}, {1, 7}, {7}}, 1));
}

TEST(DTensorTest, EveryPlacementBecomesEveryOtherOnFourRanks) {
  RunCases<float>({2, 2}, MakeCases({{5, 3}, {4, 6}}, 2));
}

TEST(DTensorTest, EveryPlacementBecomesEveryOtherWithAMeshDimensionOfOne) {
  RunCases<float>({1, 3}, MakeCases({{5, 4}}, 2));
  RunCases<float>({1}, MakeCases({{5, 4}}, 1));
}

TEST(DTensorTest, ATensorOfOneDimensionIsCutTwice) {
  RunCases<double>({2, 2}, MakeCases({{7}, {3}}, 2));
}

TEST(DTensorTest, EveryReductionIsMadeAndUndone) {
  std::vector<Case> cases;
  for (const ReduceOp op :
       {ReduceOp::kAvg, ReduceOp::kMin, ReduceOp::kMax, ReduceOp::kProduct}) {
    const Placement partial = Partial(op);
    for (const Placements& other :
         {Placements{Replicate(), Replicate()}, Placements{Shard(0), Shard(1)},
          Placements{Shard(1), Replicate()}, Placements{Partial(), Shard(0)}}) {
      for (const Placements& some :
           {Placements{partial, partial}, Placements{partial, Shard(0)},
            Placements{Shard(0), partial}, Placements{Replicate(), partial}}) {
        cases.push_back({{5, 3}, some, other});
        cases.push_back({{5, 3}, other, some});
      }
    }
  }
  RunCases<float>({2, 2}, cases);
  std::erase_if(cases, [](const Case& one) {
    return FindOp(one.from) == ReduceOp::kAvg ||
           FindOp(one.to) == ReduceOp::kAvg;
  });
  RunCases<int32_t>({2, 2}, cases);
}

// Elements of all bits, such as NaN and -0, are only moved.
template <typename T>
void RunMoves(const Shape& mesh_shape, const std::vector<int>& ranks,
              DataType type) {
  LocalMesh world(mesh_shape, ranks);
  const Shape shape = {5, 3};
  std::mt19937_64 random(9);
  std::vector<T> whole(15);
  for (T& value : whole) value = static_cast<T>(random());
  std::vector<Placements> all;
  for (const Placements& some : AllPlacements(mesh_shape.size(), 2)) {
    if (std::none_of(some.begin(), some.end(),
                     [](const Placement& one) { return one.is_partial(); })) {
      all.push_back(some);
    }
  }
  const auto thrown = world.OnEachRank([&](const DeviceMesh& mesh, int) {
    const Shape at = mesh.GetCoordinate().value();
    const auto check = [&](const DTensor& tensor) {
      const Tensor local = tensor.ToLocal();
      std::vector<T> expected;
      for (const int64_t element :
           FindElements(shape, tensor.placements(), mesh_shape, at)) {
        expected.push_back(whole[static_cast<size_t>(element)]);
      }
      ASSERT_EQ(local.bytes(), expected.size() * sizeof(T));
      const auto* const bits = static_cast<const T*>(local.data());
      EXPECT_EQ(std::vector<T>(bits, bits + expected.size()), expected)
          << tensor.ToText();
      EXPECT_EQ(local.data_type(), type);
    };
    const bool is_first = at == Shape(at.size(), 0);
    for (const Placements& from : all) {
      std::vector<T> own = is_first ? whole : std::vector<T>();
      const DTensor before = DTensor::Distribute(
          is_first ? Tensor(own.data(), type, shape) : Tensor(), mesh, from);
      // The result does not view the caller's tensor.
      std::fill(own.begin(), own.end(), T(1));
      check(before);
      check(before.FullTensor());
      for (const Placements& to : all) check(before.Redistribute(to));
    }
  });
  EXPECT_THAT(thrown, Each(IsEmpty()));
}

TEST(DTensorTest, MovesKeepEveryBit) {
  RunMoves<uint32_t>({3}, {0, 1, 2}, DataType::kFloat32);
  RunMoves<uint16_t>({2, 2}, {0, 1, 2, 3}, DataType::kBfloat16);
  RunMoves<uint8_t>({1, 2}, {0, 1}, DataType::kFloat8E4m3fn);
}

// A group numbers its ranks in ascending order, a mesh may have them in any.
TEST(DTensorTest, TheOrderOfTheMeshCounts) {
  RunMoves<uint64_t>({3}, {2, 0, 1}, DataType::kFloat64);
  RunMoves<uint64_t>({2, 2}, {3, 0, 2, 1}, DataType::kFloat64);
}

TEST(DTensorTest, SumsGoToTheRanksThatTheMeshSays) {
  LocalMesh world({3}, {2, 0, 1});
  EXPECT_THAT(world.OnEachRank([](const DeviceMesh& mesh, int) {
    const auto index = mesh.GetCoordinate().value()[0];
    std::vector<int32_t> local = {1, 10, 100};
    DTensor sum =
        DTensor::FromLocal(local, mesh, {Partial()}).Redistribute({Shard(0)});
    EXPECT_EQ(sum.box().offsets[0], index);
    EXPECT_EQ(*static_cast<const int32_t*>(sum.ToLocal().data()),
              3 * local[static_cast<size_t>(index)]);
    // Parts that are not contiguous, of two columns.
    local = {1, 2, 3, 4};
    sum = DTensor::FromLocal(Tensor(local.data(), {2, 2}), mesh, {Partial()})
              .Redistribute({Shard(1)});
    EXPECT_EQ(sum.ToLocal().element_count(), index == 2 ? 0 : 2);
    if (index < 2) {
      const auto* const column =
          static_cast<const int32_t*>(sum.ToLocal().data());
      EXPECT_EQ(column[0], 3 * (1 + index));
      EXPECT_EQ(column[1], 3 * (3 + index));
    }
  }),
              Each(IsEmpty()));
}

TEST(DTensorTest, TheSignOfZeroOutlivesASum) {
  LocalMesh world({3});
  EXPECT_THAT(world.OnEachRank([](const DeviceMesh& mesh, int) {
    const auto has_minus_zeros = [](const DTensor& tensor) {
      const auto* const bits =
          static_cast<const uint32_t*>(tensor.ToLocal().data());
      return std::all_of(bits, bits + tensor.ToLocal().element_count(),
                         [](uint32_t word) { return word == 0x80000000; });
    };
    std::vector<float> local(2, -0.0F);
    const DTensor cut = DTensor::FromLocal(local, mesh, {Shard(0)});
    EXPECT_TRUE(has_minus_zeros(cut.Redistribute({Partial()}).FullTensor()));
    EXPECT_TRUE(has_minus_zeros(
        cut.FullTensor().Redistribute({Partial()}).Redistribute({Shard(0)})));
  }),
              Each(IsEmpty()));
}

TEST(DTensorTest, WhatMovesNothingSharesTheMemory) {
  LocalMesh world({1, 2});
  EXPECT_THAT(world.OnEachRank([](const DeviceMesh& mesh, int) {
    std::vector<float> local(4);
    const DTensor tensor =
        DTensor::FromLocal(local, mesh, {Partial(), Shard(0)});
    EXPECT_EQ(tensor.Redistribute(tensor.placements()).ToLocal().data(),
              local.data());
    EXPECT_EQ(tensor.Redistribute({Replicate(), Shard(0)}).ToLocal().data(),
              local.data());
    // A result outlives the DTensor that it was made from.
    DTensor whole = tensor.FullTensor();
    EXPECT_NE(whole.ToLocal().data(), local.data());
    whole = whole.Redistribute(whole.placements());
    const Tensor view = whole.ToLocal();
    EXPECT_EQ(static_cast<const float*>(view.data())[7], 0);
  }),
              Each(IsEmpty()));
}

TEST(DTensorTest, ASliceOfAMeshHasItsOwnTensors) {
  LocalMesh world({2, 2});
  EXPECT_THAT(world.OnEachRank([](const DeviceMesh& mesh, int rank) {
    for (const int dim : {0, 1}) {
      std::vector<int32_t> local = {rank};
      const DTensor whole =
          DTensor::FromLocal(local, mesh["d" + std::to_string(dim)], {Shard(0)})
              .FullTensor();
      const auto* const values =
          static_cast<const int32_t*>(whole.ToLocal().data());
      EXPECT_EQ(whole.shape(), Shape{2});
      EXPECT_EQ(values[0], dim == 0 ? rank % 2 : rank / 2 * 2);
      EXPECT_EQ(values[1], values[0] + (dim == 0 ? 2 : 1));
    }
  }),
              Each(IsEmpty()));
}

TEST(DTensorTest, ASumIsTheSameOnAllRanksBitForBit) {
  LocalMesh world({2, 2});
  std::vector<std::vector<float>> results(4);
  EXPECT_THAT(world.OnEachRank([&](const DeviceMesh& mesh, int rank) {
    std::vector<float> local(37 * 5);
    std::mt19937 random(static_cast<uint32_t>(rank));
    for (float& value : local) {
      value = std::ldexp(static_cast<float>(random()), -30);
    }
    const DTensor sum = DTensor::FromLocal(Tensor(local.data(), {37, 5}), mesh,
                                           {Partial(), Partial()})
                            .FullTensor();
    const Tensor tensor = sum.ToLocal();
    const auto* const values = static_cast<const float*>(tensor.data());
    results[static_cast<size_t>(rank)].assign(values,
                                              values + tensor.element_count());
  }),
              Each(IsEmpty()));
  EXPECT_EQ(results[0].size(), 185U);
  EXPECT_THAT(results, Each(results[0]));
}

TEST(DTensorTest, HalfPrecisionSumsAreRoundedOnce) {
  LocalMesh world({3});
  EXPECT_THAT(world.OnEachRank([](const DeviceMesh& mesh, int rank) {
    // In bfloat16 256 + 1 is 256, but 256 + 1 + 1 is 258.
    std::vector<uint16_t> local(4, rank == 0 ? 0x4380 : 0x3f80);
    const DTensor sum =
        DTensor::FromLocal(Tensor(local.data(), DataType::kBfloat16, {4}), mesh,
                           {Partial()})
            .FullTensor();
    const auto* const bits = static_cast<const uint16_t*>(sum.ToLocal().data());
    EXPECT_THAT(std::vector<uint16_t>(bits, bits + 4), Each(0x4381));
  }),
              Each(IsEmpty()));
}

TEST(DTensorTest, TheWholeShapeIsTheSumOfTheParts) {
  LocalMesh world({2, 2});
  EXPECT_THAT(world.OnEachRank([](const DeviceMesh& mesh, int rank) {
    // Seven rows as 2, 2, 2, 1; three columns.
    std::vector<float> local(6);
    const int64_t rows = rank == 3 ? 1 : 2;
    const DTensor tensor = DTensor::FromLocal(Tensor(local.data(), {rows, 3}),
                                              mesh, {Shard(0), Shard(0)});
    EXPECT_THAT(tensor.shape(), ElementsAre(7, 3));
    EXPECT_EQ(tensor.ToText(),
              "float32[7,3] (S(0), S(0)) on DeviceMesh((d0=2, d1=2), cpu)");
    EXPECT_EQ(tensor.ToLocal().data(), local.data());
    EXPECT_THAT(tensor.box().offsets, ElementsAre(2 * rank, 0));
    const DTensor other = DTensor::FromLocal(Tensor(local.data(), {2, 3}), mesh,
                                             {Replicate(), Shard(1)});
    EXPECT_THAT(other.shape(), ElementsAre(2, 6));
  }),
              Each(IsEmpty()));
}

// Each rank throws `text`, and the mesh still works.
void ExpectEverywhere(const std::function<void(const DeviceMesh&, int)>& body,
                      const std::string& text,
                      StatusCode code = StatusCode::kInvalidArgument) {
  LocalMesh world({2, 2});
  EXPECT_THAT(world.OnEachRank([&](const DeviceMesh& mesh, int rank) {
    try {
      body(mesh, rank);
      ADD_FAILURE() << "no error in place of: " << text;
    } catch (const DistError& error) {
      EXPECT_EQ(error.status().message(), text);
      EXPECT_EQ(error.status().code(), code);
    }
    const DTensor zeros =
        DTensor::Zeros({3}, DataType::kInt64, mesh, {Shard(0), Partial()});
    EXPECT_EQ(zeros.FullTensor().ToLocal().Describe(), "int64[3]");
  }),
              Each(IsEmpty()));
}

TEST(DTensorErrorsTest, RanksThatDisagreeAreNamedOnAllRanks) {
  std::vector<float> local(12);
  const auto tensor = [&local](std::initializer_list<int64_t> shape) {
    return Tensor(local.data(), shape);
  };
  const Placements rows = {Shard(0), Replicate()};
  ExpectEverywhere(
      [&](const DeviceMesh& mesh, int rank) {
        DTensor::FromLocal(tensor({3, 4}), mesh,
                           rank == 3 ? Placements(2) : rows);
      },
      "DTensor::FromLocal: argument placements: rank 3 has (R, R), rank 0 has "
      "(S(0), R)");
  ExpectEverywhere(
      [&](const DeviceMesh& mesh, int rank) {
        int64_t one = 1;
        DTensor::FromLocal(rank == 1 ? Tensor(&one, {1}) : tensor({1}), mesh,
                           rows);
      },
      "DTensor::FromLocal: argument local's type: rank 1 has int64, rank 0 has "
      "float32");
  ExpectEverywhere(
      [&](const DeviceMesh& mesh, int rank) {
        // No host reads the address.
        const Tensor cuda(local.data(), {3, 4}, {DeviceType::kCuda, 0});
        DTensor::FromLocal(rank == 3 ? cuda : tensor({3, 4}), mesh, rows)
            .FullTensor();
      },
      "DTensor::FromLocal: argument local's device: rank 3 has cuda, rank 0 "
      "has cpu");
  ExpectEverywhere(
      [&](const DeviceMesh& mesh, int rank) {
        DTensor::FromLocal(rank == 2 ? tensor({12}) : tensor({3, 4}), mesh,
                           rows);
      },
      "DTensor::FromLocal: argument local's number of dimensions: rank 2 has "
      "1, "
      "rank 0 has 2");
  ExpectEverywhere(
      [&](const DeviceMesh& mesh, int rank) {
        DTensor::FromLocal(
            tensor({3, 4}), mesh, rows,
            {.shape = rank == 2 ? std::optional<Shape>() : Shape{6, 4}});
      },
      "DTensor::FromLocal: argument shape: rank 2 has none, rank 0 has [6,4]");
  ExpectEverywhere(
      [&](const DeviceMesh& mesh, int rank) {
        DTensor::Zeros({4}, DataType::kFloat32, mesh, rows)
            .Redistribute({Replicate(), rank == 1 ? Shard(0) : Replicate()});
      },
      "DTensor::Redistribute: argument placements: rank 1 has (R, S(0)), rank "
      "0 "
      "has (R, R)");
  ExpectEverywhere(
      [&](const DeviceMesh& mesh, int rank) {
        DTensor::Zeros({rank == 3 ? 5 : 4}, DataType::kFloat32, mesh, rows)
            .FullTensor();
      },
      "DTensor::Redistribute: argument this: rank 3 has float32[5] (S(0), R), "
      "rank 0 has float32[4] (S(0), R)");
  ExpectEverywhere(
      [&](const DeviceMesh& mesh, int rank) {
        DTensor::Distribute(tensor({12}), mesh,
                            rank == 3 ? Placements(2) : rows);
      },
      "DTensor::Distribute: argument placements: rank 3 has (R, R), rank 0 has "
      "(S(0), R)");
  ExpectEverywhere(
      [&](const DeviceMesh& mesh, int rank) {
        if (rank < 3) {
          DTensor::Distribute(tensor({12}), mesh, rows);
        } else {
          DTensor::FromLocal(tensor({12}), mesh, rows);
        }
      },
      "rank 3 calls DTensor::FromLocal, rank 0 calls DTensor::Distribute");
}

TEST(DTensorErrorsTest, ABadArgumentOfOneRankIsThrownOnAll) {
  std::vector<float> local(12);
  const auto tensor = [&local](std::initializer_list<int64_t> shape) {
    return Tensor(local.data(), shape);
  };
  const Placements rows = {Shard(0), Replicate()};
  ExpectEverywhere(
      [&](const DeviceMesh& mesh, int rank) {
        DTensor::FromLocal(
            rank == 2 ? Tensor(local.data(), {3, -4}) : tensor({3, 4}), mesh,
            rows);
      },
      "DTensor::FromLocal: rank 2: argument local: negative dimension in "
      "float32[3,-4]");
  ExpectEverywhere(
      [&](const DeviceMesh& mesh, int rank) {
        DTensor::FromLocal(rank == 2 ? tensor({2, 4}) : tensor({3, 4}), mesh,
                           rows, {.shape = Shape{6, 4}});
      },
      "DTensor::FromLocal: rank 2: argument local: float32[2,4], but the "
      "part of float32[6,4] (S(0), R) is [3:6, 0:4]");
  // Without the shape: rank 3 has fewer columns than rank 2.
  ExpectEverywhere(
      [&](const DeviceMesh& mesh, int rank) {
        DTensor::FromLocal(rank == 3 ? tensor({3, 3}) : tensor({3, 4}), mesh,
                           rows);
      },
      "DTensor::FromLocal: argument local has shape [3,3] on rank 3, but "
      "together the ranks have [6,4] (S(0), R), of which the rank's part is "
      "[3:6, 0:4]");
  // Five rows are three and two.
  ExpectEverywhere(
      [&](const DeviceMesh& mesh, int rank) {
        DTensor::FromLocal(rank < 2 ? tensor({2}) : tensor({3}), mesh, rows);
      },
      "DTensor::FromLocal: argument local has shape [2] on rank 0, but "
      "together the ranks have [5] (S(0), R), of which the rank's part is "
      "[0:3]");
  ExpectEverywhere(
      [&](const DeviceMesh& mesh, int rank) {
        DTensor::Zeros({4}, DataType::kFloat32, mesh, rows)
            .Redistribute({Replicate(), Shard(rank == 1 ? 1 : 0)});
      },
      "DTensor::Redistribute: rank 1: argument placements: S(1) of a tensor "
      "with 1 dimensions");
  ExpectEverywhere(
      [&](const DeviceMesh& mesh, int rank) {
        DTensor::Distribute(
            rank == 0 ? Tensor(nullptr, DataType::kInt8, {3}) : Tensor(), mesh,
            rows);
      },
      "DTensor::Distribute: rank 0: argument full: null data pointer of "
      "int8[3]");
  ExpectEverywhere(
      [&](const DeviceMesh& mesh, int) {
        DTensor::Distribute(tensor({12}), mesh, {Partial(), Replicate()});
      },
      "DTensor::Distribute: rank 0: argument placements: (P(sum), R), but a "
      "tensor is distributed by Shard and Replicate");
}

TEST(DTensorErrorsTest, CudaTensorsAreViewedAndNotRedistributed) {
  ExpectEverywhere(
      [&](const DeviceMesh& mesh, int) {
        // No host reads the address.
        float any = 0;
        const DTensor tensor =
            DTensor::FromLocal(Tensor(&any, {1}, {DeviceType::kCuda, 1}), mesh,
                               {Shard(0), Replicate()});
        EXPECT_THAT(tensor.shape(), ElementsAre(2));
        tensor.Redistribute({Shard(0), Replicate()});
        tensor.FullTensor();
      },
      "DTensor::Redistribute: rank 0: a DTensor on cuda:1 cannot be "
      "redistributed",
      StatusCode::kUnimplemented);
}

TEST(DTensorErrorsTest, TypesWithoutANeutralElementDoNotBecomePartial) {
  ExpectEverywhere(
      [&](const DeviceMesh& mesh, int) {
        DTensor::Zeros({4}, DataType::kComplex64, mesh, {Shard(0), Shard(0)})
            .Redistribute({Partial(), Replicate()});
      },
      "DTensor::Redistribute: rank 0: a tensor of complex64 cannot become "
      "Partial(sum)",
      StatusCode::kUnimplemented);
}

TEST(DTensorErrorsTest, RandomNumbersNeedFloatsAndWholeValues) {
  LocalMesh world({1});
  const auto message = [&](DataType type, const Placement& placement,
                           double low, double high) {
    std::string text;
    world.OnEachRank([&](const DeviceMesh& mesh, int) {
      DTensor tensor = DTensor::Zeros({4}, type, mesh, {placement});
      try {
        tensor.FillUniform(1, low, high);
      } catch (const DistError& error) {
        text = error.what();
      }
    });
    return text;
  };
  EXPECT_EQ(message(DataType::kFloat32, Shard(0), 0, 1), "");
  EXPECT_EQ(message(DataType::kInt32, Shard(0), 0, 1),
            "random numbers are float16, bfloat16, float32 or float64, the "
            "tensor is int32[4] (S(0)) on DeviceMesh((d0=1), cpu)");
  EXPECT_EQ(message(DataType::kFloat32, Partial(), 0, 1),
            "no random numbers for a sum that is to be made: float32[4] "
            "(P(sum)) on DeviceMesh((d0=1), cpu)");
  EXPECT_EQ(message(DataType::kFloat32, Shard(0), 1, 0),
            "argument low: 1 is above high: 0");
  world.OnEachRank([&](const DeviceMesh& mesh, int) {
    DTensor tensor = DTensor::Zeros({4}, DataType::kFloat32, mesh, {Shard(0)});
    EXPECT_THROW(tensor.FillNormal(1, 0, -1), DistError);
    EXPECT_THROW(DTensor::Zeros({4}, DataType::kOpaque, mesh, {Shard(0)}),
                 DistError);
  });
}

TEST(DTensorTest, RandomNumbersDoNotDependOnTheLayout) {
  const Shape shape = {7, 5};
  std::vector<double> expected;
  std::mutex mutex;
  for (const Shape& mesh_shape : {Shape{1}, Shape{3}, Shape{2, 2}}) {
    LocalMesh world(mesh_shape);
    for (Placements placements : AllPlacements(mesh_shape.size(), 2)) {
      if (std::any_of(placements.begin(), placements.end(),
                      [](const Placement& one) { return one.is_partial(); })) {
        continue;
      }
      EXPECT_THAT(world.OnEachRank([&](const DeviceMesh& mesh, int) {
        DTensor tensor =
            DTensor::Zeros(shape, DataType::kFloat64, mesh, placements);
        tensor.FillNormal(42, 1, 3);
        const DTensor whole = tensor.FullTensor();
        const auto* const values =
            static_cast<const double*>(whole.ToLocal().data());
        const std::lock_guard lock(mutex);
        if (expected.empty()) expected.assign(values, values + 35);
        EXPECT_EQ(std::vector<double>(values, values + 35), expected)
            << tensor.ToText();
      }),
                  Each(IsEmpty()));
    }
  }
}

TEST(DTensorTest, ARankOutsideTheMeshHasNothingAndDoesNothing) {
  LocalMesh world({2});
  const DeviceMesh& mesh = world.outside();
  std::vector<float> local(4);
  DTensor tensor = DTensor::Zeros({4}, DataType::kFloat32, mesh, {Shard(0)});
  EXPECT_EQ(tensor.ToLocal().Describe(), "float32[0]");
  EXPECT_EQ(tensor.box().element_count(), 0);
  tensor.FillUniform(1);
  EXPECT_EQ(tensor.FullTensor().ToLocal().Describe(), "float32[0]");
  EXPECT_EQ(DTensor::FromLocal(local, mesh, {Shard(0)}).ToLocal().data(),
            nullptr);
  EXPECT_EQ(DTensor::Distribute(local, mesh, {Shard(0)}).ToLocal().data(),
            nullptr);
}

TEST(DTensorTest, TheOthersLearnThatARankLeftInTheMiddle) {
  LocalMesh world({2, 2});
  std::atomic<int> done = 0;
  const auto thrown = world.OnEachRank([&](const DeviceMesh& mesh, int rank) {
    DTensor tensor =
        DTensor::Zeros({8, 8}, DataType::kFloat32, mesh, {Shard(0), Shard(1)});
    tensor.FullTensor();
    ++done;
    if (rank == 3) {
      world.Leave(3);
      return;
    }
    // Rank 0 is in no group with rank 3; its neighbours end theirs.
    for (;;) {
      try {
        tensor.FullTensor();
      } catch (const DistError&) {
        world.Leave(rank);
        throw;
      }
    }
  });
  EXPECT_EQ(done, 4);
  EXPECT_EQ(thrown[3], "");
  for (int rank = 0; rank < 3; ++rank) {
    EXPECT_THAT(thrown[static_cast<size_t>(rank)], HasSubstr("rank"));
  }
}

}  // namespace
}  // namespace muster
