#ifndef MUSTER_CLIENT_TELEMETRY_HTTP_H_
#define MUSTER_CLIENT_TELEMETRY_HTTP_H_

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace muster::worker {

// How long a request may take, from its first byte to the last of its answer.
inline constexpr std::chrono::seconds kHttpRequestTime(5);

// One page that an HttpServer serves.
struct HttpPage {
  std::string path;  // "/metrics"
  std::string content_type;
  std::function<std::string()> render;  // called from any thread
  // Takes the body of a POST; null: only GET is allowed. An error becomes
  // status 400 with its text; else the page is answered.
  std::function<absl::Status(const std::string& body)> accept = nullptr;
  // Only for those whom HttpServer's `may` lets in.
  bool guarded = false;
};

// Whether a request may have guarded pages, by its Authorization header (empty:
// it has none). An error becomes status 401 (UNAUTHENTICATED) or 403, with its
// text.
using HttpGuard = std::function<absl::Status(const std::string& header)>;

// HttpServer serves a fixed set of pages, one request a connection. Who sends
// or reads slowly has kHttpRequestTime, or until somebody else needs the
// thread. Thread-safe.
class HttpServer {
 public:
  // Listens on `address`:`port` (0: any free port) and serves when it returns.
  // Errors: INVALID_ARGUMENT (port out of range), UNAVAILABLE (cannot listen;
  //   the text names the address and the cause).
  static absl::StatusOr<std::unique_ptr<HttpServer>> Start(
      const std::string& address, int port, const std::vector<HttpPage>& pages,
      const HttpGuard& may = nullptr);

  // Drops all connections; waits for no client, only for a page that is being
  // rendered.
  virtual ~HttpServer() = default;

  HttpServer(const HttpServer&) = delete;
  HttpServer& operator=(const HttpServer&) = delete;

  virtual int port() const = 0;

 protected:
  HttpServer() = default;
};

// The body of the page `path` of the HTTP server that listens on `address`:
// `port` of this host; empty: there is none that answers within a second.
std::string FetchPage(const std::string& address, int port,
                      const std::string& path);

}  // namespace muster::worker

#endif  // MUSTER_CLIENT_TELEMETRY_HTTP_H_
