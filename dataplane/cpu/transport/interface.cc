#include "dataplane/cpu/transport/interface.h"

#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "base/status.h"
#include "base/text.h"
#include "glog/logging.h"

namespace muster::dataplane::cpu {
namespace {

// Names of the interfaces that are up and have an internet address.
std::set<std::string> UsableInterfaces() {
  std::set<std::string> names;
  ifaddrs* first = nullptr;
  if (getifaddrs(&first) != 0) return names;
  for (const ifaddrs* entry = first; entry != nullptr;
       entry = entry->ifa_next) {
    if (entry->ifa_addr == nullptr || (entry->ifa_flags & IFF_UP) == 0) {
      continue;
    }
    const int family = entry->ifa_addr->sa_family;
    if (family == AF_INET || family == AF_INET6) names.insert(entry->ifa_name);
  }
  freeifaddrs(first);
  return names;
}

// OK if a socket can be bound at `address`. Gloo checks this too, but leaks
// memory.
Status CheckLocalAddress(const std::string& address) {
  addrinfo hints = {};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_NUMERICHOST;
  addrinfo* found = nullptr;
  // Accepts scopes, too: fe80::1%eth0.
  if (getaddrinfo(address.c_str(), nullptr, &hints, &found) != 0) {
    return InvalidArgumentError(absl::StrCat(
        "argument local_address: ", base::Quote(address), " is no IP address"));
  }
  const int descriptor =
      socket(found->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const bool bound = descriptor >= 0 &&
                     bind(descriptor, found->ai_addr, found->ai_addrlen) == 0;
  const int error = errno;
  freeaddrinfo(found);
  if (descriptor >= 0) close(descriptor);
  if (bound) return OkStatus();
  return UnavailableError(
      absl::StrCat("argument local_address: cannot listen at ", address, ": ",
                   std::strerror(error)));
}

}  // namespace

std::vector<std::string> NamedInterfaces(const BackendOptions& options) {
  std::string names = options.network_interfaces;
  if (names.empty()) {
    const char* const variable = std::getenv("GLOO_SOCKET_IFNAME");
    names = variable == nullptr ? "" : variable;
  }
  if (names.empty()) return {};
  return absl::StrSplit(names, ',');
}

StatusOr<NetworkChoice> ChooseNetwork(const BackendOptions& options) {
  const std::vector<std::string> wanted = NamedInterfaces(options);
  if (!wanted.empty()) {
    const std::set<std::string> usable = UsableInterfaces();
    for (const std::string& name : wanted) {
      if (usable.contains(name)) continue;
      return InvalidArgumentError(absl::StrCat(
          options.network_interfaces.empty() ? "GLOO_SOCKET_IFNAME"
                                             : "network_interfaces",
          ": no interface ", base::Quote(name),
          " with an address on this host; there are: ",
          absl::StrJoin(usable, ", ")));
    }
    return NetworkChoice{.interface_name = wanted.front(), .address = ""};
  }
  if (!options.local_address.empty()) {
    Status usable = CheckLocalAddress(options.local_address);
    if (!usable.ok()) return usable;
    return NetworkChoice{.interface_name = "",
                         .address = options.local_address};
  }
  LOG_FIRST_N(WARNING, 1)
      << "no network interface named: using loopback, so ranks on other hosts "
         "cannot connect; set GLOO_SOCKET_IFNAME group="
      << base::LogValue(options.group_name);
  return NetworkChoice{.interface_name = "", .address = "127.0.0.1"};
}

}  // namespace muster::dataplane::cpu
