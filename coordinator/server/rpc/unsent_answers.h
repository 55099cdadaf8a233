#ifndef MUSTER_COORDINATOR_SERVER_RPC_UNSENT_ANSWERS_H_
#define MUSTER_COORDINATOR_SERVER_RPC_UNSENT_ANSWERS_H_

#include <cstdint>

#include "absl/container/flat_hash_map.h"
#include "coordinator/core/instant.h"
#include "grpcpp/server_context.h"
#include "muster/base/mutex.h"
#include "muster/base/status.h"
#include "muster/base/thread_annotations.h"

namespace muster::coordinator {

// UnsentAnswers limits the memory and the age of the answers to unary calls
// that clients do not read. The memory of an answer counts as twice its bytes,
// from when it is made until the transport has taken it. Streams have limits of
// their own. Thread-safe.
class UnsentAnswers {
 public:
  // Smaller answers need not be added.
  static constexpr int64_t kBytesMin = 4 << 10;

  explicit UnsentAnswers(int64_t bytes_max) : bytes_max_(bytes_max) {}
  UnsentAnswers(const UnsentAnswers&) = delete;
  UnsentAnswers& operator=(const UnsentAnswers&) = delete;

  // Adds the call's answer of `bytes`, which is about to be sent.
  // Errors: RESOURCE_EXHAUSTED (limit unsent_bytes): it must not be sent.
  Status Add(grpc::CallbackServerContext* call, int64_t bytes);

  // The transport has finished the call. No effect if it was not added.
  void Remove(grpc::CallbackServerContext* call);

  // Ends the calls that were added `timeout` or longer before `now`.
  void CutOff(core::Instant now, core::Duration timeout);

  // The memory of all answers.
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
