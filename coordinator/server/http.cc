#include "coordinator/server/http.h"

#include <sys/socket.h>

#include <thread>
#include <utility>

#include "coordinator/server/mutex.h"
#include "httplib.h"

namespace muster::coordinator {
namespace {

// A connection that says nothing holds one of them for the read timeout; probes
// must get through even so.
constexpr int kThreads = 16;
// Connections that wait for a thread. While there are so many, no more are
// accepted, and the kernel's backlog fills.
constexpr int kWaitingMax = 64;

class BoundedPool final : public httplib::TaskQueue {
 public:
  BoundedPool() : pool_(kThreads) {}

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
  httplib::ThreadPool pool_;
  Mutex mu_;
  CondVar changed_;
  int pending_ ABSL_GUARDED_BY(mu_) = 0;
};

}  // namespace

class HttpServer::Listener {
 public:
  explicit Listener(const Pages& pages) {
    server_.new_task_queue = [] { return new BoundedPool; };
    // The library's own choice, SO_REUSEPORT, would let two coordinators share
    // a port without an error.
    server_.set_socket_options([](socket_t socket) {
      const int yes = 1;
      setsockopt(socket, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof(yes));
    });
    // A kept connection would hold one of the few threads.
    server_.set_keep_alive_max_count(1);
    // How long the library waits for the first byte of a request as well.
    server_.set_keep_alive_timeout(1);
    server_.set_read_timeout(0, 500'000);
    server_.set_write_timeout(5);
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
    thread_ = std::thread([this] { server_.listen_after_bind(); });
    // stop() has no effect before this.
    while (!server_.is_running()) std::this_thread::yield();
    return absl::OkStatus();
  }

  int port() const { return port_; }

 private:
  httplib::Server server_;
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
  absl::Status status = listener->Listen(endpoint);
  if (!status.ok()) return status;
  return std::unique_ptr<HttpServer>(new HttpServer(std::move(listener)));
}

}  // namespace muster::coordinator
