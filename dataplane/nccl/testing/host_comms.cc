#include "dataplane/nccl/testing/host_comms.h"

#include <algorithm>
#include <cstring>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "dataplane/cuda/testing/host_cuda.h"
#include "dataplane/nccl/testing/host_config.h"
#include "dataplane/nccl/testing/host_nccl.h"

namespace muster::dataplane::nccl::testing {
namespace {

struct World {
  Mutex mutex;
  std::map<Comm, std::shared_ptr<HostComm>> comms MUSTER_GUARDED_BY(mutex);
  // By unique id: the ranks that have come to it.
  std::map<std::string, std::shared_ptr<Team>> teams MUSTER_GUARDED_BY(mutex);
  Config last_config MUSTER_GUARDED_BY(mutex);
  int aborts MUSTER_GUARDED_BY(mutex) = 0;
  std::function<void()> free_hook MUSTER_GUARDED_BY(mutex);
  std::function<void()> connect_hook MUSTER_GUARDED_BY(mutex);
  Made made MUSTER_GUARDED_BY(mutex);
  uint64_t last_id MUSTER_GUARDED_BY(mutex) = 0;
  std::vector<std::string> misuses MUSTER_GUARDED_BY(mutex);
};

World& GlobalWorld() {
  static World* const world = new World;
  return *world;
}

// CommAborts of this thread in an NCCL group that has not ended.
thread_local int t_aborts = 0;

// Memory from MemAlloc and its windows.
struct Memories {
  Mutex mutex;
  struct Piece {
    void* raw = nullptr;  // in device memory
    size_t bytes = 0;
  };
  std::map<void*, Piece> pieces MUSTER_GUARDED_BY(mutex);
  std::map<Window, void*> windows MUSTER_GUARDED_BY(mutex);
  uintptr_t last_window MUSTER_GUARDED_BY(mutex) = 0;
};

Memories& TheMemories() {
  static Memories* const memories = new Memories;
  return *memories;
}

Comm Add(std::shared_ptr<HostComm> comm) {
  World& world = GlobalWorld();
  MutexLock lock(world.mutex);
  Comm handle = comm.get();
  world.comms[handle] = std::move(comm);
  return handle;
}

// The place, once all ranks of the team have come.
std::optional<TeamRank> Met(const TeamRank& place) {
  if (!place.team->HasMet(0)) return std::nullopt;
  return place;
}

// Makes a communicator that finds its place with `settle`.
std::shared_ptr<HostComm> NewComm(
    std::function<std::optional<TeamRank>()> settle, const Config* config) {
  auto comm = std::make_shared<HostComm>();
  MutexLock lock(comm->mutex);
  comm->settle = std::move(settle);
  if (config == nullptr) return comm;
  comm->nonblocking = config->blocking == 0;
  comm->name = config->comm_name;
  if (comm->name != nullptr) comm->name_then = comm->name;
  return comm;
}

// Records the new communicator's configuration; a misuse if NCCL refuses it.
bool Take(const Config* config, absl::string_view what) {
  if (config == nullptr) return true;
  const std::string wrong = WhatIsWrongWith(*config);
  if (!wrong.empty()) {
    Misuse(kInvalidArgument, absl::StrCat(what, " with ", wrong));
    return false;
  }
  World& world = GlobalWorld();
  MutexLock lock(world.mutex);
  world.last_config = *config;
  return true;
}

// Makes a communicator from `parent` (none if `comm` is null) once all ranks of
// `team` have come to `step`. Waits for that or, if the parent does not block,
// leaves it in progress.
Result Divide(const std::shared_ptr<HostComm>& parent,
              const std::shared_ptr<Team>& team, uint64_t step,
              const std::shared_ptr<HostComm>& comm, Comm* made) {
  *made = nullptr;
  const auto give_out = [comm, made] {
    if (comm != nullptr) *made = Add(comm);
  };
  if (parent->nonblocking) {
    MutexLock lock(parent->mutex);
    parent->dividing = [team, step, give_out] {
      if (!team->HasMet(step)) return false;
      give_out();
      return true;
    };
    return kInProgress;
  }
  const Calling calling(*parent);
  team->Await(step, [parent] { return parent->IsAborted(); });
  give_out();
  return kSuccess;
}

// The ranks of the parent with one color, ordered by their keys.
std::vector<int> FindMembers(const std::vector<Call>& calls, int color) {
  std::vector<int> members;
  for (size_t rank = 0; rank < calls.size(); ++rank) {
    if (calls[rank].color == color) members.push_back(static_cast<int>(rank));
  }
  std::stable_sort(members.begin(), members.end(), [&](int a, int b) {
    return calls[static_cast<size_t>(a)].key <
           calls[static_cast<size_t>(b)].key;
  });
  return members;
}

// Called for a communicator that is being removed.
void ForgetWindows(HostComm& comm) MUSTER_EXCLUSIVE_LOCKS_REQUIRED(comm.mutex) {
  Memories& memories = TheMemories();
  MutexLock lock(memories.mutex);
  for (const Window window : comm.windows) memories.windows.erase(window);
  comm.windows.clear();
}

// `what` is the name of the call.
Result Remove(Comm handle, absl::string_view what, bool abort) {
  std::shared_ptr<HostComm> comm;
  {
    World& world = GlobalWorld();
    MutexLock lock(world.mutex);
    const auto found = world.comms.find(handle);
    if (found != world.comms.end()) {
      comm = std::move(found->second);
      world.comms.erase(found);
    }
  }
  if (comm == nullptr) {
    return Misuse(kInvalidArgument, absl::StrCat(what, " of no communicator"));
  }
  if (comm->calls > 0) {
    Misuse(kInvalidUsage, absl::StrCat(what, " while a call is under way"));
  }
  std::shared_ptr<Team> team;
  bool keeps_ops = false;
  bool must_abort = false;
  bool keeps_windows = false;
  bool lost_name = false;
  // These functions own the communicator that owns them.
  std::vector<std::function<void()>> never;
  {
    MutexLock lock(comm->mutex);
    never.swap(comm->in_progress);
    if (abort) comm->aborted = true;
    team = comm->team;
    keeps_ops = !comm->factors.empty();
    must_abort = comm->shrunk_by_abort;
    keeps_windows = !comm->windows.empty();
    ForgetWindows(*comm);
    lost_name = comm->name != nullptr && comm->name_then != comm->name;
  }
  if (team != nullptr) team->Wake();
  if (keeps_ops && !abort) {
    return Misuse(kInvalidUsage, "CommDestroy before RedOpDestroy");
  }
  if (keeps_windows && !abort) {
    return Misuse(kInvalidUsage, "CommDestroy before CommWindowDeregister");
  }
  if (must_abort && !abort) {
    return Misuse(kInvalidUsage, "CommDestroy of one that was shrunk by abort");
  }
  if (lost_name) {
    return Misuse(kInvalidArgument, absl::StrCat(what, ": its name is gone"));
  }
  return kSuccess;
}

void RunHook(std::function<void()> World::*which) {
  std::function<void()> hook;
  {
    World& world = GlobalWorld();
    MutexLock lock(world.mutex);
    hook = world.*which;
  }
  if (hook != nullptr) hook();
}

void CallFreeHook() { RunHook(&World::free_hook); }

}  // namespace

void CallConnectHook() { RunHook(&World::connect_hook); }

Result Misuse(Result result, absl::string_view what) {
  World& world = GlobalWorld();
  MutexLock lock(world.mutex);
  world.misuses.emplace_back(what);
  return result;
}

std::shared_ptr<HostComm> FindComm(Comm comm) {
  World& world = GlobalWorld();
  MutexLock lock(world.mutex);
  const auto found = world.comms.find(comm);
  return found == world.comms.end() ? nullptr : found->second;
}

std::optional<Ready> Use(Comm handle, absl::string_view what, bool collective) {
  const std::shared_ptr<HostComm> comm = FindComm(handle);
  if (comm == nullptr) {
    Misuse(kInvalidUsage, absl::StrCat(what, " on no communicator"));
    return std::nullopt;
  }
  Ready ready;
  ready.comm = comm;
  ready.over = [comm] { return comm->IsAborted(); };
  bool usable = true;
  bool settled = true;
  {
    MutexLock lock(comm->mutex);
    if (comm->aborted) usable = false;
    settled = comm->TryJoinTeam() && comm->dividing == nullptr &&
              (comm->in_progress.empty() || what == "RedOpDestroy");
    ready.team = comm->team;
    ready.rank = comm->rank;
    if (settled && collective) ready.step = comm->next_step++;
  }
  settled = settled && comm->calls == 0;
  if (usable && settled) return ready;
  Misuse(kInvalidUsage,
         absl::StrCat(what, usable ? " while something is in progress"
                                   : " on one that was ended"));
  return std::nullopt;
}

Result GetUniqueId(UniqueId* id) {
  World& world = GlobalWorld();
  MutexLock lock(world.mutex);
  const std::string text = absl::StrCat("host-", ++world.last_id);
  std::memcpy(id->internal, text.data(), text.size() + 1);
  return kSuccess;
}

Result CommInitRankConfig(Comm* made, int size, UniqueId id, int rank,
                          Config* config) {
  if (rank < 0 || rank >= size) {
    return Misuse(kInvalidArgument,
                  absl::StrCat("CommInitRank of rank ", rank, " of ", size));
  }
  if (!Take(config, "CommInitRank")) return kInvalidArgument;
  std::shared_ptr<Team> team;
  {
    World& world = GlobalWorld();
    MutexLock lock(world.mutex);
    ++world.made.by_id;
    std::shared_ptr<Team>& known = world.teams[id.internal];
    if (known == nullptr) known = std::make_shared<Team>(size);
    team = known;
  }
  if (team->size() != size) {
    return Misuse(kInvalidArgument,
                  absl::StrCat("CommInitRank of ", size, " ranks, and of ",
                               team->size()));
  }
  const auto comm =
      NewComm([place = TeamRank{team, rank}] { return Met(place); }, config);
  *made = Add(comm);
  team->Arrive(0, rank, {});
  if (config != nullptr && config->blocking == 0) return kInProgress;
  const Calling calling(*comm);
  team->Await(0, [comm] { return comm->IsAborted(); });
  return kSuccess;
}

Result CommSplit(Comm parent, int color, int key, Comm* made, Config* config) {
  if (color < 0 && color != kSplitNoColor) {
    return Misuse(kInvalidArgument, absl::StrCat("CommSplit of color ", color));
  }
  const std::optional<Ready> ready = Use(parent, "CommSplit", true);
  if (!ready.has_value()) return kInvalidUsage;
  if (ready->comm->outstanding > 0) {
    return Misuse(kInvalidUsage, "CommSplit while something is under way");
  }
  const std::shared_ptr<Team> team = ready->team;
  const uint64_t step = ready->step;
  team->Arrive(step, ready->rank, {.color = color, .key = key});
  std::shared_ptr<HostComm> comm;
  if (color != kSplitNoColor) {
    if (!Take(config, "CommSplit")) return kInvalidArgument;
    {
      World& world = GlobalWorld();
      MutexLock lock(world.mutex);
      ++world.made.by_split;
    }
    const auto settle = [team, step, color,
                         rank = ready->rank]() -> std::optional<TeamRank> {
      const auto calls = team->Await(step, [] { return true; });
      if (!calls.has_value()) return std::nullopt;
      const std::vector<int> members = FindMembers(*calls, color);
      return TeamRank{
          team->Divide(step, color, members.size()),
          static_cast<int>(std::find(members.begin(), members.end(), rank) -
                           members.begin())};
    };
    comm = NewComm(settle, config);
  }
  return Divide(ready->comm, team, step, comm, made);
}

// The remaining ranks meet in a team of their own, identified by the list of
// excluded ranks.
Result CommShrink(Comm parent, int* excluded, int count, Comm* made,
                  Config* config, int flags) {
  const std::optional<Ready> ready = Use(parent, "CommShrink", false);
  if (!ready.has_value()) return kInvalidUsage;
  const std::set<int> gone(excluded, excluded + count);
  if (gone.empty() || *gone.begin() < 0 ||
      *gone.rbegin() >= ready->team->size()) {
    return Misuse(kInvalidArgument, "CommShrink without ranks to exclude");
  }
  if (flags == kShrinkAbort) {
    {
      MutexLock lock(ready->comm->mutex);
      ready->comm->aborted = true;
      ready->comm->shrunk_by_abort = true;
    }
    ready->team->Wake();
  } else if (ready->comm->outstanding > 0) {
    return Misuse(kInvalidUsage, "CommShrink while something is under way");
  }
  std::vector<int> members;
  uint64_t name = 1;
  for (int each = 0; each < ready->team->size(); ++each) {
    if (gone.contains(each)) {
      name = name * 31 + static_cast<uint64_t>(each) + 1;
    } else {
      members.push_back(each);
    }
  }
  const auto place = std::find(members.begin(), members.end(), ready->rank);
  if (place == members.end()) {
    return Misuse(kInvalidArgument, "CommShrink without the caller itself");
  }
  // Cannot be equal to the number of a step.
  const std::shared_ptr<Team> smaller =
      ready->team->Divide(~name, /*color=*/0, members.size());
  const int new_rank = static_cast<int>(place - members.begin());
  if (!Take(config, "CommShrink")) return kInvalidArgument;
  {
    World& world = GlobalWorld();
    MutexLock lock(world.mutex);
    ++world.made.by_shrink;
  }
  const auto comm = NewComm(
      [place = TeamRank{smaller, new_rank}] { return Met(place); }, config);
  smaller->Arrive(0, new_rank, {});
  return Divide(ready->comm, smaller, 0, comm, made);
}

Result MemAlloc(void** data, size_t bytes) {
  void* raw = nullptr;
  cuda::testing::HostCudaApi().Malloc(&raw, bytes + kWindowAlignment);
  const auto begin = reinterpret_cast<uintptr_t>(raw);
  *data = reinterpret_cast<void*>((begin + kWindowAlignment - 1) /
                                  kWindowAlignment * kWindowAlignment);
  Memories& memories = TheMemories();
  MutexLock lock(memories.mutex);
  memories.pieces[*data] = {.raw = raw, .bytes = bytes};
  return kSuccess;
}

Result MemFree(void* data) {
  Memories& memories = TheMemories();
  void* raw = nullptr;
  bool registered = false;
  {
    MutexLock lock(memories.mutex);
    const auto found = memories.pieces.find(data);
    if (found != memories.pieces.end()) {
      raw = found->second.raw;
      memories.pieces.erase(found);
    }
    for (const auto& [window, memory] : memories.windows) {
      registered = registered || memory == data;
    }
  }
  if (raw == nullptr) return Misuse(kInvalidArgument, "MemFree of no memory");
  cuda::testing::HostCudaApi().Free(raw);
  if (!registered) return kSuccess;
  return Misuse(kInvalidUsage, "MemFree of memory that is registered");
}

// All ranks must call it, with equal sizes.
Result CommWindowRegister(Comm handle, void* data, size_t bytes, Window* window,
                          int flags) {
  *window = nullptr;
  Memories& memories = TheMemories();
  bool fits = flags == kWindowSymmetric && bytes % kWindowAlignment == 0;
  {
    MutexLock lock(memories.mutex);
    const auto found = memories.pieces.find(data);
    fits = fits && bytes > 0 && found != memories.pieces.end() &&
           bytes <= found->second.bytes;
  }
  if (!fits) {
    return Misuse(kInvalidArgument, "CommWindowRegister of what is no piece");
  }
  const std::optional<Ready> ready = Use(handle, "CommWindowRegister", true);
  if (!ready.has_value()) return kInvalidUsage;
  const std::shared_ptr<Team> team = ready->team;
  const uint64_t step = ready->step;
  team->Arrive(step, ready->rank,
               {.what = "CommWindowRegister", .bytes = bytes});
  const auto give_out = [=, comm = ready->comm] {
    const auto calls = team->Await(step, [] { return true; });
    for (const Call& call : *calls) {
      if (call.what == "CommWindowRegister" && call.bytes == bytes) continue;
      Misuse(kInvalidUsage, "CommWindowRegister meets something else");
    }
    Memories& all = TheMemories();
    {
      MutexLock lock(all.mutex);
      *window = reinterpret_cast<Window>(++all.last_window);
      all.windows[*window] = data;
    }
    MutexLock lock(comm->mutex);
    comm->windows.insert(*window);
  };
  if (ready->comm->nonblocking) {
    MutexLock lock(ready->comm->mutex);
    ready->comm->dividing = [=] {
      if (!team->HasMet(step)) return false;
      give_out();
      return true;
    };
    return kInProgress;
  }
  const Calling calling(*ready->comm);
  if (team->Await(step, ready->over).has_value()) give_out();
  return kSuccess;
}

Result CommWindowDeregister(Comm handle, Window window) {
  const std::optional<Ready> ready = Use(handle, "CommWindowDeregister", false);
  if (!ready.has_value()) return kInvalidUsage;
  bool known = false;
  {
    MutexLock lock(ready->comm->mutex);
    known = ready->comm->windows.erase(window) > 0;
  }
  if (!known) {
    return Misuse(kInvalidArgument, "CommWindowDeregister of no window");
  }
  if (ready->comm->outstanding > 0) {
    return Misuse(kInvalidUsage,
                  "CommWindowDeregister while something is under way");
  }
  Memories& memories = TheMemories();
  MutexLock lock(memories.mutex);
  memories.windows.erase(window);
  return kSuccess;
}

Result CommFinalize(Comm comm) {
  return Use(comm, "CommFinalize", false).has_value() ? kSuccess
                                                      : kInvalidUsage;
}

Result CommDestroy(Comm comm) {
  const Result result = Remove(comm, "CommDestroy", false);
  CallFreeHook();
  return result;
}

Result CommAbort(Comm comm) {
  {
    World& world = GlobalWorld();
    MutexLock lock(world.mutex);
    ++world.aborts;
  }
  const Result result = Remove(comm, "CommAbort", true);
  ++t_aborts;
  if (OpenGroups() == 0) EndAborts();
  return result;
}

void EndAborts() {
  if (std::exchange(t_aborts, 0) > 0) CallFreeHook();
}

void SetFreeHook(std::function<void()> hook) {
  World& world = GlobalWorld();
  MutexLock lock(world.mutex);
  world.free_hook = std::move(hook);
}

void SetConnectHook(std::function<void()> hook) {
  World& world = GlobalWorld();
  MutexLock lock(world.mutex);
  world.connect_hook = std::move(hook);
}

Result CommGetAsyncError(Comm handle, Result* error) {
  const std::shared_ptr<HostComm> comm = FindComm(handle);
  if (comm == nullptr) {
    return Misuse(kInvalidArgument, "CommGetAsyncError of no communicator");
  }
  if (comm->calls > 0) {
    Misuse(kInvalidUsage, "CommGetAsyncError while a call is under way");
  }
  std::function<bool()> dividing;
  {
    MutexLock lock(comm->mutex);
    dividing.swap(comm->dividing);
  }
  if (dividing != nullptr && !dividing()) {
    MutexLock lock(comm->mutex);
    comm->dividing = std::move(dividing);
    *error = comm->async_error == kSuccess ? kInProgress : comm->async_error;
    return kSuccess;
  }
  std::vector<std::function<void()>> launches;
  {
    MutexLock lock(comm->mutex);
    const bool made = comm->TryJoinTeam();
    *error = comm->async_error;
    if (*error != kSuccess) return kSuccess;
    if (!made || (!comm->in_progress.empty() && comm->polls_left-- > 0)) {
      *error = kInProgress;
    } else {
      launches.swap(comm->in_progress);
    }
  }
  for (const auto& launch : launches) launch();
  return kSuccess;
}

std::vector<std::string> TakeMisuses() {
  World& world = GlobalWorld();
  MutexLock lock(world.mutex);
  std::vector<std::string> misuses = std::exchange(world.misuses, {});
  return misuses;
}

Config LastConfig() {
  World& world = GlobalWorld();
  MutexLock lock(world.mutex);
  return world.last_config;
}

Made TakeMade() {
  World& world = GlobalWorld();
  MutexLock lock(world.mutex);
  return std::exchange(world.made, {});
}

int TakeAborts() {
  World& world = GlobalWorld();
  MutexLock lock(world.mutex);
  return std::exchange(world.aborts, 0);
}

Leaks CountLeaks() {
  World& world = GlobalWorld();
  MutexLock lock(world.mutex);
  Leaks leaks = {.comms = world.comms.size()};
  for (const auto& [handle, comm] : world.comms) {
    MutexLock comm_lock(comm->mutex);
    leaks.ops += comm->factors.size();
  }
  return leaks;
}

void SetAsyncError(Comm handle, Result error) {
  const std::shared_ptr<HostComm> comm = FindComm(handle);
  if (comm == nullptr) return;
  MutexLock lock(comm->mutex);
  comm->async_error = error;
}

}  // namespace muster::dataplane::nccl::testing
