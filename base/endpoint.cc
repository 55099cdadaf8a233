#include "base/endpoint.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <cstddef>
#include <cstdint>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "base/text.h"
#include "muster/base/status.h"

namespace muster::base {

std::string Endpoint::ToString() const {
  return absl::StrContains(host, ':') ? absl::StrCat("[", host, "]:", port)
                                      : absl::StrCat(host, ":", port);
}

StatusOr<Endpoint> ParseEndpoint(absl::string_view what,
                                 absl::string_view text) {
  const auto malformed = [&](absl::string_view why) {
    return InvalidArgumentError(
        absl::StrCat(what, " ", Quote(text), ": ", why));
  };
  if (absl::StrContains(text, "://")) {
    return malformed("must be HOST:PORT, without a scheme");
  }
  if (absl::StrContains(text, ',')) {
    return malformed("must be one HOST:PORT, not a list");
  }
  const size_t colon = text.rfind(':');
  const size_t bracket = text.rfind(']');
  if (colon == absl::string_view::npos ||
      (bracket != absl::string_view::npos && colon < bracket) ||
      colon + 1 == text.size()) {
    return malformed("port number missing");
  }
  absl::string_view host = text.substr(0, colon);
  const absl::string_view port = text.substr(colon + 1);
  if (absl::ConsumePrefix(&host, "[")) {
    if (!absl::ConsumeSuffix(&host, "]")) return malformed("no closing ]");
  } else if (absl::StrContains(host, ':')) {
    return malformed("an IPv6 host must stand in brackets");
  }
  if (host.empty()) return malformed("host missing");
  int64_t number = 0;
  if (!absl::SimpleAtoi(port, &number)) {
    return malformed(
        absl::StrCat("port must be a number but was ", Quote(port)));
  }
  if (number < 0 || number > 65535) {
    return malformed(absl::StrCat(
        "port must have value from 0 to 65535 but was ", number, "."));
  }
  return Endpoint{std::string(host), static_cast<int>(number)};
}

bool IsLoopback(absl::string_view address) {
  const std::string text(address.substr(0, address.find('%')));
  in_addr v4{};
  if (inet_pton(AF_INET, text.c_str(), &v4) == 1) {
    return (ntohl(v4.s_addr) >> 24) == IN_LOOPBACKNET;
  }
  in6_addr v6{};
  return inet_pton(AF_INET6, text.c_str(), &v6) == 1 &&
         IN6_IS_ADDR_LOOPBACK(&v6);
}

}  // namespace muster::base
