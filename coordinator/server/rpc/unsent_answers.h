#ifndef MUSTER_COORDINATOR_SERVER_RPC_UNSENT_ANSWERS_H_
#define MUSTER_COORDINATOR_SERVER_RPC_UNSENT_ANSWERS_H_

#include <cstdint>

#include "absl/container/flat_hash_map.h"
#include "base/mutex.h"
#include "base/status.h"
#include "base/thread_annotations.h"
#include "coordinator/core/instant.h"
#include "grpcpp/server_context.h"

namespace muster::coordinator {

// UnsentAnswers bounds what a coordinator holds for clients that ask by unary
// calls and do not read: the memory of all answers that the transport has not
// taken, twice their bytes, and how long one may stay so. (A stream sees to its
// own.) Thread-safe.
class UnsentAnswers {
 public:
  // Smaller ones are not worth adding.
  static constexpr int64_t kBytesMin = 4 << 10;

  explicit UnsentAnswers(int64_t bytes_max) : bytes_max_(bytes_max) {}
  UnsentAnswers(const UnsentAnswers&) = delete;
  UnsentAnswers& operator=(const UnsentAnswers&) = delete;

  // The call's answer of so many bytes is about to go out.
  // Errors: RESOURCE_EXHAUSTED (limit unsent_bytes): it may not.
  Status Add(grpc::CallbackServerContext* call, int64_t bytes);

  // The transport is done with the call. No effect when it was not added.
  void Remove(grpc::CallbackServerContext* call);

  // Ends the calls that were added `timeout` or longer before `now`.
  void CutOff(core::Instant now, core::Duration timeout);

  // Of memory.
  int64_t bytes() const;

 private:
  struct Answer {
    int64_t bytes = 0;
    core::Instant since;
  };

  const int64_t bytes_max_;
  mutable Mutex mu_;
  absl::flat_hash_map<grpc::CallbackServerContext*, Answer> answers_
      MUSTER_GUARDED_BY(mu_);
  int64_t bytes_ MUSTER_GUARDED_BY(mu_) = 0;
};

}  // namespace muster::coordinator

#endif  // MUSTER_COORDINATOR_SERVER_RPC_UNSENT_ANSWERS_H_
