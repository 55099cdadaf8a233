// Pages of worker processes.

#ifndef MUSTER_CLIENT_TOOLS_FETCH_H_
#define MUSTER_CLIENT_TOOLS_FETCH_H_

#include <chrono>
#include <map>
#include <string>

#include "absl/status/status.h"
#include "client/tools/diagnosis.h"

namespace muster::tools {

struct Fetched {
  Answer answer = Answer::kUnreachable;
  // OK: `body` is the page. Else why there is none: kUnavailable (no answer),
  // kInvalidArgument (`address` is no HOST:PORT), kPermissionDenied,
  // kUnauthenticated, kResourceExhausted (it does not end), kUnknown (another
  // HTTP status).
  absl::Status status;
  std::string body;
};

// GET http://`address``path`, with `authorization` as the header of that name
// unless it is empty.
Fetched Fetch(const std::string& address, const std::string& path,
              const std::string& authorization,
              std::chrono::milliseconds timeout);

// The page of each of `addresses`, by rank, asked at once.
std::map<int, Fetched> FetchAll(const std::map<int, std::string>& addresses,
                                const std::string& path,
                                const std::string& authorization,
                                std::chrono::milliseconds timeout);

}  // namespace muster::tools

#endif  // MUSTER_CLIENT_TOOLS_FETCH_H_
