// Reductions by functions of the user, of pairs, and opaque elements.

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>
#include <limits>
#include <memory>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <vector>

#include "absl/strings/str_cat.h"
#include "dataplane/coalescing.h"
#include "dataplane/communicator.h"
#include "dataplane/culprit.h"
#include "dataplane/testing/backend_conformance.h"
#include "dataplane/testing/local_world.h"
#include "dataplane/testing/sample.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace muster::dataplane::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr std::chrono::seconds kSoon{10};

// Whether the world's backend reduces by functions. All but nccl must.
bool HasFunctions(LocalWorld& world, const std::string& backend) {
  uint8_t element = 0;
  const Status status = world.at(0).Check(
      {.kind = CollectiveKind::kAllReduce,
       .tensors = {Tensor(&element, {1})},
       .reduce_op = ReduceOp::kUser,
       .function = ReduceFunction([](const void*, void*, size_t) {})});
  if (backend.starts_with("nccl") && IsUnimplemented(status)) return false;
  EXPECT_TRUE(status.ok()) << status;
  return status.ok();
}

// Opaque elements of any size. An element stands for a run of ranks: it begins
// with the first and the last one. Combining two runs that are not neighbours,
// or in another order, spoils it. Elements of less than 4 bytes keep what the
// first rank has written.
class Runs {
 public:
  Runs(size_t element_bytes, size_t count)
      : element_bytes_(element_bytes),
        count_(count),
        memory_(element_bytes * count + 1) {}

  // At an odd address: opaque elements may be anywhere.
  uint8_t* data() { return memory_.data() + 1; }
  Tensor tensor(size_t first, size_t count) {
    return Tensor::Opaque(data() + first * element_bytes_, element_bytes_,
                          {static_cast<int64_t>(count)});
  }
  Tensor tensor() { return tensor(0, size()); }
  size_t size() const { return count_; }

  void Fill(int rank) {
    for (size_t i = 0; i < size(); ++i) {
      uint8_t* const element = data() + i * element_bytes_;
      for (size_t byte = 0; byte < element_bytes_; ++byte) {
        element[byte] = Written(rank, i, byte);
      }
      if (element_bytes_ < 4) continue;
      element[0] = element[1] = static_cast<uint8_t>(rank);
    }
  }

  // The number of elements, the first of which is number `first` of the ranks'
  // inputs, that are not the combination of all `world_size` ranks.
  size_t CountWrong(int world_size, size_t first) {
    size_t wrong = 0;
    for (size_t i = 0; i < size(); ++i) {
      const uint8_t* const element = data() + i * element_bytes_;
      bool right = true;
      for (size_t byte = 0; byte < element_bytes_; ++byte) {
        uint8_t wanted = Written(0, first + i, byte);
        if (element_bytes_ >= 4) {
          for (int rank = 1; rank < world_size; ++rank) {
            wanted = Digit(wanted, Written(rank, first + i, byte));
          }
          if (byte == 0) wanted = 0;
          if (byte == 1) wanted = static_cast<uint8_t>(world_size - 1);
        }
        right = right && element[byte] == wanted;
      }
      wrong += right ? 0 : 1;
    }
    return wrong;
  }

  static ReduceFunction Function(size_t element_bytes,
                                 std::atomic<bool>* misaligned) {
    return ReduceFunction(
        [element_bytes, misaligned](const void* in, void* inout, size_t count) {
          const uintptr_t alignment =
              std::min<size_t>(element_bytes & -element_bytes, 64);
          if (reinterpret_cast<uintptr_t>(in) % alignment != 0 ||
              reinterpret_cast<uintptr_t>(inout) % alignment != 0) {
            *misaligned = true;
          }
          for (size_t i = 0; i < count; ++i) {
            Combine(static_cast<const uint8_t*>(in) + i * element_bytes,
                    static_cast<uint8_t*>(inout) + i * element_bytes,
                    element_bytes);
          }
        },
        {.is_commutative = false,
         .element_bytes = element_bytes,
         .name = "runs"});
  }

 private:
  static uint8_t Written(int rank, size_t index, size_t byte) {
    return static_cast<uint8_t>(rank * 31 + static_cast<int>(index) * 7 +
                                static_cast<int>(byte) * 3 + 1);
  }
  // Associative and not commutative: a's upper half and b's lower one.
  static uint8_t Digit(uint8_t a, uint8_t b) {
    return static_cast<uint8_t>((a & 0xf0) | (b & 0x0f));
  }
  static void Combine(const uint8_t* a, uint8_t* b, size_t bytes) {
    if (bytes < 4) {
      std::memcpy(b, a, bytes);
      return;
    }
    const bool are_neighbours = a[1] + 1 == b[0];
    for (size_t byte = 2; byte < bytes; ++byte) {
      b[byte] = are_neighbours ? Digit(a[byte], b[byte]) : 0xee;
    }
    b[0] = a[0];
  }

