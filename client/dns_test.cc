// A coordinator that moves to another address under the same name.

#include <arpa/inet.h>
#include <dlfcn.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <future>
#include <memory>
#include <string>

#include "client/control/endpoint.h"
#include "client/testing/processes.h"
#include "coordinator/server/server.h"
#include "gtest/gtest.h"
#include "muster/session.h"

namespace {

constexpr char kName[] = "coordinator.test";
std::atomic<const char*> address_of_name = "127.0.0.1";
// May be null.
std::atomic<const char*> second_address_of_name = nullptr;

}  // namespace

// The program's own functions replace those of the C library, also for gRPC.
extern "C" int getaddrinfo(const char* node, const char* service,
                           const addrinfo* hints, addrinfo** result) {
  using Function =
      int (*)(const char*, const char*, const addrinfo*, addrinfo**);
  static const auto real =
      reinterpret_cast<Function>(dlsym(RTLD_NEXT, "getaddrinfo"));
  const bool ours = node != nullptr && strcmp(node, kName) == 0;
  const char* const second = second_address_of_name.load();
  const int error =
      real(ours ? address_of_name.load() : node, service, hints, result);
  if (error != 0 || !ours || second == nullptr) return error;
  addrinfo* last = *result;
  while (last->ai_next != nullptr) last = last->ai_next;
  return real(second, service, hints, &last->ai_next);
}

namespace muster {
namespace {

std::unique_ptr<coordinator::Server> Start(const std::string& host, int port,
                                           int sessions_max = 100) {
  coordinator::ServerOptions options;
  options.sessions_max = sessions_max;
  options.listen = host + ":" + std::to_string(port);
  auto server = coordinator::Server::Start(options);
  EXPECT_TRUE(server.ok()) << server.status();
  return *std::move(server);
}

TEST(DnsTest, ANameIsLookedUpAnewForEveryConnection) {
  const testing::ReservedPort port;
  auto before = Start("127.0.0.1", port.port());
  std::promise<Status> over;
  SessionOptions options;
  options.address = std::string(kName) + ":" + std::to_string(port.port());
  options.on_over = [&over](const Status& why) { over.set_value(why); };
  const auto session = Session::Connect(options);
  // Another coordinator at the same name and port: the session can detect the
  // difference only if it has reached it.
  const auto after = Start("127.0.0.2", port.port());
  address_of_name = "127.0.0.2";
  before.reset();
  const Status why = over.get_future().get();
  EXPECT_EQ(why.code(), StatusCode::kAborted) << why;
}

class TwoAddressesTest : public ::testing::Test {
 protected:
  ~TwoAddressesTest() override { second_address_of_name = nullptr; }

  // A name with these addresses, in this order.
  void Name(const char* first, const char* second) {
    address_of_name = first;
    second_address_of_name = second;
  }

  SessionOptions Options() const {
    SessionOptions options;
    options.address = std::string(kName) + ":" + std::to_string(port_.port());
    return options;
  }

  const testing::ReservedPort port_;
};

TEST_F(TwoAddressesTest, OneMayRefuseConnections) {
  const auto server = Start("127.0.0.2", port_.port());
  for (const bool first : {true, false}) {
    Name(first ? "127.0.0.2" : "127.0.0.1", first ? "127.0.0.1" : "127.0.0.2");
    EXPECT_TRUE(Session::Connect(Options())->status().ok());
  }
}

// A listener that answers no further connection, as a host that is gone.
class FullListener {
 public:
  FullListener(const char* host, int port) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(port);
    EXPECT_EQ(inet_pton(AF_INET, host, &address.sin_addr), 1);
    const auto* const to = reinterpret_cast<const sockaddr*>(&address);
    for (int& fd : fds_) {
      fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    }
    const int on = 1;
    setsockopt(fds_[0], SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
    EXPECT_EQ(bind(fds_[0], to, sizeof(address)), 0);
    EXPECT_EQ(listen(fds_[0], 0), 0);
    // Nobody accepts them.
    for (size_t i = 1; i < fds_.size(); ++i) {
      connect(fds_[i], to, sizeof(address));
    }
  }
  ~FullListener() {
    for (const int fd : fds_) close(fd);
  }
  FullListener(const FullListener&) = delete;
  FullListener& operator=(const FullListener&) = delete;

 private:
  std::array<int, 9> fds_;
};

TEST_F(TwoAddressesTest, OneThatDoesNotAnswerLeavesTimeForTheOther) {
  const FullListener gone("127.0.0.1", port_.port());
  const auto server = Start("127.0.0.2", port_.port());
  Name("127.0.0.1", "127.0.0.2");
  const Status probed =
      internal::Probe({kName, port_.port()}, std::chrono::seconds(4));
  EXPECT_TRUE(probed.ok()) << probed;
}

TEST_F(TwoAddressesTest, OneMayAcceptConnectionsAndRefuseSessions) {
  const auto full = Start("127.0.0.1", port_.port(), /*sessions_max=*/1);
  const auto free = Start("127.0.0.2", port_.port());
  Name("127.0.0.1", nullptr);
  const auto occupant = Session::Connect(Options());
  Name("127.0.0.1", "127.0.0.2");
  const auto session = Session::Connect(Options());
  EXPECT_NE(session->coordinator_epoch(), occupant->coordinator_epoch());
}

}  // namespace
}  // namespace muster

int main(int argc, char** argv) {
  // Before gRPC is used: its other resolver does not use the C library.
  setenv("GRPC_DNS_RESOLVER", "native", 1);
  ::testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
