// A store that one of its processes serves.

#ifndef MUSTER_CLIENT_TCP_STORE_H_
#define MUSTER_CLIENT_TCP_STORE_H_

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "client/store.h"

namespace muster {

namespace internal {
struct Deadline;
}  // namespace internal

struct TcpStoreOptions {
  // Where the store is served: what all of its processes are told.
  std::string host = {};
  // 0, which a server alone can use: any free one; TcpStore::port() tells.
  int port = 0;
  // How many stores there will be, with the server. Not given: any number.
  std::optional<int> world_size = std::nullopt;
  // This process serves the store. It listens on `host` if that is numeric or
  // "localhost", and on all of the host's addresses if it is a name. Where
  // TORCHELASTIC_USE_AGENT_STORE is "True", the launcher serves the store at
  // MASTER_ADDR:MASTER_PORT, and there this counts as false.
  bool is_master = false;
  // Store::timeout(), and how long the constructor may take.
  std::chrono::milliseconds timeout = Store::kDefaultTimeout;
  // With a world size: the server waits in its constructor for all the others.
  bool wait_for_workers = true;
  // A server shares the port and the keys with other servers of this process
  // that have this set and the same host and port.
  bool multi_tenant = false;
  // A TCP socket that is bound, and may listen already, for a server, which
  // takes it over. Its port must be `port`, unless that is 0.
  std::optional<int> master_listen_fd = std::nullopt;
};

// The store is served by a coordinator inside the process that is_master, for
// as long as that process has the store or a clone of it. It has all of Store.
// NumKeys counts one key more than the user's when a store with a world size
// has waited for workers. Thread-safe.
//
// When the server is gone, calls throw DistNetworkError.
class TcpStore : public CoordinatorStore {
 public:
  // Throws DistStoreError: kInvalidArgument (an option), kDeadlineExceeded
  // (`Timed out after N seconds waiting for clients. K/M clients joined.`).
  // Throws DistNetworkError: nobody answers (`The client socket has timed out
  // after Nms while trying to connect to (HOST, PORT).`), or the port is in use
  // (`The server socket has failed to listen on any local network address.`).
  explicit TcpStore(const TcpStoreOptions& options);

  int64_t NumKeys() override;
  std::shared_ptr<Store> Clone() override;

  const std::string& host() const { return link_.host; }
  int port() const { return link_.port; }

 private:
  // What the clones share. The session keeps the server.
  struct Link {
    std::shared_ptr<Session> session;
    std::string host;
    int port = 0;
  };
  static Link Connect(const TcpStoreOptions& options,
                      const internal::Deadline& deadline);

  TcpStore(Link link, std::chrono::milliseconds timeout);
  TcpStore(const TcpStoreOptions& options, const internal::Deadline& deadline);

  void AwaitWorkers(int world_size, const internal::Deadline& deadline);

  const Link link_;
};

}  // namespace muster

#endif  // MUSTER_CLIENT_TCP_STORE_H_