  size_t element_bytes_;
  size_t count_;
  std::vector<uint8_t> memory_;
};

constexpr size_t kElementBytes[] = {1, 3, 4, 12, 16, 24, 1000};

// None, one, few, on both sides of every change of the algorithm.
std::vector<size_t> CountsFor(size_t element_bytes) {
  std::vector<size_t> counts = {0, 1, 13};
  for (const size_t bytes : {16 << 10, 40 << 10, 140 << 10, 5 << 20}) {
    counts.push_back(bytes / element_bytes + 1);
  }
  return counts;
}

class RunsCheck {
 public:
  RunsCheck(LocalWorld& world, size_t element_bytes, size_t count)
      : world_(world),
        element_bytes_(element_bytes),
        count_(count),
        function_(Runs::Function(element_bytes, &misaligned_)) {}

  void AllReduce() {
    world_.OnEachRank([&](Communicator& communicator) {
      Runs values(element_bytes_, count_);
      values.Fill(communicator.rank());
      const auto work = communicator.Start({.kind = CollectiveKind::kAllReduce,
                                            .tensors = {values.tensor()},
                                            .reduce_op = ReduceOp::kUser,
                                            .function = function_});
      EXPECT_TRUE(work->Wait().ok()) << work->status();
      EXPECT_EQ(values.CountWrong(world_.world_size(), 0), 0);
    });
    EXPECT_FALSE(misaligned_);
  }

  void Reduce(int root) {
    world_.OnEachRank([&](Communicator& communicator) {
      Runs values(element_bytes_, count_);
      values.Fill(communicator.rank());
      Runs before = values;
      Collective reduce = {.kind = CollectiveKind::kReduce,
                           .tensors = {values.tensor()},
                           .reduce_op = ReduceOp::kUser,
                           .function = function_,
                           .root = root};
      const Status status = communicator.Run(reduce);
      EXPECT_TRUE(status.ok()) << status;
      if (communicator.rank() == root) {
        EXPECT_EQ(values.CountWrong(world_.world_size(), 0), 0);
      } else {
        EXPECT_EQ(
            std::memcmp(values.data(), before.data(), element_bytes_ * count_),
            0);
      }
    });
    EXPECT_FALSE(misaligned_);
  }

  // Parts of rank r have count_ + r elements, that of rank 1 none; and then,
  // with a whole tensor, count_.
  void ReduceScatter() {
    const int ranks = world_.world_size();
    world_.OnEachRank([&](Communicator& communicator) {
      const int rank = communicator.rank();
      Runs input(element_bytes_, (count_ + ranks) * ranks);
      input.Fill(rank);
      Collective scatter = {.kind = CollectiveKind::kReduceScatter,
                            .reduce_op = ReduceOp::kUser,
                            .function = function_};
      size_t first = 0;
      size_t own_first = 0;
      size_t own_count = 0;
      for (int peer = 0; peer < ranks; ++peer) {
        const size_t count = peer == 1 ? 0 : count_ + peer;
        if (peer == rank) own_first = first, own_count = count;
        scatter.inputs.push_back(input.tensor(first, count));
        first += count;
      }
      Runs output(element_bytes_, own_count);
      scatter.outputs = {output.tensor()};
      Status status = communicator.Run(Collective(scatter));
      EXPECT_TRUE(status.ok()) << status;
      EXPECT_EQ(output.CountWrong(ranks, own_first), 0);

      Runs whole(element_bytes_, count_ * ranks);
      whole.Fill(rank);
      Runs part(element_bytes_, count_);
      status = communicator.Run({.kind = CollectiveKind::kReduceScatterTensor,
                                 .inputs = {whole.tensor()},
                                 .outputs = {part.tensor()},
                                 .reduce_op = ReduceOp::kUser,
                                 .function = function_});
      EXPECT_TRUE(status.ok()) << status;
      EXPECT_EQ(part.CountWrong(ranks, rank * count_), 0);
    });
    EXPECT_FALSE(misaligned_);
  }

