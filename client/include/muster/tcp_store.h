// A store that one of its processes serves.

#ifndef MUSTER_TCP_STORE_H_
#define MUSTER_TCP_STORE_H_

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "muster/base/export.h"
#include "muster/store.h"

namespace muster::internal {
struct Deadline;
}  // namespace muster::internal

namespace MUSTER_EXPORT muster {

struct TcpStoreOptions {
  // The host that serves the store, as all of its processes name it.
  std::string host = {};
  // The port of the store. 0: any free port, for the server only;
  // TcpStore::port() returns it.
  int port = 0;
  // How many stores there will be, including the server's. Not given: any
  // number.
  std::optional<int> world_size = std::nullopt;
  // True: this process serves the store. It listens on `host` if that is
  // numeric or "localhost", and on all addresses of the host if it is a name.
  // If TORCHELASTIC_USE_AGENT_STORE is "True", the launcher serves the store at
  // MASTER_ADDR:MASTER_PORT; for that address this counts as false.
  bool is_master = false;
  // The value of Store::timeout(), and the limit for the constructor.
  std::chrono::milliseconds timeout = Store::kDefaultTimeout;
  // Has an effect with `world_size` only: the server's constructor waits for
  // all other stores.
  bool wait_for_workers = true;
  // True: the server shares its port and its keys with other servers of this
  // process that have the same host and port and also set this.
  bool multi_tenant = false;
  // A bound TCP socket, which may listen already. Its port must be `port`,
  // unless that is 0. The store takes it over, also if its constructor throws.
  std::optional<int> master_listen_fd = std::nullopt;
};

// TcpStore is a store that one process, the one with is_master, serves by a
// coordinator inside it, for as long as it has the store or a clone of it. It
// has all of Store. NumKeys counts one key more than the user's if a store with
// a world size has waited for workers. Thread-safe.
//
// Calls throw DistNetworkError when the server is gone.
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
  // The clones share this. The session keeps the server alive.
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

#endif  // MUSTER_TCP_STORE_H_
