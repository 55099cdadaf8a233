// One rank of the tests of InitProcessGroup and the default group. Prints what
// it sees to standard output, one line each.
//
//   rank SCENARIO [INIT_METHOD [TIMEOUT_MS]]

#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "client/testing/say.h"
#include "muster/muster.hpp"

namespace muster::testing {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

InitProcessGroupOptions g_options;

// Runs every verb once, with different values on each rank.
void Verbs() {
  const int rank = GetRank();
  const int size = GetWorldSize();
  std::vector<float> sum = {static_cast<float>(rank + 1), 0.5F};
  AllReduce(sum);
  Say("sum " + std::to_string(sum[0]) + " " + std::to_string(sum[1]));
  std::vector<int64_t> root(3, rank);
  Broadcast(root, size - 1);
  Say("root " + std::to_string(root[0]) + " " + std::to_string(root[2]));
  Work work = AllReduce(root, {.op = ReduceOp::kMax, .async_op = true});
  Barrier();
  work.Wait();
  MonitoredBarrier({.timeout = seconds(20)});
  GetDefaultStore()->Add("ranks", 1);
}

int Hello() {
  if (IsInitialized()) return 2;
  InitProcessGroup(g_options);
  Say("rank " + std::to_string(GetRank()) + " of " +
      std::to_string(GetWorldSize()) + " on " + GetBackend());
  Verbs();
  DestroyProcessGroup();
  Say(IsInitialized() ? "still there" : "bye");
  return 0;
}

// Forms and ends the group many times.
int Again() {
  for (int i = 0; i < 20; ++i) {
    InitProcessGroup(g_options);
    std::vector<int> ones = {1};
    AllReduce(ones);
    if (ones[0] != GetWorldSize()) return 2;
    DestroyProcessGroup();
  }
  Say("formed 20 times");
  return 0;
}

std::string SumOfOnes() {
  std::vector<int> ones = {1};
  AllReduce(ones);
  return " " + std::to_string(ones[0]);
}

// Collectives, and the end of the group, while thread_local objects of the main
// thread are destroyed.
int AtExit() {
  static std::string sums;
  InitProcessGroup(g_options);
  sums += SumOfOnes();
  std::atexit([] {
    sums += SumOfOnes();
    DestroyProcessGroup();
    if (!IsInitialized()) Say("sums" + sums);
  });
  return 0;
}

// A thread uses the default group, then the next one after another thread has
// ended the first, and then none.
int GroupsOfAnotherThread() {
  std::atomic<int> step = 0;
  const auto reach = [&](int next) {
    step = next;
    step.notify_all();
  };
  const auto await = [&](int wanted) {
    for (int now = step; now != wanted; now = step) step.wait(now);
  };
  std::thread user([&] {
    std::string sums;
    for (const int turn : {1, 3}) {
      await(turn);
      sums += SumOfOnes();
      reach(turn + 1);
    }
    await(5);
    try {
      GetRank();
    } catch (const DistError&) {
      Say("sums" + sums);
    }
  });
  for (const int turn : {1, 3}) {
    InitProcessGroup(g_options);
    reach(turn);
    await(turn + 1);
    DestroyProcessGroup();
  }
  reach(5);
  user.join();
  return 0;
}

// As Again, in a store that rank 0 serves.
int AgainInStore() {
  g_options.rank = std::atoi(std::getenv("RANK"));
  g_options.world_size = std::atoi(std::getenv("WORLD_SIZE"));
  g_options.store = std::make_shared<PrefixStore>(
      "world", std::make_shared<TcpStore>(TcpStoreOptions{
                   .host = std::getenv("MASTER_ADDR"),
                   .port = std::atoi(std::getenv("MASTER_PORT")),
                   .world_size = g_options.world_size,
                   .is_master = g_options.rank == 0}));
  return Again();
}

// Counts what is left after each of three groups.
int Leftovers() {
  for (int i = 0; i < 3; ++i) {
    InitProcessGroup(g_options);
    Verbs();
    DestroyProcessGroup();
    // gRPC ends its own threads a moment after its last user.
    for (int tries = 0; tries < 500 && Count("/proc/self/task") > 1; ++tries) {
      usleep(10'000);
    }
    Say("left " + std::to_string(Count("/proc/self/task")) + " threads, " +
        std::to_string(Count("/proc/self/fd")) + " descriptors");
  }
  return 0;
}

// Runs all-reduces until something happens.
int TrainAndEnd(bool destroy) {
  InitProcessGroup(g_options);
  std::vector<float> gradients(1 << 16);
  for (int step = 0;; ++step) {
    try {
      AllReduce(gradients);
    } catch (const DistError& error) {
      SayError(error);
      try {
        Barrier();
      } catch (const DistError& again) {
        Say(std::string(again.what()) == error.what() ? "same" : "different");
      }
      if (destroy) DestroyProcessGroup();
      return 3;
    }
    if (step == 0) Say("training");
  }
}

int Train() { return TrainAndEnd(/*destroy=*/true); }

// Like a program that an error ends.
int TrainWithoutDestroy() { return TrainAndEnd(/*destroy=*/false); }

// Runs `call` in the default group after a word from the test, and prints how
// it ended.
int InGroup(const std::function<void()>& call) {
  InitProcessGroup(g_options);
  Say("formed");
  AwaitLine();
  try {
    call();
    Say("done");
  } catch (const DistError& error) {
    SayError(error);
  }
  AwaitLine();
  DestroyProcessGroup();
  return 0;
}

int Collective() {
  return InGroup([] {
    std::vector<float> gradients(8);
    AllReduce(gradients, {.timeout = seconds(2)});
  });
}

// A collective that no rank can complete quickly.
int LongCollective() {
  return InGroup([] {
    std::vector<float> gradients(4 << 20);
    Work work = AllReduce(gradients, {.timeout = seconds(4), .async_op = true});
    Say("begun");
    work.Wait();
  });
}

template <typename T>
void Expect(const std::string& verb, const std::vector<T>& actual,
            const std::vector<T>& expected) {
  if (actual == expected) {
    Say(verb + " ok");
    return;
  }
  std::string text = verb + " wrong:";
  for (const T& value : actual) text += " " + std::to_string(value);
  Say(text);
}

// The data of rank `from` for rank `to`.
std::vector<float> Parcel(int from, int to, int count = 2) {
  std::vector<float> values(static_cast<size_t>(count));
  for (int i = 0; i < count; ++i) {
    values[i] = static_cast<float>(100 * from + 10 * to + i);
  }
  return values;
}

using Parcels = std::vector<std::vector<float>>;

std::vector<Tensor> MakeTensors(Parcels& parcels) {
  return {parcels.begin(), parcels.end()};
}

// Three ranks.
void GatherAndScatter(int rank) {
  std::vector<float> own = Parcel(rank, 0, rank + 1);
  Parcels parcels = {{0}, {0, 0}, {0, 0, 0}};
  AllGather(MakeTensors(parcels), own);
  Expect("all_gather", parcels[2], {200, 201, 202});
  own = Parcel(rank, 0);
  std::vector<float> all(6);
  AllGatherIntoTensor(Tensor(all.data(), {3, 2}), own);
  Expect("all_gather_into_tensor", all, {0, 1, 100, 101, 200, 201});
  parcels = Parcels(rank == 1 ? 3 : 0, {0, 0});
  Gather(own, MakeTensors(parcels), 1);
  Expect("gather", rank == 1 ? parcels[2] : Parcel(2, 0), {200, 201});
  parcels = {};
  if (rank == 2) parcels = {Parcel(2, 0), Parcel(2, 1), Parcel(2, 2)};
  Scatter(own, MakeTensors(parcels), 2);
  Expect("scatter", own, Parcel(2, rank));
}

// Three ranks.
void ReduceAndExchange(int rank) {
  std::vector<float> own = {static_cast<float>(rank + 1)};
  Reduce(own, 1, {.op = ReduceOp::kProduct});
  Expect("reduce", own, {rank == 1 ? 6.0F : static_cast<float>(rank + 1)});
  Parcels inputs = {Parcel(rank, 0), Parcel(rank, 1), Parcel(rank, 2)};
  std::vector<float> out(2);
  ReduceScatter(out, MakeTensors(inputs), {.op = ReduceOp::kMax});
  Expect("reduce_scatter", out, Parcel(2, rank));
  std::vector<float> ones(6, 1);
  ReduceScatterTensor(
      out, ones,
      {.op = ReduceOp::kPremulSum, .factor = static_cast<double>(rank)});
  Expect("reduce_scatter_tensor", out, {3, 3});
  Parcels outputs(3, {0, 0});
  AllToAll(MakeTensors(outputs), MakeTensors(inputs));
  Expect("all_to_all", outputs[1], Parcel(1, rank));
  // Rank r gives each other rank r elements, and itself none.
  std::vector<float> given(size_t{2} * rank, static_cast<float>(rank));
  std::vector<float> taken(3 - rank);
  AllToAllSingleOptions splits;
  for (int peer = 0; peer < 3; ++peer) {
    splits.input_split_sizes.push_back(peer == rank ? 0 : rank);
    splits.output_split_sizes.push_back(peer == rank ? 0 : peer);
  }
  AllToAllSingle(taken, given, splits);
  Expect("all_to_all_single", taken,
         rank == 0   ? std::vector<float>{1, 2, 2}
         : rank == 1 ? std::vector<float>{2, 2}
                     : std::vector<float>{1});
}

// Three ranks, around the ring.
void SendAndReceive(int rank) {
  const int next = (rank + 1) % 3;
  const int previous = (rank + 2) % 3;
  std::vector<float> own = Parcel(rank, next);
  std::vector<float> theirs(2);
  if (rank == 0) {
    Send(own, next, {.tag = 4});
    Expect<int>("recv", {Recv(theirs, std::nullopt, {.tag = 4})}, {previous});
  } else {
    Expect<int>("recv", {Recv(theirs, previous, {.tag = 4})}, {previous});
    Send(own, next, {.tag = 4});
  }
  Expect("send", theirs, Parcel(previous, rank));
  std::vector<float> large(100'000, static_cast<float>(rank));
  std::vector<float> received(100'000);
  std::vector<Work> works = BatchIsendIrecv(
      {{.tensor = large, .peer = next},
       {.op = P2POp::Kind::kIrecv, .tensor = received, .peer = previous}});
  for (Work& work : works) work.Wait();
  Expect("batch_isend_irecv", received,
         std::vector<float>(100'000, static_cast<float>(previous)));
  Expect<int>("source_rank", {works[0].SourceRank(), works[1].SourceRank()},
              {-1, previous});
  Expect<bool>("result",
               {works[0].Result().empty(),
                works[1].Result().at(0).data() == received.data(),
                works[1].Exception() == nullptr},
               {true, true, true});
}

void SendToOneself(int rank) {
  std::vector<float> own(2, static_cast<float>(rank));
  std::vector<std::vector<float>> received(3, std::vector<float>(2));
  Work sent = Isend(own, rank);
  const int from = Recv(received[0], rank);
  std::vector<Work> works = BatchIsendIrecv(
      {{.op = P2POp::Kind::kIrecv, .tensor = received[1], .peer = rank},
       {.tensor = own, .peer = rank}});
  works.push_back(Irecv(received[2]));
  works.push_back(Isend(own, rank));
  works.push_back(std::move(sent));
  for (Work& work : works) work.Wait();
  Expect<int>("isend to oneself",
              {from, works[0].SourceRank(), works[2].SourceRank(),
               received == std::vector<std::vector<float>>(3, own)},
              {rank, rank, rank, true});
}

int EveryVerb() {
  InitProcessGroup(g_options);
  const int rank = GetRank();
  GatherAndScatter(rank);
  ReduceAndExchange(rank);
  SendAndReceive(rank);
  SendToOneself(rank);
  DestroyProcessGroup();
  Say("bye");
  return 0;
}

// Two ranks: errors of an unfinished receive and of bad arguments.
int VerbErrors() {
  InitProcessGroup(g_options);
  std::vector<float> values(2);
  SayProblem([&] { Send(values, GetRank()); });
  SayProblem([&] { Recv(values, -1); });
  SayProblem([] { BatchIsendIrecv({}); });
  SayProblem([&] { Reduce(values, 0, {.op = ReduceOp::kBand}); });
  Work unfinished = Irecv(values, 1 - GetRank(), {.timeout = seconds(1)});
  SayProblem([&] { (void)unfinished.Result(); });
  Say(unfinished.Exception() == nullptr ? "no exception" : "exception");
  SayProblem([&] { unfinished.Wait(); });
  Say(unfinished.Exception() == nullptr ? "no exception" : "exception");
  DestroyProcessGroup();
  return 0;
}

int MonitoredBarriers() {
  InitProcessGroup(g_options);
  Say("formed");
  for (std::string line = AwaitLine();
       line == "barrier" || line == "long barrier"; line = AwaitLine()) {
    const seconds timeout(line == "long barrier" ? 60 : 2);
    try {
      MonitoredBarrier({.timeout = timeout, .wait_all_ranks = true});
      Say("passed");
    } catch (const DistError& error) {
      SayError(error);
    }
  }
  DestroyProcessGroup();
  return 0;
}

// A rank that ends with an error of its own, without notice to the group.
int Deserter() {
  InitProcessGroup(g_options);
  Say("formed");
  AwaitLine();
  std::exit(5);
}

int LeaveEarly() {
  InitProcessGroup(g_options);
  Say("formed");
  AwaitLine();
  DestroyProcessGroup();
  return 0;
}

// Forms a group of two or three, trains until a rank is gone, and forms it
// again with the rest. The first group waits for all three.
int FormElastic(milliseconds last_call) {
  g_options.min_world_size = 2;
  g_options.max_world_size = 3;
  for (;; last_call = milliseconds(100)) {
    g_options.last_call = last_call;
    InitProcessGroup(g_options);
    Say("rank " + std::to_string(GetRank()) + " of " +
        std::to_string(GetWorldSize()));
    try {
      for (std::vector<float> gradients(1 << 10);;) AllReduce(gradients);
    } catch (const DistError&) {
    }
    DestroyProcessGroup();
  }
}

int Elastic() { return FormElastic(seconds(60)); }

int ElasticNewcomer() { return FormElastic(milliseconds(100)); }

int Misuse() {
  const auto store = std::make_shared<HashStore>();
  const std::vector<std::pair<const char*, std::function<void()>>> cases = {
      {"rank before init", [] { GetRank(); }},
      {"destroy before init", [] { DestroyProcessGroup(); }},
      {"backend", [] { InitProcessGroup({.backend = "carrier-pigeon"}); }},
      {"timeout", [] { InitProcessGroup({.timeout = milliseconds(0)}); }},
      {"scheme", [] { InitProcessGroup({.init_method = "pigeon://x"}); }},
      {"store and method",
       [&] {
         InitProcessGroup({.init_method = "env://",
                           .world_size = 1,
                           .rank = 0,
                           .store = store});
       }},
      {"store without size",
       [&] { InitProcessGroup({.rank = 0, .store = store}); }},
      {"store without rank",
       [&] { InitProcessGroup({.world_size = 1, .store = store}); }},
      {"store",
       [&] {
         InitProcessGroup({.world_size = 1, .rank = 0, .store = store});
         Barrier();
         DestroyProcessGroup();
       }},
      {"init",
       [] {
         InitProcessGroup(
             {.init_method = "tcp://127.0.0.1:0?rank=0&world_size=1"});
       }},
      {"twice", [] { InitProcessGroup(g_options); }},
      {"root", [] { Broadcast(Tensor(), 7); }},
      {"negative timeout", [] { Barrier({.timeout = milliseconds(-1)}); }},
      {"good", [] { Barrier(); }},
      {"destroy", [] { DestroyProcessGroup(); }},
  };
  for (const auto& [name, run] : cases) {
    try {
      run();
      Say(std::string(name) + ": ok");
    } catch (const DistError& error) {
      Say(std::string(name) + ": " + GetClassName(error) + ": " + error.what());
    }
  }
  return 0;
}

int Main(int argc, char** argv) {
  const std::map<std::string, int (*)()> scenarios = {
      {"hello", &Hello},
      {"again", &Again},
      {"at_exit", &AtExit},
      {"groups_of_another_thread", &GroupsOfAnotherThread},
      {"again_in_store", &AgainInStore},
      {"leftovers", &Leftovers},
      {"train", &Train},
      {"train-without-destroy", &TrainWithoutDestroy},
      {"collective", &Collective},
      {"long_collective", &LongCollective},
      {"every_verb", &EveryVerb},
      {"verb_errors", &VerbErrors},
      {"monitored_barriers", &MonitoredBarriers},
      {"deserter", &Deserter},
      {"leave_early", &LeaveEarly},
      {"misuse", &Misuse},
      {"elastic", &Elastic},
      {"elastic_newcomer", &ElasticNewcomer},
  };
  if (argc > 2) g_options.init_method = argv[2];
  g_options.timeout = milliseconds(argc > 3 ? std::atoi(argv[3]) : 60'000);
  return RunScenario(scenarios, argc, argv);
}

}  // namespace
}  // namespace muster::testing

int main(int argc, char** argv) { return muster::testing::Main(argc, argv); }
