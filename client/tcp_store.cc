#include "muster/tcp_store.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "client/control/deadline.h"
#include "client/control/endpoint.h"
#include "client/control/fork_guard.h"
#include "client/control/throw.h"
#include "client/groups/embedded_coordinator.h"
#include "client/groups/init_method.h"
#include "client/stores/store_rules.h"
#include "muster/base/mutex.h"
#include "muster/base/status.h"
#include "muster/base/thread_annotations.h"
#include "muster/errors.h"
#include "muster/session.h"

namespace muster {
namespace {

using internal::Deadline;
using internal::EmbeddedCoordinator;
using internal::Endpoint;
using internal::ErrorSource;
using internal::ValueOrThrow;
using std::chrono::milliseconds;

// The coordinator's job that has the store.
constexpr char kJob[] = "tcp_store";
// Counts the stores that have connected.
constexpr char kInitKey[] = "muster/tcp_store/init";
// How long to reconnect: a server that is gone does not come back.
constexpr std::chrono::seconds kServerLoss{3};
constexpr milliseconds kLeaveTimeout{200};

const char* Getenv(const char* name) { return std::getenv(name); }

[[noreturn]] void Invalid(std::string text) {
  internal::Throw(ErrorSource::kStore, InvalidArgumentError(std::move(text)));
}

void CheckOptions(const TcpStoreOptions& options, bool serves) {
  internal::ThrowIfFailed(ErrorSource::kStore,
                          internal::CheckTimeout(options.timeout));
  if (options.host.empty()) Invalid("TCPStore: host missing");
  if (options.port < 0 || options.port > 65535) {
    Invalid(absl::StrCat("port must have value from 0 to 65535 but was ",
                         options.port, "."));
  }
  if (options.world_size == 0) Invalid("TCPStore world size cannot be 0");
  if (options.world_size.value_or(1) < 0) {
    Invalid(absl::StrCat("TCPStore world size must be positive but was ",
                         *options.world_size));
  }
  if (options.port == 0 && !serves) {
    Invalid(
        "TCPStore: port 0 stands for any free one, which only the server "
        "can use");
  }
  if (options.master_listen_fd.has_value() && *options.master_listen_fd < 0) {
    Invalid(absl::StrCat("TCPStore: master_listen_fd ",
                         *options.master_listen_fd, " is no descriptor"));
  }
  if (options.master_listen_fd.has_value() && !options.is_master) {
    Invalid(absl::StrCat("TCPStore: master_listen_fd ",
                         *options.master_listen_fd, " is for the server"));
  }
}

// Whether the launcher serves the store.
bool IsAgents(const TcpStoreOptions& options) {
  const bool agents =
      ValueOrThrow(ErrorSource::kStore, internal::IsAgentsStore(&Getenv));
  const char* const host = Getenv("MASTER_ADDR");
  const char* const port = Getenv("MASTER_PORT");
  int number = 0;
  return agents && host != nullptr && port != nullptr &&
         internal::WithoutBrackets(options.host) ==
             internal::WithoutBrackets(host) &&
         absl::SimpleAtoi(port, &number) && options.port == number;
}

// Servers of this process that others may share, by address.
struct SharedServers {
  Mutex mutex;
  std::map<std::string, std::weak_ptr<EmbeddedCoordinator>> by_address
      MUSTER_GUARDED_BY(mutex);
};

SharedServers& TheSharedServers() {
  static SharedServers* const servers = new SharedServers;
  return *servers;
}

std::shared_ptr<EmbeddedCoordinator> StartServer(
    const TcpStoreOptions& options) {
  auto server = EmbeddedCoordinator::StartForRanks(
      {.listen = internal::ListenAddress(
           {internal::WithoutBrackets(options.host), options.port}),
       .listen_fd = options.master_listen_fd.value_or(-1)},
      &Getenv);
  if (IsUnavailable(server.status())) {
    internal::Throw(
        ErrorSource::kStore,
        UnavailableError(absl::StrCat(
            "The server socket has failed to listen on any local network "
            "address. ",
            server.status().message())));
  }
  std::shared_ptr<EmbeddedCoordinator> started =
      ValueOrThrow(ErrorSource::kStore, std::move(server));
  if (options.port != 0 && started->port() != options.port) {
    Invalid(absl::StrCat("TCPStore: master_listen_fd ",
                         *options.master_listen_fd, " is bound to port ",
                         started->port(), ", expected to be bound to port ",
                         options.port));
  }
  return started;
}

std::shared_ptr<EmbeddedCoordinator> Serve(const TcpStoreOptions& options) {
  if (!options.multi_tenant) return StartServer(options);
  const auto address = [&](int port) {
    return internal::ListenAddress(
        {internal::WithoutBrackets(options.host), port});
  };
  SharedServers& shared = TheSharedServers();
  MutexLock lock(shared.mutex);
  if (options.port != 0 && !options.master_listen_fd.has_value()) {
    auto present = shared.by_address[address(options.port)].lock();
    if (present != nullptr) return present;
  }
  std::shared_ptr<EmbeddedCoordinator> server = StartServer(options);
  shared.by_address[address(server->port())] = server;
  return server;
}

std::shared_ptr<Session> ConnectTo(const Endpoint& server,
                                   const Deadline& deadline) {
  SessionOptions session;
  session.address = server.ToString();
  session.job = kJob;
  session.coordinator_note = "TCPStore's server";
  // The store's server does not use tokens.
  session.use_token = false;
  session.give_up_after = kServerLoss;
  session.connect_timeout =
      std::max(milliseconds(1), deadline.Remaining(Clock::now()));
  session.connect_timeout_name = deadline.name;
  try {
    return Session::Connect(std::move(session));
  } catch (const DistNetworkError& error) {
    internal::Throw(
        ErrorSource::kStore,
        UnavailableError(absl::StrCat(
            "The client socket has timed out after ", deadline.timeout.count(),
            "ms while trying to connect to (", server.host, ", ", server.port,
            "). ", error.what())));
  }
}

struct Parts {
  ~Parts() {
    // The server has often ended before; the error does not matter.
    if (session != nullptr) session->Leave("store closed", kLeaveTimeout);
    session = nullptr;
  }

