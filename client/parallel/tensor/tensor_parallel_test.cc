// Tensor parallel layers among ranks that are threads, against one process.

#include "muster/tensor_parallel.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <limits>
#include <memory>
#include <random>
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
using ::testing::AllOf;
using ::testing::DoubleNear;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Pointwise;

using Group = std::shared_ptr<ProcessGroup>;

struct Matrix {
  int64_t rows = 0;
  int64_t columns = 0;
  std::vector<double> values = {};

  Matrix(int64_t row_count, int64_t column_count)
      : rows(row_count),
        columns(column_count),
        values(static_cast<size_t>(row_count * column_count)) {}

  double& at(int64_t i, int64_t j) {
    return values[static_cast<size_t>(i * columns + j)];
  }
  double at(int64_t i, int64_t j) const {
    return values[static_cast<size_t>(i * columns + j)];
  }
  Tensor tensor() { return {values.data(), {rows, columns}}; }
};

Matrix Random(int64_t rows, int64_t columns, uint32_t seed) {
  std::mt19937 random(seed);
  std::uniform_real_distribution<double> draw(-1, 1);
  Matrix matrix(rows, columns);
  for (double& value : matrix.values) value = draw(random);
  return matrix;
}

Matrix Multiply(const Matrix& a, const Matrix& b) {
  Matrix product(a.rows, b.columns);
  for (int64_t i = 0; i < a.rows; ++i) {
    for (int64_t k = 0; k < a.columns; ++k) {
      for (int64_t j = 0; j < b.columns; ++j) {
        product.at(i, j) += a.at(i, k) * b.at(k, j);
      }
    }
  }
  return product;
}

Matrix Transpose(const Matrix& a) {
  Matrix other(a.columns, a.rows);
  for (int64_t i = 0; i < a.rows; ++i) {
    for (int64_t j = 0; j < a.columns; ++j) other.at(j, i) = a.at(i, j);
  }
  return other;
}

Matrix Map(Matrix a, double (*function)(double)) {
  for (double& value : a.values) value = function(value);
  return a;
}

Matrix Times(Matrix a, const Matrix& b) {
  for (size_t i = 0; i < a.values.size(); ++i) a.values[i] *= b.values[i];
  return a;
}

// The first row, and the number of rows, of a rank: the ranks take
// ceil(count / ranks) as long as there are some.
struct Range {
  int64_t first;
  int64_t count;
};
Range FindRange(int64_t count, int ranks, int rank) {
  int64_t first = 0;
  int64_t left = count;
  const int64_t most = (count + ranks - 1) / ranks;
  for (int i = 0; i < rank; ++i) {
    const int64_t taken = std::min(left, most);
    first += taken;
    left -= taken;
  }
  return {first, std::min(left, most)};
}

Matrix CutRows(const Matrix& a, const Range& range) {
  Matrix part(range.count, a.columns);
  for (int64_t i = 0; i < part.rows; ++i) {
    for (int64_t j = 0; j < part.columns; ++j) {
      part.at(i, j) = a.at(range.first + i, j);
    }
  }
  return part;
}

Matrix CutColumns(const Matrix& a, const Range& range) {
  return Transpose(CutRows(Transpose(a), range));
}

double Derivative(double x) { return 1 - std::tanh(x) * std::tanh(x); }
double Tanh(double x) { return std::tanh(x); }

// y = tanh(x w1) w2, and its gradients.
struct Mlp {
  Matrix y;
  Matrix dx;
  Matrix dw1;
  Matrix dw2;
};

Mlp RunMlp(const Matrix& x, const Matrix& w1, const Matrix& w2,
           const Matrix& dy) {
  const Matrix h = Multiply(x, w1);
  const Matrix g = Map(h, Tanh);
  const Matrix dg = Multiply(dy, Transpose(w2));
  const Matrix dh = Times(dg, Map(h, Derivative));
  return {Multiply(g, w2), Multiply(dh, Transpose(w1)),
          Multiply(Transpose(x), dh), Multiply(Transpose(g), dy)};
}

void ExpectNear(const Matrix& got, const Matrix& expected) {
  EXPECT_EQ(got.rows, expected.rows);
  EXPECT_EQ(got.columns, expected.columns);
  EXPECT_THAT(got.values, Pointwise(DoubleNear(1e-12), expected.values));
}

constexpr int64_t kRows = 5;
constexpr int64_t kWidth = 3;
constexpr int64_t kHidden = 7;

class TensorParallelTest : public ::testing::TestWithParam<int> {
 protected:
  int ranks() const { return GetParam(); }

