// One gRPC stream to the coordinator, from its first message to its end.

#ifndef MUSTER_CLIENT_CONTROL_CONNECTION_H_
#define MUSTER_CLIENT_CONTROL_CONNECTION_H_

#include <atomic>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "client/control/deadline.h"
#include "grpcpp/grpcpp.h"
#include "muster/base/status.h"
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
    kReceived,  // received() has the next message
    kWritten,   // the write is over; the next one may begin
    kBroken,    // no more messages; call Finish
  };

  // How the connection reaches its coordinator.
  struct Route {
    std::shared_ptr<grpc::Channel> channel;
    std::vector<std::pair<std::string, std::string>> headers;
  };

  explicit Connection(const Route& route);
  // Cancels open calls. No other thread may be in a method.
  ~Connection();
  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;

  // Connects and sends `hello`; kWritten reports the end of that. Call it once,
  // before all others.
  void Start(const v1::StreamRequest& hello);

  // Sends `request`; kWritten reports the end of the write. One write at a
  // time. The caller may destroy `request` when this returns.
  void Write(const v1::StreamRequest& request);

  // Whether a write is under way. Only for the polling thread.
  bool writing() const { return writing_; }

  // Waits for the next event. One thread at a time.
  Event Poll(Instant until);

  // Valid until the next Poll.
  v1::StreamResponse& received() { return received_; }

  // Ends the stream; Poll then reports kBroken. Thread-safe.
  void Cancel() { context_.TryCancel(); }

  // Returns why the stream ended. Call it after kBroken, when no other thread
  // is in Poll or Write.
  Status Finish();

  // Whether the end of the stream came with that trailer. After Finish.
  bool HasTrailer(const char* name) const {
    return context_.GetServerTrailingMetadata().count(name) > 0;
  }

 private:
  enum Tag : intptr_t { kWriteTag = 1, kReadTag, kFinishTag };

  Event ToEvent(Tag tag, bool ok);

  std::shared_ptr<grpc::Channel> channel_;
  std::unique_ptr<v1::SessionService::Stub> stub_;
  grpc::ClientContext context_;
  grpc::CompletionQueue events_;
  std::unique_ptr<
      grpc::ClientAsyncReaderWriter<v1::StreamRequest, v1::StreamResponse>>
      stream_;
  // Set by the writing thread, cleared by the polling thread.
  std::atomic<bool> writing_{false};

  // Used only by the polling thread.
  v1::StreamResponse received_;
  bool reading_ = false;
};

}  // namespace muster::internal

#endif  // MUSTER_CLIENT_CONTROL_CONNECTION_H_
