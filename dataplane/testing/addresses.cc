#include "dataplane/testing/addresses.h"

#include <cstdlib>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "glog/logging.h"

namespace muster::dataplane::testing {

std::string GetAddress(int rank) {
  const char* const text = std::getenv("MUSTER_LOCAL_WORLD_HOSTS");
  const absl::string_view hosts = text == nullptr ? "0" : text;
  CHECK(!hosts.empty() && hosts.find_first_not_of("0123456789") == hosts.npos)
      << "MUSTER_LOCAL_WORLD_HOSTS: digits, not \"" << hosts << "\"";
  return absl::StrCat("127.0.0.", hosts[rank % hosts.size()] - '0' + 1);
}

}  // namespace muster::dataplane::testing
