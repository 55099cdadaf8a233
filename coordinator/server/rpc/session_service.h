#ifndef MUSTER_COORDINATOR_SERVER_RPC_SESSION_SERVICE_H_
#define MUSTER_COORDINATOR_SERVER_RPC_SESSION_SERVICE_H_

#include <cstdint>
#include <memory>

#include "absl/container/flat_hash_set.h"
#include "coordinator/core/instant.h"
#include "coordinator/server/rpc/unary.h"
#include "grpcpp/impl/codegen/service_type.h"
#include "muster/base/mutex.h"
#include "muster/base/status.h"
#include "muster/base/thread_annotations.h"

namespace muster::coordinator {

class ServerSession;

// The open streams of a coordinator. Thread-safe.
class SessionTable {
 public:
  struct Options {
    int sessions_max = 0;
    // A client that does not take a message for this long is cut off.
    core::Duration stalled_reader_timeout{};
  };

  SessionTable(const ServiceContext& context, const Options& options);
  ~SessionTable();
  SessionTable(const SessionTable&) = delete;
  SessionTable& operator=(const SessionTable&) = delete;

  // Makes muster.v1.SessionService; the table outlives it.
  std::unique_ptr<grpc::Service> MakeService();

  // Cuts off clients that do not read or whose tokens are no longer valid.
  void Sweep(core::Instant now);

  // Ends all streams, and every one that is opened later, with `status`.
  void Drain(const Status& status);

  int64_t size() const;

 private:
  friend class ServerSession;

  // Errors: RESOURCE_EXHAUSTED (limit sessions), or the status of Drain.
  Status Add(const std::shared_ptr<ServerSession>& session);
  void Remove(const std::shared_ptr<ServerSession>& session);

  const ServiceContext& context_;
  const Options options_;
  mutable Mutex mu_;
  absl::flat_hash_set<std::shared_ptr<ServerSession>> sessions_
      MUSTER_GUARDED_BY(mu_);
  Status draining_ MUSTER_GUARDED_BY(mu_);
};

}  // namespace muster::coordinator

#endif  // MUSTER_COORDINATOR_SERVER_RPC_SESSION_SERVICE_H_
