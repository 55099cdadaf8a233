// An HTTP server for a few pages: metrics, health, status.

#ifndef MUSTER_BASE_HTTP_SERVER_H_
#define MUSTER_BASE_HTTP_SERVER_H_

#include <chrono>
#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/endpoint.h"
#include "base/status.h"

namespace muster::base {

// How long a request may take, from its first byte to the last of its answer.
inline constexpr std::chrono::seconds kHttpRequestTime(5);

struct HttpResponse {
  int status = 200;
  std::string type = "text/plain; charset=utf-8";
  std::string body;
};

// One page that an HttpServer serves.
struct HttpPage {
  std::string path;                      // "/metrics"
  std::function<HttpResponse()> render;  // called from any thread
  // Takes the body of a POST; null: only GET is allowed. An error becomes
  // status 400 with its text; else the page is answered.
  std::function<Status(const std::string& body)> accept = nullptr;
  // Only for requests that the server's HttpGuard lets in.
  bool guarded = false;
};

// A page's function that answers with status 200 and what `body` returns.
std::function<HttpResponse()> RenderAs(const std::string& type,
                                       std::function<std::string()> body);

// Whether a request may have guarded pages, by its Authorization header (empty:
// it has none). An error becomes status 401 (UNAUTHENTICATED) or 403, with its
// text.
using HttpGuard = std::function<Status(const std::string& header)>;

struct HttpServerOptions {
  // Null: every request of this host may have guarded pages.
  HttpGuard may = nullptr;
  size_t threads = 4;
  // How long a client may take for its request, or to read a part of the
  // answer, while other clients wait for a thread.
  std::chrono::milliseconds patience{10};
};

// HttpServer serves a fixed set of pages, one request a connection. A client
// that sends or reads slowly has kHttpRequestTime, or `patience` while others
// wait for a thread. The process ignores SIGPIPE from then on, because the HTTP
// library does so. Thread-safe.
class HttpServer {
 public:
  // Listens on `endpoint` (port 0: any free port) and serves when it returns.
  // Errors: INVALID_ARGUMENT (port out of range), UNAVAILABLE (cannot listen;
  //   the text names the address and the cause).
  static StatusOr<std::unique_ptr<HttpServer>> Start(
      const Endpoint& endpoint, const std::vector<HttpPage>& pages,
      const HttpServerOptions& options = {});

  // Drops all connections; waits for no client, only for a page that is being
  // rendered.
  virtual ~HttpServer() = default;

  HttpServer(const HttpServer&) = delete;
  HttpServer& operator=(const HttpServer&) = delete;

  virtual int port() const = 0;

 protected:
  HttpServer() = default;
};

// The body of the page `path` of the HTTP server that listens on `endpoint` of
// this host; empty: there is none that answers within a second.
std::string FetchPage(const Endpoint& endpoint, const std::string& path);

}  // namespace muster::base

#endif  // MUSTER_BASE_HTTP_SERVER_H_
