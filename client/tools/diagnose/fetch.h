// Fetches HTTP pages from worker processes.

#ifndef MUSTER_CLIENT_TOOLS_DIAGNOSE_FETCH_H_
#define MUSTER_CLIENT_TOOLS_DIAGNOSE_FETCH_H_

#include <chrono>
#include <cstdint>
#include <map>
#include <string>

#include "client/tools/diagnose/diagnosis_rules.h"
#include "muster/base/status.h"

namespace muster::tools {

struct Fetched {
  Answer answer = Answer::kUnreachable;
  // OK: `body` is the page. Else the reason: kUnavailable (no answer),
  // kInvalidArgument (`address` is no HOST:PORT), kPermissionDenied,
  // kUnauthenticated, kResourceExhausted (too long or too slow), kUnknown
  // (another HTTP status).
  Status status = {};
  std::string body = {};
};

// GET http://`address``path`, with `authorization` as the Authorization header
// unless it is empty.
Fetched Fetch(const std::string& address, const std::string& path,
              const std::string& authorization,
              std::chrono::milliseconds timeout);

// The member whose page is wanted. Another process may be at its address: for a
// loopback address of another host, one of this host.
struct Asked {
  int rank = -1;
  std::string host;
  int64_t pid = 0;
  std::string address;
};

// Returns the page `path` of `asked`; if `path` is empty, only checks that
// `asked` answers. Asks for "/identity" first. A process with another identity
// gets no further request; only one with the right identity gets
// `authorization`. kFailedPrecondition: `asked` cannot be reached from here,
// and `answer` says nothing about it. It listens on loopback of another host,
// or on this host's loopback without proof that it is the right process.
Fetched FetchChecked(const Asked& asked, const std::string& path,
                     const std::string& authorization,
                     std::chrono::milliseconds timeout);

// Calls FetchChecked for all of `asked` at once; results by rank.
std::map<int, Fetched> FetchAll(const std::map<int, Asked>& asked,
                                const std::string& path,
                                const std::string& authorization,
                                std::chrono::milliseconds timeout);

}  // namespace muster::tools

#endif  // MUSTER_CLIENT_TOOLS_DIAGNOSE_FETCH_H_
