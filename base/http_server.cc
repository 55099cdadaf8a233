#include "base/http_server.h"

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
#include <map>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/text.h"
#include "muster/base/clock.h"
#include "muster/base/mutex.h"
#include "muster/base/status.h"
#include "muster/base/thread_annotations.h"

namespace muster::base {
namespace {

// The library's backlog is so short that a few connections at once make others
// wait for their second SYN.
constexpr int kBacklog = 4096;
// The largest number of connections that wait for a thread. Further ones stay
// in the backlog, so that a crowd does not take all descriptors.
constexpr size_t kQueuedMax = 64;
constexpr size_t kBodyBytesMax = 4096;
constexpr std::chrono::seconds kFetchTime(1);
// Includes the headers, which the library would read without a limit.
constexpr size_t kRequestBytesMax = 65536;

// HttpConnections are the connections of a server with `threads` threads. A
// connection keeps its thread until it ends. So if a connection waits for a
// thread, the oldest one whose client was slower than `patience` is dropped: a
// slow client holds up nobody. Thread-safe.
class HttpConnections {
 public:
  HttpConnections(size_t threads, std::chrono::milliseconds patience)
      : threads_(threads), patience_(patience) {}

  // A connection was accepted and will begin when a thread is free. Waits while
  // kQueuedMax others do so.
  void Accept() MUSTER_LOCKS_EXCLUDED(mutex_);
  // A thread has taken the connection. Returns its number.
  uint64_t Begin(int socket) MUSTER_LOCKS_EXCLUDED(mutex_);
  // Call it before the connection's socket is closed.
  void End(uint64_t number) MUSTER_LOCKS_EXCLUDED(mutex_);

  // Waits until the client has sent or taken something (`events` are poll's).
  // Returns false if the connection was dropped or `deadline` has passed.
  bool AwaitClient(uint64_t number, short events, Instant deadline)
      MUSTER_LOCKS_EXCLUDED(mutex_);

  // Drops all connections and every one that begins later.
  void Stop() MUSTER_LOCKS_EXCLUDED(mutex_);

 private:
  struct Connection {
    int socket = -1;
    Instant began = Clock::now();
    bool slow = false;  // waited for its client longer than `patience`
    bool dropped = false;
  };

  void MakeRoom() MUSTER_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Drop(Connection& connection) MUSTER_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const size_t threads_;
  const std::chrono::milliseconds patience_;
  Mutex mutex_;
  CondVar queue_shrank_;
  size_t queued_ MUSTER_GUARDED_BY(mutex_) = 0;
  size_t dropped_ MUSTER_GUARDED_BY(mutex_) = 0;
  uint64_t next_ MUSTER_GUARDED_BY(mutex_) = 0;
  bool stopping_ MUSTER_GUARDED_BY(mutex_) = false;
  // Connections that have a thread, the oldest first.
  std::map<uint64_t, Connection> open_ MUSTER_GUARDED_BY(mutex_);
};

// Whether one of `events` happens before `deadline`.
bool Poll(int socket, short events, Instant deadline) {
  pollfd ready = {socket, events, 0};
  int count = 0;
  do {
    const auto left =
        std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now());
    count =
        poll(&ready, 1, static_cast<int>(std::max<int64_t>(0, left.count())));
  } while (count < 0 && errno == EINTR);
  return count > 0;
}

void HttpConnections::Accept() {
  MutexLock lock(mutex_);
  while (queued_ >= kQueuedMax) queue_shrank_.Wait(mutex_);
  ++queued_;
  MakeRoom();
}

uint64_t HttpConnections::Begin(int socket) {
  MutexLock lock(mutex_);
  --queued_;
  queue_shrank_.NotifyOne();
  Connection& connection = open_[next_];
  connection.socket = socket;
  if (stopping_) Drop(connection);
  return next_++;
}

void HttpConnections::End(uint64_t number) {
  MutexLock lock(mutex_);
  if (open_[number].dropped) --dropped_;
  open_.erase(number);
}

bool HttpConnections::AwaitClient(uint64_t number, short events,
                                  Instant deadline) {
  int socket = -1;
  Instant patient_until;
  {
    MutexLock lock(mutex_);
    socket = open_[number].socket;
    // A request has `patience` as a whole, however many pieces it comes in. An
    // answer has it for each part that the client takes.
    patient_until =
        (events == POLLIN ? open_[number].began : Clock::now()) + patience_;
  }
  bool ready = Poll(socket, events, std::min(deadline, patient_until));
  if (!ready) {
    {
      MutexLock lock(mutex_);
      open_[number].slow = true;
      MakeRoom();
    }
    ready = Poll(socket, events, deadline);
  }
  MutexLock lock(mutex_);
  Connection& connection = open_[number];
  connection.slow = false;
  return ready && !connection.dropped;
}

void HttpConnections::Stop() {
  MutexLock lock(mutex_);
  stopping_ = true;
  for (auto& [number, connection] : open_) Drop(connection);
}

void HttpConnections::MakeRoom() {
  for (auto& [number, connection] : open_) {
    if (open_.size() - dropped_ + queued_ <= threads_) return;
    if (connection.slow) Drop(connection);
  }
}

void HttpConnections::Drop(Connection& connection) {
  if (connection.dropped) return;
  connection.dropped = true;
  ++dropped_;
  // Wakes the connection's thread, which closes the socket.
  shutdown(connection.socket, SHUT_RDWR);
}

// The library's view of one connection of `connections`, from Begin to End.
// Reads and writes fail after `deadline`.
class HttpStream final : public httplib::Stream {
 public:
  HttpStream(HttpConnections& connections, int socket, Instant deadline)
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
    // The deadline also holds for a client that sends without a pause.
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

