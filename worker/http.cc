#include "worker/http.h"

#include <fcntl.h>
#include <httplib.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstring>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace muster::worker {
namespace {

// A scrape is rare and quick, but a connection that says nothing holds a
// thread until it is dropped.
constexpr int kThreads = 4;
constexpr int kIdleSeconds = 1;
constexpr size_t kBodyBytesMax = 4096;

class HttplibServer final : public HttpServer {
 public:
  HttplibServer(const std::vector<HttpPage>& pages, const HttpGuard& may) {
    server_.new_task_queue = [] { return new httplib::ThreadPool(kThreads); };
    // One request a connection, and idle ones are dropped soon: stop() waits
    // for every connection that is open.
    server_.set_keep_alive_max_count(1);
    server_.set_keep_alive_timeout(kIdleSeconds);
    server_.set_read_timeout(kIdleSeconds);
    server_.set_write_timeout(kIdleSeconds);
    server_.set_socket_options([](socket_t socket) {
      // The library's default is SO_REUSEPORT, with which two processes share
      // a port without knowing of each other.
      const int yes = 1;
      setsockopt(socket, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof(yes));
      fcntl(socket, F_SETFD, FD_CLOEXEC);
    });
    server_.set_payload_max_length(kBodyBytesMax);
    // Before a body is read. Of one without a length the library would read as
    // much as comes.
    server_.set_pre_routing_handler([pages, may](
                                        const httplib::Request& request,
                                        httplib::Response& response) {
      for (const HttpPage& page : pages) {
        if (page.path == request.path && !LetIn(page, may, request, response)) {
          return httplib::Server::HandlerResponse::Handled;
        }
      }
      if (request.method == "GET" || request.method == "HEAD" ||
          (request.has_header("Content-Length") &&
           !request.has_header("Transfer-Encoding"))) {
        return httplib::Server::HandlerResponse::Unhandled;
      }
      Refuse(411,
             absl::InvalidArgumentError("a body needs a Content-Length, and no "
                                        "Transfer-Encoding"),
             response);
      return httplib::Server::HandlerResponse::Handled;
    });
    for (const HttpPage& page : pages) {
      server_.Get(page.path, [page](const httplib::Request&,
                                    httplib::Response& response) {
        response.set_content(page.render(), page.content_type.c_str());
      });
      if (page.accept == nullptr) continue;
      server_.Post(page.path, [page](const httplib::Request& request,
                                     httplib::Response& response) {
        const absl::Status status = page.accept(request.body);
        if (status.ok()) {
          response.set_content(page.render(), page.content_type.c_str());
        } else {
          Refuse(400, status, response);
        }
      });
    }
  }

  ~HttplibServer() override {
    if (!thread_.joinable()) return;
    // The library forgets a stop() that comes before its loop has begun.
    while (!server_.is_running()) std::this_thread::yield();
    server_.stop();
    thread_.join();
  }

  // Returns 0, or the errno with which listening failed.
  int Listen(const std::string& address, int port) {
    errno = 0;
    if (port == 0) {
      port_ = server_.bind_to_any_port(address);
    } else if (server_.bind_to_port(address, port)) {
      port_ = port;
    }
    if (port_ <= 0) return errno != 0 ? errno : EADDRNOTAVAIL;
    thread_ = std::thread([this] { server_.listen_after_bind(); });
    return 0;
  }

  int port() const override { return port_; }

 private:
  static void Refuse(int code, const absl::Status& status,
                     httplib::Response& response) {
    response.status = code;
    response.set_content(absl::StrCat(status.message(), "\n"), "text/plain");
  }

  static bool LetIn(const HttpPage& page, const HttpGuard& may,
                    const httplib::Request& request,
                    httplib::Response& response) {
    if (!page.guarded || may == nullptr) return true;
    const absl::Status status = may(request.get_header_value("Authorization"));
    if (status.ok()) return true;
    if (absl::IsUnauthenticated(status)) {
      response.set_header("WWW-Authenticate", "Bearer");
    }
    Refuse(absl::IsUnauthenticated(status) ? 401 : 403, status, response);
    return false;
  }

  httplib::Server server_;
  int port_ = -1;
  std::thread thread_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<HttpServer>> HttpServer::Start(
    const std::string& address, int port, const std::vector<HttpPage>& pages,
    const HttpGuard& may) {
  if (port < 0 || port > 65535) {
    return absl::InvalidArgumentError(
        absl::StrCat("HTTP port must be 0 to 65535, got ", port));
  }
  auto server = std::make_unique<HttplibServer>(pages, may);
  const int error = server->Listen(address, port);
  if (error != 0) {
    return absl::UnavailableError(
        absl::StrCat("cannot listen on ", address, ":", port,
                     " for HTTP: ", std::strerror(error)));
  }
  return server;
}

}  // namespace muster::worker
