// Tells the coordinator of the calls in which ranks of the default group wait
// for each other. The coordinator compares them.

#ifndef MUSTER_CLIENT_GROUPS_GROUP_CALLS_H_
#define MUSTER_CLIENT_GROUPS_GROUP_CALLS_H_

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"
#include "client/control/deadline.h"
#include "muster/base/status.h"
#include "muster/session.h"
#include "muster/v1/membership.pb.h"

namespace muster::internal {

// Returns 16 hexadecimal digits, the same in every process.
std::string StableHash(absl::string_view text);

// A call in which ranks wait for each other.
struct SharedCall {
  // Counts the calls of `series` that all ranks make in the same order, from 1.
  // 0: a call that only some ranks make.
  int64_t number = 0;
  // Names the counter, or for a call without a number what it makes. Short:
  // names of users are hashed.
  std::string series = {};
  // Counts the repetitions of a call without a number.
  int64_t instance = 0;
  // The same on all ranks that wait for each other.
  std::string arguments = {};
  // The caller's action, for people: `makes group "1" of 2 ranks (0, 1)`.
  std::string meaning = {};
  // The ranks that wait for each other, ascending; empty: all.
  std::vector<int> ranks = {};
  // How many ranks make the call; 0: those that wait.
  int callers = 0;
};

// Thread-safe.
class GroupCalls {
 public:
  GroupCalls(std::shared_ptr<Session> session, int64_t generation)
      : session_(std::move(session)), generation_(generation) {}

  // This rank begins to wait in the call, and registers `groups`, whose first
  // one has its ranks. Returns the coordinator's error: kInvalidArgument if the
  // ranks' calls differ.
  Status Begin(const SharedCall& call,
               const std::vector<GroupDefinition>& groups,
               const Deadline& deadline) const;

  // This rank has made the call and does not wait in it: it is not in the
  // group, or it refuses the arguments.
  void Pass(const SharedCall& call) const;
  void Refuse(const SharedCall& call, const std::string& why) const;

  // Exists while this rank waits in a call that has begun.
  class Waiting;

 private:
  Status Tell(v1::GroupCall call, const std::vector<GroupDefinition>& groups,
              const Deadline& deadline) const;

  const std::shared_ptr<Session> session_;
  const int64_t generation_;
};

// Used by one thread.
class GroupCalls::Waiting {
 public:
  Waiting(std::shared_ptr<const GroupCalls> calls, SharedCall call)
      : calls_(std::move(calls)), call_(std::move(call)) {}
  ~Waiting();
  Waiting(const Waiting&) = delete;
  Waiting& operator=(const Waiting&) = delete;

  // Returns kInvalidArgument if the ranks' calls differ. Call it several times
  // in the first second, and later once a second.
  Status Check();

  // The call has completed without an error.
  void Succeed() { succeeded_ = true; }

 private:
  const std::shared_ptr<const GroupCalls> calls_;
  const SharedCall call_;
  bool succeeded_ = false;
};

}  // namespace muster::internal

#endif  // MUSTER_CLIENT_GROUPS_GROUP_CALLS_H_
