// The exceptions that the SDK throws. Everything below the SDK returns Status;
// the SDK turns an error into an exception, because a failed collective whose
// status nobody checks would corrupt a training run silently.

#ifndef MUSTER_ERRORS_H_
#define MUSTER_ERRORS_H_

#include <cstdint>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "muster/base/export.h"
#include "muster/base/status.h"

namespace MUSTER_EXPORT muster {

// One member of a job in an error or an event. An unknown field is empty; an
// unknown rank is -1.
struct MemberInfo {
  // The global rank.
  int rank = -1;
  std::string member = {};
  std::string host = {};
  int64_t pid = 0;
  // The reason why it is in this list: "no heartbeat for 11.0s (lease 10s)".
  std::string cause = {};
  // Its last known activity: "all_reduce #418 on group \"world\"".
  std::string last_progress = {};
  // host:port of its debug and metrics server.
  std::string debug_address = {};
};

// The ranks from `first` to first + count - 1.
struct RankRange {
  int first = 0;
  int count = 0;
};

// The base class of all exceptions of the SDK. Thrown as such for a failed
// barrier, a failed rendezvous, a bad argument, or a call on a group that does
// not exist.
//
// what() is the text for people; with TORCH_SHOW_CPP_STACKTRACES=1 in the
// environment it ends with the stack of the call that throws. Programs read
// status().code(), culprits() and culprit_ranks().
class DistError : public std::runtime_error {
 public:
  // `status` must not be OK. `others` are further culprits of which only the
  // rank is known.
  explicit DistError(Status status, std::vector<MemberInfo> culprits = {},
                     const std::vector<RankRange>& others = {});

  const Status& status() const noexcept;

  // The members that caused the failure, in rank order; empty if no other
  // member caused it, or if none is known. If there are very many (more than 32
  // at a barrier), it has some of them, first those that are gone.
  const std::vector<MemberInfo>& culprits() const noexcept;

  // The global ranks of all members that caused the failure, ascending,
  // including those that are too many for culprits().
  const std::vector<int>& culprit_ranks() const noexcept;

 private:
  struct MUSTER_HIDDEN Detail;
  // Shared, so that copying the exception cannot throw.
  std::shared_ptr<const Detail> detail_;
};

// A collective or its backend failed.
class DistBackendError : public DistError {
 public:
  using DistError::DistError;
};

// There was no answer: a connection broke or could not be made, or a peer or
// the coordinator is gone.
class DistNetworkError : public DistError {
 public:
  using DistError::DistError;
};

// The store answered with an error, or a key was not set in time.
class DistStoreError : public DistError {
 public:
  using DistError::DistError;
};

// A QueuePop with `block` false found no item.
class QueueEmptyError : public DistStoreError {
 public:
  using DistStoreError::DistStoreError;
};

}  // namespace muster

#endif  // MUSTER_ERRORS_H_
