#include "client/telemetry/http.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <httplib.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/text.h"
#include "client/telemetry/http_connections.h"

namespace muster::worker {
namespace {

using Clock = std::chrono::steady_clock;

// A scrape is rare and quick.
constexpr size_t kThreads = 4;
constexpr int kBacklog = 64;
constexpr size_t kBodyBytesMax = 4096;
constexpr std::chrono::seconds kFetchTime(1);
// With all headers, of which the library would read as many as come.
constexpr size_t kRequestBytesMax = 65536;

// One of `connections`, from Begin to End, as the library reads and writes it,
// until `deadline` at most.
class HttpStream final : public httplib::Stream {
 public:
  HttpStream(HttpConnections& connections, int socket,
             Clock::time_point deadline)
      : connections_(connections),
        socket_(socket),
        deadline_(deadline),
        number_(connections.Begin(socket)) {}
  ~HttpStream() override { connections_.End(number_); }

  HttpStream(const HttpStream&) = delete;
  HttpStream& operator=(const HttpStream&) = delete;

  bool is_readable() const override {
    return begin_ < end_ ||
           connections_.AwaitClient(number_, POLLIN, deadline_);
  }

  bool is_writable() const override {
    return connections_.AwaitClient(number_, POLLOUT, deadline_);
  }

  ssize_t read(char* bytes, size_t size) override {
    while (begin_ == end_) {
      const ssize_t count =
          recv(socket_, buffer_.data(), buffer_.size(), MSG_DONTWAIT);
      if (count > 0) {
        begin_ = 0;
        end_ = static_cast<size_t>(count);
      } else if (count == 0) {
        return 0;
      } else if (errno == EAGAIN) {
        if (!connections_.AwaitClient(number_, POLLIN, deadline_)) return -1;
      } else if (errno != EINTR) {
        return -1;
      }
    }
    // A client that sends without a pause has a deadline, too.
    if (Clock::now() >= deadline_ || bytes_read_ >= kRequestBytesMax) return -1;
    size = std::min(size, end_ - begin_);
    std::memcpy(bytes, buffer_.data() + begin_, size);
    begin_ += size;
    bytes_read_ += size;
    return static_cast<ssize_t>(size);
  }

  ssize_t write(const char* bytes, size_t size) override {
    while (true) {
      const ssize_t count =
          Clock::now() >= deadline_
              ? 0
              : send(socket_, bytes, size, MSG_DONTWAIT | MSG_NOSIGNAL);
      if (count > 0) return count;
      if (count == 0 || (errno != EAGAIN && errno != EINTR)) return -1;
      if (errno == EAGAIN && !is_writable()) return -1;
    }
  }

  // Nobody asks for the addresses.
  void get_remote_ip_and_port(std::string&, int&) const override {}
  void get_local_ip_and_port(std::string&, int&) const override {}
  socket_t socket() const override { return socket_; }

 private:
  HttpConnections& connections_;
  const int socket_;
  const Clock::time_point deadline_;
  const uint64_t number_;
  // The library reads lines byte by byte.
  std::array<char, 4096> buffer_;
  size_t begin_ = 0;
  size_t end_ = 0;
  size_t bytes_read_ = 0;
};

// Tells `connections` of those that come.
class Threads final : public httplib::ThreadPool {
 public:
  explicit Threads(HttpConnections& connections)
      : ThreadPool(kThreads), connections_(connections) {}

  void enqueue(std::function<void()> serve) override {
    connections_.Accept();
    ThreadPool::enqueue(std::move(serve));
  }

 private:
  HttpConnections& connections_;
};

// The library's, with a deadline for each request as a whole, where its own has
// one for each byte.
class ImpatientServer final : public httplib::Server {
 public:
  ImpatientServer() {
    new_task_queue = [this] { return new Threads(connections_); };
  }

  // The library's own queue of those that it has not accepted is so short that
  // a few at once make one wait for its second SYN. Once bound.
  void Widen() { ::listen(svr_sock_, kBacklog); }

  // Drops every connection.
  void DropAll() { connections_.Stop(); }

