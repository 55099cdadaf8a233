#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "dataplane/communicator.h"
#include "dataplane/testing/backend_conformance.h"
#include "dataplane/testing/local_world.h"
#include "dataplane/testing/reference.h"
#include "gtest/gtest.h"

namespace muster::dataplane::testing {
namespace {

// The operations that are defined for `type` and that the backend supports.
std::vector<ReduceOp> OpsFor(LocalWorld& world, DataType type) {
  std::vector<ReduceOp> ops;
  double memory[2];
  for (int i = 0; i < kReduceOpCount; ++i) {
    const auto op = static_cast<ReduceOp>(i);
    if (Validate({.kind = CollectiveKind::kAllReduce,
                  .tensors = {Tensor(memory, type, {1})},
                  .reduce_op = op},
                 0, 1)
            .ok() &&
        CanReduce(world, op, type)) {
      ops.push_back(op);
    }
  }
  return ops;
}

// FirstWrong with the rounding of the world's backend.
template <typename T>
std::string Wrong(const LocalWorld& world, const std::vector<T>& actual,
                  ReduceOp op, size_t first = 0) {
  return FirstWrong(actual, op, world.world_size(), first,
                    GetArithmetic(world.backend()).rounds_at_each_rank
                        ? Rounding::kAtEachRank
                        : Rounding::kOnce);
}

// None, one, odd, large enough for a stream; around the size at which gloo
// changes its algorithm (for 16-bit floats, the size of the accumulators).
std::vector<size_t> CountsFor(DataType type) {
  const bool narrow = type == DataType::kFloat16 || type == DataType::kBfloat16;
  const size_t limit = (32 << 10) / (narrow ? 4 : DataTypeBytes(type));
  return {0, 1, 13, limit, limit + 1, 4 * limit, 4 * limit + 5};
}

// All-reduces `count` elements on every rank, twice with the same inputs, and
// checks values, equality between ranks and equality between the two runs.
template <typename T>
void CheckAllReduce(LocalWorld& world, DataType type, ReduceOp op,
                    size_t count) {
  SCOPED_TRACE(absl::StrCat("all_reduce ", ReduceOpName(op), " of ", count));
  std::vector<std::vector<T>> first(world.world_size());
  std::vector<std::vector<T>> second(world.world_size());
  world.OnEachRank([&](Communicator& communicator) {
    for (auto* run : {&first, &second}) {
      const int rank = communicator.rank();
      std::vector<T>& values = (*run)[rank];
      values = Inputs<T>(op, world.world_size(), rank, count);
      const auto work =
          communicator.Start({.kind = CollectiveKind::kAllReduce,
                              .tensors = {MakeTensor(type, values)},
                              .reduce_op = op,
                              .factor = GetFactor(rank)});
      EXPECT_TRUE(work->Wait().ok()) << work->status();
    }
  });
  EXPECT_EQ(Wrong(world, first[0], op), "");
  for (int rank = 0; rank < world.world_size(); ++rank) {
    for (const auto* run : {&first, &second}) {
      const std::vector<T>& values = (*run)[rank];
      EXPECT_EQ(values.size(), count);
      EXPECT_TRUE(count == 0 || std::memcmp(values.data(), first[0].data(),
                                            count * sizeof(T)) == 0)
          << "rank " << rank << " differs from rank 0 in its first run";
    }
  }
}

TEST_P(ReductionConformance, AllReduceGivesTheReferenceOnEveryRank) {
  LocalWorld world({.backend = backend(), .world_size = world_size()});
  WithElementType(data_type(), [&](auto zero) {
    using T = decltype(zero);
    for (const ReduceOp op : OpsFor(world, data_type())) {
      for (const size_t count : CountsFor(data_type())) {
        CheckAllReduce<T>(world, data_type(), op, count);
      }
    }
    if (IsTriedLarge(data_type())) {
      CheckAllReduce<T>(world, data_type(), ReduceOp::kAvg, kLargeCount);
    }
  });
}

// Reduces to `root`; the tensors of the other ranks must not change.
template <typename T>
void CheckReduce(LocalWorld& world, DataType type, ReduceOp op, size_t count,
                 int root) {
  SCOPED_TRACE(absl::StrCat("reduce ", ReduceOpName(op), " of ", count,
                            " to rank ", root));
  const int world_size = world.world_size();
  world.OnEachRank([&](Communicator& communicator) {
    const int rank = communicator.rank();
    std::vector<T> values = Inputs<T>(op, world_size, rank, count);
    const std::vector<T> before = values;
    const auto work = communicator.Start({.kind = CollectiveKind::kReduce,
                                          .tensors = {MakeTensor(type, values)},
                                          .reduce_op = op,
                                          .factor = GetFactor(rank),
                                          .root = root});
    EXPECT_TRUE(work->Wait().ok()) << work->status();
    if (rank == root) {
      EXPECT_EQ(Wrong(world, values, op), "");
    } else {
      EXPECT_TRUE(values == before) << "rank " << rank;
    }
  });
}

TEST_P(ReductionConformance, ReduceGivesTheReferenceToTheRootAlone) {
  LocalWorld world({.backend = backend(), .world_size = world_size()});
  WithElementType(data_type(), [&](auto zero) {
    using T = decltype(zero);
    int root = 0;
    for (const ReduceOp op : OpsFor(world, data_type())) {
      for (const size_t count : CountsFor(data_type())) {
        CheckReduce<T>(world, data_type(), op, count, root++ % world_size());
      }
    }
    if (IsTriedLarge(data_type())) {
      CheckReduce<T>(world, data_type(), ReduceOp::kSum, kLargeCount,
                     world_size() - 1);
    }
  });
}

// `counts` are the sizes of the ranks' parts. If they are equal, also tries the
// tensor form. Also tries a result in place of this rank's own part.
template <typename T>
void CheckReduceScatter(LocalWorld& world, DataType type, ReduceOp op,
                        const std::vector<size_t>& counts) {
  SCOPED_TRACE(absl::StrCat("reduce_scatter ", ReduceOpName(op), " of ",
                            absl::StrJoin(counts, ",")));
  const int world_size = world.world_size();
  std::vector<size_t> begin = {0};
  for (const size_t count : counts) begin.push_back(begin.back() + count);
  world.OnEachRank([&](Communicator& communicator) {
    const int rank = communicator.rank();
    std::vector<T> input = Inputs<T>(op, world_size, rank, begin.back());
    const std::vector<T> before = input;
    Collective scatter = {.kind = CollectiveKind::kReduceScatter,
                          .reduce_op = op,
                          .factor = GetFactor(rank)};
    for (int i = 0; i < world_size; ++i) {
      scatter.inputs.push_back(Tensor(input.data() + begin[i], type,
                                      {static_cast<int64_t>(counts[i])}));
    }
    Collective tensor_form = scatter;
    std::vector<T> output(counts[rank]);
    scatter.outputs = {MakeTensor(type, output)};
    auto work = communicator.Start(scatter);
    EXPECT_TRUE(work->Wait().ok()) << work->status();
    EXPECT_EQ(Wrong(world, output, op, begin[rank]), "");
    EXPECT_TRUE(input == before) << "rank " << rank;
    // In place: the result replaces this rank's own part.
    scatter.outputs = {scatter.inputs[rank]};
    work = communicator.Start(scatter);
    EXPECT_TRUE(work->Wait().ok()) << work->status();
    EXPECT_TRUE(
        std::equal(output.begin(), output.end(), input.begin() + begin[rank]));
    input = before;

    if (counts != std::vector<size_t>(world_size, counts[0])) return;
    tensor_form.kind = CollectiveKind::kReduceScatterTensor;
    tensor_form.outputs = {scatter.inputs[rank]};
    tensor_form.inputs = {MakeTensor(type, input)};
    work = communicator.Start(tensor_form);
    EXPECT_TRUE(work->Wait().ok()) << work->status();
    const auto own = input.begin() + begin[rank];
    EXPECT_TRUE(std::equal(output.begin(), output.end(), own));
  });
}

TEST_P(ReductionConformance, ReduceScatterGivesEveryRankItsPart) {
  LocalWorld world({.backend = backend(), .world_size = world_size()});
  WithElementType(data_type(), [&](auto zero) {
    using T = decltype(zero);
    for (const ReduceOp op : OpsFor(world, data_type())) {
      for (const size_t count : CountsFor(data_type())) {
        CheckReduceScatter<T>(world, data_type(), op,
                              std::vector<size_t>(world_size(), count));
      }
    }
    if (!CanReduce(world, ReduceOp::kSum, data_type())) return;
    for (const size_t unit : {1, 3000}) {
      std::vector<size_t> uneven;
      uneven.reserve(world_size());
      for (int rank = 0; rank < world_size(); ++rank) {
        uneven.push_back(rank % 3 == 1 ? 0 : unit * (rank + 1));
      }
      CheckReduceScatter<T>(world, data_type(), ReduceOp::kSum, uneven);
    }
    if (IsTriedLarge(data_type())) {
      CheckReduceScatter<T>(
          world, data_type(), ReduceOp::kSum,
          std::vector<size_t>(world_size(), kLargeCount / world_size()));
      // So that not all parts use the same path.
      std::vector<size_t> uneven(world_size(), 0);
      for (int rank = 0; rank < world_size(); rank += 2) {
        uneven[rank] = rank % 4 == 0 ? kLargePart : 9001;
      }
      CheckReduceScatter<T>(world, data_type(), ReduceOp::kSum, uneven);
    }
  });
}

TEST_P(BackendConformance, NanOfAnyRankReachesEveryRankWithTheSameBits) {
  LocalWorld world({.backend = backend(), .world_size = world_size()});
  for (const ReduceOp op : {ReduceOp::kSum, ReduceOp::kAvg, ReduceOp::kMin,
                            ReduceOp::kMax, ReduceOp::kProduct}) {
    for (const size_t count : {size_t{64}, size_t{20'000}, size_t{40'000}}) {
      std::vector<std::vector<float>> results(world_size());
      world.OnEachRank([&](Communicator& communicator) {
        std::vector<float>& values = results[communicator.rank()];
        values = Inputs<float>(op, world_size(), communicator.rank(), count);
        // Each rank has its own NaN, with its own payload, at an index of its
        // own and at one that all ranks share.
        const uint32_t bits = 0x7fc00001u + communicator.rank();
        std::memcpy(&values[communicator.rank()], &bits, sizeof(bits));
        std::memcpy(&values[40], &bits, sizeof(bits));
        const auto work =
            communicator.Start({.kind = CollectiveKind::kAllReduce,
                                .tensors = {Tensor(values)},
                                .reduce_op = op});
        EXPECT_TRUE(work->Wait().ok()) << work->status();
      });
      const bool may_drop = GetArithmetic(backend()).may_drop_nan &&
                            world_size() > 1 &&
                            (op == ReduceOp::kMin || op == ReduceOp::kMax);
      for (int rank = 0; rank < world_size(); ++rank) {
        EXPECT_TRUE(may_drop || std::isnan(results[0][rank]))
            << ReduceOpName(op);
        EXPECT_EQ(std::memcmp(results[rank].data(), results[0].data(),
                              count * sizeof(float)),
                  0)
            << ReduceOpName(op) << " of " << count << " on rank " << rank;
      }
      EXPECT_TRUE(std::isnan(results[0][40])) << ReduceOpName(op);
      EXPECT_FALSE(std::isnan(results[0][41])) << ReduceOpName(op);
    }
  }
}

}  // namespace
}  // namespace muster::dataplane::testing