  // Runs `body` on each rank with this rank's part of the hidden dimension and
  // of the rows.
  void Run(const std::function<void(const Group&, const Range& hidden,
                                    const Range& rows)>& body) {
    LocalGroups world(ranks());
    EXPECT_THAT(world.OnEachRank([&](const Group& group, int rank) {
      body(group, FindRange(kHidden, ranks(), rank),
           FindRange(kRows, ranks(), rank));
    }),
                Each(IsEmpty()));
  }

  const Matrix x_ = Random(kRows, kWidth, 1);
  const Matrix w1_ = Random(kWidth, kHidden, 2);
  const Matrix w2_ = Random(kHidden, kWidth, 3);
  const Matrix dy_ = Random(kRows, kWidth, 4);
  const Mlp whole_ = RunMlp(x_, w1_, w2_, dy_);
};

INSTANTIATE_TEST_SUITE_P(Ranks, TensorParallelTest, ::testing::Range(1, 5));

TEST_P(TensorParallelTest, TheReferenceHasTheSlopesOfTheLoss) {
  const auto loss = [&](const Matrix& w1) {
    const Matrix y = RunMlp(x_, w1, w2_, dy_).y;
    double sum = 0;
    for (size_t i = 0; i < y.values.size(); ++i) {
      sum += y.values[i] * dy_.values[i];
    }
    return sum;
  };
  for (size_t i = 0; i < w1_.values.size(); i += 4) {
    Matrix more = w1_;
    more.values[i] += 1e-6;
    Matrix less = w1_;
    less.values[i] -= 1e-6;
    EXPECT_NEAR((loss(more) - loss(less)) / 2e-6, whole_.dw1.values[i], 1e-7);
  }
}

TEST_P(TensorParallelTest, AColumnWiseAndARowWiseLayerAreOneProcess) {
  Run([&](const Group& group, const Range& hidden, const Range&) {
    const TensorParallelOptions tp = {.group = group};
    const Matrix w1 = CutColumns(w1_, hidden);
    const Matrix w2 = CutRows(w2_, hidden);
    Matrix x(kRows, kWidth);
    RegionForward(Region::kCopy, x.tensor(), Matrix(x_).tensor(), tp);
    Mlp own = RunMlp(x, w1, w2, dy_);
    RegionForward(Region::kReduce, own.y.tensor(), own.y.tensor(), tp);
    ExpectNear(own.y, whole_.y);
    Matrix dy(kRows, kWidth);
    RegionBackward(Region::kReduce, dy.tensor(), Matrix(dy_).tensor(), tp);
    EXPECT_EQ(dy.values, dy_.values);
    Matrix dx(kRows, kWidth);
    RegionBackward(Region::kCopy, dx.tensor(), own.dx.tensor(), tp);
    ExpectNear(dx, whole_.dx);
    ExpectNear(own.dw1, CutColumns(whole_.dw1, hidden));
    ExpectNear(own.dw2, CutRows(whole_.dw2, hidden));
  });
}

TEST_P(TensorParallelTest, SequenceParallelIsOneProcess) {
  Run([&](const Group& group, const Range& hidden, const Range& rows) {
    const TensorParallelOptions tp = {.group = group};
    const Matrix w1 = CutColumns(w1_, hidden);
    const Matrix w2 = CutRows(w2_, hidden);
    Matrix own_x = CutRows(x_, rows);
    Matrix x(kRows, kWidth);
    RegionForward(Region::kGatherSequence, x.tensor(), own_x.tensor(), tp);
    EXPECT_EQ(x.values, x_.values);
    Matrix own_dy = CutRows(dy_, rows);
    Matrix dy(kRows, kWidth);
    RegionBackward(Region::kReduceScatterSequence, dy.tensor(), own_dy.tensor(),
                   tp);
    EXPECT_EQ(dy.values, dy_.values);
    Mlp own = RunMlp(x, w1, w2, dy);
    Matrix own_y(rows.count, kWidth);
    RegionForward(Region::kReduceScatterSequence, own_y.tensor(),
                  own.y.tensor(), tp);
    ExpectNear(own_y, CutRows(whole_.y, rows));
    Matrix own_dx(rows.count, kWidth);
    RegionBackward(Region::kGatherSequence, own_dx.tensor(), own.dx.tensor(),
                   tp);
    ExpectNear(own_dx, CutRows(whole_.dx, rows));
    ExpectNear(own.dw1, CutColumns(whole_.dw1, hidden));
    ExpectNear(own.dw2, CutRows(whole_.dw2, hidden));
  });
}

