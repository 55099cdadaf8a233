// What the SDK throws. Everything below the SDK returns absl::Status; here an
// error becomes an exception, because a failed collective that nobody looks at
// corrupts a training run silently.

#ifndef MUSTER_CLIENT_ERRORS_H_
#define MUSTER_CLIENT_ERRORS_H_

#include <cstdint>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "absl/status/status.h"

namespace muster {

// One member of a job, as an error or an event shows it. What is not known is
// empty, or -1 for the rank.
struct MemberInfo {
  // In the world group.
  int rank = -1;
  std::string member = {};
  std::string host = {};
  int64_t pid = 0;
  // Why it is in this list: "no heartbeat for 11.0s (lease 10s)".
  std::string cause = {};
  // What it was last seen doing: "all_reduce #418 on group \"world\"".
  std::string last_progress = {};
  // host:port of its debug and metrics server.
  std::string debug_address = {};
};

// The root of all that the SDK throws. As such: a failed barrier, a failed
// rendezvous, a bad argument, a call on a group that does not exist.
//
// what() is the text for people. Programs look at status().code() and at
// culprits().
class DistError : public std::runtime_error {
 public:
  // `status` must not be OK.
  explicit DistError(absl::Status status,
                     std::vector<MemberInfo> culprits = {});

  const absl::Status& status() const noexcept;

  // The members that caused the failure, in rank order; empty when nobody else
  // did, or nobody is known. Of very many (more than 32 at a barrier) it is
  // some, first those that are gone; what() says how many more there are.
  const std::vector<MemberInfo>& culprits() const noexcept;

 private:
  struct Detail;
  // Shared, so that copying the exception cannot throw.
  std::shared_ptr<const Detail> detail_;
};

// A collective or its backend failed.
class DistBackendError : public DistError {
 public:
  using DistError::DistError;
};

// No answer: a connection broke or could not be made, a peer or the
// coordinator is gone.
class DistNetworkError : public DistError {
 public:
  using DistError::DistError;
};

// The store answered with an error, or a key was not set in time.
class DistStoreError : public DistError {
 public:
  using DistError::DistError;
};

}  // namespace muster

#endif  // MUSTER_CLIENT_ERRORS_H_
