#include "coordinator/server/ops/http.h"

#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstring>
#include <thread>
#include <utility>

#include "base/mutex.h"
#include "httplib.h"

namespace muster::coordinator {
namespace {

using std::chrono::milliseconds;

constexpr int kThreads = 16;
// Connections that wait for a thread. While there are so many, no more are
// accepted, and the kernel's backlog fills.
constexpr int kWaitingMax = 64;
// The library's own is so short that a few connections at once make others wait
// for their second SYN.
constexpr int kBacklog = 4096;

// A connection whose request is not complete holds a thread for so long, and
// where others wait for one, for less: probes must get through.
constexpr milliseconds kPatience{1000};
constexpr milliseconds kPatienceInACrowd{10};
constexpr int kWriteTimeoutS = 5;

class BoundedPool final : public httplib::TaskQueue {
 public:
  explicit BoundedPool(std::atomic<int>* pending)
      : pending_(*pending), pool_(kThreads) {}

  void enqueue(std::function<void()> task) override {
    {
      MutexLock lock(mu_);
      while (pending_ >= kThreads + kWaitingMax) changed_.Wait(mu_);
      ++pending_;
    }
    pool_.enqueue([this, task = std::move(task)] {
      task();
      {
        MutexLock lock(mu_);
        --pending_;
      }
      changed_.NotifyOne();
    });
  }

  void shutdown() override { pool_.shutdown(); }

 private:
  std::atomic<int>& pending_;  // changed under the lock
  httplib::ThreadPool pool_;
  Mutex mu_;
  CondVar changed_;
};

bool IsReadable(int socket, milliseconds timeout) {
  pollfd ready = {socket, POLLIN, 0};
  return poll(&ready, 1, static_cast<int>(timeout.count())) > 0;
}

// A connection as the library reads and writes it. `pending` counts those that
// have a thread or wait for one.
class SocketStream final : public httplib::Stream {
 public:
  SocketStream(int socket, const std::atomic<int>& pending)
      : socket_(socket), pending_(pending) {}

  bool is_readable() const override {
    if (begin_ < end_) return true;
    // What has come before the thread was there is read however late it is.
    if (!received_ && IsReadable(socket_, milliseconds(0))) return true;
    while (std::chrono::steady_clock::now() - began_ < Patience()) {
      if (IsReadable(socket_, kPatienceInACrowd)) return true;
    }
    return false;
  }
  bool is_writable() const override {
    pollfd ready = {socket_, POLLOUT, 0};
    return poll(&ready, 1, kWriteTimeoutS * 1000) > 0;
  }
  ssize_t read(char* bytes, size_t size) override {
    if (begin_ == end_) {
      if (!is_readable()) return -1;
      const ssize_t count = recv(socket_, buffer_.data(), buffer_.size(), 0);
      if (count <= 0) return count;
      received_ = true;
      begin_ = 0;
      end_ = static_cast<size_t>(count);
    }
    size = std::min(size, end_ - begin_);
    std::memcpy(bytes, buffer_.data() + begin_, size);
    begin_ += size;
    return static_cast<ssize_t>(size);
  }
  ssize_t write(const char* bytes, size_t size) override {
    return send(socket_, bytes, size, MSG_NOSIGNAL);
  }
  // Nobody asks for the addresses.
  void get_remote_ip_and_port(std::string&, int&) const override {}
  void get_local_ip_and_port(std::string&, int&) const override {}
  socket_t socket() const override { return socket_; }

 private:
  milliseconds Patience() const {
    return pending_ > kThreads ? kPatienceInACrowd : kPatience;
  }

  const int socket_;
  const std::atomic<int>& pending_;
  const std::chrono::steady_clock::time_point began_ =
      std::chrono::steady_clock::now();
  bool received_ = false;
  // The library reads lines byte by byte.
  std::array<char, 4096> buffer_;
  size_t begin_ = 0;
  size_t end_ = 0;
};

// The library's, with less patience in a crowd.
class ImpatientServer final : public httplib::Server {
 public:
  ImpatientServer() {
    new_task_queue = [this] { return new BoundedPool(&pending_); };
  }

  // Once bound.
  void Widen() { ::listen(svr_sock_, kBacklog); }

 private:
  // One request: a kept connection would hold one of the few threads.
  bool process_and_close_socket(socket_t socket) override {
    SocketStream stream(socket, pending_);
    bool closed = false;
    const bool served =
        process_request(stream, /*close_connection=*/true, closed, nullptr);
    ::shutdown(socket, SHUT_RDWR);
    ::close(socket);
    return served;
  }

  // Connections that have a thread or wait for one.
  std::atomic<int> pending_ = 0;
};

}  // namespace

class HttpServer::Listener {
 public:
  explicit Listener(const Pages& pages) {
    // The library's own choice, SO_REUSEPORT, would let two coordinators share
    // a port without an error.
    server_.set_socket_options([](socket_t socket) {
      const int yes = 1;
      setsockopt(socket, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof(yes));
    });
    server_.set_write_timeout(kWriteTimeoutS);
    server_.set_payload_max_length(4096);
    for (const auto& [path, page] : pages) {
      server_.Get(path, [page = page](const httplib::Request&,
                                      httplib::Response& response) {
        const HttpPage content = page();
        response.status = content.status;
        response.set_content(content.body, content.type);
      });
    }
  }

  ~Listener() {
    if (!thread_.joinable()) return;
    server_.stop();
    thread_.join();
  }

  absl::Status Listen(const Endpoint& endpoint) {
    absl::Status status = CheckCanListen(endpoint);
    if (!status.ok()) return status;
    if (endpoint.port == 0) {
      port_ = server_.bind_to_any_port(endpoint.host);
    } else if (server_.bind_to_port(endpoint.host, endpoint.port)) {
      port_ = endpoint.port;
    }
    if (port_ <= 0) {
      return absl::UnavailableError(
          "cannot listen on " + endpoint.ToString() +
          ": somebody else took the port just now; try again");
    }
    server_.Widen();
    thread_ = std::thread([this] { server_.listen_after_bind(); });
    // stop() has no effect before this.
    while (!server_.is_running()) std::this_thread::yield();
    return absl::OkStatus();
  }

  int port() const { return port_; }

 private:
  ImpatientServer server_;
  std::thread thread_;
  int port_ = 0;
};

HttpServer::HttpServer(std::unique_ptr<Listener> listener)
    : listener_(std::move(listener)) {}

HttpServer::~HttpServer() = default;

int HttpServer::port() const { return listener_->port(); }

absl::StatusOr<std::unique_ptr<HttpServer>> HttpServer::Start(
    const Endpoint& endpoint, const Pages& pages) {
  auto listener = std::make_unique<Listener>(pages);
  absl::Status status = listener->Listen(ListeningEndpoint(endpoint));
  if (!status.ok()) return status;
  return std::unique_ptr<HttpServer>(new HttpServer(std::move(listener)));
}

}  // namespace muster::coordinator