TEST_P(TensorParallelTest, GatheredColumnsAreScatteredInBackward) {
  // y = x w1, gathered along dimension 1; then scattered again.
  Run([&](const Group& group, const Range& hidden, const Range&) {
    const TensorParallelOptions tp = {.group = group, .dim = 1};
    const Matrix w1 = CutColumns(w1_, hidden);
    Matrix own_h = Multiply(x_, w1);
    Matrix h(kRows, kHidden);
    RegionForward(Region::kGather, h.tensor(), own_h.tensor(), tp);
    ExpectNear(h, Multiply(x_, w1_));
    Matrix again(kRows, hidden.count);
    RegionForward(Region::kScatter, again.tensor(), h.tensor(), tp);
    EXPECT_EQ(again.values, own_h.values);

    Matrix dh = Random(kRows, kHidden, 9);
    Matrix own_dh(kRows, hidden.count);
    RegionBackward(Region::kGather, own_dh.tensor(), dh.tensor(), tp);
    EXPECT_EQ(own_dh.values, CutColumns(dh, hidden).values);
    Matrix back(kRows, kHidden);
    RegionBackward(Region::kScatter, back.tensor(), own_dh.tensor(), tp);
    EXPECT_EQ(back.values, dh.values);
    // The input of the layer was whole: kCopy adds.
    Matrix dx = Multiply(own_dh, Transpose(w1));
    RegionBackward(Region::kCopy, dx.tensor(), dx.tensor(), tp);
    ExpectNear(dx, Multiply(dh, Transpose(w1_)));
  });
}

TEST_P(TensorParallelTest, RowsAreMultipliedAsTheyCome) {
  Run([&](const Group& group, const Range&, const Range& rows) {
    Matrix own_x = CutRows(x_, rows);
    Matrix x(kRows, kWidth);
    Matrix h(kRows, kHidden);
    std::vector<int64_t> firsts;
    GatherSequenceInParts(
        x.tensor(), own_x.tensor(),
        [&](const Tensor& part, int64_t first) {
          firsts.push_back(first);
          Matrix some(part.shape()[0], kWidth);
          std::copy_n(static_cast<const double*>(part.data()),
                      some.values.size(), some.values.begin());
          const Matrix product = Multiply(some, w1_);
          std::copy(product.values.begin(), product.values.end(),
                    h.values.begin() + first * kHidden);
        },
        {.group = group});
    EXPECT_EQ(x.values, x_.values);
    EXPECT_EQ(h.values, Multiply(x_, w1_).values);
    EXPECT_EQ(firsts.size(), static_cast<size_t>(group->size()));
    EXPECT_EQ(firsts[0], rows.first);
  });
}

TEST_P(TensorParallelTest, AnExceptionKeepsNoOtherRankWaiting) {
  LocalGroups world(ranks());
  std::atomic<int> thrown = 0;
  EXPECT_THAT(world.OnEachRank([&](const Group& group, int rank) {
    Matrix own_x = CutRows(x_, FindRange(kRows, ranks(), rank));
    for (int round = 0; round < 2; ++round) {
      Matrix x(kRows, kWidth);
      int calls = 0;
      try {
        GatherSequenceInParts(x.tensor(), own_x.tensor(),
                              [&](const Tensor&, int64_t) {
                                if (rank == 0 && round == 0)
                                  throw std::runtime_error("mine");
                                ++calls;
                              },
                              {.group = group});
        EXPECT_EQ(calls, ranks());
      } catch (const std::runtime_error& error) {
        EXPECT_STREQ(error.what(), "mine");
        ++thrown;
      }
      EXPECT_EQ(x.values, x_.values);
    }
  }),
              Each(IsEmpty()));
  EXPECT_EQ(thrown, 1);
}

constexpr int64_t kVocabulary = 10;
const std::vector<int64_t> kIds = {3, 0, 9, 3, 7, 5};

