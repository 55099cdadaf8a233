// Endpoint, a host and a port, and its text form.

#ifndef MUSTER_BASE_ENDPOINT_H_
#define MUSTER_BASE_ENDPOINT_H_

#include <string>

#include "absl/strings/string_view.h"
#include "muster/base/status.h"

namespace muster::base {

struct Endpoint {
  std::string host;  // A name or a literal, without brackets.
  int port = 0;

  // "host:port", with an IPv6 literal in brackets.
  std::string ToString() const;
};

// Parses "host:port". The error text begins with `what`, the name of the option
// or another word for the text.
// Errors: INVALID_ARGUMENT (`listen "[::1]": port number missing`).
StatusOr<Endpoint> ParseEndpoint(absl::string_view what,
                                 absl::string_view text);

// Whether `address` is a numeric address, possibly with a scope, of the
// loopback network.
bool IsLoopback(absl::string_view address);

}  // namespace muster::base

#endif  // MUSTER_BASE_ENDPOINT_H_
