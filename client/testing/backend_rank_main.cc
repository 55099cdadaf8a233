// One rank of the tests of backends that are not built in. Prints what it sees
// to standard output, one line each, after its rank.
//
//   backend_rank BACKEND some|all|late|parts
//
// `some`: the verbs of the example. `all`: every verb, type and operation,
// compared with the reference. `late`: rank 0 does not take part. `parts`:
// BACKEND is gloo, and reports calls about sub-groups.

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "client/testing/say.h"
#include "dataplane/testing/reference.h"
#include "muster/dataplane/backend.h"
#include "muster/dataplane/collective.h"
#include "muster/dataplane/factory.h"
#include "muster/dataplane/float8.h"
#include "muster/muster.hpp"

namespace muster::testing {
namespace {

using dataplane::DataType;
using dataplane::ReduceOp;
using dataplane::testing::FirstWrong;
using dataplane::testing::GetFactor;
using dataplane::testing::Inputs;
using dataplane::testing::MakeTensor;

const std::vector<size_t> kCounts = {0, 1, 13, 100'003};

void SayAs(const std::string& text) {
  Say("rank " + std::to_string(GetRank()) + " " + text);
}

void Expect(bool good, const std::string& what) {
  if (!good) SayAs("WRONG " + what);
}

bool HasMeaning(ReduceOp op, DataType type) {
  double memory[2];
  return dataplane::Validate({.kind = dataplane::CollectiveKind::kAllReduce,
                              .tensors = {Tensor(memory, type, {1})},
                              .reduce_op = op},
                             0, 1)
      .ok();
}

template <typename T>
void Reduce(DataType type, ReduceOp op, size_t count) {
  const int size = GetWorldSize();
  const int rank = GetRank();
  const std::string what = std::to_string(static_cast<int>(op)) + " of type " +
                           std::to_string(static_cast<int>(type)) + ", " +
                           std::to_string(count);
  const double factor = op == ReduceOp::kPremulSum ? GetFactor(rank) : 1;
  std::vector<T> values = Inputs<T>(op, size, rank, count);
  AllReduce(MakeTensor(type, values), {.op = op, .factor = factor});
  Expect(FirstWrong(values, op, size).empty(), "all_reduce " + what);

  values = Inputs<T>(op, size, rank, count);
  muster::Reduce(MakeTensor(type, values), size - 1,
                 {.op = op, .factor = factor});
  Expect(rank != size - 1 || FirstWrong(values, op, size).empty(),
         "reduce " + what);

  std::vector<T> all =
      Inputs<T>(op, size, rank, count * static_cast<size_t>(size));
  std::vector<T> part(count);
  ReduceScatterTensor(MakeTensor(type, part), MakeTensor(type, all),
                      {.op = op, .factor = factor});
  Expect(FirstWrong(part, op, size, count * static_cast<size_t>(rank)).empty(),
         "reduce_scatter_tensor " + what);
}

void ReduceEverything() {
  for (int type = 0; type < dataplane::kDataTypeCount; ++type) {
    for (int op = 0; op < dataplane::kReduceOpCount; ++op) {
      const auto data_type = static_cast<DataType>(type);
      const auto reduce_op = static_cast<ReduceOp>(op);
      if (!HasMeaning(reduce_op, data_type) || dataplane::IsFloat8(data_type)) {
        continue;
      }
      dataplane::testing::WithElementType(data_type, [&](auto element) {
        for (const size_t count : kCounts) {
          Reduce<decltype(element)>(data_type, reduce_op, count);
        }
      });
    }
  }
}

// Opaque elements of 3 bytes by a function that keeps the lowest rank's, and
// pairs.
void ReduceByFunctions(size_t count) {
  const int size = GetWorldSize();
  const int rank = GetRank();
  const ReduceFunction left([](const void* in, void* inout,
                               size_t n) { std::memcpy(inout, in, 3 * n); },
                            {.is_commutative = false, .element_bytes = 3});
  const auto fill = [rank](std::vector<uint8_t>& bytes) {
    std::fill(bytes.begin(), bytes.end(), static_cast<uint8_t>(rank));
  };
  const auto are = [](const std::vector<uint8_t>& bytes, int value) {
    return std::ranges::all_of(bytes,
                               [value](uint8_t byte) { return byte == value; });
  };
  std::vector<uint8_t> bytes(3 * count);
  const Tensor tensor =
      Tensor::Opaque(bytes.data(), 3, {static_cast<int64_t>(count)});
  fill(bytes);
  AllReduce(tensor, {.op = left});
  Expect(are(bytes, 0), "all_reduce by a function");
  fill(bytes);
  muster::Reduce(tensor, size - 1, {.op = left});
  Expect(are(bytes, rank == size - 1 ? 0 : rank), "reduce by a function");
  std::vector<uint8_t> whole(bytes.size() * static_cast<size_t>(size));
  fill(whole);
  fill(bytes);
  ReduceScatterV(
      tensor,
      Tensor::Opaque(whole.data(), 3, {static_cast<int64_t>(whole.size() / 3)}),
      std::vector<int64_t>(static_cast<size_t>(size),
                           static_cast<int64_t>(count)),
      {.op = left});
  Expect(are(bytes, 0), "reduce_scatter_v by a function");

  using Pair = ValueIndex<double, int64_t>;
  std::vector<Pair> pairs(count, Pair{static_cast<double>(-rank), rank});
  AllReduce(pairs, {.op = ReduceOp::kMinloc});
  Expect(pairs == std::vector<Pair>(
                      count, Pair{static_cast<double>(1 - size), size - 1}),
         "all_reduce of pairs");
}

// The data of rank `from` for rank `to`.
std::vector<int32_t> Parcel(int from, int to, size_t count) {
  std::vector<int32_t> values(count);
  std::iota(values.begin(), values.end(), 1'000'000 * from + 10'000'000 * to);
  return values;
}

std::vector<Tensor> Tensors(std::vector<std::vector<int32_t>>& lists) {
  return {lists.begin(), lists.end()};
}

// Rank r sends and receives r + 1 times as much.
void MoveUneven(size_t count) {
  const int size = GetWorldSize();
  const int rank = GetRank();
  std::vector<std::vector<int32_t>> got;
  std::vector<std::vector<int32_t>> mine;
  std::vector<int64_t> got_splits;
  std::vector<int64_t> my_splits;
  std::vector<int32_t> joined;
  for (int other = 0; other < size; ++other) {
    got.emplace_back(count * static_cast<size_t>(other + 1));
    mine.push_back(Parcel(rank, other, count * static_cast<size_t>(rank + 1)));
    got_splits.push_back(static_cast<int64_t>(got.back().size()));
    my_splits.push_back(static_cast<int64_t>(mine.back().size()));
    joined.insert(joined.end(), mine.back().begin(), mine.back().end());
  }
  AllGather(Tensors(got), mine[0]);
  std::vector<int32_t> expected;
  for (int other = 0; other < size; ++other) {
    const auto& list = got[static_cast<size_t>(other)];
    Expect(list == Parcel(other, 0, list.size()), "all_gather");
    const auto parcel = Parcel(other, rank, list.size());
    expected.insert(expected.end(), parcel.begin(), parcel.end());
  }
  AllToAll(Tensors(got), Tensors(mine));
  for (int other = 0; other < size; ++other) {
    const auto& list = got[static_cast<size_t>(other)];
    Expect(list == Parcel(other, rank, list.size()), "all_to_all");
  }
  std::vector<int32_t> flat(expected.size());
  AllToAllSingle(
      flat, joined,
      {.output_split_sizes = got_splits, .input_split_sizes = my_splits});
  Expect(flat == expected, "all_to_all_single");

  // Every rank's input has r + 1 parts for rank r.
  std::vector<std::vector<int32_t>> parts;
  for (int other = 0; other < size; ++other) {
    parts.emplace_back(count * static_cast<size_t>(other + 1), rank + 1);
  }
  std::vector<int32_t> sum(count * static_cast<size_t>(rank + 1));
  ReduceScatter(sum, Tensors(parts));
  Expect(sum == std::vector<int32_t>(sum.size(), size * (size + 1) / 2),
         "reduce_scatter");
}

void MoveEqual(size_t count) {
  const int size = GetWorldSize();
  const int rank = GetRank();
  const int root = size - 1;
  std::vector<int32_t> value = Parcel(rank, 0, count);
  Broadcast(value, root);
  Expect(value == Parcel(root, 0, count), "broadcast");

  std::vector<int32_t> mine = Parcel(rank, 1, count);
  std::vector<int32_t> all(count * static_cast<size_t>(size));
  AllGatherIntoTensor(all, mine);
  std::vector<std::vector<int32_t>> lists;
  if (rank == root) lists.assign(static_cast<size_t>(size), value);
  Gather(mine, Tensors(lists), root);
  for (int other = 0; other < size; ++other) {
    const auto parcel = Parcel(other, 1, count);
    const auto place = all.begin() + static_cast<int64_t>(count) * other;
    Expect(std::equal(parcel.begin(), parcel.end(), place),
           "all_gather_into_tensor");
    if (rank != root) continue;
    Expect(lists[static_cast<size_t>(other)] == parcel, "gather");
    lists[static_cast<size_t>(other)] = Parcel(root, other, count);
  }
  Scatter(mine, Tensors(lists), root);
  Expect(mine == Parcel(root, rank, count), "scatter");
}

void SendAround() {
  const int size = GetWorldSize();
  const int rank = GetRank();
  if (size == 1) return;
  std::vector<int32_t> out = Parcel(rank, 5, 1000);
  std::vector<int32_t> in(1000);
  Work sent = Isend(out, (rank + 1) % size, {.tag = 7});
  const int from = Recv(in, std::nullopt, {.tag = 7});
  sent.Wait();
  Expect(from == (rank + size - 1) % size && in == Parcel(from, 5, 1000),
         "send and recv");
}

// Also tests the even ranks alone.
void SubGroup() {
  std::vector<int> even;
  for (int rank = 0; rank < GetWorldSize(); rank += 2) even.push_back(rank);
  const auto group = NewGroup({.ranks = even});
  if (GetRank() % 2 != 0) return;
  std::vector<int32_t> one = {1};
  AllReduce(one, {.group = group});
  Expect(one[0] == static_cast<int32_t>(even.size()), "sub-group");
}

// The handle that a group gets from its parent: the parent's name.
struct TokenHandle : dataplane::ParentHandle {
  explicit TokenHandle(std::string name) : from(std::move(name)) {}
  const std::string from;
};

class TellingBackend : public dataplane::BackendDecorator {
 public:
  TellingBackend(std::unique_ptr<dataplane::Backend> gloo, std::string name)
      : BackendDecorator(std::move(gloo)), name_(std::move(name)) {}

  std::shared_ptr<dataplane::ParentHandle> Split(
      const dataplane::SplitOptions& options) override {
    if (options.excluded.empty()) {
      Say("split " + name_ + ": " + options.group_name + " part " +
          std::to_string(options.part));
    } else {
      Say("shrink " + name_ + ": " + options.group_name + " without " +
          std::to_string(options.excluded[0]));
    }
    return std::make_shared<TokenHandle>(name_);
  }

 private:
  const std::string name_;
};

int MakeParts(const std::string& backend) {
  RegisterBackend(
      backend, {DeviceType::kCpu},
      [](const dataplane::BackendOptions& options)
          -> StatusOr<std::unique_ptr<dataplane::Backend>> {
        const auto* const parent_handle =
            dynamic_cast<const TokenHandle*>(options.parent_handle.get());
        Say(options.group_name + " from " +
            (parent_handle == nullptr ? "nowhere" : parent_handle->from));
        auto gloo = dataplane::CreateBackend("gloo", options);
        if (!gloo.ok()) return gloo.status();
        return std::make_unique<TellingBackend>(*std::move(gloo),
                                                options.group_name);
      });
  InitProcessGroup(
      {.backend = "cpu:" + backend, .timeout = std::chrono::seconds(60)});
  const auto pair = NewGroup({.ranks = {{0, 1}}});
  SplitGroup(nullptr, {{0, 2}});
  NewGroup({.backend = "gloo"});
  if (GetRank() < 2) {
    SplitGroup(pair, {{1}, {0}});
    NewGroup({.ranks = {{0, 1}},
              .use_local_synchronization = true,
              .name = "local"});
  }
  // This rank alone stays in it.
  if (GetRank() == 0) ShrinkGroup({1}, pair);
  Barrier();
  DestroyProcessGroup();
  return 0;
}

void BeLate() {
  std::vector<int> value = {1};
  if (GetRank() == 0) return;
  SayProblem(
      [&] { AllReduce(value, {.timeout = std::chrono::milliseconds(300)}); });
  SayProblem([&] { AllReduce(value); });
}

// For two ranks, whose counts differ.
void DifferInCounts(const std::string& what) {
  const std::vector<int64_t> counts = {2, GetRank() == 0 ? 3 : 2};
  std::vector<int64_t> whole(5);
  std::vector<int64_t> own(2);
  const ReduceFunction first = ReduceFunction::ForElements<int64_t>(
      [](int64_t a, int64_t) { return a; });
  SayProblem([&] {
    if (what == "gather_counts") AllGatherV(whole, own, counts);
    if (what == "scatter_counts") ReduceScatterV(own, whole, counts);
    if (what == "function_counts") {
      AllReduce(Tensor(whole.data(), {counts[1]}), {.op = first});
    }
    if (what == "operations") {
      ReduceScatterV(own, whole, {2, 2},
                     {.op = GetRank() == 0 ? ReduceOperator(first)
                                           : ReduceOperator(ReduceOp::kMax)});
    }
  });
}

// For two mpiruns with two processes each: each process of the first forms a
// group with one of the second.
int MeetStrangers(const std::string& backend) {
  const bool is_second = getenv("SECOND") != nullptr;
  const int mine = std::atoi(getenv("OMPI_COMM_WORLD_RANK"));
  setenv("RANK", std::to_string(mine).c_str(), 1);
  setenv("WORLD_SIZE", "2", 1);
  setenv("MASTER_PORT", getenv((mine == 0) == is_second ? "PORT_2" : "PORT_1"),
         1);
  SayProblem([&] {
    InitProcessGroup({.backend = backend, .timeout = std::chrono::seconds(20)});
  });
  return 0;
}

// For two ranks; the second does not come to the group.
int MeetAlone(const std::string& backend) {
  setenv("RANK", getenv("OMPI_COMM_WORLD_RANK"), 1);
  setenv("WORLD_SIZE", getenv("OMPI_COMM_WORLD_SIZE"), 1);
  InitProcessGroup({.timeout = std::chrono::seconds(60)});
  if (GetRank() == 0) {
    SayProblem([&] {
      NewGroup({.ranks = {{0, 1}},
                .timeout = std::chrono::seconds(1),
                .backend = backend,
                .use_local_synchronization = true});
    });
  }
  Barrier();
  DestroyProcessGroup();
  return 0;
}

int Run(const std::string& backend, const std::string& what) {
  if (what == "strangers") return MeetStrangers(backend);
  if (what == "alone") return MeetAlone(backend);
  if (what == "parts") return MakeParts(backend);
  // mpirun has other names for these variables.
  if (const char* rank = getenv("OMPI_COMM_WORLD_RANK")) {
    setenv("RANK", rank, 1);
    setenv("WORLD_SIZE", getenv("OMPI_COMM_WORLD_SIZE"), 1);
  }
  InitProcessGroup({.backend = backend, .timeout = std::chrono::seconds(60)});
  std::vector<double> sum = {GetRank() + 0.5};
  AllReduce(sum);
  std::vector<int> root = {GetRank()};
  Broadcast(root, 1 % GetWorldSize());
  Barrier();
  SayAs(GetBackend() + " sum " + std::to_string(sum[0]) + " root " +
        std::to_string(root[0]));
  if (what == "late") {
    BeLate();
  } else if (what.ends_with("_counts") || what == "operations") {
    DifferInCounts(what);
  } else if (what == "all") {
    ReduceEverything();
    for (const size_t count : kCounts) {
      ReduceByFunctions(count);
      MoveEqual(count);
      MoveUneven(count);
    }
    SendAround();
    SubGroup();
  } else {
    SayProblem([&] { muster::Reduce(root, 0); });
    SayProblem([&] {
      std::vector<int> uneven(static_cast<size_t>(GetRank()) + 1);
      AllReduce(uneven);
    });
  }
  SayAs("done");
  DestroyProcessGroup();
  return 0;
}

}  // namespace
}  // namespace muster::testing

int main(int argc, char** argv) {
  if (argc != 3) return 64;
  try {
    return muster::testing::Run(argv[1], argv[2]);
  } catch (const muster::DistError& error) {
    muster::testing::SayError(error);
    return 4;
  }
}