TEST_P(TensorParallelTest, AnEmbeddingIsOneProcess) {
  Run([&](const Group& group, const Range&, const Range&) {
    const TensorParallelOptions tp = {.group = group};
    const Matrix table = Random(kVocabulary, kWidth, 5);
    std::vector<int64_t> ids = kIds;
    const VocabularyRange range = GetVocabularyRange(kVocabulary, tp);
    const Range expected = FindRange(kVocabulary, group->size(), group->rank());
    ASSERT_EQ(range.first, expected.first);
    ASSERT_EQ(range.count, expected.count);
    Matrix own = CutRows(table, expected);
    Matrix out = Random(6, kWidth, 10);
    const Tensor ids2(ids.data(), {2, 3});
    const Tensor out3(out.values.data(), {2, 3, kWidth});
    ParallelEmbeddingForward(out3, own.tensor(), ids2, kVocabulary, tp);
    RegionForward(Region::kReduce, out3, out3, tp);
    Matrix gradient = Random(6, kWidth, 6);
    Matrix dtable = CutRows(Random(kVocabulary, kWidth, 7), expected);
    Matrix dtable_whole = Random(kVocabulary, kWidth, 7);
    for (int64_t i = 0; i < 6; ++i) {
      for (int64_t j = 0; j < kWidth; ++j) {
        const int64_t id = ids[static_cast<size_t>(i)];
        EXPECT_EQ(out.at(i, j), table.at(id, j));
        dtable_whole.at(id, j) += gradient.at(i, j);
      }
    }
    ParallelEmbeddingBackward(dtable.tensor(),
                              Tensor(gradient.values.data(), {2, 3, kWidth}),
                              ids2, kVocabulary, tp);
    EXPECT_EQ(dtable.values, CutRows(dtable_whole, expected).values);
  });
}

// The loss of each row of logits.
std::vector<double> ComputeLosses(const Matrix& logits) {
  std::vector<double> losses;
  for (int64_t i = 0; i < logits.rows; ++i) {
    double sum = 0;
    for (int64_t j = 0; j < logits.columns; ++j) {
      sum += std::exp(logits.at(i, j) - logits.at(i, 0));
    }
    losses.push_back(std::log(sum) + logits.at(i, 0) -
                     logits.at(i, kIds[static_cast<size_t>(i)]));
  }
  return losses;
}

TEST_P(TensorParallelTest, TheCrossEntropyOfCutLogitsIsOneProcess) {
  Matrix whole = Random(6, kVocabulary, 8);
  for (double& value : whole.values) value *= 5;
  Matrix dlogits(6, kVocabulary);
  const std::vector<double> dloss = {1, 2, -1, 0.5, 0, 3};
  // The gradient by differences.
  for (size_t i = 0; i < whole.values.size(); ++i) {
    Matrix more = whole;
    more.values[i] += 1e-5;
    Matrix less = whole;
    less.values[i] -= 1e-5;
    const size_t row = i / static_cast<size_t>(kVocabulary);
    dlogits.values[i] = (ComputeLosses(more)[row] - ComputeLosses(less)[row]) /
                        2e-5 * dloss[row];
  }
  Run([&](const Group& group, const Range&, const Range&) {
    const TensorParallelOptions tp = {.group = group};
    const Range range = FindRange(kVocabulary, group->size(), group->rank());
    Matrix logits = CutColumns(whole, range);
    std::vector<double> loss(6);
    std::vector<int64_t> targets = kIds;
    ParallelCrossEntropyForward(loss, logits.tensor(), logits.tensor(), targets,
                                kVocabulary, tp);
    EXPECT_THAT(loss, Pointwise(DoubleNear(1e-12), ComputeLosses(whole)));
    std::vector<double> gradient_of_loss = dloss;
    ParallelCrossEntropyBackward(logits.tensor(), logits.tensor(), targets,
                                 gradient_of_loss, kVocabulary, tp);
    EXPECT_THAT(logits.values,
                Pointwise(DoubleNear(1e-8), CutColumns(dlogits, range).values));
  });
}

TEST_P(TensorParallelTest, LargeLogitsDoNotOverflow) {
  Run([&](const Group& group, const Range&, const Range&) {
    const TensorParallelOptions tp = {.group = group};
    const Range range = FindRange(4, group->size(), group->rank());
    const std::vector<float> whole = {5000, 5000, -5000,
                                      -std::numeric_limits<float>::infinity()};
    std::vector<float> logits(whole.begin() + range.first,
                              whole.begin() + range.first + range.count);
    std::vector<float> softmax(logits.size());
    std::vector<int64_t> targets = {1};
    std::vector<float> loss(1);
    ParallelCrossEntropyForward(loss, Tensor(softmax.data(), {1, range.count}),
                                Tensor(logits.data(), {1, range.count}),
                                targets, 4, tp);
    EXPECT_FLOAT_EQ(loss[0], std::log(2.0F));
    const std::vector<float> expected = {0.5, 0.5, 0, 0};
    for (size_t i = 0; i < softmax.size(); ++i) {
      EXPECT_EQ(softmax[i], expected[static_cast<size_t>(range.first) + i]);
    }
  });
}

