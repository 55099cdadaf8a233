// One rank of the tests of groups that shrink and form again after failures.
// Prints what it sees to standard output, one line each.
//
//   shrink_rank SCENARIO

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cinttypes>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "client/testing/say.h"
#include "muster/muster.hpp"

namespace muster::testing {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

using Group = std::shared_ptr<ProcessGroup>;
using Flags = ShrinkGroupOptions::Flags;

InitProcessGroupOptions Options() {
  const char* const method = std::getenv("INIT_METHOD");
  return {.init_method = method == nullptr ? "" : method,
          .timeout = seconds(60)};
}

const InitProcessGroupOptions kOptions = Options();

// Prints "NAME: rank 1 of 2, sum 3": the sum of the ranks in the group, from 1.
void SayGroup(const std::string& name, const Group& group) {
  std::vector<int> sum = {GetRank(group) + 1};
  AllReduce(sum, {.group = group});
  Say(name + ": rank " + std::to_string(GetRank(group)) + " of " +
      std::to_string(GetWorldSize(group)) + ", sum " + std::to_string(sum[0]));
}

// Four ranks; the test kills the last, and then the first.
int Survivors() {
  InitProcessGroup(kOptions);
  const Group upper = NewGroup({.ranks = {{1, 2, 3}}});
  SayGroup("world", nullptr);
  AwaitLine();
  SayProblem([] { Barrier(); });
  if (upper->rank() >= 0) {
    SayProblem([&] { Barrier({.group = upper}); });
    const Group smaller = ShrinkGroup({2}, upper);
    SayGroup(smaller->name(), smaller);
    SayProblem([&] { Barrier({.group = upper}); });
    // Shrinks a group again that was shrunk and has not failed.
    if (GetRank() == 2) SayGroup("alone", ShrinkGroup({0}, smaller));
  }
  const Group world = ShrinkGroup({3});
  if (world != WorldGroup()) Say("not the default group");
  SayGroup("world", nullptr);
  AwaitLine();
  SayProblem([] { Barrier(); });
  ShrinkGroup({0});
  SayGroup("world", NewGroup());
  DestroyProcessGroup();
  Say("bye");
  return 0;
}

// Three ranks; the test kills the first.
int Headless() {
  InitProcessGroup(kOptions);
  SayGroup("world", nullptr);
  AwaitLine();
  SayProblem([] { Barrier(); });
  ShrinkGroup({0});
  SayGroup("world", nullptr);
  DestroyProcessGroup();
  return 0;
}

// Three ranks: 1 is excluded although it is alive.
int Outcast() {
  InitProcessGroup(kOptions);
  const Group group = NewGroup();
  if (GetRank() == 1) {
    std::vector<float> values(2);
    SayProblem([&] { Recv(values, 0, {.group = group}); });
    SayProblem([&] { Recv(values, 0); });
    DestroyProcessGroup();
    return 0;
  }
  std::vector<float> values(2);
  Work unfinished = Irecv(values, 1, {.group = group});
  const Group smaller =
      ShrinkGroup({1}, group, {.shrink_flags = Flags::kAbort});
  SayProblem([&] { unfinished.Wait(); });
  SayGroup("group", smaller);
  // The end of the default group ends all others.
  AwaitLine();
  ShrinkGroup({1}, nullptr, {.shrink_flags = Flags::kAbort});
  SayGroup("world", nullptr);
  DestroyProcessGroup();
  return 0;
}

// Four ranks; the test kills the last two.
int TwoGone() {
  InitProcessGroup(kOptions);
  const Group group = NewGroup();
  SayGroup("group", group);
  AwaitLine();
  std::set<int> gone;
  Group smaller;
  const auto learn = [&](const std::function<void()>& call) {
    try {
      call();
    } catch (const DistError& error) {
      const size_t before = gone.size();
      for (const MemberInfo& member : error.culprits()) {
        gone.insert(member.rank);
      }
      if (gone.size() == before) throw;
    }
  };
  learn([&] { Barrier({.group = group}); });
  while (smaller == nullptr) {
    learn([&] { smaller = ShrinkGroup({gone.begin(), gone.end()}, group); });
  }
  SayGroup(smaller->name(), smaller);
  DestroyProcessGroup(smaller);
  return 0;
}

// A rank that comes to ShrinkGroup and then stops: it tells the others that it
// has come. With a place ("3 of 4") it joins the new group's rendezvous, but
// does not connect.
std::shared_ptr<Session> ComeTo(const std::string& excluded, int rank,
                                int size) {
  GetDefaultStore()->Set("muster/group/world/1/shrink/" + excluded + "/" +
                             std::to_string(GetRank()),
                         std::string());
  Say("met");
  if (size == 0) return nullptr;
  auto session =
      Session::Connect({.address = std::string(std::getenv("MASTER_ADDR")) +
                                   ":" + std::getenv("MASTER_PORT")});
  session->Join({.rank = rank, .world_size = size});
  Say("joined");
  return session;
}

// The test kills some of the ranks. Each line from the test lists the ranks
// that the next call excludes, until a call does not throw; excluded ranks end
// the group. "stop at 1" and "stop at 1 as 3 of 4": ComeTo.
int Together() {
  InitProcessGroup({.timeout = std::chrono::minutes(30)});
  SayGroup("world", nullptr);
  AwaitLine();
  SayProblem([] { Barrier(); });
  std::shared_ptr<Session> unfinished;
  for (;;) {
    const std::string line = AwaitLine();
    if (char at = 0; std::sscanf(line.c_str(), "stop at %c", &at) == 1) {
      int rank = -1;
      int size = 0;
      std::sscanf(line.c_str(), "stop at %*c as %d of %d", &rank, &size);
      unfinished = ComeTo({at}, rank, size);
      continue;
    }
    std::vector<int> excluded;
    for (const char digit : line) excluded.push_back(digit - '0');
    if (std::count(excluded.begin(), excluded.end(), GetRank()) > 0) break;
    try {
      SayGroup("world", ShrinkGroup(excluded));
      break;
    } catch (const DistError& error) {
      SayError(error);
    }
  }
  DestroyProcessGroup();
  Say("bye");
  return 0;
}

// Three ranks: the first makes calls alone that fail, and then one with the
// second, which has made none.
int Retry() {
  InitProcessGroup(kOptions);
  const Group group = NewGroup();
  SayGroup("group", group);
  if (GetRank() == 0) {
    const ShrinkGroupOptions brief = {.timeout = milliseconds(500)};
    SayProblem([&] { ShrinkGroup({1}, group, brief); });
    SayProblem([&] { ShrinkGroup({2}, group, brief); });
  }
  AwaitLine();
  if (GetRank() < 2) {
    const Group smaller = ShrinkGroup({2}, group);
    SayGroup(smaller->name(), smaller);
  }
  DestroyProcessGroup();
  return 0;
}

// Two ranks.
int Errors() {
  SayProblem([] { ShrinkGroup({0}); });
  InitProcessGroup(kOptions);
  SayProblem([] { ShrinkGroup({}); });
  SayProblem([] { ShrinkGroup({2}); });
  SayProblem([] { ShrinkGroup({-1}); });
  SayProblem([] { ShrinkGroup({1, 1}); });
  SayProblem([] { ShrinkGroup({0, 1}); });
  SayProblem([] { ShrinkGroup({GetRank()}); });
  SayProblem([] {
    ShrinkGroup({1 - GetRank()}, nullptr, {.timeout = milliseconds(-1)});
  });
  const Group one = NewGroup({.ranks = {{0}}});
  if (one->rank() < 0 && ShrinkGroup({0}, one)->rank() >= 0) Say("a member");
  SayGroup("world", nullptr);
  DestroyProcessGroup();
  return 0;
}

// The resources of a process.
struct Belongings {
  int threads = 0;
  int descriptors = 0;
  int megabytes = 0;
};

Belongings Look() {
  // gRPC ends its own threads a moment after their last user.
  for (int tries = 0; tries < 500 && Count("/proc/self/task") > 1; ++tries) {
    usleep(10'000);
  }
  Belongings here = {.threads = Count("/proc/self/task"),
                     .descriptors = Count("/proc/self/fd")};
  std::ifstream statm("/proc/self/statm");
  long pages = 0;
  statm >> pages >> pages;
  here.megabytes = static_cast<int>(pages * sysconf(_SC_PAGESIZE) >> 20);
  return here;
}

void SayGrowth(const Belongings& before) {
  const Belongings after = Look();
  Say(std::to_string(after.threads - before.threads) + " more threads, " +
      std::to_string(after.descriptors - before.descriptors) +
      " more descriptors");
  Say(std::to_string(after.megabytes - before.megabytes));
}

int Cycles() { return std::atoi(std::getenv("CYCLES")); }

// Forms the default group and `groups` others, used or not, and ends them.
void CreateAndDestroy(int groups) {
  InitProcessGroup(kOptions);
  for (int i = 0; i < groups; ++i) {
    const Group group = NewGroup();
    std::vector<float> values(1000, 1);
    if (i % 2 == 0) {
      Work work = AllReduce(values, {.group = group, .async_op = true});
      work.GetFuture().Then([](const auto&) {}).Wait();
    }
    DestroyProcessGroup(group);
  }
  DestroyProcessGroup();
}

// Makes CYCLES (an environment variable) groups, after a few: 50 for each
// default group.
int CreateCycles() {
  const int cycles = Cycles();
  CreateAndDestroy(10);
  CreateAndDestroy(10);
  const Belongings before = Look();
  for (int made = 0; made < cycles; made += 50) CreateAndDestroy(50);
  SayGrowth(before);
  return 0;
}

// A failure in the default group, of one rank after the other, and one in
// another group, which is shrunk; then both form again.
void FailAndReform(int cycle) {
  InitProcessGroup(kOptions);
  const int culprit = cycle % GetWorldSize();
  const Group group = NewGroup();
  // All ranks are here. A rank that is still in the barrier gets that error.
  const auto fail = [&](const Group& failing) {
    std::vector<float> values(1000, 1);
    try {
      Barrier({.group = failing});
      if (GetRank() == culprit) failing->Abort("on purpose");
      AllReduce(values, {.group = failing});
      Say("no error");
    } catch (const DistError&) {
    }
  };
  fail(group);
  if (GetRank() != culprit) {
    std::vector<float> values(1000, 1);
    AllReduce(values, {.group = ShrinkGroup({culprit}, group)});
  }
  fail(WorldGroup());
  DestroyProcessGroup();
}

// Repeats it as often as the environment variable CYCLES says, after a few.
int FailCycles() {
  const int cycles = Cycles();
  for (int i = 0; i < 3; ++i) FailAndReform(i);
  const Belongings before = Look();
  for (int i = 0; i < cycles; ++i) FailAndReform(i);
  SayGrowth(before);
  return 0;
}

// The memory of this process in KiB: its own, and its share of the memory that
// it has in common with `ranks` and that any of them has touched.
int64_t HeldKilobytes(int ranks) {
  int64_t held = 0;
  std::string line;
  for (std::ifstream smaps("/proc/self/smaps_rollup");
       std::getline(smaps, line);) {
    std::sscanf(line.c_str(), "Pss_Anon: %" SCNd64 " kB", &held);
  }
  const auto page = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
  for (std::ifstream maps("/proc/self/maps"); std::getline(maps, line);) {
    uintptr_t begin = 0;
    uintptr_t end = 0;
    if (line.find("/memfd:muster-") == std::string::npos ||
        std::sscanf(line.c_str(), "%" SCNxPTR "-%" SCNxPTR, &begin, &end) < 2) {
      continue;
    }
    std::vector<unsigned char> there((end - begin) / page);
    mincore(reinterpret_cast<void*>(begin), end - begin, there.data());
    const auto pages =
        std::count_if(there.begin(), there.end(),
                      [](unsigned char one) { return (one & 1) != 0; });
    held += static_cast<int64_t>(pages * page / 1024) / ranks;
  }
  return held;
}

// Makes CYCLES groups at once that run only small collectives, and prints the
// cost of each.
int ManyGroups() {
  const int count = Cycles();
  InitProcessGroup(kOptions);
  std::vector<Group> groups;
  const auto make = [&](int more) {
    for (int i = 0; i < more; ++i) {
      const Group group = groups.emplace_back(NewGroup());
      std::vector<float> values(1, 1);
      AllReduce(values, {.group = group});
    }
    Barrier();
  };
  // Allocates everything that a process has only once.
  make(8);
  const int threads = Count("/proc/self/task");
  const int descriptors = Count("/proc/self/fd");
  const int64_t kilobytes = HeldKilobytes(GetWorldSize());
  make(count);
  Say(std::to_string(Count("/proc/self/task") - threads));
  Say(std::to_string(Count("/proc/self/fd") - descriptors));
  Say(std::to_string(HeldKilobytes(GetWorldSize()) - kilobytes));
  Barrier();
  DestroyProcessGroup();
  return 0;
}

// Makes CYCLES groups that are dropped and not destroyed, some before their
// collectives end.
int DroppedGroups() {
  const int count = Cycles();
  InitProcessGroup(kOptions);
  const auto make = [&](int more) {
    for (int i = 0; i < more; ++i) {
      std::vector<int> sum = {GetRank() + 1};
      Work work = AllReduce(sum, {.group = NewGroup(), .async_op = true});
      work.Wait();
      if (sum[0] != 3) Say("wrong");
    }
    // Ends the groups before it.
    DestroyProcessGroup(NewGroup());
  };
  make(2);
  const int threads = Count("/proc/self/task");
  const int descriptors = Count("/proc/self/fd");
  make(count);
  Say(std::to_string(Count("/proc/self/task") - threads));
  Say(std::to_string(Count("/proc/self/fd") - descriptors));
  Barrier();
  DestroyProcessGroup();
  return 0;
}

int Main(int argc, char** argv) {
  const std::map<std::string, int (*)()> scenarios = {
      {"survivors", &Survivors},
      {"outcast", &Outcast},
      {"headless", &Headless},
      {"errors", &Errors},
      {"two_gone", &TwoGone},
      {"retry", &Retry},
      {"together", &Together},
      {"create_cycles", &CreateCycles},
      {"fail_cycles", &FailCycles},
      {"many_groups", &ManyGroups},
      {"dropped_groups", &DroppedGroups},
  };
  return RunScenario(scenarios, argc, argv);
}

}  // namespace
}  // namespace muster::testing

int main(int argc, char** argv) { return muster::testing::Main(argc, argv); }
