// The communicators of the fake NCCL (host_nccl.h): making, using and
// destroying them.

#ifndef MUSTER_DATAPLANE_NCCL_TESTING_HOST_COMMS_H_
#define MUSTER_DATAPLANE_NCCL_TESTING_HOST_COMMS_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "dataplane/nccl/api.h"
#include "dataplane/nccl/testing/host_team.h"
#include "muster/base/mutex.h"
#include "muster/base/thread_annotations.h"

namespace muster::dataplane::nccl::testing {

inline constexpr Result kInvalidArgument = 4;
inline constexpr Result kInvalidUsage = 5;

// A rank of a team.
struct TeamRank {
  std::shared_ptr<Team> team;
  int rank = -1;
};

// One rank's end of a team, which Comm points to.
struct HostComm {
  Mutex mutex;
  // Null until all its ranks have come.
  std::shared_ptr<Team> team MUSTER_GUARDED_BY(mutex);
  int rank MUSTER_GUARDED_BY(mutex) = -1;
  // Returns team and rank once all ranks have come.
  std::function<std::optional<TeamRank>()> settle MUSTER_GUARDED_BY(mutex);
  uint64_t next_step MUSTER_GUARDED_BY(mutex) = 1;
  // Whether calls may still be in progress when they return. Constant once
  // another thread can read it.
  bool nonblocking = false;
  // The number of calls on a blocking communicator that have not returned.
  std::atomic<int> calls{0};
  // The work of calls in progress, to enqueue after `polls_left` more polls.
  std::vector<std::function<void()>> in_progress MUSTER_GUARDED_BY(mutex);
  int polls_left MUSTER_GUARDED_BY(mutex) = 0;
  // Also read while a team's lock is held. That lock is taken after `mutex`.
  std::atomic<bool> aborted{false};
  // CommShrink has aborted it: it must be destroyed with CommAbort.
  bool shrunk_by_abort MUSTER_GUARDED_BY(mutex) = false;
  // Set while a split or shrink of it waits for other ranks. Once all have
  // come, it sets the new communicator and returns true.
  std::function<bool()> dividing MUSTER_GUARDED_BY(mutex);
  // The configuration's name. NCCL keeps the pointer and reads it to the end.
  const char* name MUSTER_GUARDED_BY(mutex) = nullptr;
  std::string name_then MUSTER_GUARDED_BY(mutex);
  Result async_error MUSTER_GUARDED_BY(mutex) = kSuccess;
  std::map<RedOp, double> factors MUSTER_GUARDED_BY(mutex);
  RedOp next_op MUSTER_GUARDED_BY(mutex) = kAvg + 1;

  // Registered windows.
  std::set<Window> windows MUSTER_GUARDED_BY(mutex);
  // The number of calls in streams that have not ended.
  std::atomic<int> outstanding{0};

  bool IsAborted() const { return aborted; }
  // Whether all ranks have come.
  bool TryJoinTeam() MUSTER_EXCLUSIVE_LOCKS_REQUIRED(mutex) {
    if (settle == nullptr) return true;
    const std::optional<TeamRank> place = settle();
    if (!place.has_value()) return false;
    team = place->team;
    rank = place->rank;
    settle = nullptr;
    return true;
  }
};

// Counts as a call while it lives.
class Calling {
 public:
  explicit Calling(HostComm& comm) : comm_(comm) { ++comm_.calls; }
  ~Calling() { --comm_.calls; }
  Calling(const Calling&) = delete;
  Calling& operator=(const Calling&) = delete;

 private:
  HostComm& comm_;
};

// Records the misuse `what` and returns `result`.
Result Misuse(Result result, absl::string_view what);

// Null if it is destroyed or never existed.
std::shared_ptr<HostComm> FindComm(Comm comm);

// A usable communicator and its constant members.
struct Ready {
  std::shared_ptr<HostComm> comm;
  std::shared_ptr<Team> team;
  int rank = -1;
  uint64_t step = 0;  // for collectives
  std::function<bool()> over;
};

// Empty, with a misuse, if `comm` cannot be used. A `collective` takes a step.
std::optional<Ready> Use(Comm comm, absl::string_view what, bool collective);

// Functions of the Api.
Result GetUniqueId(UniqueId* id);
Result CommInitRankConfig(Comm* made, int size, UniqueId id, int rank,
                          Config* config);
Result CommSplit(Comm parent, int color, int key, Comm* made, Config* config);
Result CommShrink(Comm parent, int* excluded, int count, Comm* made,
                  Config* config, int flags);
Result MemAlloc(void** data, size_t bytes);
Result MemFree(void* data);
Result CommWindowRegister(Comm comm, void* data, size_t bytes, Window* window,
                          int flags);
Result CommWindowDeregister(Comm comm, Window window);
Result CommFinalize(Comm comm);
Result CommDestroy(Comm comm);
Result CommAbort(Comm comm);
Result CommGetAsyncError(Comm handle, Result* error);

// Calls the hook of SetConnectHook.
void CallConnectHook();

// Called when an NCCL group that contains CommAborts has ended.
void EndAborts();

}  // namespace muster::dataplane::nccl::testing

#endif  // MUSTER_DATAPLANE_NCCL_TESTING_HOST_COMMS_H_