TEST(TensorParallelTypesTest, Bfloat16SumsAreRoundedOnce) {
  LocalGroups world(3);
  EXPECT_THAT(world.OnEachRank([](const Group& group, int rank) {
    // 256 + 1 + 1.
    std::vector<uint16_t> values(4, rank == 0 ? 0x4380 : 0x3f80);
    const Tensor tensor(values.data(), DataType::kBfloat16, {4});
    RegionForward(Region::kReduce, tensor, tensor, {.group = group});
    EXPECT_THAT(values, Each(0x4381));
    // 256 + 1 + 1 in the second row of a table, beside another one's 1 + 1.
    std::vector<uint16_t> table = {0x3f80, 0x4380};
    std::vector<uint16_t> gradient(3, 0x3f80);
    std::vector<int64_t> ids = {1, 0, 1};
    const auto bf16 = [](std::vector<uint16_t>& of,
                         std::initializer_list<int64_t> shape) {
      return Tensor(of.data(), DataType::kBfloat16, shape);
    };
    if (rank == 0) {
      // Each of the first two ranks has two of four rows.
      ParallelEmbeddingBackward(bf16(table, {2, 1}), bf16(gradient, {3, 1}),
                                ids, 4, {.group = group});
      EXPECT_THAT(table, ElementsAre(0x4000, 0x4381));
    }
    // Two logits of 0: the loss is log(2).
    std::vector<uint16_t> logits(rank == 2 ? 0 : 1);
    std::vector<int64_t> targets = {1};
    std::vector<float> loss(1);
    ParallelCrossEntropyForward(loss, bf16(logits, {1, rank == 2 ? 0 : 1}),
                                bf16(logits, {1, rank == 2 ? 0 : 1}), targets,
                                2, {.group = group});
    EXPECT_FLOAT_EQ(loss[0], std::log(2.0F));
    EXPECT_THAT(logits, Each(0x3f00));
  }),
              Each(IsEmpty()));
}

std::string CatchError(StatusCode code, const std::function<void()>& function) {
  try {
    function();
  } catch (const DistError& error) {
    EXPECT_EQ(error.status().code(), code) << error.what();
    return error.status().message();
  }
  return "no error";
}

std::string Invalid(const std::function<void()>& function) {
  return CatchError(StatusCode::kInvalidArgument, function);
}

TEST(TensorParallelErrorsTest, BadArgumentsAreNamed) {
  LocalGroups world(1);
  const TensorParallelOptions tp = {.group = world.at(0)};
  std::vector<float> some(12);
  std::vector<double> doubles(12);
  std::vector<int64_t> ids = {1, 5};
  const auto tensor = [&](std::initializer_list<int64_t> shape) {
    return Tensor(some.data(), shape);
  };
  EXPECT_EQ(Invalid([&] {
              RegionForward(Region::kGather, tensor({4}), tensor({3}), tp);
            }),
            "argument input: float32[3], but the shape must be [4]");
  EXPECT_EQ(Invalid([&] {
              RegionBackward(Region::kGather, tensor({4}), tensor({3}), tp);
            }),
            "argument input_gradient: float32[4], but the shape must be [3]");
  EXPECT_EQ(Invalid([&] { RegionForward(Region::kReduce, doubles, some, tp); }),
            "argument output: float64[12], but input is float32[12]");
  EXPECT_EQ(Invalid([&] {
              RegionForward(Region::kScatter, tensor({4}), tensor({4}),
                            {.group = world.at(0), .dim = 1});
            }),
            "argument placements: S(1) of a tensor with 1 dimensions");
  EXPECT_EQ(Invalid([&] { RegionForward(Region(9), some, some, tp); }),
            "argument region: 9");
  EXPECT_EQ(Invalid([&] {
              GatherSequenceInParts(some, some, [](const Tensor&, int64_t) {},
                                    {.group = world.at(0), .dim = 1});
            }),
            "argument dim: parts are rows, along dimension 0");
  EXPECT_EQ(
      Invalid([&] {
        ParallelEmbeddingForward(tensor({2, 2}), tensor({4, 2}), ids, 4, tp);
      }),
      "argument ids: 5 at index 1 is not in a vocabulary of 4");
  EXPECT_EQ(
      Invalid([&] {
        ParallelEmbeddingForward(tensor({2, 2}), tensor({4, 2}), ids, 6, tp);
      }),
      "argument table: float32[4,2], but the shape must be [6,2]");
  EXPECT_EQ(
      Invalid([&] {
        ParallelEmbeddingForward(tensor({3, 2}), tensor({6, 2}), ids, 6, tp);
      }),
      "argument output: float32[3,2], but the shape must be [2,2]");
  EXPECT_EQ(Invalid([&] {
              ParallelEmbeddingForward(ids, tensor({6, 2}), ids, 6, tp);
            }),
            "argument output: int64[2] is not float16, bfloat16, float32 or "
            "float64");
  std::vector<uint8_t> bytes(12);
  const Tensor float8(bytes.data(), DataType::kFloat8E4m3fn, {6, 2});
  EXPECT_EQ(
      Invalid([&] { ParallelEmbeddingForward(float8, float8, ids, 6, tp); }),
      "argument table: float8_e4m3fn[6,2] is not float16, bfloat16, "
      "float32 or float64");
  EXPECT_EQ(
      Invalid([&] { ParallelEmbeddingBackward(float8, float8, ids, 6, tp); }),
      "argument table_gradient: float8_e4m3fn[6,2] is not float16, "
      "bfloat16, float32 or float64");
  EXPECT_EQ(Invalid([&] { GetVocabularyRange(-1, tp); }),
            "argument vocabulary: -1 is negative");
  EXPECT_EQ(Invalid([&] {
              ParallelCrossEntropyForward(tensor({3}), tensor({2, 6}),
                                          tensor({2, 6}), ids, 6, tp);
            }),
            "argument loss: float32[3], but the shape must be [2]");
  EXPECT_EQ(Invalid([&] {
              ParallelCrossEntropyBackward(tensor({2, 6}), tensor({2, 5}), ids,
                                           tensor({2}), 6, tp);
            }),
            "argument softmax: float32[2,5], but the shape must be [2,6]");
  EXPECT_EQ(Invalid([&] {
              ParallelCrossEntropyForward(tensor({2}), tensor({2, 6}),
                                          tensor({2, 6}), some, 6, tp);
            }),
            "argument targets: float32[12] is not int64");
  const Tensor cuda(some.data(), {12}, {DeviceType::kCuda, 0});
  EXPECT_EQ(Invalid([&] { RegionForward(Region::kReduce, some, cuda, tp); }),
            "argument output: float32[12], but input is float32[12] on cuda:0");
  EXPECT_EQ(
      CatchError(StatusCode::kUnimplemented,
                 [&] { ParallelEmbeddingForward(cuda, cuda, ids, 6, tp); }),
      "argument table: float32[12] on cuda:0 is not on the CPU");
}