  // The addresses are not used.
  void get_remote_ip_and_port(std::string&, int&) const override {}
  void get_local_ip_and_port(std::string&, int&) const override {}
  socket_t socket() const override { return socket_; }

 private:
  HttpConnections& connections_;
  const int socket_;
  const Instant deadline_;
  const uint64_t number_;
  // The library reads lines byte by byte.
  std::array<char, 4096> buffer_;
  size_t begin_ = 0;
  size_t end_ = 0;
  size_t bytes_read_ = 0;
};

// A thread pool that reports accepted connections to `connections`.
class Threads final : public httplib::ThreadPool {
 public:
  Threads(size_t threads, HttpConnections& connections)
      : ThreadPool(threads), connections_(connections) {}

  void enqueue(std::function<void()> serve) override {
    connections_.Accept();
    ThreadPool::enqueue(std::move(serve));
  }

 private:
  HttpConnections& connections_;
};

// The library's server with a deadline for each request as a whole. The
// library's own deadline is for each byte.
class ImpatientServer final : public httplib::Server {
 public:
  explicit ImpatientServer(const HttpServerOptions& options)
      : connections_(options.threads, options.patience) {
    new_task_queue = [this, threads = options.threads] {
      return new Threads(threads, connections_);
    };
  }

  // Enlarges the backlog of the bound socket.
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

