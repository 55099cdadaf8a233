#include "dataplane/cpu/transport/interface.h"

#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "base/text.h"
#include "glog/logging.h"
#include "muster/base/status.h"

namespace muster::dataplane::cpu {
namespace {

AddressBytes ToBytes(const sockaddr* address, size_t bytes) {
  sockaddr_storage storage = {};
  std::memcpy(&storage, address, bytes);
  const auto* const begin = reinterpret_cast<const char*>(&storage);
  return {begin, begin + sizeof(storage)};
}

// The first internet address of each interface that is up, by name.
std::map<std::string, AddressBytes> UsableInterfaces() {
  std::map<std::string, AddressBytes> addresses;
  ifaddrs* first = nullptr;
  if (getifaddrs(&first) != 0) return addresses;
  for (const ifaddrs* entry = first; entry != nullptr;
       entry = entry->ifa_next) {
    if (entry->ifa_addr == nullptr || (entry->ifa_flags & IFF_UP) == 0) {
      continue;
    }
    const int family = entry->ifa_addr->sa_family;
    if (family != AF_INET && family != AF_INET6) continue;
    addresses.emplace(
        entry->ifa_name,
        ToBytes(entry->ifa_addr, family == AF_INET ? sizeof(sockaddr_in)
                                                   : sizeof(sockaddr_in6)));
  }
  freeifaddrs(first);
  return addresses;
}

// Checks that a socket can be bound at `address`.
StatusOr<AddressBytes> ToLocalAddress(const std::string& address) {
  addrinfo hints = {};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_NUMERICHOST;
  addrinfo* found = nullptr;
  // Accepts scopes, too: fe80::1%eth0.
  if (getaddrinfo(address.c_str(), nullptr, &hints, &found) != 0) {
    return InvalidArgumentError(absl::StrCat(
        "argument local_address: ", base::Quote(address), " is no IP address"));
  }
  AddressBytes bytes = ToBytes(found->ai_addr, found->ai_addrlen);
  const int descriptor =
      socket(found->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const bool bound = descriptor >= 0 &&
                     bind(descriptor, found->ai_addr, found->ai_addrlen) == 0;
  const int error = errno;
  freeaddrinfo(found);
  if (descriptor >= 0) close(descriptor);
  if (bound) return bytes;
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

StatusOr<AddressBytes> ChooseAddress(const BackendOptions& options) {
  const std::vector<std::string> wanted = NamedInterfaces(options);
  if (!wanted.empty()) {
    const std::map<std::string, AddressBytes> usable = UsableInterfaces();
    for (const std::string& name : wanted) {
      if (usable.contains(name)) continue;
      return InvalidArgumentError(absl::StrCat(
          options.network_interfaces.empty() ? "GLOO_SOCKET_IFNAME"
                                             : "network_interfaces",
          ": no interface ", base::Quote(name),
          " with an address on this host; there are: ",
          absl::StrJoin(usable, ", ", [](std::string* text, const auto& one) {
            text->append(one.first);
          })));
    }
    return usable.at(wanted.front());
  }
  if (!options.local_address.empty()) {
    return ToLocalAddress(options.local_address);
  }
  LOG_FIRST_N(WARNING, 1)
      << "no network interface named: using loopback, so ranks on other hosts "
         "cannot connect; set GLOO_SOCKET_IFNAME group="
      << base::LogValue(options.group_name);
  return ToLocalAddress("127.0.0.1");
}

}  // namespace muster::dataplane::cpu