TEST(TensorParallelErrorsTest, CudaTensorsThatTheHostWouldCopyAreRefused) {
  LocalGroups world(2);
  EXPECT_THAT(world.OnEachRank([](const Group& group, int) {
    // No host reads the addresses.
    std::vector<float> some(8);
    const Tensor whole(some.data(), {2, 2}, {DeviceType::kCuda, 0});
    const Tensor part(some.data() + 4, {2, 1}, {DeviceType::kCuda, 0});
    for (const Region region : {Region::kGather, Region::kScatter}) {
      EXPECT_EQ(
          CatchError(StatusCode::kUnimplemented,
                     [&] {
                       const bool gathers = region == Region::kGather;
                       RegionForward(region, gathers ? whole : part,
                                     gathers ? part : whole,
                                     {.group = group, .dim = 1});
                     }),
          // Own parts are cut without the others.
          std::string(region == Region::kGather ? "RegionForward: rank 0: "
                                                : "") +
              "parts of a tensor on cuda:0 that are not contiguous, or "
              "are copied by the host");
    }
  }),
              Each(IsEmpty()));
}

// Ranks 0, 10 and 20 run `body`. Returns the text of the error that all of them
// get. The group goes on.
std::string InvalidOnAllRanks(
    const std::function<void(int rank, const TensorParallelOptions& tp)>&
        body) {
  LocalGroups world(3);
  std::vector<std::string> texts(3);
  EXPECT_THAT(world.OnEachRank([&](const Group& group, int rank) {
    const TensorParallelOptions tp = {.group = group};
    texts[static_cast<size_t>(rank)] = Invalid([&] { body(rank, tp); });
    std::vector<float> ones = {1};
    RegionForward(Region::kReduce, ones, ones, tp);
    EXPECT_THAT(ones, ElementsAre(3));
  }),
              Each(IsEmpty()));
  EXPECT_THAT(texts, Each(texts[0]));
  return texts[0];
}