  HttpConnections connections_;
};

// Whether the Host header (NAME or NAME:PORT) names the loopback interface or
// `address`, on which the server listens. An empty one counts: browsers always
// send Host.
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
                const HttpServerOptions& options)
      : server_(options) {
    server_.set_socket_options([](socket_t socket) {
      // The library's default, SO_REUSEPORT, lets two processes share a port
      // unknowingly.
      const int yes = 1;
      setsockopt(socket, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof(yes));
      fcntl(socket, F_SETFD, FD_CLOEXEC);
    });
    server_.set_payload_max_length(kBodyBytesMax);
    // Runs before the body is read. The library would read a body without a
    // length to its end.
    server_.set_pre_routing_handler(
        [address, pages, may = options.may](const httplib::Request& request,
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
                 InvalidArgumentError("a body needs a Content-Length, and no "
                                      "Transfer-Encoding"),
                 response);
          return httplib::Server::HandlerResponse::Handled;
        });
    for (const HttpPage& page : pages) {
      server_.Get(page.path,
                  [page](const httplib::Request&, httplib::Response& response) {
                    Answer(page, response);
                  });
      if (page.accept == nullptr) continue;
      server_.Post(page.path, [page](const httplib::Request& request,
                                     httplib::Response& response) {
        const Status status = page.accept(request.body);
        if (status.ok()) {
          Answer(page, response);
        } else {
          Refuse(400, status, response);
        }
      });
    }
  }

  ~HttplibServer() override {
    if (!thread_.joinable()) return;
    // The library ignores a stop() that comes before its loop has begun.
    while (!server_.is_running()) std::this_thread::yield();
    server_.DropAll();
    server_.stop();
    thread_.join();
  }

  // Returns 0, or the errno with which listening failed.
  int Listen(const Endpoint& endpoint) {
    errno = 0;
    if (endpoint.port == 0) {
      port_ = server_.bind_to_any_port(endpoint.host);
    } else if (server_.bind_to_port(endpoint.host, endpoint.port)) {
      port_ = endpoint.port;
    }
    if (port_ <= 0) return errno != 0 ? errno : EADDRNOTAVAIL;
    server_.Widen();
    thread_ = std::thread([this] { server_.listen_after_bind(); });
    return 0;
  }

  int port() const override { return port_; }

 private:
  static void Answer(const HttpPage& page, httplib::Response& response) {
    const HttpResponse content = page.render();
    response.status = content.status;
    response.set_content(content.body, content.type);
  }

  static void Refuse(int code, const Status& status,
                     httplib::Response& response) {
    response.status = code;
    response.set_content(absl::StrCat(status.message(), "\n"), "text/plain");
  }

  static bool LetIn(const HttpPage& page, const HttpGuard& may,
                    const httplib::Request& request,
                    httplib::Response& response) {
    if (!page.guarded || may == nullptr) return true;
    const Status status = may(request.get_header_value("Authorization"));
    if (status.ok()) return true;
    if (IsUnauthenticated(status)) {
      response.set_header("WWW-Authenticate", "Bearer");
    }
    Refuse(IsUnauthenticated(status) ? 401 : 403, status, response);
    return false;
  }

  // Refuses requests of foreign web pages. A script in a browser can send a
  // form to this server, or let a host name of its own point here.
  static bool IsFromHere(const HttpPage& page, const HttpGuard& may,
                         const std::string& address,
                         const httplib::Request& request,
                         httplib::Response& response) {
    if (!page.guarded) return true;
    const std::string host = request.get_header_value("Host");
    if (may == nullptr && !NamesLoopback(host, address)) {
      Refuse(403,
             PermissionDeniedError(absl::StrCat(
                 "this server is localhost (127.0.0.1, [::1]), not ",
                 Quote(host))),
             response);
      return false;
    }
    const std::string origin = request.get_header_value("Origin");
    if (request.method != "POST" || origin.empty() ||
        origin == absl::StrCat("http://", host)) {
      return true;
    }
    Refuse(403,
           PermissionDeniedError(absl::StrCat("a page of ", Quote(origin),
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
           InvalidArgumentError(
               absl::StrCat(page.path, " takes ", allowed, ", not ", method)),
           response);
    return false;
  }

  ImpatientServer server_;
  int port_ = -1;
  std::thread thread_;
};

}  // namespace

std::function<HttpResponse()> RenderAs(const std::string& type,
                                       std::function<std::string()> body) {
  return [type, body = std::move(body)] {
    return HttpResponse{200, type, body()};
  };
}

StatusOr<std::unique_ptr<HttpServer>> HttpServer::Start(
    const Endpoint& endpoint, const std::vector<HttpPage>& pages,
    const HttpServerOptions& options) {
  if (endpoint.port < 0 || endpoint.port > 65535) {
    return InvalidArgumentError(
        absl::StrCat("HTTP port must be 0 to 65535, got ", endpoint.port));
  }
  auto server = std::make_unique<HttplibServer>(endpoint.host, pages, options);
  const int error = server->Listen(endpoint);
  if (error != 0) {
    return UnavailableError(absl::StrCat("cannot listen on ",
                                         endpoint.ToString(),
                                         " for HTTP: ", std::strerror(error)));
  }
  return server;
}

std::string FetchPage(const Endpoint& endpoint, const std::string& path) {
  std::string host = endpoint.host;
  if (host == "0.0.0.0") host = "127.0.0.1";
  if (host == "::") host = "::1";
  httplib::Client client(host, endpoint.port);
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

}  // namespace muster::base
