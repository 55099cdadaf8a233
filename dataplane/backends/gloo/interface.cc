#include "dataplane/backends/gloo/interface.h"

#include <ifaddrs.h>
#include <net/if.h>
#include <sys/socket.h>

#include <cstdlib>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "glog/logging.h"

namespace muster::dataplane::gloo_internal {
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

}  // namespace

absl::StatusOr<NetworkChoice> ChooseNetwork(const BackendOptions& options) {
  std::string names = options.network_interfaces;
  std::string source = "network_interfaces";
  if (names.empty()) {
    const char* variable = std::getenv("GLOO_SOCKET_IFNAME");
    names = variable == nullptr ? "" : variable;
    source = "GLOO_SOCKET_IFNAME";
  }
  if (!names.empty()) {
    const std::vector<std::string> wanted = absl::StrSplit(names, ',');
    const std::set<std::string> usable = UsableInterfaces();
    if (!usable.contains(wanted.front())) {
      return absl::InvalidArgumentError(
          absl::StrCat(source, ": no interface \"", wanted.front(),
                       "\" with an address on this host; there are: ",
                       absl::StrJoin(usable, ", ")));
    }
    return NetworkChoice{.interface_name = wanted.front(), .address = ""};
  }
  if (!options.local_address.empty()) {
    return NetworkChoice{.interface_name = "",
                         .address = options.local_address};
  }
  LOG_FIRST_N(WARNING, 1)
      << "no network interface named: using loopback, so ranks on other hosts "
         "cannot connect; set GLOO_SOCKET_IFNAME group="
      << options.group_name;
  return NetworkChoice{.interface_name = "", .address = "127.0.0.1"};
}

}  // namespace muster::dataplane::gloo_internal
