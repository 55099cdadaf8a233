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
#include "muster/base/status.h"

namespace muster::base {

// The longest time that a request may take, from its first byte to the last
// byte of its answer.
inline constexpr std::chrono::seconds kHttpRequestTime(5);

struct HttpResponse {
  int status = 200;
  std::string type = "text/plain; charset=utf-8";
  std::string body;
};

// One page of an HttpServer.
struct HttpPage {
  std::string path;                      // "/metrics"
  std::function<HttpResponse()> render;  // called from any thread
  // Handles the body of a POST; null: only GET is allowed. An error is answered
  // with status 400 and its text; OK is answered with the page.
  std::function<Status(const std::string& body)> accept = nullptr;
  // Served only for requests that the server's HttpGuard allows.
  bool guarded = false;
};

// Makes a page's render function that answers with status 200 and the result of
// `body`.
std::function<HttpResponse()> RenderAs(const std::string& type,
                                       std::function<std::string()> body);

// Decides from a request's Authorization header (empty if it has none) whether
// the request may have guarded pages. An error is answered with status 401
// (UNAUTHENTICATED) or 403 and its text.
using HttpGuard = std::function<Status(const std::string& header)>;

struct HttpServerOptions {
  // Null: every request from this host may have guarded pages.
  HttpGuard may = nullptr;
  size_t threads = 4;
  // How long a client may take to send its request, or to read a part of the
  // answer, while other clients wait for a thread.
  std::chrono::milliseconds patience{10};
};

// HttpServer serves a fixed set of pages, one request per connection. A client
// that sends or reads slowly gets kHttpRequestTime, or `patience` while other
// clients wait for a thread. Once a server has started, the process ignores
// SIGPIPE, because the HTTP library does so. Thread-safe.
class HttpServer {
 public:
  // Listens on `endpoint` (port 0: any free port). The server is serving when
  // this returns.
  // Errors: INVALID_ARGUMENT (port out of range), UNAVAILABLE (cannot listen;
  //   the text names the address and the cause).
  static StatusOr<std::unique_ptr<HttpServer>> Start(
      const Endpoint& endpoint, const std::vector<HttpPage>& pages,
      const HttpServerOptions& options = {});

  // Drops all connections. Waits only for a page that is being rendered, not
  // for clients.
  virtual ~HttpServer() = default;

  HttpServer(const HttpServer&) = delete;
  HttpServer& operator=(const HttpServer&) = delete;

  virtual int port() const = 0;

 protected:
  HttpServer() = default;
};

// Fetches the page `path` from the HTTP server that listens on `endpoint` of
// this host and returns its body; empty if no server answers within a second.
std::string FetchPage(const Endpoint& endpoint, const std::string& path);

}  // namespace muster::base

#endif  // MUSTER_BASE_HTTP_SERVER_H_
