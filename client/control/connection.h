// One gRPC stream to the coordinator, from its first message to its end.

#ifndef MUSTER_CLIENT_CONTROL_CONNECTION_H_
#define MUSTER_CLIENT_CONTROL_CONNECTION_H_

#include <atomic>
#include <chrono>
#include <memory>

#include "base/status.h"
#include "client/control/channel_security.h"
#include "client/control/deadline.h"
#include "client/control/endpoint.h"
#include "grpcpp/grpcpp.h"
#include "muster/v1/session.grpc.pb.h"
#include "muster/v1/session.pb.h"

namespace muster::internal {

// Connection reads and writes messages in whichever thread polls it. It has no
// thread of its own: nothing moves while no thread is in Poll, except that
// Write may hand its message to the system at once.
class Connection {
 public:
  enum class Event {
    kNothing,   // `until` passed
    kReceived,  // received() is the next message
    kWritten,   // the write is over: another may begin
    kBroken,    // no message will come any more; call Finish
  };

  // It breaks when the coordinator is silent for `silence_max` (NewChannel).
  Connection(const Endpoint& endpoint, const ConnectionSecurity& security,
             std::chrono::milliseconds silence_max);
  // Cancels what is open. Nobody may be in another method.
  ~Connection();
  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;

  // Connects and sends `hello`, which ends with kWritten. Call it once, first.
  void Start(const v1::StreamRequest& hello);

  // Sends `request`, which ends with kWritten; one at a time. It may be
  // destroyed as soon as this returns.
  void Write(const v1::StreamRequest& request);

  // Whether a write is not over. For who polls.
  bool writing() const { return writing_; }

  // Waits for the next event. By one thread at a time.
  Event Poll(Instant until);

  // Valid until the next Poll.
  v1::StreamResponse& received() { return received_; }

  // Ends the stream soon, which Poll then reports. From any thread.
  void Cancel() { context_.TryCancel(); }

  // Returns why the stream is over; after kBroken, and with no other thread
  // in Poll or Write.
  Status Finish();

 private:
  enum Tag : intptr_t { kWriteTag = 1, kReadTag, kFinishTag };

  Event EventOf(Tag tag, bool ok);

  std::shared_ptr<grpc::Channel> channel_;
  std::unique_ptr<v1::SessionService::Stub> stub_;
  grpc::ClientContext context_;
  grpc::CompletionQueue events_;
  std::unique_ptr<
      grpc::ClientAsyncReaderWriter<v1::StreamRequest, v1::StreamResponse>>
      stream_;
  // Written by who writes, cleared by who polls.
  std::atomic<bool> writing_{false};

  // Of who polls.
  v1::StreamResponse received_;
  bool reading_ = false;
};

}  // namespace muster::internal

#endif  // MUSTER_CLIENT_CONTROL_CONNECTION_H_
