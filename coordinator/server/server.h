#ifndef MUSTER_COORDINATOR_SERVER_SERVER_H_
#define MUSTER_COORDINATOR_SERVER_SERVER_H_

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "base/status.h"
#include "coordinator/core/limits.h"
#include "coordinator/storage/storage.h"

namespace muster::coordinator {

// The configuration of a coordinator. The defaults suit a test or an embedded
// coordinator: loopback, any free port, no HTTP.
struct ServerOptions {
  // host:port of the gRPC endpoint; port 0 takes any free one. An IPv6 host
  // stands in brackets. An address other than loopback needs `insecure`.
  std::string listen = "127.0.0.1:0";
  // A TCP socket that listens already, instead of `listen`; the server takes it
  // over. Whoever made it knows who can reach it. -1: none.
  int listen_fd = -1;
  // host:port of /metrics, /healthz, /readyz and the status page; port 0 takes
  // any free one; empty serves no HTTP.
  std::string http_listen;
  // Allows plain text on an address that other hosts can reach.
  bool insecure = false;
  // With the first two, PEM files, the gRPC endpoint speaks TLS only. With the
  // third as well clients must show a certificate that one of its authorities
  // signed. Files that are replaced count within two seconds, for connections
  // that are made from then on.
  std::string tls_cert;
  std::string tls_key;
  std::string tls_client_ca;
  // The file of tokens (server/tokens.h), as it is now; with it every call but
  // health and reflection needs one. Empty: everybody may do everything.
  std::string token_file;
  // A member that is silent for this long is lost.
  std::chrono::milliseconds lease{10'000};
  // How long a member may be without a stream before it is lost.
  std::chrono::milliseconds reconnect_grace{250};
  // The most jobs; the call that would make one more gets RESOURCE_EXHAUSTED.
  int jobs_max = 1'000;
  // Of those that one token has brought into being. 0: as many.
  int jobs_per_token_max = 0;
  // The most bytes that all jobs may hold together: what they store, and about
  // what keys, items, waiting calls and members take up beside
  // (core/total_memory.h). 0: there is no such limit.
  int64_t total_bytes_max = 0;
  // The most open streams, over all jobs.
  int sessions_max = 20'000;
  // The most bytes of one request or answer, a stream's batch included.
  int message_bytes_max = 64 << 20;
  // The most bytes of unary answers that clients have not taken, all together;
  // the call whose answer would be one more gets RESOURCE_EXHAUSTED. One that
  // is not taken for `stalled_reader_timeout` is given up.
  int64_t unsent_bytes_max = int64_t{1} << 30;
  // About how many bytes of messages may be on their way in, from all clients;
  // past it connections are not read, and streams may be ended.
  int64_t inbound_bytes_max = int64_t{4} << 30;
  // Of each job.
  core::Limits limits;
  // Opens what keeps every job over the end of the process; unset keeps
  // nothing. A function, so that who embeds a coordinator links no database.
  std::function<StatusOr<std::unique_ptr<Storage>>()> open_storage;
  // When what was acknowledged is on the disk. Zero: before it is acknowledged,
  // so it survives the end of the machine. Above: at most this much later.
  std::chrono::milliseconds storage_sync_interval{0};
  // Called once when the storage fails; nothing is acknowledged any more from
  // then on, and the process should end. Unset: it ends with a fatal log line.
  std::function<void(const Status&)> on_storage_failure;
  // Called when an operator asks by AdminService.Drain that the process goes
  // out of service; it should call Drain and end. On a thread that must not
  // block or call Drain itself. Unset: such calls are refused.
  std::function<void()> on_drain_request;
  // A client that takes no message of its stream for this long is cut off.
  std::chrono::milliseconds stalled_reader_timeout{10'000};
  // A job that nobody was a member of, waited in or called for this long is
  // forgotten, keys included.
  std::chrono::milliseconds idle_job_retention{3'600'000};
  // Whether state changes (a member joined, a generation formed, ...) go to
  // the log.
  bool log_state_changes = true;
};

// Server is a complete coordinator in this process: gRPC services, health,
// reflection, HTTP. It installs no signal handlers and has no global state, so
// several can run in one process. If it serves HTTP, the process ignores
// SIGPIPE from then on. Thread-safe.
class Server {
 public:
  // Listens and serves when it returns.
  // Errors: INVALID_ARGUMENT (an option; the text names it and its value),
  //   UNAVAILABLE (cannot listen: the text names the address and the cause; or
  //   the storage cannot be opened), FAILED_PRECONDITION (another process has
  //   the storage open), DATA_LOSS (it is corrupt).
  static StatusOr<std::unique_ptr<Server>> Start(const ServerOptions& options);

  // Drains with a grace of 100 ms, then ends every thread of the server.
  virtual ~Server() = default;

  Server(const Server&) = delete;
  Server& operator=(const Server&) = delete;

  // The ports that it listens on; http_port() is 0 without HTTP.
  virtual int port() const = 0;
  virtual int http_port() const = 0;

  // The random id of this start, as every answer carries it.
  virtual uint64_t epoch() const = 0;

  // Takes the server out of service: health says NOT_SERVING; new calls,
  // parked calls and streams end with UNAVAILABLE and a text that says the
  // coordinator drains. Returns when all calls have ended or after `timeout`,
  // whichever is first, and at most half a second in which clients may close
  // their connections; what is left then is cut off. The port is free then;
  // HTTP stays up until destruction. May be called more than once.
  virtual void Drain(std::chrono::milliseconds timeout) = 0;

 protected:
  Server() = default;
};

}  // namespace muster::coordinator

#endif  // MUSTER_COORDINATOR_SERVER_SERVER_H_
