#ifndef MUSTER_COORDINATOR_SERVER_OPS_HTTP_H_
#define MUSTER_COORDINATOR_SERVER_OPS_HTTP_H_

#include <functional>
#include <map>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "coordinator/server/endpoint.h"

namespace muster::coordinator {

struct HttpPage {
  int status = 200;
  std::string type = "text/plain; charset=utf-8";
  std::string body;
};

// HttpServer answers GET requests for a fixed set of paths, with a small fixed
// number of threads. It makes the process ignore SIGPIPE, as its library does.
class HttpServer {
 public:
  // By path; called from several threads at once.
  using Pages = std::map<std::string, std::function<HttpPage()>>;

  // Serves when it returns.
  // Errors: UNAVAILABLE (cannot listen).
  static absl::StatusOr<std::unique_ptr<HttpServer>> Start(
      const Endpoint& endpoint, const Pages& pages);

  // Ends open connections within seconds.
  ~HttpServer();
  HttpServer(const HttpServer&) = delete;
  HttpServer& operator=(const HttpServer&) = delete;

  int port() const;

 private:
  class Listener;
  explicit HttpServer(std::unique_ptr<Listener> listener);

  const std::unique_ptr<Listener> listener_;
};

}  // namespace muster::coordinator

#endif  // MUSTER_COORDINATOR_SERVER_OPS_HTTP_H_
