// One rank of the tests of process groups other than the default one. Prints
// what it sees to standard output, one line each.
//
//   group_rank SCENARIO

#include <dlfcn.h>
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstddef>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "client/groups/group_state.h"
#include "client/testing/say.h"
#include "muster/muster.hpp"

namespace {

std::atomic<bool> g_dies_when_it_connects{false};

}  // namespace

// The program's own function replaces the system's.
extern "C" int connect(int descriptor, const sockaddr* address,
                       socklen_t bytes) {
  if (g_dies_when_it_connects) kill(getpid(), SIGKILL);
  static auto* const systems_own =
      reinterpret_cast<decltype(&connect)>(dlsym(RTLD_NEXT, "connect"));
  return systems_own(descriptor, address, bytes);
}

namespace muster::testing {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

using Flags = ShrinkGroupOptions::Flags;
using Group = std::shared_ptr<ProcessGroup>;

const InitProcessGroupOptions kOptions = {.timeout = seconds(60)};

std::string Text(const std::vector<int>& numbers) {
  std::string text;
  for (const int number : numbers) text += " " + std::to_string(number);
  return text;
}

// Prints "NAME: rank 1 of 2: 1 3".
void SayGroup(const std::string& name, const Group& group) {
  Say(name + ": rank " + std::to_string(GetRank(group)) + " of " +
      std::to_string(GetWorldSize(group)) + ":" + Text(group->ranks()));
}

// Returns the sum of 10 to the power of the global rank, over the group.
int Sum(const Group& group) {
  int mine = 1;
  for (int i = 0; i < GetRank(); ++i) mine *= 10;
  std::vector<int> sum = {mine};
  AllReduce(sum, {.group = group});
  return sum[0];
}

void SaySum(const std::string& name, const Group& group) {
  Say(name + " sum " + std::to_string(Sum(group)));
}

// Verbs with rank arguments; the group has global ranks 1 and 3.
void GlobalRanks(const Group& group) {
  std::vector<int> value = {GetRank()};
  Broadcast(value, 3, {.group = group});
  Say("from" + Text(value));
  if (GetRank() == 1) {
    Send(value, 3, {.group = group});
  } else if (GetRank() == 3) {
    Say("received from " +
        std::to_string(Recv(value, std::nullopt, {.group = group})));
  }
  if (group->rank() >= 0) {
    Say("group rank " + std::to_string(GetGroupRank(group, 3)) +
        ", global rank " + std::to_string(GetGlobalRank(group, 0)));
  }
  MonitoredBarrier({.group = group, .timeout = seconds(20)});
}

// Four ranks.
int Overlapping() {
  InitProcessGroup(kOptions);
  const Group low = NewGroup({.ranks = {{0, 1}}, .timeout = seconds(7)});
  const Group odd =
      NewGroup({.ranks = {{3, 1}}, .description = "odd ones", .name = "odd"});
  const Group all = NewGroup();
  SayGroup("low", low);
  SayGroup("odd", odd);
  SayGroup("all", all);
  Say("description \"" + odd->description() + "\"");
  Say("timeouts" +
      Text({static_cast<int>(all->timeout().count()),
            low->rank() < 0 ? 0 : static_cast<int>(low->timeout().count())}));
  SaySum("low", low);
  SaySum("odd", odd);
  SaySum("all", all);
  GlobalRanks(odd);
  DestroyProcessGroup(low);
  if (low->rank() >= 0) SayProblem([&] { Barrier({.group = low}); });
  SaySum("odd", odd);
  SaySum("world", nullptr);
  DestroyProcessGroup();
  InitProcessGroup(kOptions);
  SaySum("again", NewGroup({.ranks = {{0, 3}}}));
  DestroyProcessGroup();
  Say("bye");
  return 0;
}

// Four ranks: groups of one name, whose splits and smaller groups have
// different names each time.
int NamesAgain() {
  InitProcessGroup(kOptions);
  const Flags abort = Flags::kAbort;
  for (const std::vector<int>& ranks :
       {std::vector<int>{0, 1, 2}, {0, 2, 3}, {0, 1, 2}}) {
    const Group group = NewGroup({.ranks = ranks, .name = "again"});
    if (group->rank() >= 0) {
      const Group part = SplitGroup(group, {{0, 1}, {2}});
      SaySum("part", part);
      DestroyProcessGroup(part);
    }
    if (group->rank() == 0 || group->rank() == 1) {
      const Group two = ShrinkGroup({2}, group, {.shrink_flags = abort});
      SaySum("two", two);
      DestroyProcessGroup(two);
    } else {
      try {
        DestroyProcessGroup(group);
      } catch (const DistError&) {
        // The group was shrunk.
      }
    }
    Barrier();
  }
  DestroyProcessGroup();
  Say("bye");
  return 0;
}

// Four ranks: the other ways to make groups.
int Makers() {
  InitProcessGroup(kOptions);
  const Subgroups pairs = NewSubgroups(2);
  SayGroup("pair", pairs.current);
  SaySum("pair", pairs.current);
  const Subgroups some = NewSubgroupsByEnumeration({{2, 0}, {1}});
  SayGroup("some", some.current);
  SaySum("some", some.current);
  Group local;
  if (GetRank() >= 2) {
    local = NewGroup({.ranks = {{2, 3}}, .use_local_synchronization = true});
    SaySum("local", local);
  }
  const Group trio = NewGroup({.ranks = {{1, 2, 3}}, .cpu_transport = "gloo"});
  if (trio->rank() >= 0) {
    // Ranks in the trio, that is global ranks 3 and 1; 2 is in no part.
    const Group split = SplitGroup(trio, {{2, 0}});
    SayGroup("split", split);
    if (split->rank() >= 0) {
      Say("by " + split->state()->options().cpu_transport);
    }
    SaySum("split", split);
  }
  DestroyProcessGroup();
  Say("bye");
  return 0;
}

// Two ranks.
int Errors() {
  SayProblem([] { NewGroup(); });
  InitProcessGroup(kOptions);
  SayProblem([] { NewGroup({.ranks = {{0, 1, 2}}}); });
  SayProblem([] { NewGroup({.ranks = {{0, 2}}}); });
  SayProblem([] { NewGroup({.ranks = {{-1}}}); });
  SayProblem([] { NewGroup({.ranks = {{1, 1}}}); });
  SayProblem([] { NewGroup({.ranks = std::vector<int>()}); });
  SayProblem([] { NewGroup({.timeout = milliseconds(-1)}); });
  SayProblem([] { NewGroup({.backend = "carrier-pigeon"}); });
  SayProblem([] { NewGroup({.cpu_transport = "carrier-pigeon"}); });
  const Group one = NewGroup({.ranks = {{GetRank()}},
                              .use_local_synchronization = true,
                              .name = "one" + std::to_string(GetRank())});
  SayProblem([&] {
    NewGroup({.ranks = {{GetRank()}},
              .use_local_synchronization = true,
              .name = one->name()});
  });
  SayProblem([&] { Broadcast(Tensor(), 1 - GetRank(), {.group = one}); });
  SayProblem([&] { GetGroupRank(one, 1 - GetRank()); });
  SayProblem([&] { GetGlobalRank(one, 1); });
  SayProblem([] { NewSubgroups(0); });
  SayProblem([] { NewSubgroups(3); });
  SayProblem([] { NewSubgroupsByEnumeration({{0}, {1, 0}}); });
  SayProblem([] { SplitGroup(nullptr, {}); });
  SayProblem([] { SplitGroup(nullptr, {{0, 2}}); });
  SayProblem([] { SplitGroup(WorldGroup(), {{0}, {0}}); });
  // The first call starts as little as the second.
  std::vector<float> value = {1};
  SayProblem([&] {
    BatchIsendIrecv({{.tensor = value, .peer = 1 - GetRank()},
                     {.op = P2POp::Kind::kIrecv, .tensor = value, .peer = 99}});
  });
  SayProblem([&] {
    BatchIsendIrecv({{.tensor = value, .peer = 1 - GetRank()},
                     {.op = P2POp::Kind::kIrecv,
                      .tensor = value,
                      .peer = 1 - GetRank(),
                      .tag = -1}});
  });
  DestroyProcessGroup(one);
  SayProblem([&] { DestroyProcessGroup(one); });
  SayProblem([&] { GetProcessGroupRanks(one); });
  // The coordinator accepts only UTF-8.
  DestroyProcessGroup(NewGroup({.ranks = {{GetRank()}},
                                .use_local_synchronization = true,
                                .description = "\xff",
                                .name = "\xff" + std::to_string(GetRank())}));
  SaySum("world", nullptr);
  // The first list is valid, but no group is made of it.
  const Group before = NewGroup();
  SayProblem([] { NewSubgroupsByEnumeration({{0, 1}, {7}}); });
  const Group after = NewGroup();
  Say("number " + before->name() + " to " + after->name());
  DestroyProcessGroup();
  return 0;
}

void Obey(const std::string& word, const std::map<std::string, Group>& groups) {
  const size_t space = word.find(' ');
  const std::string verb = word.substr(0, space);
  if (space == std::string::npos) return SaySum(word, groups.at(word));
  const std::string name = word.substr(space + 1);
  if (verb == "new") {
    const Group group = NewGroup({.ranks = {{name[0] - '0', name[1] - '0'}},
                                  .use_local_synchronization = true});
    return SaySum(name, group);
  }
  if (verb == "destroy") return DestroyProcessGroup(groups.at(name));
  MonitoredBarrier({.group = groups.at(name), .timeout = seconds(20)});
}

// Four ranks, one of which the test kills. Each word from the test is a group
// to try, or what to do with it.
int Mourners() {
  InitProcessGroup(kOptions);
  std::map<std::string, Group> groups = {{"world", WorldGroup()}};
  for (const std::vector<int>& ranks :
       std::vector<std::vector<int>>{{0, 1}, {1, 2}, {2, 3}}) {
    const Group group = NewGroup({.ranks = ranks});
    groups[std::to_string(ranks[0]) + std::to_string(ranks[1])] = group;
    Sum(group);
  }
  Say("formed");
  for (std::string word = AwaitLine(); word != "end"; word = AwaitLine()) {
    SayProblem([&] { Obey(word, groups); });
  }
  try {
    DestroyProcessGroup();
  } catch (const DistError& error) {
    SayError(error);
  }
  Say("bye");
  return 0;
}

// Three ranks: 2 is late for a collective of ranks 1 and 2.
int Late() {
  InitProcessGroup(kOptions);
  const Group pair = NewGroup({.ranks = {{1, 2}}, .timeout = seconds(1)});
  if (GetRank() == 1) SayProblem([&] { Sum(pair); });
  if (GetRank() == 2) {
    AwaitLine();
    SayProblem([&] { Sum(pair); });
  }
  // No failure was reported, so everything else goes on.
  SaySum("world", nullptr);
  SaySum("others", NewGroup({.ranks = {{0, 2}}}));
  DestroyProcessGroup();
  Say("bye");
  return 0;
}

// Four ranks: failures in a group of three, each of whose ranks sees a
// different symptom.
int TellDisagreement() {
  InitProcessGroup(kOptions);
  const bool member = GetRank() > 0;
  const auto trio = [](const std::string& name) {
    return NewGroup(
        {.ranks = {{1, 2, 3}}, .timeout = seconds(1), .name = name});
  };
  Group group = trio("mismatch");
  if (member) {
    std::vector<int> mine(static_cast<size_t>(GetRank()));
    SayProblem([&] { AllReduce(mine, {.group = group}); });
  }
  group = trio("timeout");
  if (GetRank() == 3) AwaitLine();
  if (member) SayProblem([&] { Sum(group); });
  if (GetRank() == 1) SayProblem([&] { trio("lonely"); });
  MonitoredBarrier();
  group = trio("barrier");
  if (GetRank() == 1 || GetRank() == 2) {
    SayProblem([&] {
      MonitoredBarrier({.group = group,
                        .timeout = seconds(10),
                        .wait_all_ranks = GetRank() == 1});
    });
    Say("met");
  }
  MonitoredBarrier();
  DestroyProcessGroup(group);
  group = trio("barrier");
  MonitoredBarrier({.group = group, .timeout = seconds(20)});
  SaySum("again", group);
  DestroyProcessGroup();
  Say("bye");
  return 0;
}

// Four ranks: busy ranks are not culprits, except one.
int Bystanders() {
  InitProcessGroup(kOptions);
  std::vector<int> value = {1};
  // Rank 3 does not come; rank 1 comes and then does something else.
  Group group = NewGroup({.timeout = seconds(1)});
  if (GetRank() == 1) {
    Work work = AllReduce(value, {.group = group, .async_op = true});
    AwaitLine();
    SayProblem([&] { work.Wait(); });
  } else {
    if (GetRank() == 3) AwaitLine();
    SayProblem([&] { Sum(group); });
  }
  MonitoredBarrier();
  // A receive waits only for its peer; rank 2 waits in a collective.
  group = NewGroup();
  if (GetRank() == 0) {
    SayProblem([&] {
      Recv(value, 1, {.group = group, .timeout = milliseconds(200)});
    });
  } else {
    if (GetRank() != 2) AwaitLine();
    SayProblem([&] { Sum(group); });
  }
  MonitoredBarrier();
  // Rank 1 comes when the others have just given up.
  group = NewGroup({.timeout = seconds(1)});
  if (GetRank() == 0) {
    Work work = AllReduce(value, {.group = group, .async_op = true});
    while (group->status().ok()) std::this_thread::yield();
    Send(value, 1);
    SayProblem([&] { work.Wait(); });
  } else {
    std::vector<int> go = {0};
    if (GetRank() == 1) Recv(go, 0);
    SayProblem([&] { Sum(group); });
  }
  MonitoredBarrier();
  // Two ranks abort it at the same time; one of them succeeds.
  group = NewGroup();
  Barrier();
  if (GetRank() < 2) group->Abort("enough");
  SayProblem([&] { Sum(group); });
  SaySum("world", nullptr);
  DestroyProcessGroup();
  Say("bye");
  return 0;
}

// Four ranks: rank 2 runs another collective than the others, then two do.
int Odd() {
  InitProcessGroup(kOptions);
  std::vector<int> value(GetRank() == 2 ? 4 : 64);
  SayProblem([&] { AllReduce(value, {.group = NewGroup()}); });
  const Group group = NewGroup();
  SayProblem([&] {
    AllReduce(value, {.op = GetRank() == 2 ? ReduceOp::kMax : ReduceOp::kSum,
                      .group = group,
                      .async_op = true})
        .Wait();
  });
  std::vector<int> other(GetRank() < 2 ? 4 : 64);
  SayProblem([&] { AllReduce(other, {.group = NewGroup()}); });
  // The same on the default group.
  SayProblem([&] { AllReduce(value); });
  Say("bye");
  return 0;
}

// Two ranks that use their groups in different orders.
int Crossed() {
  InitProcessGroup(kOptions);
  const Group a = NewGroup({.timeout = seconds(2), .name = "a"});
  const Group b = NewGroup({.timeout = seconds(2), .name = "b"});
  SayProblem([&] { Sum(GetRank() == 0 ? a : b); });
  MonitoredBarrier();
  DestroyProcessGroup();
  Say("bye");
  return 0;
}

// Two ranks: 1 does not come, and 0 does not wait for the verdict.
int Impatient() {
  InitProcessGroup(kOptions);
  std::vector<int> value = {1};
  const Group group = NewGroup({.timeout = milliseconds(300)});
  if (GetRank() == 0) {
    Work work = AllReduce(value, {.group = group, .async_op = true});
    while (group->status().ok()) std::this_thread::yield();
    Say(work.WaitFor(milliseconds(1)) || work.IsCompleted() ||
                work.Exception() != nullptr
            ? "complete"
            : "not yet");
    SayProblem([&] {
      while (!work.WaitFor(milliseconds(50))) {
      }
    });
    Say(work.IsCompleted() && work.Exception() != nullptr ? "complete"
                                                          : "not yet");
  }
  MonitoredBarrier();
  if (GetRank() == 0) {
    DestroyProcessGroup();
  } else {
    // The coordinator has told it, but no call.
    SayProblem([] { DestroyProcessGroup(); });
  }
  Say("bye");
  return 0;
}

// Three ranks: calls that fail on one rank only.
int Alone() {
  InitProcessGroup(kOptions);
  if (GetRank() == 1) {
    SayProblem([] { NewGroup({.backend = "carrier-pigeon"}); });
    SayProblem([] { SplitGroup(WorldGroup(), {{0}, {0}}); });
  } else {
    // Ranks of NewGroup would wait for this rank; here none does.
    NewGroup({.ranks = {{0}}});
    SplitGroup(WorldGroup(), {{0}, {2}});
  }
  SaySum("next", NewGroup());
  const auto local = [](milliseconds timeout) {
    return NewGroup({.ranks = {{0, 2}},
                     .timeout = timeout,
                     .use_local_synchronization = true});
  };
  if (GetRank() == 0) {
    SayProblem([&] { local(milliseconds(200)); });
    SayProblem(
        [] { NewGroup({.timeout = milliseconds(1200), .name = "again"}); });
    std::vector<int> go = {0};
    Send(go, 1);
    Send(go, 2);
  } else {
    std::vector<int> go = {0};
    Recv(go, 0);
  }
  SaySum("again", NewGroup({.name = "again"}));
  if (GetRank() != 1) {
    SaySum("local", local(seconds(20)));
    // Two groups at once, in which any order works.
    Group first;
    Group second;
    std::thread other([&] { first = local(seconds(20)); });
    second = local(seconds(20));
    other.join();
    const bool in_order = first->name() < second->name();
    SaySum("one", in_order ? first : second);
    SaySum("two", in_order ? second : first);
  }
  DestroyProcessGroup();
  Say("bye");
  return 0;
}

// Four ranks, one of which passes other arguments to each call.
int Disagree() {
  InitProcessGroup({.timeout = std::chrono::minutes(30)});
  const auto either = [](int odd, const NewGroupOptions& odd_options,
                         const NewGroupOptions& options) {
    SayProblem([&] { NewGroup(GetRank() == odd ? odd_options : options); });
    SaySum("next", nullptr);
  };
  either(1, {.ranks = {{0, 1, 2}}}, {});
  either(1, {.ranks = {{0, 1}}}, {.ranks = {{1, 3}}});
  either(2, {.name = "b"}, {.name = "a"});
  either(0, {.backend = "carrier-pigeon"}, {});
  SayProblem([] {
    GetRank() == 3 ? InitDeviceMesh("cpu", {4, 1})
                   : InitDeviceMesh("cpu", {2, 2}, {.dim_names = {"a", "b"}});
  });
  SayProblem([] {
    InitDeviceMesh("cpu", {2, 2},
                   GetRank() == 3
                       ? DeviceMeshOptions{.dim_names = {"a", "b, c"}}
                       : DeviceMeshOptions{.dim_names = {"a, b", "c"}});
  });
  // The odd one alone comes to the end of what it means.
  either(3, {.ranks = {{3}}, .name = "d"}, {.name = "c"});
  using Parts = std::vector<std::vector<int>>;
  const auto split = [](int odd, const Parts& odd_parts, const Parts& parts) {
    SayProblem(
        [&] { SplitGroup(nullptr, GetRank() == odd ? odd_parts : parts); });
    SaySum("next", nullptr);
  };
  // The others complete their own call.
  split(1, {{0}, {1, 3}, {2}}, {{0}, {1}, {2, 3}});
  split(2, {{0, 1}}, {{0, 1, 2}});
  split(3, {{0, 1}, {2, 2}}, {{0, 1}, {2, 3}});
  // Names of refused calls are free.
  const Group group = NewGroup({.name = "a"});
  if (GetRank() < 3) {
    const std::vector<int> excluded = {GetRank() == 0 ? 1 : 3};
    SayProblem([&] { ShrinkGroup(excluded, group); });
    SayProblem([&] { ShrinkGroup(excluded); });
    // The rank that is told first must not meet the others while they wait.
    AwaitLine();
    const Flags abort = Flags::kAbort;
    SaySum("shrunk", ShrinkGroup({3}, nullptr, {.shrink_flags = abort}));
  } else {
    // Excluded although it is alive.
    AwaitLine();
  }
  try {
    DestroyProcessGroup();
  } catch (const DistError&) {
    // The reason for the exclusion.
  }
  Say("bye");
  return 0;
}

// Three ranks: makes and ends groups, used or not, and counts leftovers.
int Many() {
  InitProcessGroup(kOptions);
  const auto once = [](bool used) {
    const Group group = NewGroup();
    if (used && Sum(group) != 111) Say("wrong");
    DestroyProcessGroup(group);
  };
  once(/*used=*/true);
  Barrier();
  const int threads = Count("/proc/self/task");
  const int descriptors = Count("/proc/self/fd");
  for (int i = 0; i < 50; ++i) once(/*used=*/i % 2 == 0);
  Barrier();
  const int more_threads = Count("/proc/self/task") - threads;
  const int more_descriptors = Count("/proc/self/fd") - descriptors;
  // gRPC's own number of threads varies.
  Say(more_threads < 10 && more_descriptors < 10
          ? "tidy"
          : std::to_string(more_threads) + " more threads, " +
                std::to_string(more_descriptors) + " more descriptors");
  AwaitLine();
  SayProblem([] { NewSubgroups(2); });
  DestroyProcessGroup();
  return 0;
}

// Prints "at 4711": milliseconds of a clock that all processes share.
void SayTime() {
  Say("at " +
      std::to_string(std::chrono::duration_cast<milliseconds>(
                         std::chrono::steady_clock::now().time_since_epoch())
                         .count()));
}

// Rank 1 aborts the group, in which 0 waits for 1, and 2 for 0.
void AbortWhileTheOthersWait(const Group& group, const std::string& reason) {
  std::vector<int> value = {0};
  if (GetRank() == 1) {
    Recv(value, 0, {.group = group});
    Recv(value, 2, {.group = group});
    SayTime();
    group->Abort(reason);
    SayProblem([&] { Sum(group); });
    return;
  }
  Send(value, 1, {.group = group});
  SayProblem([&] { Recv(value, GetRank() == 0 ? 1 : 0, {.group = group}); });
  SayTime();
}

// Four ranks: 1 aborts a group without 3, and then the default one.
int Abort() {
  // The timeout is long, because no other verdict may come.
  InitProcessGroup({.timeout = seconds(60), .verdict_timeout = seconds(60)});
  const Group some = NewGroup({.ranks = {{0, 1, 2}}});
  if (GetRank() < 3) AbortWhileTheOthersWait(some, "no more");
  some->Abort("once is enough");
  SaySum("world", nullptr);
  if (GetRank() < 3) AbortWhileTheOthersWait(WorldGroup(), "out of memory");
  if (GetRank() == 3) SayProblem([] { Sum(nullptr); });
  SayProblem([] { DestroyProcessGroup(); });
  return 0;
}

// Three ranks: 1 dies after it has published its address and before it connects
// to 0, which waits for that.
int Dying() {
  InitProcessGroup(kOptions);
  Barrier();
  g_dies_when_it_connects = GetRank() == 1;
  SayProblem([] { NewGroup({.timeout = seconds(60)}); });
  return 0;
}

// Four ranks, without a default group at first.
int Mesh() {
  const DeviceMesh mesh =
      InitDeviceMesh("cpu", {2, 2}, {.dim_names = {"dp", "tp"}});
  SaySum("dp", mesh.GetGroup("dp"));
  SaySum("tp", mesh.GetGroup("tp"));
  SaySum("dp_tp", mesh.Flatten().GetGroup());
  Say("at" +
      Text({static_cast<int>(mesh.GetCoordinate()->at(0)),
            static_cast<int>(mesh.GetCoordinate()->at(1))}) +
      ", tp rank " + std::to_string(mesh.GetLocalRank("tp")));
  // A mesh of some ranks only.
  const DeviceMesh odd = DeviceMesh::FromArray(DefaultMeshWorld(), "cpu", {2},
                                               {1, 3}, {.dim_names = {"odd"}});
  SaySum("odd", odd.GetGroup());
  SaySum("all", nullptr);
  DestroyProcessGroup();
  Say("bye");
  return 0;
}

int Main(int argc, char** argv) {
  const std::map<std::string, int (*)()> scenarios = {
      {"overlapping", &Overlapping},
      {"makers", &Makers},
      {"errors", &Errors},
      {"mourners", &Mourners},
      {"late", &Late},
      {"names again", &NamesAgain},
      {"quarrel", &TellDisagreement},
      {"bystanders", &Bystanders},
      {"alone", &Alone},
      {"disagree", &Disagree},
      {"crossed", &Crossed},
      {"odd", &Odd},
      {"impatient", &Impatient},
      {"many", &Many},
      {"mesh", &Mesh},
      {"abort", &Abort},
      {"dying", &Dying},
  };
  return RunScenario(scenarios, argc, argv);
}

}  // namespace
}  // namespace muster::testing

int main(int argc, char** argv) { return muster::testing::Main(argc, argv); }
