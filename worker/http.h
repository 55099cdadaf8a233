#ifndef MUSTER_WORKER_HTTP_H_
#define MUSTER_WORKER_HTTP_H_

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace muster::worker {

// One page that an HttpServer serves to GET.
struct HttpPage {
  std::string path;  // "/metrics"
  std::string content_type;
  std::function<std::string()> render;  // called from any thread
};

// HttpServer serves a fixed set of pages. Thread-safe.
class HttpServer {
 public:
  // Listens on `address`:`port` (0: any free port) and serves when it returns.
  // Errors: INVALID_ARGUMENT (port out of range), UNAVAILABLE (cannot listen;
  //   the text names the address and the cause).
  static absl::StatusOr<std::unique_ptr<HttpServer>> Start(
      const std::string& address, int port, const std::vector<HttpPage>& pages);

  // Stops; an idle connection may delay it by a second.
  virtual ~HttpServer() = default;

  HttpServer(const HttpServer&) = delete;
  HttpServer& operator=(const HttpServer&) = delete;

  virtual int port() const = 0;

 protected:
  HttpServer() = default;
};

}  // namespace muster::worker

#endif  // MUSTER_WORKER_HTTP_H_
