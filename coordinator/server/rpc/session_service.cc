#include "coordinator/server/rpc/session_service.h"

#include <vector>

#include "coordinator/core/limits.h"
#include "coordinator/server/rpc/server_session.h"
#include "coordinator/server/rpc/service.h"
#include "muster/v1/session.pb.h"

namespace muster::coordinator {
namespace {

class SessionService final : public Service {
 public:
  SessionService(SessionTable& table, const ServiceContext& context) {
    AddStream<v1::StreamResponse>(
        "/muster.v1.SessionService/Stream", [&](Context* grpc) {
          const auto session =
              std::make_shared<ServerSession>(table, context, grpc);
          session->Start();
          return session.get();
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

void SessionTable::Sweep(core::Instant now) {
  std::vector<std::shared_ptr<ServerSession>> sessions;
  {
    MutexLock lock(mu_);
    sessions.assign(sessions_.begin(), sessions_.end());
  }
  for (const std::shared_ptr<ServerSession>& session : sessions) {
    session->EndIfNotAllowed();
    session->CutOffIfStalled(now, options_.stalled_reader_timeout);
  }
}

void SessionTable::Drain(const Status& status) {
  std::vector<std::shared_ptr<ServerSession>> sessions;
  {
    MutexLock lock(mu_);
    draining_ = status;
    sessions.assign(sessions_.begin(), sessions_.end());
  }
  for (const std::shared_ptr<ServerSession>& session : sessions) {
    session->Drain(status);
  }
}

int64_t SessionTable::size() const {
  MutexLock lock(mu_);
  return static_cast<int64_t>(sessions_.size());
}

Status SessionTable::Add(const std::shared_ptr<ServerSession>& session) {
  MutexLock lock(mu_);
  if (!draining_.ok()) return draining_;
  Status status = core::CheckLimit("sessions", options_.sessions_max,
                                   static_cast<int64_t>(sessions_.size()) + 1);
  if (status.ok()) sessions_.insert(session);
  return status;
}

void SessionTable::Remove(const std::shared_ptr<ServerSession>& session) {
  MutexLock lock(mu_);
  sessions_.erase(session);
}

}  // namespace muster::coordinator
