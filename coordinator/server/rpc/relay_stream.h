#ifndef MUSTER_COORDINATOR_SERVER_RPC_RELAY_STREAM_H_
#define MUSTER_COORDINATOR_SERVER_RPC_RELAY_STREAM_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "coordinator/core/instant.h"
#include "coordinator/server/rpc/session_service.h"
#include "coordinator/server/rpc/unary.h"
#include "grpcpp/server_context.h"
#include "grpcpp/support/byte_buffer.h"
#include "grpcpp/support/server_callback.h"
#include "muster/base/mutex.h"
#include "muster/base/status.h"
#include "muster/base/thread_annotations.h"
#include "muster/v1/session.pb.h"

namespace muster::coordinator {

class RelayedStream;

// RelayStream is one call of SessionService.Relay: the sessions of the ranks of
// one host. It hands the frames of each session to its RelayedStream, and sends
// those of all sessions round robin, as many in one message as wait. A session
// that waits for credit holds up no other one.
//
// Life: gRPC calls the reactions, OnDone last. The sessions have ended then.
class RelayStream final
    : public grpc::ServerBidiReactor<grpc::ByteBuffer, v1::RelayResponse>,
      public std::enable_shared_from_this<RelayStream> {
 public:
  // The arguments outlive the stream.
  RelayStream(SessionTable& table, const ServiceContext& context,
              grpc::CallbackServerContext* grpc);
  ~RelayStream() override;

  void Start();

  // Ends the stream with `status` when its last session has ended.
  void Drain(const Status& status);

  // Ends the stream if the relay has not taken a message, or has not had a
  // session, for `timeout`.
  void CutOffIfStalled(core::Instant now, core::Duration timeout);

  // gRPC's reactions.
  void OnReadDone(bool ok) override;
  void OnWriteDone(bool ok) override;
  void OnCancel() override;
  void OnDone() override;

 private:
  friend class RelayedStream;

  Status Accept();
  Status AcceptFrame(v1::RelayFrame& frame);
  Status AcceptOpen(uint64_t number);
  Status AcceptPart(RelayedStream& stream, std::string part, bool last);
  Status AcceptCredit(RelayedStream& stream, int64_t bytes);
  Status AcceptHalfClose(RelayedStream& stream);

  // Calls a reaction of the session, and then OnDone if that is due. The caller
  // has called Enter, which finds the stream; null: it is gone.
  RelayedStream* Enter(uint64_t number) MUSTER_LOCKS_EXCLUDED(mu_);
  void Leave(RelayedStream& stream) MUSTER_LOCKS_EXCLUDED(mu_);
  bool IsDone(const RelayedStream& stream) const
      MUSTER_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Retire(RelayedStream& stream) MUSTER_LOCKS_EXCLUDED(mu_);

  // The call is broken: ends all sessions and the call.
  void Break(const Status& status) MUSTER_LOCKS_EXCLUDED(mu_);
  void Enqueue(RelayedStream& stream) MUSTER_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Pump() MUSTER_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  size_t TakeFrames(RelayedStream& stream) MUSTER_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void FinishLocked(const Status& status) MUSTER_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void FinishIfEmpty() MUSTER_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  SessionTable& table_;
  const ServiceContext& context_;
  grpc::CallbackServerContext* const grpc_;
  const core::Instant started_;
  std::shared_ptr<RelayStream> self_;  // set by Start, reset by OnDone
  grpc::ByteBuffer bytes_;             // used by the read
  v1::RelayResponse response_;         // used by whoever has set `writing_`

  // Taken after a session's lock, never before one.
  Mutex mu_;
  absl::flat_hash_map<uint64_t, std::unique_ptr<RelayedStream>> streams_
      MUSTER_GUARDED_BY(mu_);
  uint64_t last_opened_ MUSTER_GUARDED_BY(mu_) = 0;
  core::Instant empty_since_ MUSTER_GUARDED_BY(mu_);
  // The sessions that have something to send and may send it.
  std::deque<uint64_t> ready_ MUSTER_GUARDED_BY(mu_);
  // The message that is being written has the rest of their message, or their
  // end.
  std::vector<uint64_t> written_ MUSTER_GUARDED_BY(mu_);
  std::vector<uint64_t> ended_ MUSTER_GUARDED_BY(mu_);
  bool writing_ MUSTER_GUARDED_BY(mu_) = false;
  // A message is being accepted: what its sessions answer goes together.
  bool accepting_ MUSTER_GUARDED_BY(mu_) = false;
  core::Instant write_started_at_ MUSTER_GUARDED_BY(mu_);
  bool broken_ MUSTER_GUARDED_BY(mu_) = false;
  bool half_closed_ MUSTER_GUARDED_BY(mu_) = false;
  Status draining_ MUSTER_GUARDED_BY(mu_);
  bool finished_ MUSTER_GUARDED_BY(mu_) = false;
  core::Instant finished_at_ MUSTER_GUARDED_BY(mu_);
  bool over_ MUSTER_GUARDED_BY(mu_) = false;  // OnDone was called
};

}  // namespace muster::coordinator

#endif  // MUSTER_COORDINATOR_SERVER_RPC_RELAY_STREAM_H_