 private:
  LocalWorld& world_;
  const size_t element_bytes_;
  const size_t count_;
  std::atomic<bool> misaligned_{false};
  const ReduceFunction function_;
};

TEST_P(BackendConformance, FunctionsOfTheUserCombineOpaqueElementsInRankOrder) {
  LocalWorld world({.backend = backend(), .world_size = world_size()});
  if (!HasFunctions(world, backend())) return;
  int root = 0;
  for (const size_t element_bytes : kElementBytes) {
    for (const size_t count : CountsFor(element_bytes)) {
      SCOPED_TRACE(absl::StrCat(count, " elements of ", element_bytes));
      RunsCheck check(world, element_bytes, count);
      check.AllReduce();
      check.Reduce(root++ % world_size());
      if (count * element_bytes < (1 << 20)) check.ReduceScatter();
    }
  }
  // The parts of all ranks together are just more than is combined at once.
  const size_t part_bytes = (4 << 20) / static_cast<size_t>(world_size());
  for (const size_t element_bytes : {12, 1000}) {
    SCOPED_TRACE(absl::StrCat("parts of ", part_bytes, " bytes"));
    RunsCheck(world, element_bytes, part_bytes / element_bytes + 3)
        .ReduceScatter();
  }
}

ReduceFunction Hypotenuse() {
  return ReduceFunction::ForElements<double>(
      [](double a, double b) { return std::sqrt(a * a + b * b); });
}

