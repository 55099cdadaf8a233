// Checks that the ranks that make a collective call of the default group agree
// on its arguments.

#ifndef MUSTER_CLIENT_GROUPS_CALL_REGISTRY_H_
#define MUSTER_CLIENT_GROUPS_CALL_REGISTRY_H_

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"
#include "base/mutex.h"
#include "base/status.h"
#include "base/thread_annotations.h"
#include "client/session.h"
#include "client/store.h"

namespace muster::internal {

// Returns 16 hexadecimal digits, the same in every process.
std::string StableHash(absl::string_view text);

// A call in which the ranks of the default group wait for each other.
struct SharedCall {
  // Counts the calls of `series` that all ranks make in the same order, from 1.
  // 0: a call that only some ranks make.
  int64_t number = 0;
  // Names the counter: for splits their group, else empty. For a call without a
  // number: the name of the group that it makes.
  std::string series = {};
  // The same on all ranks that wait for each other.
  std::string place = {};
  // Like `place`, but different for every call. Empty: same as `place`.
  std::string instance = {};
  // The caller's action, for people: `makes group "1" of 2 ranks (0, 1)`.
  std::string meaning = {};
  // The ranks that wait for each other, ascending.
  std::vector<int> ranks = {};
};

// CallRegistry lets ranks that wait in such calls tell each other, through the
// job's store, in which call they wait. Two ranks conflict if they wait for
// each other in different calls, or pass different arguments to the call of the
// same number: they would wait for ever. Then they, all ranks that wait with
// them, and ranks that come later get an error that says which rank called
// what. A difference that concerns only ranks known to be gone is no conflict:
// one of the two ranks is about to learn that they are gone.
//
// An entry of another rank may be stale: that rank may have returned from the
// call, or this rank may have returned and not run since. So two calls conflict
// only if each rank has confirmed that it has not reached the other's call: one
// rank asks, the other decides. Calls of the same number need no confirmation.
//
// A call publishes nothing until it has waited for a while, with two
// exceptions: ranks that do not wait in the call, and calls that may complete
// on a rank whose arguments differ from those of a rank that waits.
// Thread-safe.
class CallRegistry {
 public:
  struct Options {
    std::shared_ptr<Session> session;
    // Prefix of the registry's keys, different in every generation.
    std::string key_prefix;
    std::vector<Seat> seats;
    int rank = -1;
    std::function<bool(int rank)> is_gone;
  };

  explicit CallRegistry(Options options) : options_(std::move(options)) {}

  // This rank has made the call and does not wait in it: it is not in the
  // group, or its call was complete at once or was refused with `why`.
  void Pass(const SharedCall& call) const;
  void Refuse(SharedCall call, const std::string& why) const;

  // Exists while this rank waits in a call.
  class Waiting;

 private:
  // The key under which a rank has published an entry.
  struct Entry {
    int rank = -1;
    // hash of the call's place; empty: the rank does not wait
    std::string place = {};
    std::string key = {};
  };
  // The content of an entry.
  struct Told;

  std::string MakeKey(absl::string_view kind, const Entry& entry) const;
  std::vector<Entry> Entries() const;
  std::optional<Told> Read(absl::string_view kind, const Entry& entry) const;
  bool Write(absl::string_view kind, const Entry& entry, const Told& told,
             const SetOptions& options) const;
  void Leave(Told told) const;
  bool MeetElsewhere(const SharedCall& call, const SharedCall& other) const;
  bool WaitsForThisRank(const SharedCall& other) const;
  Status LookAt(const SharedCall& call, const Entry& other,
                const std::vector<Entry>& entries);
  Status Answer(const SharedCall& call, const Told& asker);
  Status TellDisagreement(const SharedCall& call, const Told& other,
                          const std::vector<Entry>& entries);
  Status ReadConflict(const SharedCall& call, const Told& disagreement);
  bool HasHeard(const Told& disagreement) const;
  std::string GetName(int rank) const;

  const Options options_;

  mutable Mutex mutex_;
  // The instances of the last calls in which this rank waits or which it has
  // completed without an error.
  std::deque<std::string> come_to_ MUSTER_GUARDED_BY(mutex_);
  // The conflicts that this rank knows of.
  std::set<std::string> heard_ MUSTER_GUARDED_BY(mutex_);
};

// Used by one thread.
class CallRegistry::Waiting {
 public:
  // The registry must outlive it.
  Waiting(CallRegistry* registry, SharedCall call);
  ~Waiting();
  Waiting(const Waiting&) = delete;
  Waiting& operator=(const Waiting&) = delete;

  // Publishes the call and reads the entries of other ranks from the
  // coordinator. Call it several times in the first second, and now and then
  // later. Returns kInvalidArgument if the ranks' calls conflict.
  Status Look();

  // The call has completed without an error.
  void Succeed() { succeeded_ = true; }

 private:
  CallRegistry& registry_;
  const SharedCall call_;
  const Entry own_;
  bool told_ = false;
  bool succeeded_ = false;
  int64_t polls_ = 0;
};

}  // namespace muster::internal

#endif  // MUSTER_CLIENT_GROUPS_CALL_REGISTRY_H_
