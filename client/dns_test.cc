// A coordinator that moves to another address under the same name.

#include <dlfcn.h>
#include <netdb.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <future>
#include <memory>
#include <string>

#include "client/testing/processes.h"
#include "coordinator/server/server.h"
#include "gtest/gtest.h"
#include "muster/session.h"

namespace {

constexpr char kName[] = "coordinator.test";
std::atomic<const char*> address_of_name = "127.0.0.1";

}  // namespace

// The program's own functions replace those of the C library, also for gRPC.
extern "C" int getaddrinfo(const char* node, const char* service,
                           const addrinfo* hints, addrinfo** result) {
  using Function =
      int (*)(const char*, const char*, const addrinfo*, addrinfo**);
  static const auto real =
      reinterpret_cast<Function>(dlsym(RTLD_NEXT, "getaddrinfo"));
  const bool ours = node != nullptr && strcmp(node, kName) == 0;
  return real(ours ? address_of_name.load() : node, service, hints, result);
}

namespace muster {
namespace {

std::unique_ptr<coordinator::Server> Start(const std::string& host, int port) {
  coordinator::ServerOptions options;
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

}  // namespace
}  // namespace muster

int main(int argc, char** argv) {
  // Before gRPC is used: its other resolver does not use the C library.
  setenv("GRPC_DNS_RESOLVER", "native", 1);
  ::testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
