#ifndef MUSTER_COORDINATOR_SERVER_RPC_SESSION_SERVICE_H_
#define MUSTER_COORDINATOR_SERVER_RPC_SESSION_SERVICE_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "coordinator/core/instant.h"
#include "coordinator/server/rpc/unary.h"
#include "grpcpp/impl/codegen/service_type.h"
#include "muster/base/mutex.h"
#include "muster/base/status.h"
#include "muster/base/thread_annotations.h"

namespace muster::coordinator {

class RelayedStream;
class RelayStream;
class ServerSession;

using JobSet = absl::flat_hash_set<const Job*>;

// The open sessions of a coordinator, and the relays' calls that carry some of
// them. Thread-safe.
class SessionTable {
 public:
  struct Options {
    int sessions_max = 0;
    // A client that does not take a message for this long is cut off.
    core::Duration stalled_reader_timeout{};
    // The memory of relayed messages that are not read. Those of other sessions
    // are in gRPC's own quota.
    int64_t inbound_bytes_max = INT64_MAX;
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

  // Holds all streams of these jobs: see ServerSession::Hold.
  void Hold(const JobSet& jobs);
  // Ends all streams of these jobs with `status`, when their answers are sent.
  void Drain(const JobSet& jobs, const Status& status);

  int64_t size() const;
  int64_t relays() const;

 private:
  friend class RelayedStream;
  friend class RelayStream;
  friend class ServerSession;

  // Errors: RESOURCE_EXHAUSTED (limit sessions, in which a relay counts as one
  // more), or the status of Drain.
  Status Add(const std::shared_ptr<ServerSession>& session);
  void Remove(const std::shared_ptr<ServerSession>& session);
  std::vector<std::shared_ptr<ServerSession>> Sessions() const;
  Status AddRelay(const std::shared_ptr<RelayStream>& relay);
  void RemoveRelay(const std::shared_ptr<RelayStream>& relay);
  Status CheckRoom() const MUSTER_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const ServiceContext& context_;
  const Options options_;
  mutable Mutex mu_;
  absl::flat_hash_set<std::shared_ptr<ServerSession>> sessions_
      MUSTER_GUARDED_BY(mu_);
  absl::flat_hash_set<std::shared_ptr<RelayStream>> relays_
      MUSTER_GUARDED_BY(mu_);
  std::atomic<int64_t> relayed_bytes_ = 0;  // see inbound_bytes_max
  Status draining_ MUSTER_GUARDED_BY(mu_);
};

}  // namespace muster::coordinator

#endif  // MUSTER_COORDINATOR_SERVER_RPC_SESSION_SERVICE_H_
