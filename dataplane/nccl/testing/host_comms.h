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
#include "base/mutex.h"
#include "base/thread_annotations.h"
#include "dataplane/nccl/api.h"
#include "dataplane/nccl/testing/host_team.h"

namespace muster::dataplane::nccl::testing {

inline constexpr Result kInvalidArgument = 4;
inline constexpr Result kInvalidUsage = 5;

// A rank of a team.
struct Place {
  std::shared_ptr<Team> team;
  int rank = -1;
};

// One rank's end of a team, which Comm points to.
struct HostComm {
  Mutex mutex;
  // Null until all its ranks are there.
  std::shared_ptr<Team> team MUSTER_GUARDED_BY(mutex);
  int rank MUSTER_GUARDED_BY(mutex) = -1;
  // Finds both out, as soon as all are there.
  std::function<std::optional<Place>()> settle MUSTER_GUARDED_BY(mutex);
  uint64_t next_step MUSTER_GUARDED_BY(mutex) = 1;
  // Whether calls may be in progress when they return. Constant once there is
  // somebody else to ask.
  bool nonblocking = false;
  // Calls of one that blocks which have not returned.
  std::atomic<int> calls{0};
  // What such calls have yet to put into streams, and for how many more looks.
  std::vector<std::function<void()>> in_progress MUSTER_GUARDED_BY(mutex);
  int looks_left MUSTER_GUARDED_BY(mutex) = 0;
  // Also asked while a team's lock is held, which comes after `mutex`.
  std::atomic<bool> aborted{false};
  // It was ended by CommShrink: it is to be aborted.
  bool shrunk_by_abort MUSTER_GUARDED_BY(mutex) = false;
  // A split or a shrink of it, of which not all ranks were there: gives the new
  // communicator out and is true when they are.
  std::function<bool()> dividing MUSTER_GUARDED_BY(mutex);
  // Of the configuration: NCCL keeps the pointer, and looks at it to the end.
  const char* name MUSTER_GUARDED_BY(mutex) = nullptr;
  std::string name_then MUSTER_GUARDED_BY(mutex);
  Result async_error MUSTER_GUARDED_BY(mutex) = kSuccess;
  std::map<RedOp, double> factors MUSTER_GUARDED_BY(mutex);
  RedOp next_op MUSTER_GUARDED_BY(mutex) = kAvg + 1;

  // Windows that were registered and not given back.
  std::set<Window> windows MUSTER_GUARDED_BY(mutex);
  // What is in streams and has not ended.
  std::atomic<int> outstanding{0};

  bool IsAborted() const { return aborted; }
  // Whether it is made.
  bool Settle() MUSTER_EXCLUSIVE_LOCKS_REQUIRED(mutex) {
    if (settle == nullptr) return true;
    const std::optional<Place> place = settle();
    if (!place.has_value()) return false;
    team = place->team;
    rank = place->rank;
    settle = nullptr;
    return true;
  }
};

// While there is one a call is under way.
class Calling {
 public:
  explicit Calling(HostComm& comm) : comm_(comm) { ++comm_.calls; }
  ~Calling() { --comm_.calls; }
  Calling(const Calling&) = delete;
  Calling& operator=(const Calling&) = delete;

 private:
  HostComm& comm_;
};

// Notes `what`, and returns `result`.
Result Misuse(Result result, absl::string_view what);

// Null: it is gone, or was never there.
std::shared_ptr<HostComm> CommOf(Comm comm);

// A communicator that can be used, and what of it does not change any more.
struct Ready {
  std::shared_ptr<HostComm> comm;
  std::shared_ptr<Team> team;
  int rank = -1;
  uint64_t step = 0;  // of a collective
  std::function<bool()> over;
};

// Nothing, and a misuse, if `comm` cannot be used; `collective` takes a step.
std::optional<Ready> Use(Comm comm, absl::string_view what, bool collective);

// Of the Api.
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

// What a call that blocks does besides.
void CallConnectHook();

// The group of NCCL in which there were CommAborts has ended.
void EndAborts();

}  // namespace muster::dataplane::nccl::testing

#endif  // MUSTER_DATAPLANE_NCCL_TESTING_HOST_COMMS_H_