  std::shared_ptr<EmbeddedCoordinator> server;
  std::shared_ptr<Session> session;
};

}  // namespace

TcpStore::TcpStore(const TcpStoreOptions& options)
    : TcpStore(options,
               Deadline::After(options.timeout, "TcpStoreOptions::timeout")) {}

TcpStore::TcpStore(const TcpStoreOptions& options, const Deadline& deadline)
    : TcpStore(Connect(options, deadline), options.timeout) {
  if (!options.world_size.has_value() || !options.wait_for_workers) return;
  if (options.is_master && !IsAgents(options)) {
    AwaitWorkers(*options.world_size, deadline);
  } else {
    Add(kInitKey, 1);
  }
}

TcpStore::TcpStore(Link link, milliseconds timeout)
    : CoordinatorStore(link.session), link_(std::move(link)) {
  SetTimeout(timeout);
}

TcpStore::Link TcpStore::Connect(const TcpStoreOptions& options,
                                 const Deadline& deadline) {
  // The server has a duplicate.
  const absl::Cleanup close_listen_fd = [fd = options.master_listen_fd] {
    if (fd.value_or(-1) >= 0) close(*fd);
  };
  const bool serves = options.is_master && !IsAgents(options);
  CheckOptions(options, serves);
  auto parts = internal::MakeAtHome<Parts>();
  Endpoint endpoint{internal::WithoutBrackets(options.host), options.port};
  if (serves) {
    parts->server = Serve(options);
    endpoint.port = parts->server->port();
  }
  parts->session = ConnectTo(endpoint, deadline);
  return {.session = {parts, parts->session.get()},
          .host = endpoint.host,
          .port = endpoint.port};
}

void TcpStore::AwaitWorkers(int world_size, const Deadline& deadline) {
  const auto watch = Watch(kInitKey);
  int64_t joined = Add(kInitKey, 1);
  while (joined < world_size) {
    const auto change = watch->Next(deadline.Remaining(Clock::now()));
    if (!change.has_value()) {
      const double seconds =
          std::chrono::duration<double>(deadline.timeout).count();
      internal::Throw(
          ErrorSource::kStore,
          DeadlineExceededError(absl::StrCat(
              "Timed out after ", seconds, " seconds waiting for clients. ",
              joined, "/", world_size, " clients joined. ", deadline.Blame())));
    }
    int64_t now = 0;
    if (absl::SimpleAtoi(change->value, &now)) joined = std::max(joined, now);
  }
}

int64_t TcpStore::NumKeys() {
  return CoordinatorStore::NumKeys() + (Check({kInitKey}) ? 1 : 0);
}

std::shared_ptr<Store> TcpStore::Clone() {
  return std::shared_ptr<Store>(new TcpStore(link_, timeout()));
}

}  // namespace muster