TEST(TensorParallelErrorsTest, RegionsThatDifferAreNamedOnAllRanks) {
  EXPECT_EQ(InvalidOnAllRanks([](int rank, const auto& tp) {
              std::vector<float> values(rank == 2 ? 5 : 4);
              RegionForward(Region::kReduce, values, values, tp);
            }),
            "RegionForward: argument input: rank 20 has float32[5], rank 0 has "
            "float32[4]");
  // In forward they do the same.
  EXPECT_EQ(InvalidOnAllRanks([](int rank, const auto& tp) {
              std::vector<float> part(1);
              std::vector<float> whole(3);
              RegionForward(
                  rank == 1 ? Region::kGather : Region::kGatherSequence, whole,
                  part, tp);
            }),
            "RegionForward: argument region: rank 10 has kGather, rank 0 has "
            "kGatherSequence");
  // Parts of one size.
  EXPECT_EQ(InvalidOnAllRanks([](int rank, TensorParallelOptions tp) {
              std::vector<float> part(3);
              std::vector<float> whole(9);
              tp.dim = rank == 1 ? 1 : 0;
              RegionForward(Region::kGather, Tensor(whole.data(), {3, 3}),
                            rank == 1 ? Tensor(part.data(), {3, 1})
                                      : Tensor(part.data(), {1, 3}),
                            tp);
            }),
            "RegionForward: argument dim: rank 10 has 1, rank 0 has 0");
  // Rank 0 has nothing to do in forward. It meets the others' forward in its
  // backward, which is an all_reduce of the same size.
  EXPECT_EQ(InvalidOnAllRanks([](int rank, const auto& tp) {
              std::vector<float> values(4);
              RegionForward(rank == 0 ? Region::kCopy : Region::kReduce, values,
                            values, tp);
              RegionBackward(Region::kCopy, values, values, tp);
            }),
            "rank 10 calls RegionForward, rank 0 calls RegionBackward");
  EXPECT_EQ(InvalidOnAllRanks([](int rank, const auto& tp) {
              std::vector<float> part(1);
              std::vector<float> whole(3);
              if (rank == 1) {
                RegionForward(Region::kGatherSequence, whole, part, tp);
              } else {
                GatherSequenceInParts(
                    whole, part, [](const Tensor&, int64_t) {}, tp);
              }
            }),
            "rank 10 calls RegionForward, rank 0 calls GatherSequenceInParts");
  EXPECT_EQ(InvalidOnAllRanks([](int rank, const auto& tp) {
              std::vector<float> part(2);
              std::vector<float> whole(6);
              const int64_t width = rank == 2 ? 2 : 1;
              GatherSequenceInParts(
                  Tensor(whole.data(), {6 / width, width}),
                  Tensor(part.data(), {2 / width, width}),
                  [](const Tensor&, int64_t) {}, tp);
            }),
            "GatherSequenceInParts: argument output: rank 20 has float32[3,2], "
            "rank 0 has float32[6,1]");
}

TEST(TensorParallelErrorsTest, LossesThatDifferAreNamedOnAllRanks) {
  const auto run = [](int64_t vocabulary, std::vector<int64_t> targets,
                      const TensorParallelOptions& tp) {
    const int64_t count = GetVocabularyRange(vocabulary, tp).count;
    const auto rows = static_cast<int64_t>(targets.size());
    std::vector<float> logits(static_cast<size_t>(rows * count));
    const Tensor tensor(logits.data(), {rows, count});
    std::vector<float> loss(targets.size());
    ParallelCrossEntropyForward(loss, tensor, tensor, targets, vocabulary, tp);
  };
  EXPECT_EQ(InvalidOnAllRanks([&](int rank, const auto& tp) {
              run(rank == 1 ? 7 : 8, {1, 2}, tp);
            }),
            "ParallelCrossEntropyForward: argument vocabulary: rank 10 has 7, "
            "rank 0 has 8");
  EXPECT_THAT(InvalidOnAllRanks([&](int rank, const auto& tp) {
                run(8, {1, rank == 1 ? 3 : 2}, tp);
              }),
              AllOf(HasSubstr("ParallelCrossEntropyForward: argument targets: "
                              "rank 10 has int64[2] with the hash "),
                    HasSubstr(", rank 0 has int64[2] with the hash ")));
  EXPECT_THAT(
      InvalidOnAllRanks([&](int rank, const auto& tp) {
        run(8, rank == 1 ? std::vector<int64_t>{1} : std::vector<int64_t>{1, 2},
            tp);
      }),
      AllOf(HasSubstr("argument targets: rank 10 has int64[1]"),
            HasSubstr("rank 0 has int64[2]")));
}

