#ifndef MUSTER_COORDINATOR_SERVER_RPC_SESSION_STREAM_H_
#define MUSTER_COORDINATOR_SERVER_RPC_SESSION_STREAM_H_

#include "grpcpp/server_context.h"
#include "grpcpp/support/byte_buffer.h"
#include "muster/base/status.h"
#include "muster/v1/session.pb.h"

namespace muster::coordinator {

// SessionStream carries the messages of one session: a gRPC stream of its own,
// or a session's part of a relay's stream. It reacts to what its session starts
// by calling the session's reactions, from any thread but never inside a method
// below, which the session calls with its lock held. OnDone comes last, after
// Finish, when no other reaction runs. Thread-safe.
class SessionStream {
 public:
  enum class Read {
    kLater,  // OnReadDone follows
    kNow,    // `bytes` has the message; OnReadDone does not follow
    kEnded,  // the client has half-closed; OnReadDone does not follow
  };

  virtual ~SessionStream() = default;

  // The call whose headers have the client's token.
  virtual const grpc::ServerContextBase& call() const = 0;

  // Reads the next message into `bytes`. One read at a time.
  virtual Read StartRead(grpc::ByteBuffer* bytes) = 0;

  // `response` lives until OnWriteDone. One write at a time.
  virtual void StartWrite(const v1::StreamResponse* response) = 0;

  // Ends the session. Nothing but Reset may be called after it.
  virtual void Finish(const Status& status) = 0;

  // The client does not take the status of Finish.
  virtual void Reset() = 0;
};

}  // namespace muster::coordinator

#endif  // MUSTER_COORDINATOR_SERVER_RPC_SESSION_STREAM_H_
