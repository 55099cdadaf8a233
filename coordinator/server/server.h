#ifndef MUSTER_COORDINATOR_SERVER_SERVER_H_
#define MUSTER_COORDINATOR_SERVER_SERVER_H_

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "coordinator/core/limits.h"
#include "coordinator/storage/fleet.h"
#include "coordinator/storage/storage.h"
#include "muster/base/status.h"

namespace muster::coordinator {

// The configuration of a coordinator. The defaults suit a test or an embedded
// coordinator: loopback, any free port, no HTTP.
struct ServerOptions {
  // host:port of the gRPC endpoint; port 0 takes any free one. An IPv6 host
  // stands in brackets. An address other than loopback needs `insecure`.
  std::string listen = "127.0.0.1:0";
  // A TCP socket that listens already, instead of `listen`; the server uses a
  // duplicate. The server does not check who can reach it. -1: none.
  int listen_fd = -1;
  // host:port of /metrics, /healthz, /readyz and the status page; port 0 takes
  // any free one; empty serves no HTTP.
  std::string http_listen;
  // Allows plain text on an address that other hosts can reach.
  bool insecure = false;
  // PEM files. With the first two the gRPC endpoint speaks TLS only. With the
  // third as well, clients must show a certificate that one of its authorities
  // signed. Replaced files are used within two seconds, for new connections.
  std::string tls_cert;
  std::string tls_key;
  std::string tls_client_ca;
  // The token file (server/tokens.h); with it every call but health and
  // reflection needs a token. Empty: everybody may do everything.
  std::string token_file;
  // A member that is silent for this long is lost.
  std::chrono::milliseconds lease{10'000};
  // How long a member may be without a stream before it is lost.
  std::chrono::milliseconds reconnect_grace{250};
  // The most jobs; a call that would create another one gets
  // RESOURCE_EXHAUSTED.
  int jobs_max = 1'000;
  // The most jobs that one token may have created. 0: jobs_max.
  int jobs_per_token_max = 0;
  // The most bytes that all jobs may hold together: stored data, and an
  // estimate for their keys, items, waiting calls and members
  // (core/total_memory.h). 0: no limit.
  int64_t total_bytes_max = 0;
  // The most open streams, over all jobs.
  int sessions_max = 20'000;
  // The most bytes of one request or answer, a stream's batch included.
  int message_bytes_max = 64 << 20;
  // The most bytes of unary answers that clients have not taken, in all; a call
  // whose answer would exceed it gets RESOURCE_EXHAUSTED. An answer that is not
  // taken for `stalled_reader_timeout` is dropped.
  int64_t unsent_bytes_max = int64_t{1} << 30;
  // Approximate limit of bytes of incoming messages from all clients; beyond it
  // connections are not read, and streams may be ended.
  int64_t inbound_bytes_max = int64_t{4} << 30;
  // Limits of each job.
  core::Limits limits;
  // Opens the storage that keeps jobs when the process ends; unset: nothing is
  // kept. It is a function, so that embedders link no database.
  std::function<StatusOr<std::unique_ptr<Storage>>()> open_storage;
  // Joins the coordinators with which this one shares the jobs; then
  // `open_storage` is not used. Unset: it has all jobs.
  OpenFleet open_fleet;
  // host:port at which others reach the gRPC endpoint, with `open_fleet`.
  // Empty: the address on which it listens or, if that is one of all, the
  // host's name.
  std::string advertise;
  // When acknowledged changes are synced to the disk. Zero: before they are
  // acknowledged, so they survive a crash of the machine. Above: at most this
  // much later.
  std::chrono::milliseconds storage_sync_interval{0};
  // Called once when the storage fails. Nothing is acknowledged after that, and
  // the process should end. Unset: it ends with a fatal log line.
  std::function<void(const Status&)> on_storage_failure;
  // Called when an operator calls AdminService.Drain to take the process out of
  // service; it should cause a Drain and the end of the process. It runs on a
  // thread that must not block or call Drain. Unset: such calls are refused.
  std::function<void()> on_drain_request;
  // A client that takes no message of its stream for this long is cut off.
  std::chrono::milliseconds stalled_reader_timeout{10'000};
  // A job without members, waiting calls and new calls for this long is
  // forgotten, keys included.
  std::chrono::milliseconds idle_job_retention{3'600'000};
  // Whether state changes (a member joined, a generation formed, ...) are
  // logged.
  bool log_state_changes = true;
};

// Server is a complete coordinator in this process: gRPC services, health,
// reflection, HTTP. It installs no signal handlers and has no global state, so
// several can run in one process. If it serves HTTP, the process ignores
// SIGPIPE from then on. Thread-safe.
class Server {
 public:
  // The server listens and serves when this returns.
  // Errors: INVALID_ARGUMENT (an option; the text names it and its value),
  //   UNAVAILABLE (cannot listen: the text names the address and the cause; or
  //   the storage cannot be opened), FAILED_PRECONDITION (another process has
  //   the storage open), DATA_LOSS (it is corrupt).
  static StatusOr<std::unique_ptr<Server>> Start(const ServerOptions& options);

  // Drains with a grace of 100 ms, then ends every thread of the server.
  virtual ~Server() = default;

  Server(const Server&) = delete;
  Server& operator=(const Server&) = delete;

  // The ports on which the server listens; http_port() is 0 without HTTP.
  virtual int port() const = 0;
  virtual int http_port() const = 0;

  // The random id of this start, which every answer carries.
  virtual uint64_t epoch() const = 0;

  // Takes the server out of service: gives its shards to the other coordinators
  // of its fleet; health says NOT_SERVING; new calls, parked
  // calls and streams end with UNAVAILABLE and a text that says the coordinator
  // drains. Returns when all calls have ended or after `timeout`, and at most
  // half a second later, in which clients may close their connections; the
  // remaining ones are cut off. The port is free then; HTTP stays up until
  // destruction. May be called more than once.
  virtual void Drain(std::chrono::milliseconds timeout) = 0;

 protected:
  Server() = default;
};

}  // namespace muster::coordinator

#endif  // MUSTER_COORDINATOR_SERVER_SERVER_H_