 private:
  bool process_and_close_socket(socket_t socket) override {
    bool served = false;
    {
      HttpStream stream(connections_, socket, Clock::now() + kHttpRequestTime);
      bool closed = false;
      served = process_request(stream, /*close_connection=*/true, closed,
                               /*setup_request=*/nullptr);
    }
    shutdown(socket, SHUT_RDWR);
    close(socket);
    return served;
  }

  HttpConnections connections_{kThreads};
};

// Whether the header Host (NAME or NAME:PORT) is this host's own, as seen by
// itself, or the `address` that the server listens on. Without one it is no
// browser.
bool NamesLoopback(const std::string& header, const std::string& address) {
  std::string name = header;
  if (absl::StartsWith(name, "[")) {
    name = name.substr(1, name.find(']') - 1);
  } else {
    name.resize(std::min(name.find(':'), name.size()));
  }
  in_addr v4 = {};
  return name.empty() || name == address || name == "::1" ||
         absl::EqualsIgnoreCase(name, "localhost") ||
         (inet_pton(AF_INET, name.c_str(), &v4) == 1 &&
          ntohl(v4.s_addr) >> 24 == IN_LOOPBACKNET);
}

class HttplibServer final : public HttpServer {
 public:
  HttplibServer(const std::string& address, const std::vector<HttpPage>& pages,
                const HttpGuard& may) {
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
    server_.set_pre_routing_handler([address, pages, may](
                                        const httplib::Request& request,
                                        httplib::Response& response) {
      for (const HttpPage& page : pages) {
        if (page.path == request.path &&
            (!LetIn(page, may, request, response) ||
             !IsFromHere(page, may, address, request, response) ||
             !Allows(page, request, response))) {
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
    server_.DropAll();
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
    server_.Widen();
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

  // A browser shows pages of strangers, whose scripts may ask whatever it
  // reaches: by a form, or under a name of theirs that they let point here.
  static bool IsFromHere(const HttpPage& page, const HttpGuard& may,
                         const std::string& address,
                         const httplib::Request& request,
                         httplib::Response& response) {
    if (!page.guarded) return true;
    const std::string host = request.get_header_value("Host");
    if (may == nullptr && !NamesLoopback(host, address)) {
      Refuse(403,
             absl::PermissionDeniedError(absl::StrCat(
                 "this server is localhost (127.0.0.1, [::1]), not ",
                 base::Quote(host))),
             response);
      return false;
    }
    const std::string origin = request.get_header_value("Origin");
    if (request.method != "POST" || origin.empty() ||
        origin == absl::StrCat("http://", host)) {
      return true;
    }
    Refuse(403,
           absl::PermissionDeniedError(
               absl::StrCat("a page of ", base::Quote(origin),
                            " may not change anything here")),
           response);
    return false;
  }

  static bool Allows(const HttpPage& page, const httplib::Request& request,
                     httplib::Response& response) {
    const std::string& method = request.method;
    if (method == "GET" || method == "HEAD" ||
        (method == "POST" && page.accept != nullptr)) {
      return true;
    }
    const char* const allowed =
        page.accept == nullptr ? "GET, HEAD" : "GET, HEAD, POST";
    response.set_header("Allow", allowed);
    Refuse(405,
           absl::InvalidArgumentError(
               absl::StrCat(page.path, " takes ", allowed, ", not ", method)),
           response);
    return false;
  }

  ImpatientServer server_;
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
  auto server = std::make_unique<HttplibServer>(address, pages, may);
  const int error = server->Listen(address, port);
  if (error != 0) {
    return absl::UnavailableError(
        absl::StrCat("cannot listen on ", address, ":", port,
                     " for HTTP: ", std::strerror(error)));
  }
  return server;
}

std::string FetchPage(const std::string& address, int port,
                      const std::string& path) {
  const bool any = address == "0.0.0.0" || address == "::";
  httplib::Client client(
      any ? (address == "::" ? "::1" : "127.0.0.1") : address, port);
  client.set_connection_timeout(kFetchTime);
  client.set_read_timeout(kFetchTime);
  std::string body;
  const auto result =
      client.Get(path.c_str(), [&body](const char* bytes, size_t size) {
        body.append(bytes, size);
        return body.size() <= kBodyBytesMax;
      });
  return result && result->status == 200 ? body : "";
}

}  // namespace muster::worker