// A function on a typed tensor, by all ways of starting it.
TEST_P(BackendConformance, FunctionsOfTheUserRunPreparedStartedAndCoalesced) {
  LocalWorld world({.backend = backend(), .world_size = world_size()});
  if (!HasFunctions(world, backend())) return;
  const ReduceFunction function = Hypotenuse();
  const double wanted = 3 * std::sqrt(world_size());
  world.OnEachRank([&](Communicator& communicator) {
    for (const size_t count : {5, 100'003}) {
      std::vector<double> values(count);
      const Collective sum = {.kind = CollectiveKind::kAllReduce,
                              .tensors = {Tensor(values)},
                              .reduce_op = ReduceOp::kUser,
                              .function = function};
      auto prepared = communicator.Prepare(sum);
      ASSERT_TRUE(prepared.ok()) << prepared.status();
      const std::shared_ptr<PreparedCollective> kept = *std::move(prepared);
      for (int run = 0; run < 3; ++run) {
        std::fill(values.begin(), values.end(), 3);
        const Status status = run == 0   ? communicator.Run(*kept)
                              : run == 1 ? communicator.Start(kept)->Wait()
                                         : communicator.Start(sum)->Wait();
        EXPECT_TRUE(status.ok()) << status;
        for (const double value : values) ASSERT_NEAR(value, wanted, 1e-9);
      }
      // Two of them are fused.
      std::vector<double> more(7, 3);
      std::vector<double> most(7, 3);
      std::fill(values.begin(), values.end(), 3);
      std::vector<Collective> several(3, sum);
      several[1].tensors = {Tensor(more)};
      several[2].tensors = {Tensor(most)};
      const Status status = RunCoalesced(communicator, several);
      EXPECT_TRUE(status.ok()) << status;
      for (const auto* list : {&values, &more, &most}) {
        for (const double value : *list) ASSERT_NEAR(value, wanted, 1e-9);
      }
    }
  });
}

TEST_P(BackendConformance, CoalescedOpaqueElementsOfSeveralSizesStayApart) {
  LocalWorld world({.backend = backend(), .world_size = world_size()});
  if (!HasFunctions(world, backend())) return;
  const ReduceFunction first(
      [](const void* in, void* inout, size_t count) {
        EXPECT_GT(count, 0);
        static_cast<uint8_t*>(inout)[0] = static_cast<const uint8_t*>(in)[0];
      },
      {.is_commutative = false});
  world.OnEachRank([&](Communicator& communicator) {
    std::vector<uint8_t> a(5, static_cast<uint8_t>(communicator.rank()));
    std::vector<uint8_t> b(7, static_cast<uint8_t>(communicator.rank()));
    const auto all_reduce = [&](std::vector<uint8_t>& values) {
      return Collective{
          .kind = CollectiveKind::kAllReduce,
          .tensors = {Tensor::Opaque(values.data(), values.size(), {1})},
          .reduce_op = ReduceOp::kUser,
          .function = first};
    };
    const Status status =
        RunCoalesced(communicator, {all_reduce(a), all_reduce(b)});
    EXPECT_TRUE(status.ok()) << status;
    EXPECT_EQ(a[0], 0);
    EXPECT_EQ(b[0], 0);
  });
}

TEST_P(BackendConformance, OpaqueElementsMoveWholeAndBySplits) {
  LocalWorld world({.backend = backend(), .world_size = world_size()});
  const int ranks = world_size();
  world.OnEachRank([&](Communicator& communicator) {
    const int rank = communicator.rank();
    for (const size_t bytes : {size_t{3}, size_t{40}}) {
      const auto byte = [](int from, int to) {
        return static_cast<uint8_t>(from * 16 + to + 1);
      };
      // Rank r gives each rank two elements, in rows of two dimensions.
      std::vector<uint8_t> given;
      for (int to = 0; to < ranks; ++to) {
        given.insert(given.end(), 2 * bytes, byte(rank, to));
      }
      std::vector<uint8_t> taken(given.size());
      const std::vector<int64_t> splits(static_cast<size_t>(ranks), 1);
      const Collective exchange = {
          .kind = CollectiveKind::kAllToAllSingle,
          .inputs = {Tensor::Opaque(given.data(), bytes, {ranks, 2})},
          .outputs = {Tensor::Opaque(taken.data(), bytes, {ranks, 2})},
          .input_splits = splits,
          .output_splits = splits};
      auto work = communicator.Start(exchange);
      EXPECT_TRUE(work->Wait().ok()) << work->status();
      for (size_t i = 0; i < taken.size(); ++i) {
        ASSERT_EQ(taken[i], byte(static_cast<int>(i / (2 * bytes)), rank));
      }
      std::vector<uint8_t> own(bytes, byte(rank, 0));
      std::vector<uint8_t> all(bytes * static_cast<size_t>(ranks));
      work = communicator.Start(
          {.kind = CollectiveKind::kAllGatherIntoTensor,
           .inputs = {Tensor::Opaque(own.data(), bytes, {1})},
           .outputs = {Tensor::Opaque(all.data(), bytes, {ranks})}});
      EXPECT_TRUE(work->Wait().ok()) << work->status();
      for (size_t i = 0; i < all.size(); ++i) {
        ASSERT_EQ(all[i], byte(static_cast<int>(i / bytes), 0));
      }
      work = communicator.Start(
          {.kind = CollectiveKind::kBroadcast,
           .tensors = {Tensor::Opaque(all.data(), bytes, {ranks})},
           .root = ranks - 1});
      EXPECT_TRUE(work->Wait().ok()) << work->status();
    }
  });
}

// The pair that must come out, by plain loops.
template <typename Pair>
Pair Best(const std::vector<Pair>& pairs, bool largest) {
  Pair best = pairs[0];
  for (const Pair& pair : pairs) {
    if (std::isnan(static_cast<double>(best.value))) {
      if (std::isnan(static_cast<double>(pair.value)) &&
          pair.index < best.index) {
        best = pair;
      }
      continue;
    }
    const bool better =
        largest ? pair.value > best.value : pair.value < best.value;
    if (better || std::isnan(static_cast<double>(pair.value)) ||
        (pair.value == best.value && pair.index < best.index)) {
      best = pair;
    }
  }
  return best;
}

template <typename Value, typename Index>
void CheckPairs(LocalWorld& world, ReduceOp op, size_t count) {
  using Pair = ValueIndex<Value, Index>;
  SCOPED_TRACE(absl::StrCat(ReduceOpName(op), " of ", count, " ",
                            DataTypeName(kDataTypeOf<Pair>)));
  const int ranks = world.world_size();
  // Values with ties; some are NaN if there are such.
  const auto input = [](int rank, size_t i) -> Pair {
    const auto number = (i * 7 + static_cast<size_t>(rank) * 5) % 11;
    const bool is_nan = std::is_floating_point_v<Value> && number == 3;
    return {is_nan ? std::numeric_limits<Value>::quiet_NaN()
                   : static_cast<Value>(number / 3) - 1,
            static_cast<Index>((rank * 3 + 1) % 7)};
  };
  const auto expected = [&](size_t i) {
    std::vector<Pair> pairs;
    for (int rank = 0; rank < ranks; ++rank) pairs.push_back(input(rank, i));
    return Best(pairs, op == ReduceOp::kMaxloc);
  };
  const auto is_right = [&](const Pair& pair, size_t i) {
    const Pair wanted = expected(i);
    const bool both_nan =
        pair.value != pair.value && wanted.value != wanted.value;
    return (both_nan || pair.value == wanted.value) &&
           pair.index == wanted.index;
  };
  world.OnEachRank([&](Communicator& communicator) {
    const int rank = communicator.rank();
    std::vector<Pair> values(count);
    for (size_t i = 0; i < count; ++i) values[i] = input(rank, i);
    std::vector<Pair> reduced = values;
    auto work = communicator.Start({.kind = CollectiveKind::kAllReduce,
                                    .tensors = {Tensor(reduced)},
                                    .reduce_op = op});
    EXPECT_TRUE(work->Wait().ok()) << work->status();
    for (size_t i = 0; i < count; ++i) ASSERT_TRUE(is_right(reduced[i], i));
    const size_t each = count / static_cast<size_t>(ranks);
    values.resize(each * static_cast<size_t>(ranks));
    std::vector<Pair> part(each);
    work = communicator.Start({.kind = CollectiveKind::kReduceScatterTensor,
                               .inputs = {Tensor(values)},
                               .outputs = {Tensor(part)},
                               .reduce_op = op});
    EXPECT_TRUE(work->Wait().ok()) << work->status();
    for (size_t i = 0; i < each; ++i) {
      ASSERT_TRUE(is_right(part[i], i + each * static_cast<size_t>(rank)));
    }
    work = communicator.Start({.kind = CollectiveKind::kReduce,
                               .tensors = {Tensor(values)},
                               .reduce_op = op,
                               .root = ranks - 1});
    EXPECT_TRUE(work->Wait().ok()) << work->status();
    for (size_t i = 0; i < values.size() && rank == ranks - 1; ++i) {
      ASSERT_TRUE(is_right(values[i], i));
    }
  });
}

TEST_P(BackendConformance, LocationsAreOfTheBestValueAndItsSmallestIndex) {
  LocalWorld world({.backend = backend(), .world_size = world_size()});
  if (!CanReduce(world, ReduceOp::kMinloc, DataType::kInt32Int32)) return;
  for (const ReduceOp op : {ReduceOp::kMinloc, ReduceOp::kMaxloc}) {
    for (const size_t count : {1, 13, 5000, 20'003}) {
      CheckPairs<float, int32_t>(world, op, count);
      CheckPairs<double, int64_t>(world, op, count);
      CheckPairs<int32_t, int32_t>(world, op, count);
      CheckPairs<int64_t, int64_t>(world, op, count);
    }
  }
}

TEST_P(FailureConformance, AFunctionThatThrowsEndsTheGroupAndNamesItsRank) {
  for (const size_t count : {1, 300'000}) {
    LocalWorld world({.backend = backend(), .world_size = world_size()});
    if (!HasFunctions(world, backend())) return;
    const int thrower = world_size() - 1;
    world.OnEachRank([&](Communicator& communicator) {
      const int rank = communicator.rank();
      const ReduceFunction function(
          [rank, thrower](const void*, void*, size_t) {
            if (rank == thrower) throw std::runtime_error("no such record");
          },
          {.name = "merge"});
      std::vector<float> values(count, 1);
      Collective reduce = {.kind = CollectiveKind::kAllReduce,
                           .tensors = {Tensor(values)},
                           .reduce_op = ReduceOp::kUser,
                           .function = function};
      Status status;
      // The others may have all they need.
      for (int i = 0; i < 3 && status.ok(); ++i) {
        status = communicator.Start(reduce)->Wait(Clock::now() + kSoon);
      }
      EXPECT_FALSE(status.ok());
      EXPECT_THAT(std::string(status.message()),
                  HasSubstr(absl::StrCat("rank ", thrower,
                                         ": the reduction \"merge\" "
                                         "threw \"no such record\"")));
      EXPECT_EQ(CulpritRank(status), thrower) << status;
      EXPECT_EQ(communicator.status(), status);
    });
  }
}

// Runs a reduction of `count` elements by a function on all ranks; rank 1
// alters it by `change` and has `more` elements. Expects that all fail and are
// told of both.
struct Disagreement {
  std::function<void(Collective&)> change = {};
  size_t more = 0;
  std::string one = {};
  std::string other = {};
};

void ExpectDisagreement(const std::string& backend, int world_size,
                        CollectiveKind kind, size_t count,
                        const Disagreement& disagreement) {
  SCOPED_TRACE(absl::StrCat(CollectiveKindName(kind), " of ", count));
  LocalWorld world({.backend = backend, .world_size = world_size});
  if (!HasFunctions(world, backend)) return;
  world.OnEachRank([&](Communicator& communicator) {
    const int rank = communicator.rank();
    Sample sample(kind, {.rank = rank,
                         .world_size = world_size,
                         .count = count + (rank == 1 ? disagreement.more : 0),
                         .data_type = DataType::kInt64});
    Collective& reduce = sample.collective;
    reduce.reduce_op = ReduceOp::kUser;
    reduce.function = ReduceFunction([](const void*, void*, size_t) {});
    if (rank == 1 && disagreement.change) disagreement.change(reduce);
    Status status = communicator.Start(reduce)->Wait(Clock::now() + kSoon);
    // Ranks other than the root may have given all that they give.
    for (int i = 0; i < 2 && status.ok(); ++i) {
      status = communicator.Start({.kind = CollectiveKind::kBarrier})
                   ->Wait(Clock::now() + kSoon);
    }
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << status;
    const std::string text(status.message());
    EXPECT_THAT(text, HasSubstr(CollectiveKindName(kind)));
    // After a reduce, a rank may see rank 1's next to its own barrier.
    if (kind == CollectiveKind::kReduce) return;
    EXPECT_THAT(text, AllOf(HasSubstr(disagreement.one),
                            HasSubstr(disagreement.other)));
  });
}

void ExpectDisagreements(const std::string& backend, int world_size,
                         const Disagreement& disagreement) {
  for (const CollectiveKind kind :
       {CollectiveKind::kAllReduce, CollectiveKind::kReduce,
        CollectiveKind::kReduceScatter, CollectiveKind::kReduceScatterTensor}) {
    for (const size_t count : {8, 50'000}) {
      ExpectDisagreement(backend, world_size, kind, count, disagreement);
    }
  }
}

TEST_P(DisagreementConformance, FunctionsThatCommuteOnSomeRanksAreAnError) {
  ExpectDisagreements(backend(), world_size(),
                      {.change =
                           [](Collective& reduce) {
                             reduce.function = ReduceFunction(
                                 [](const void*, void*, size_t) {},
                                 {.is_commutative = false});
                           },
                       .one = "user (not commutative)",
                       .other = "int64 user"});
}

TEST_P(DisagreementConformance, AFunctionAndASumAreAnErrorThatShowsBoth) {
  ExpectDisagreements(
      backend(), world_size(),
      {.change = [](Collective& reduce) { reduce.reduce_op = ReduceOp::kSum; },
       .one = "int64 user",
       .other = "int64 sum"});
}

TEST_P(DisagreementConformance, FunctionsOnOtherSizesAreAnErrorThatShowsBoth) {
  ExpectDisagreements(
      backend(), world_size(),
      {.more = 2, .one = "rank 1", .other = " reduce different sizes in "});
}

// A rank that gathers and ranks that combine parts take different steps.
TEST_P(DisagreementConformance, SmallAndLargeTensorsOfAFunctionAreAnError) {
  for (const CollectiveKind kind :
       {CollectiveKind::kAllReduce, CollectiveKind::kReduce}) {
    ExpectDisagreement(
        backend(), world_size(), kind, 8,
        {.more = 50'000, .one = "rank 1", .other = " reduce different sizes "});
  }
}

TEST_P(DisagreementConformance, OpaqueElementsOfOtherSizesAreAnErrorThatShows) {
  for (const size_t count : {8, 50'000}) {
    LocalWorld world({.backend = backend(), .world_size = world_size()});
    if (!HasFunctions(world, backend())) return;
    world.OnEachRank([&](Communicator& communicator) {
      // All have the same bytes together.
      const size_t bytes = communicator.rank() == 1 ? 8 : 4;
      std::vector<uint8_t> values(count * 8);
      Status status;
      for (int i = 0; i < 3 && status.ok(); ++i) {
        status =
            communicator
                .Start({.kind = CollectiveKind::kAllReduce,
                        .tensors = {Tensor::Opaque(
                            values.data(), bytes,
                            {static_cast<int64_t>(values.size() / bytes)})},
                        .reduce_op = ReduceOp::kUser,
                        .function =
                            ReduceFunction([](const void*, void*, size_t) {})})
                ->Wait(Clock::now() + kSoon);
      }
      EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << status;
      EXPECT_THAT(std::string(status.message()),
                  AllOf(HasSubstr("reduces elements of "),
                        HasSubstr("bytes in all_reduce #1")));
    });
  }
}

}  // namespace
}  // namespace muster::dataplane::testing