TEST(TensorParallelErrorsTest, ABadArgumentOfOneRankIsThrownOnAll) {
  EXPECT_EQ(InvalidOnAllRanks([](int rank, const auto& tp) {
              std::vector<float> values(4);
              RegionForward(rank == 1 ? Region(9) : Region::kReduce, values,
                            values, tp);
            }),
            "RegionForward: rank 10: argument region: 9");
  EXPECT_EQ(InvalidOnAllRanks([](int rank, const auto& tp) {
              std::vector<float> values(4);
              std::vector<double> doubles(4);
              RegionBackward(Region::kCopy, values,
                             rank == 2 ? Tensor(doubles) : Tensor(values), tp);
            }),
            "RegionBackward: rank 20: argument input_gradient: float32[4], "
            "but output_gradient is float64[4]");
  EXPECT_EQ(InvalidOnAllRanks([](int rank, TensorParallelOptions tp) {
              std::vector<float> part(1);
              std::vector<float> whole(3);
              tp.dim = rank == 1 ? 1 : 0;
              GatherSequenceInParts(
                  whole, part, [](const Tensor&, int64_t) {}, tp);
            }),
            "GatherSequenceInParts: rank 10: argument dim: parts are rows, "
            "along dimension 0");
  EXPECT_EQ(InvalidOnAllRanks([](int rank, const auto& tp) {
              std::vector<float> logits(1);
              const Tensor tensor(logits.data(), {1, 1});
              std::vector<float> loss(1);
              std::vector<int64_t> targets = {rank == 1 ? 3 : 2};
              ParallelCrossEntropyForward(loss, tensor, tensor, targets, 3, tp);
            }),
            "ParallelCrossEntropyForward: rank 10: argument targets: 3 at "
            "index 0 is not in a vocabulary of 3");
}

// Without comparisons a refused call is as a refused collective: it counts.
TEST(TensorParallelErrorsTest, ACallThatIsNotComparedCountsIfItIsRefused) {
  for (const bool all : {true, false}) {
    LocalGroups world(2);
    const auto thrown = world.OnEachRank([&](const Group& group, int rank) {
      const TensorParallelOptions tp = {.group = group, .compare = false};
      std::vector<float> values = {1};
      if (all || rank == 1) {
        std::vector<double> doubles(1);
        EXPECT_EQ(Invalid([&] {
                    RegionForward(Region::kReduce, values, doubles, tp);
                  }),
                  "argument output: float32[1], but input is float64[1]");
        EXPECT_EQ(Invalid([&] {
                    std::vector<int64_t> targets = {5};
                    ParallelCrossEntropyForward(values, values, values, targets,
                                                2, tp);
                  }),
                  "argument targets: 5 at index 0 is not in a vocabulary of 2");
      }
      RegionForward(Region::kReduce, values, values, tp);
      EXPECT_THAT(values, ElementsAre(2));
    });
    if (all) {
      EXPECT_THAT(thrown, Each(IsEmpty()));
    } else {
      EXPECT_THAT(thrown, Each(AllOf(HasSubstr("all_reduce #1"),
                                     HasSubstr("all_reduce #3"))));
    }
  }
}

TEST(TensorParallelErrorsTest, TheOthersLearnThatARankLeftInTheMiddle) {
  LocalGroups world(3);
  const auto thrown = world.OnEachRank([&](const Group& group, int rank) {
    std::vector<float> part(2);
    std::vector<float> whole(6);
    if (rank == 1) {
      world.Leave(1);
      return;
    }
    GatherSequenceInParts(whole, part, [](const Tensor&, int64_t) {},
                          {.group = group});
    RegionForward(Region::kReduce, whole, whole, {.group = group});
  });
  EXPECT_THAT(thrown[0], HasSubstr("rank 10"));
  EXPECT_THAT(thrown[2], HasSubstr("rank 10"));
}

TEST(TensorParallelTest, ARankOutsideTheGroupDoesNothing) {
  const TensorParallelOptions tp = {.group = LocalGroups::NonMember()};
  std::vector<double> values = {1, 2};
  std::vector<double> other = {3, 4};
  std::vector<int64_t> ids = {0, 1};
  RegionForward(Region::kReduce, values, other, tp);
  RegionBackward(Region::kGather, values, other, tp);
  GatherSequenceInParts(
      values, other, [](const Tensor&, int64_t) { FAIL(); }, tp);
  EXPECT_EQ(GetVocabularyRange(10, tp).count, 0);
  ParallelEmbeddingForward(values, other, ids, 2, tp);
  ParallelEmbeddingBackward(values, other, ids, 2, tp);
  ParallelCrossEntropyForward(values, values, other, ids, 2, tp);
  ParallelCrossEntropyBackward(values, other, ids, other, 2, tp);
  EXPECT_THAT(values, ElementsAre(1, 2));
}

}  // namespace
}  // namespace muster
