#include "coordinator/server/rpc/session_service.h"

#include <vector>

#include "coordinator/core/limits.h"
#include "coordinator/server/rpc/relay_stream.h"
#include "coordinator/server/rpc/server_session.h"
#include "coordinator/server/rpc/service.h"
#include "coordinator/server/rpc/session_stream.h"
#include "grpcpp/support/byte_buffer.h"
#include "grpcpp/support/server_callback.h"
#include "muster/v1/session.pb.h"
#include "proto/muster/v1/status_wire.h"

namespace muster::coordinator {
namespace {

// A session's own gRPC stream. Destroys itself at its end.
class OwnStream final
    : public grpc::ServerBidiReactor<grpc::ByteBuffer, v1::StreamResponse>,
      public SessionStream {
 public:
  OwnStream(SessionTable& table, const ServiceContext& context,
            grpc::CallbackServerContext* grpc)
      : grpc_(grpc),
        session_(std::make_shared<ServerSession>(table, context, *this)) {
    session_->Start();
  }

  const grpc::ServerContextBase& call() const override { return *grpc_; }
  Read StartRead(grpc::ByteBuffer* bytes) override {
    ServerBidiReactor::StartRead(bytes);
    return Read::kLater;
  }
  void StartWrite(const v1::StreamResponse* response) override {
    ServerBidiReactor::StartWrite(response);
  }
  void Finish(const Status& status) override {
    ServerBidiReactor::Finish(v1::ToGrpc(status));
  }
  void Reset() override { grpc_->TryCancel(); }

  void OnReadDone(bool ok) override { session_->OnReadDone(ok); }
  void OnWriteDone(bool ok) override { session_->OnWriteDone(ok); }
  void OnCancel() override { session_->OnCancel(); }
  void OnDone() override {
    session_->OnDone();
    delete this;
  }

 private:
  ~OwnStream() override = default;

  grpc::CallbackServerContext* const grpc_;
  const std::shared_ptr<ServerSession> session_;
};

class SessionService final : public Service {
 public:
  SessionService(SessionTable& table, const ServiceContext& context) {
    AddStream<v1::StreamResponse>(
        "/muster.v1.SessionService/Stream",
        [&](Context* grpc) { return new OwnStream(table, context, grpc); });
    AddStream<v1::RelayResponse>(
        "/muster.v1.SessionService/Relay", [&](Context* grpc) {
          const auto relay =
              std::make_shared<RelayStream>(table, context, grpc);
          relay->Start();
          return relay.get();
        });
  }
};

}  // namespace

SessionTable::SessionTable(const ServiceContext& context,
                           const Options& options)
    : context_(context), options_(options) {}

SessionTable::~SessionTable() = default;

std::unique_ptr<grpc::Service> SessionTable::MakeService() {
  return std::make_unique<SessionService>(*this, context_);
}

std::vector<std::shared_ptr<ServerSession>> SessionTable::Sessions() const {
  MutexLock lock(mu_);
  return {sessions_.begin(), sessions_.end()};
}

void SessionTable::Sweep(core::Instant now) {
  std::vector<std::shared_ptr<RelayStream>> relays;
  {
    MutexLock lock(mu_);
    relays.assign(relays_.begin(), relays_.end());
  }
  // Before their sessions, which do not read either but may return.
  for (const std::shared_ptr<RelayStream>& relay : relays) {
    relay->CutOffIfStalled(now, options_.stalled_reader_timeout);
  }
  for (const std::shared_ptr<ServerSession>& session : Sessions()) {
    session->EndIfNotAllowed();
    session->CutOffIfStalled(now, options_.stalled_reader_timeout);
  }
}

void SessionTable::Drain(const Status& status) {
  std::vector<std::shared_ptr<RelayStream>> relays;
  {
    MutexLock lock(mu_);
    draining_ = status;
    relays.assign(relays_.begin(), relays_.end());
  }
  for (const std::shared_ptr<ServerSession>& session : Sessions()) {
    session->Drain(status);
  }
  for (const std::shared_ptr<RelayStream>& relay : relays) {
    relay->Drain(status);
  }
}

void SessionTable::Hold(const JobSet& jobs) {
  if (jobs.empty()) return;
  for (const std::shared_ptr<ServerSession>& session : Sessions()) {
    if (session->IsOfOne(jobs)) session->Hold();
  }
}

void SessionTable::Drain(const JobSet& jobs, const Status& status) {
  if (jobs.empty()) return;
  for (const std::shared_ptr<ServerSession>& session : Sessions()) {
    if (session->IsOfOne(jobs)) session->Drain(status);
  }
}

int64_t SessionTable::size() const {
  MutexLock lock(mu_);
  return static_cast<int64_t>(sessions_.size());
}

int64_t SessionTable::relays() const {
  MutexLock lock(mu_);
  return static_cast<int64_t>(relays_.size());
}

Status SessionTable::CheckRoom() const {
  if (!draining_.ok()) return draining_;
  return core::CheckLimit(
      "sessions", options_.sessions_max,
      static_cast<int64_t>(sessions_.size() + relays_.size()) + 1);
}

Status SessionTable::Add(const std::shared_ptr<ServerSession>& session) {
  MutexLock lock(mu_);
  Status status = CheckRoom();
  if (status.ok()) sessions_.insert(session);
  return status;
}

void SessionTable::Remove(const std::shared_ptr<ServerSession>& session) {
  MutexLock lock(mu_);
  sessions_.erase(session);
}

Status SessionTable::AddRelay(const std::shared_ptr<RelayStream>& relay) {
  MutexLock lock(mu_);
  Status status = CheckRoom();
  if (status.ok()) relays_.insert(relay);
  return status;
}

void SessionTable::RemoveRelay(const std::shared_ptr<RelayStream>& relay) {
  MutexLock lock(mu_);
  relays_.erase(relay);
}

}  // namespace muster::coordinator
