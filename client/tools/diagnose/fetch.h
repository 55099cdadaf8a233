// Fetches HTTP pages from worker processes.

#ifndef MUSTER_CLIENT_TOOLS_DIAGNOSE_FETCH_H_
#define MUSTER_CLIENT_TOOLS_DIAGNOSE_FETCH_H_

#include <chrono>
#include <cstdint>
#include <map>
#include <string>

#include "base/status.h"
#include "client/tools/diagnose/diagnosis_rules.h"

namespace muster::tools {

struct Fetched {
  Answer answer = Answer::kUnreachable;
  // OK: `body` is the page. Else why there is none: kUnavailable (no answer),
  // kInvalidArgument (`address` is no HOST:PORT), kPermissionDenied,
  // kUnauthenticated, kResourceExhausted (it does not end), kUnknown (another
  // HTTP status).
  Status status = {};
  std::string body = {};
};

// GET http://`address``path`, with `authorization` as the header of that name
// unless it is empty.
Fetched Fetch(const std::string& address, const std::string& path,
              const std::string& authorization,
              std::chrono::milliseconds timeout);

// The member whose page is meant. What is at its address may be another
// process: one of this host, where the address is of a loopback elsewhere.
struct Asked {
  int rank = -1;
  std::string host;
  int64_t pid = 0;
  std::string address;
};

// The page `path` of `asked`; empty: only whether it answers. Asks for
// "/identity" first: who is another one is asked for nothing else, and only who
// is the right one is shown `authorization`. kFailedPrecondition: `asked` is
// not reachable from here, so that `answer` says nothing of it. That is, it
// listens on loopback elsewhere, or on this host's and says nothing that
// proves that it is the one.
Fetched FetchOf(const Asked& asked, const std::string& path,
                const std::string& authorization,
                std::chrono::milliseconds timeout);

// The same of each of `asked`, by rank, at once.
std::map<int, Fetched> FetchAll(const std::map<int, Asked>& asked,
                                const std::string& path,
                                const std::string& authorization,
                                std::chrono::milliseconds timeout);

}  // namespace muster::tools

#endif  // MUSTER_CLIENT_TOOLS_DIAGNOSE_FETCH_H_
