#ifndef MUSTER_COORDINATOR_SERVER_JOBS_SINK_H_
#define MUSTER_COORDINATOR_SERVER_JOBS_SINK_H_

#include <cstdint>
#include <memory>

#include "absl/container/flat_hash_map.h"
#include "absl/types/span.h"
#include "coordinator/core/ids.h"
#include "coordinator/core/instant.h"
#include "coordinator/core/outbox.h"
#include "coordinator/core/payload.h"
#include "coordinator/server/method.h"
#include "muster/base/status.h"

namespace muster::coordinator {

// Identifies the call of a sink to which an answer belongs.
struct CallName {
  uint64_t tag = 0;  // the sink's own number of the call
  Method method = Method::kSet;
  bool without_seats = false;  // a Join whose caller wants only its rank
};

// The answer to one call of a sink.
struct Answer : CallName {
  core::Instant started;
  Status status;
  core::Payload payload;
};

// An event, made once for all who get it.
using SharedEvent = std::shared_ptr<const core::Event>;

// Sink receives answers and events: it is a unary call, or a session with any
// number of calls. All methods are called without a job's lock, from any
// thread, possibly after the client has gone. They must not block.
class Sink {
 public:
  virtual ~Sink() = default;

  // May move the answers' contents away.
  virtual void Deliver(absl::Span<Answer> answers) = 0;
  virtual void Publish(const SharedEvent& event) = 0;

  // Sends what was delivered and published. Separate from Deliver, so that a
  // step that answers many calls of a session fills one message.
  virtual void Flush() = 0;

  // Ends the call or the session with `status`.
  virtual void Close(const Status& status) = 0;

 private:
  friend class Job;

  // Guarded by the lock of the sink's job: the waiting calls by tag, and the
  // member whose events come here.
  absl::flat_hash_map<uint64_t, core::WaiterId> parked_;
  core::MemberId online_as_;
};

}  // namespace muster::coordinator

#endif  // MUSTER_COORDINATOR_SERVER_JOBS_SINK_H_
