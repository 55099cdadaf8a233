#include "worker/launcher/own_coordinator.h"

#include <netdb.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <initializer_list>
#include <random>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "client/control/endpoint.h"
#include "muster/base/status.h"
#include "worker/launcher/attempt.h"

namespace muster::worker {
namespace {

using internal::EmbeddedCoordinator;

using Names = std::initializer_list<const char*>;
constexpr Names kTls = {"MUSTER_TLS_CA", "MUSTER_TLS_CERT", "MUSTER_TLS_KEY"};
constexpr Names kTokens = {"MUSTER_TOKEN", "MUSTER_TOKEN_FILE"};

// Returns null if the variable is unset or empty.
const char* Find(const Environment& environment, const char* name) {
  const auto found = environment.find(name);
  if (found == environment.end() || found->second.empty()) return nullptr;
  return found->second.c_str();
}

bool HasAny(const Environment& environment, Names names) {
  return std::any_of(names.begin(), names.end(), [&](const char* name) {
    return Find(environment, name) != nullptr;
  });
}

bool HasAll(const Environment& environment, Names names) {
  return std::all_of(names.begin(), names.end(), [&](const char* name) {
    return Find(environment, name) != nullptr;
  });
}

void Forget(Names names, Environment& environment) {
  for (const char* const name : names) {
    environment.erase(name);
    unsetenv(name);
  }
}

}  // namespace

bool IsThisHost(const std::string& host) {
  addrinfo hints = {};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  if (getaddrinfo(host.c_str(), nullptr, &hints, &found) != 0) return false;
  bool is_this = false;
  for (const addrinfo* each = found; each != nullptr; each = each->ai_next) {
    const int fd = socket(each->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0) continue;
    // Port 0 is any free port.
    is_this |= bind(fd, each->ai_addr, each->ai_addrlen) == 0;
    close(fd);
  }
  freeaddrinfo(found);
  return is_this;
}

StatusOr<std::unique_ptr<EmbeddedCoordinator>> ServeOwnCoordinator(
    const LaunchOptions& options, CoordinatorAddress& address,
    Environment& environment) {
  address = {options.rendezvous_host, options.rendezvous_port,
             options.rendezvous_id, options.rendezvous_others};
  if (address.job.empty()) {
    std::random_device random;
    address.job = absl::StrFormat("standalone-%08x", random());
  }
  // The certificates of hosts and ranks also serve the coordinator.
  const bool speaks_tls = !address.host.empty() && HasAll(environment, kTls);
  // A token, or authorities alone, are meant for another coordinator.
  const bool means_another = HasAny(environment, kTokens) ||
                             (HasAny(environment, kTls) && !speaks_tls);
  const bool may = options.rendezvous_on_its_host && !means_another &&
                   IsThisHost(address.host);
  const bool must = address.host.empty() ||
                    (options.rendezvous_on_node_0 && options.node_rank == 0);
  if (must || options.rendezvous_on_node_0) {
    Forget(kTokens, environment);
    if (!speaks_tls) Forget(kTls, environment);
  }
  if (!must && !may) return nullptr;
  internal::EmbeddedCoordinatorOptions embedded;
  if (!address.host.empty()) {
    // Only loopback is safe: any other name or address may resolve differently
    // elsewhere (a service's virtual address).
    const bool loopback =
        address.host == "localhost" || internal::IsLoopback(address.host);
    embedded.listen =
        loopback ? internal::ListenAddress({address.host, address.port})
                 : absl::StrCat("[::]:", address.port);
  }
  auto coordinator =
      speaks_tls
          ? EmbeddedCoordinator::StartForRanks(
                embedded,
                [&](const char* name) { return Find(environment, name); })
          : EmbeddedCoordinator::Start(embedded);
  if (IsUnavailable(coordinator.status()) && !must) {
    // Another muster-run of this host was first, or it is an external one.
    Say(absl::StrCat("using the coordinator at ", address.HostPort(), ": ",
                     coordinator.status().message()));
    return nullptr;
  }
  if (IsUnavailable(coordinator.status()) && options.several_hosts()) {
    return Status(
        coordinator.status().code(),
        absl::StrCat(coordinator.status().message(),
                     " (--node-rank=0 serves it; a muster-run that is number "
                     "0, too, may have been first)"));
  }
  if (!coordinator.ok()) return coordinator.status();
  if (address.host.empty()) {
    address.host = "127.0.0.1";
    address.port = (*coordinator)->port();
  }
  return coordinator;
}

}  // namespace muster::worker
