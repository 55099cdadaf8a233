#include "client/control/relay_route.h"

#include <algorithm>
#include <set>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "base/text.h"
#include "client/control/channel.h"

namespace muster::internal {
namespace {

// Less than a lease of 10 s, so that the members of a stopped relay are heard
// in time.
constexpr std::chrono::milliseconds kRelaySilence{5'000};

StatusOr<std::set<std::string>> ParseAll(absl::string_view addresses) {
  std::set<std::string> all;
  for (const absl::string_view address : absl::StrSplit(addresses, ',')) {
    const StatusOr<Endpoint> endpoint = ParseEndpoint(address);
    if (!endpoint.ok()) return endpoint.status();
    all.insert(endpoint->ToString());
  }
  return all;
}

}  // namespace

std::string UnixTarget(absl::string_view path) {
  std::string target = "unix:";
  for (const char c : path) {
    if (absl::ascii_isalnum(static_cast<unsigned char>(c)) ||
        absl::string_view("/._-").find(c) != absl::string_view::npos) {
      target += c;
    } else {
      absl::StrAppendFormat(&target, "%%%02X", static_cast<unsigned char>(c));
    }
  }
  return target;
}

StatusOr<RelayRoute> RelayRoute::Take(absl::string_view addresses,
                                      const EnvironmentReader& environment) {
  const char* const value = environment(kRelayVariable);
  const absl::string_view text = value == nullptr ? "" : value;
  if (text.empty()) return RelayRoute("");
  const size_t at = text.find('@');
  const StatusOr<std::set<std::string>> served = ParseAll(text.substr(0, at));
  if (at == absl::string_view::npos || at + 1 == text.size() || !served.ok()) {
    return InvalidArgumentError(
        absl::StrCat("environment variable ", kRelayVariable,
                     " must be HOST:PORT@PATH, as muster-run sets it, got ",
                     base::Quote(text)));
  }
  const StatusOr<std::set<std::string>> own = ParseAll(addresses);
  if (!own.ok()) return own.status();
  const bool is_for_them = std::any_of(
      own->begin(), own->end(),
      [&](const std::string& each) { return served->count(each) > 0; });
  return RelayRoute(is_for_them ? std::string(text.substr(at + 1)) : "");
}

Connection::Route RelayRoute::Next(const Endpoint& endpoint,
                                   const ConnectionSecurity& security,
                                   std::chrono::milliseconds silence_max,
                                   size_t turn) {
  relayed_ = !path_.empty() && !failed_;
  failed_ = false;
  Connection::Route route;
  if (!security.authorization().empty()) {
    route.headers.emplace_back("authorization", security.authorization());
  }
  if (relayed_) {
    route.channel = NewUnixChannel(UnixTarget(path_), kRelaySilence);
    route.headers.emplace_back(kRelayTargetHeader, endpoint.ToString());
  } else {
    route.channel = NewChannel(endpoint, security, silence_max, turn);
  }
  return route;
}

Status RelayRoute::Ended(const Connection& connection, Status why) {
  // The session itself may have ended it, because the coordinator has lost what
  // it held (kAborted).
  if (!relayed_ || connection.HasTrailer(kRelayLivesHeader) || IsAborted(why)) {
    return why;
  }
  failed_ = true;
  return Status(why.code(), absl::StrCat("the relay of muster-run failed: ",
                                         why.message()));
}

}  // namespace muster::internal
