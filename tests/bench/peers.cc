#include "tests/bench/peers.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <unistd.h>

#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <stdexcept>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "coordinator/storage/etcd/etcd.grpc.pb.h"
#include "grpcpp/grpcpp.h"
#include "tests/bench/callers.h"
#include "tests/bench/child.h"

namespace muster::bench {
namespace {

constexpr std::chrono::seconds kStartPatience{20};

// The path of the program; empty: it is not installed.
std::string FindProgram(const std::string& name) {
  const char* const path = std::getenv("PATH");
  for (absl::string_view folder :
       absl::StrSplit(path == nullptr ? "" : path, ':')) {
    const std::string file = absl::StrCat(folder, "/", name);
    if (access(file.c_str(), X_OK) == 0) return file;
  }
  return "";
}

sockaddr_in Loopback(int port) {
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  return address;
}

int FreePort() {
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address = Loopback(0);
  socklen_t size = sizeof(address);
  if (bind(fd, reinterpret_cast<sockaddr*>(&address), size) != 0 ||
      getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size) != 0) {
    close(fd);
    throw std::runtime_error("no free port");
  }
  close(fd);
  return ntohs(address.sin_port);
}

// Returns a connected socket; -1: there is no listener.
int TryConnect(int port) {
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const sockaddr_in address = Loopback(port);
  if (connect(fd, reinterpret_cast<const sockaddr*>(&address),
              sizeof(address)) == 0) {
    const int yes = 1;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof(yes));
    return fd;
  }
  close(fd);
  return -1;
}

// Waits until a server listens on `port`.
void AwaitListener(const std::string& what, int port) {
  const auto deadline = std::chrono::steady_clock::now() + kStartPatience;
  while (std::chrono::steady_clock::now() < deadline) {
    const int fd = TryConnect(port);
    if (fd < 0) continue;
    close(fd);
    return;
  }
  throw std::runtime_error(absl::StrCat(what, " does not listen"));
}

// One connection, one command at a time, in redis's protocol.
class RedisConnection {
 public:
  explicit RedisConnection(int port) : fd_(TryConnect(port)) {
    if (fd_ < 0) throw std::runtime_error("redis: no connection");
  }
  ~RedisConnection() { close(fd_); }
  RedisConnection(const RedisConnection&) = delete;
  RedisConnection& operator=(const RedisConnection&) = delete;

  void Call(const std::string& command) {
    if (send(fd_, command.data(), command.size(), MSG_NOSIGNAL) !=
        static_cast<ssize_t>(command.size())) {
      throw std::runtime_error("redis: send");
    }
    // "+OK\r\n", 5 bytes, comes in one piece.
    char answer[64];
    if (recv(fd_, answer, sizeof(answer), 0) < 5 || answer[0] != '+') {
      throw std::runtime_error("redis: an answer that is not +OK");
    }
  }

 private:
  const int fd_;
};

class Redis final : public Peer {
 public:
  explicit Redis(const std::string& program)
      : port_(FreePort()),
        child_({program, "--port", absl::StrCat(port_), "--bind", "127.0.0.1",
                "--save", "", "--appendonly", "no", "--logfile", "/dev/null"}) {
    AwaitListener("redis-server", port_);
  }

  Operation Set(const std::string& payload, int caller) override {
    auto connection = std::make_shared<RedisConnection>(port_);
    const std::string key = absl::StrCat("key/", caller);
    return [connection, command = absl::StrCat(
                            "*3\r\n$3\r\nSET\r\n$", key.size(), "\r\n", key,
                            "\r\n$", payload.size(), "\r\n", payload, "\r\n")] {
      connection->Call(command);
    };
  }

  int pid() const override { return child_.pid(); }

 private:
  const int port_;
  Child child_;
};

class Etcd final : public EtcdPeer {
 public:
  Etcd(const std::string& program, const std::string& folder, int members) {
    std::vector<std::string> peers, named;
    for (int i = 0; i < members; ++i) {
      ports_.push_back(FreePort());
      peers.push_back(absl::StrCat("http://127.0.0.1:", FreePort()));
      named.push_back(absl::StrCat("e", i, "=", peers.back()));
    }
    for (int i = 0; i < members; ++i) {
      const std::string url = "http://" + endpoints()[i];
      children_.push_back(std::make_unique<Child>(std::vector<std::string>{
          program, absl::StrCat("--name=e", i),
          absl::StrCat("--data-dir=", folder, "/e", i),
          absl::StrCat("--listen-client-urls=", url),
          absl::StrCat("--advertise-client-urls=", url),
          absl::StrCat("--listen-peer-urls=", peers[i]),
          absl::StrCat("--initial-advertise-peer-urls=", peers[i]),
          absl::StrCat("--initial-cluster=", absl::StrJoin(named, ",")),
          "--logger=zap", "--log-level=error"}));
    }
    for (const int port : ports_) AwaitListener("etcd", port);
    // A member listens before it has a leader; the first put waits for one.
    for (int i = 0; i < members; ++i) Set("started", i)();
  }

  Operation Set(const std::string& payload, int caller) override {
    auto stub = std::shared_ptr<etcdserverpb::KV::Stub>(
        etcdserverpb::KV::NewStub(OwnChannel(
            endpoints()[static_cast<size_t>(caller) % ports_.size()])));
    return [stub, payload, key = absl::StrCat("key/", caller)] {
      grpc::ClientContext context;
      context.set_deadline(std::chrono::system_clock::now() + kStartPatience);
      context.set_wait_for_ready(true);
      etcdserverpb::PutRequest request;
      request.set_key(key);
      request.set_value(payload);
      etcdserverpb::PutResponse response;
      const grpc::Status status = stub->Put(&context, request, &response);
      if (!status.ok()) {
        throw std::runtime_error("etcd: " + status.error_message());
      }
    };
  }

  int pid() const override { return children_[0]->pid(); }

  std::vector<std::string> endpoints() const override {
    std::vector<std::string> endpoints;
    for (const int port : ports_) {
      endpoints.push_back(absl::StrCat("127.0.0.1:", port));
    }
    return endpoints;
  }

 private:
  std::vector<int> ports_;
  std::vector<std::unique_ptr<Child>> children_;
};

}  // namespace

std::unique_ptr<Peer> StartRedis() {
  const std::string program = FindProgram("redis-server");
  return program.empty() ? nullptr : std::make_unique<Redis>(program);
}

std::unique_ptr<EtcdPeer> StartEtcd(const std::string& folder, int members) {
  const std::string program = FindProgram("etcd");
  if (program.empty()) return nullptr;
  return std::make_unique<Etcd>(program, folder, members);
}

}  // namespace muster::bench
