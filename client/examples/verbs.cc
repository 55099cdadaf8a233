// Runs each verb once, on four ranks, with its result.
//
//   muster-run --standalone --nproc-per-node=4 -- verbs
//
// Every example is a function, and its `Expect` has the result on every rank.
// The comment above it shows the data.

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <optional>
#include <string>
#include <vector>

#include "muster/muster.hpp"

namespace {

using muster::ReduceOp;
using muster::Tensor;
using Floats = std::vector<float>;
using Ints = std::vector<int32_t>;

int g_examples = 0;

template <typename T>
void Expect(const char* verb, const T& actual, const T& expected) {
  ++g_examples;
  if (actual == expected) return;
  std::fprintf(stderr, "rank %d: %s gave something else\n", muster::GetRank(),
               verb);
  std::exit(1);
}

// [0 10] [1 11] [2 12] [3 13] -> [6 46] everywhere
void AllReduce(int rank) {
  Ints values = {rank, 10 + rank};
  muster::AllReduce(values);
  Expect("AllReduce", values, {6, 46});

  // Code that runs meanwhile must not touch `values`.
  values = {rank, 10 + rank};
  muster::Work work =
      muster::AllReduce(values, {.op = ReduceOp::kMax, .async_op = true});
  work.Wait();
  Expect("AllReduce, async", values, {3, 13});

  Floats mean = {static_cast<float>(rank)};
  muster::AllReduce(mean, {.op = ReduceOp::kAvg});
  Expect("AllReduce, average", mean, {1.5F});
}

// [1] [2] [3] [4] -> rank 2 has [24], the others keep theirs
void Reduce(int rank) {
  Ints values = {rank + 1};
  muster::Reduce(values, /*dst=*/2, {.op = ReduceOp::kProduct});
  Expect("Reduce", values, {rank == 2 ? 24 : rank + 1});
}

// [0] [1] [2] [3] -> [3] everywhere
void Broadcast(int rank) {
  Ints values = {rank};
  muster::Broadcast(values, /*src=*/3);
  Expect("Broadcast", values, {3});
}

// [0] [1 1] [2 2 2] [3 3 3 3] -> all four lists everywhere
void AllGather(int rank) {
  std::vector<Ints> lists = {Ints(1), Ints(2), Ints(3), Ints(4)};
  Ints mine(static_cast<size_t>(rank) + 1, rank);
  muster::AllGather({lists.begin(), lists.end()}, mine);
  Expect("AllGather", lists, {{0}, {1, 1}, {2, 2, 2}, {3, 3, 3, 3}});
}

// [0 0] [1 1] [2 2] [3 3] -> [0 0 1 1 2 2 3 3] everywhere, as 8 or as 4 x 2
void AllGatherIntoTensor(int rank) {
  Ints mine = {rank, rank};
  Ints all(8);
  muster::AllGatherIntoTensor(all, mine);
  Expect("AllGatherIntoTensor", all, {0, 0, 1, 1, 2, 2, 3, 3});
  Ints stacked(8);
  muster::AllGatherIntoTensor(Tensor(stacked.data(), {4, 2}), mine);
  Expect("AllGatherIntoTensor, stacked", stacked, all);
}

// [0] [1] [2] [3] -> rank 1 has all of them
void Gather(int rank) {
  Ints mine = {rank};
  std::vector<Ints> lists;
  if (rank == 1) lists.assign(4, Ints(1));
  muster::Gather(mine, {lists.begin(), lists.end()}, /*dst=*/1);
  if (rank == 1) Expect("Gather", lists, {{0}, {1}, {2}, {3}});
}

// rank 0 has [5] [6] [7] [8] -> rank r has [5 + r]
void Scatter(int rank) {
  Ints mine(1);
  std::vector<Ints> lists;
  if (rank == 0) lists = {{5}, {6}, {7}, {8}};
  muster::Scatter(mine, {lists.begin(), lists.end()}, /*src=*/0);
  Expect("Scatter", mine, {5 + rank});
}

// each rank has [r] [10 r] [100 r] [1000 r] -> rank r has 6 * 10^r
void ReduceScatter(int rank) {
  Ints sum(1);
  std::vector<Ints> lists = {{rank}, {10 * rank}, {100 * rank}, {1000 * rank}};
  muster::ReduceScatter(sum, {lists.begin(), lists.end()});
  const Ints expected = {Ints{6, 60, 600, 6000}[static_cast<size_t>(rank)]};
  Expect("ReduceScatter", sum, expected);

  Ints joined = {rank, 10 * rank, 100 * rank, 1000 * rank};
  muster::ReduceScatterTensor(sum, joined);
  Expect("ReduceScatterTensor", sum, expected);
}

// rank r has [10 r] [10 r + 1] [10 r + 2] [10 r + 3] -> a transposed matrix
void AllToAll(int rank) {
  std::vector<Ints> out(4, Ints(1));
  std::vector<Ints> in;
  for (int to = 0; to < 4; ++to) in.push_back({10 * rank + to});
  muster::AllToAll({out.begin(), out.end()}, {in.begin(), in.end()});
  Expect("AllToAll", out, {{rank}, {10 + rank}, {20 + rank}, {30 + rank}});

  Ints row = {10 * rank, 10 * rank + 1, 10 * rank + 2, 10 * rank + 3};
  Ints column(4);
  muster::AllToAllSingle(column, row);
  Expect("AllToAllSingle", column, {rank, 10 + rank, 20 + rank, 30 + rank});

  // All to rank 0, two elements each.
  const std::vector<int64_t> to = {2, 0, 0, 0};
  const std::vector<int64_t> from(4, rank == 0 ? 2 : 0);
  Ints pairs = {rank, -rank};
  Ints all(rank == 0 ? 8 : 0);
  muster::AllToAllSingle(all, pairs,
                         {.output_split_sizes = from, .input_split_sizes = to});
  if (rank == 0) {
    Expect("AllToAllSingle, uneven", all, {0, 0, 1, -1, 2, -2, 3, -3});
  }
}

// around a ring
void SendAndRecv(int rank) {
  Ints mine = {rank};
  Ints got(1);
  muster::Work sent = muster::Isend(mine, (rank + 1) % 4, {.tag = 1});
  const int from = muster::Recv(got, (rank + 3) % 4, {.tag = 1});
  sent.Wait();
  Expect("Isend and Recv", got, {from});

  // From the rank that sends first. The tag separates it from later messages.
  if (rank == 0) {
    int sum = 0;
    for (int i = 0; i < 3; ++i) {
      sum += muster::Recv(got, std::nullopt, {.tag = 2});
    }
    Expect("Recv from any rank", sum, 6);
  } else {
    muster::Send(mine, 0, {.tag = 2});
  }

  // Both neighbours at once.
  Ints left(1);
  Ints right(1);
  using muster::P2POp;
  auto works = muster::BatchIsendIrecv(
      {{.op = P2POp::Kind::kIsend, .tensor = mine, .peer = (rank + 1) % 4},
       {.op = P2POp::Kind::kIsend, .tensor = mine, .peer = (rank + 3) % 4},
       {.op = P2POp::Kind::kIrecv, .tensor = left, .peer = (rank + 3) % 4},
       {.op = P2POp::Kind::kIrecv, .tensor = right, .peer = (rank + 1) % 4}});
  for (muster::Work& work : works) work.Wait();
  Expect("BatchIsendIrecv", Ints{left[0], right[0]},
         {(rank + 3) % 4, (rank + 1) % 4});
}

void Barriers() {
  muster::Barrier();
  // The coordinator decides: an error would name each missing rank.
  muster::MonitoredBarrier({.timeout = std::chrono::seconds(30)});
  g_examples += 2;
}

void Prepared(int rank) {
  Ints values(1);
  muster::PreparedCollective sum =
      muster::WorldGroup()->PrepareAllReduce(values);
  for (const int factor : {1, 10}) {
    values[0] = factor * rank;
    sum.Run();
    Expect("PrepareAllReduce", values, {6 * factor});
  }
}

void Coalesced(int rank) {
  Ints a = {rank};
  Ints b = {rank, rank};
  muster::Work both =
      muster::Coalesce({.async_op = true}, [&](muster::CoalescingManager& all) {
        all.AllReduce(a);
        all.AllReduce(b);
      });
  both.Wait();
  Expect("Coalesce", std::vector<Ints>{a, b}, {{6}, {6, 6}});
}

void Continuation(int rank) {
  Floats values = {static_cast<float>(rank)};
  muster::Work work = muster::AllReduce(values, {.async_op = true});
  auto mean = work.GetFuture().Then([&](const auto&) { return values[0] / 4; });
  mean.Wait();
  Expect("Then", mean.Value(), 1.5F);
}

// Byte strings, or messages of protobuf, of any size.
void Objects(int rank) {
  const std::string mine(static_cast<size_t>(rank), 'x');
  std::vector<std::string> all;
  muster::AllGatherObject(all, mine);
  Expect("AllGatherObject", all, {"", "x", "xx", "xxx"});

  std::vector<std::string> setting = {rank == 2 ? "fast" : ""};
  muster::BroadcastObjectList(setting, /*src=*/2);
  Expect("BroadcastObjectList", setting, {"fast"});

  std::vector<std::string> part(1);
  std::vector<std::string> parts;
  if (rank == 0) parts = {"a", "b", "c", "d"};
  muster::ScatterObjectList(part, parts);
  Expect("ScatterObjectList", part[0], std::string("abcd").substr(rank, 1));

  muster::GatherObject(mine, rank == 0 ? &all : nullptr);
  if (rank == 0) Expect("GatherObject", all, {"", "x", "xx", "xxx"});
}

// Rows and columns of a 2 x 2 mesh: ranks 0 1 and 2 3; 0 2 and 1 3.
void Groups(int rank) {
  const auto odd = muster::NewGroup({.ranks = {{1, 3}}});
  Ints values = {rank};
  muster::AllReduce(values, {.group = odd});  // nothing on the even ones
  Expect("NewGroup", values, {rank % 2 == 0 ? rank : 4});
  // The group's rank 1 is global rank 3.
  values = {rank};
  muster::Broadcast(values, {}, {.group = odd, .group_src = 1});
  Expect("Broadcast, group_src", values, {rank % 2 == 0 ? rank : 3});

  const muster::DeviceMesh mesh =
      muster::InitDeviceMesh("cpu", {2, 2}, {.dim_names = {"dp", "tp"}});
  values = {rank};
  muster::AllReduce(values, {.group = mesh.GetGroup("tp")});
  Expect("InitDeviceMesh", values, {rank < 2 ? 1 : 5});
}

// Keys of the job, on the coordinator.
void Store(int rank) {
  const auto store = muster::GetDefaultStore();
  if (rank == 0) store->Set("epoch", "7");
  Expect("Set and Get", store->Get("epoch"), std::string("7"));
  store->Add("arrived", 1);
  muster::Barrier();
  Expect("Add", store->Add("arrived", 0), int64_t{4});
}

int Run() {
  muster::InitProcessGroup();
  if (muster::GetWorldSize() != 4) {
    std::fprintf(stderr, "these examples are for 4 ranks, not %d\n",
                 muster::GetWorldSize());
    return 2;
  }
  const int rank = muster::GetRank();
  AllReduce(rank);
  Reduce(rank);
  Broadcast(rank);
  AllGather(rank);
  AllGatherIntoTensor(rank);
  Gather(rank);
  Scatter(rank);
  ReduceScatter(rank);
  AllToAll(rank);
  SendAndRecv(rank);
  Barriers();
  Prepared(rank);
  Coalesced(rank);
  Continuation(rank);
  Objects(rank);
  Groups(rank);
  Store(rank);
  muster::DestroyProcessGroup();
  std::printf("rank %d: %d examples came out as they say\n", rank, g_examples);
  return 0;
}

}  // namespace

int main() {
  try {
    return Run();
  } catch (const muster::DistError& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
