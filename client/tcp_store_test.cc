// TcpStore beyond store_conformance_test: its options, and how it begins and
// ends.

#include "muster/tcp_store.h"

#include <arpa/inet.h>
#include <sys/socket.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <functional>
#include <future>
#include <memory>
#include <string>

#include "client/testing/processes.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "muster/errors.h"

namespace muster {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::HasSubstr;
using testing::ReservedPort;
using ::testing::StartsWith;

constexpr char kHost[] = "127.0.0.1";

std::string CatchInvalid(const TcpStoreOptions& options) {
  try {
    TcpStore store(options);
  } catch (const DistStoreError& error) {
    EXPECT_EQ(error.status().code(), StatusCode::kInvalidArgument);
    return error.what();
  }
  return "no error";
}

std::string CatchNetworkError(const std::function<void()>& function) {
  try {
    function();
  } catch (const DistNetworkError& error) {
    return error.what();
  }
  return "no error";
}

int Listen(int* port) {
  const int fd = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t bytes = sizeof(address);
  EXPECT_EQ(bind(fd, reinterpret_cast<sockaddr*>(&address), bytes), 0);
  EXPECT_EQ(listen(fd, 16), 0);
  getsockname(fd, reinterpret_cast<sockaddr*>(&address), &bytes);
  *port = ntohs(address.sin_port);
  return fd;
}

TEST(TcpStoreTest, RefusesBadOptions) {
  EXPECT_EQ(CatchInvalid({.host = kHost, .world_size = 0, .is_master = true}),
            "TCPStore world size cannot be 0");
  EXPECT_THAT(
      CatchInvalid({.host = kHost, .world_size = -1, .is_master = true}),
      HasSubstr("must be positive but was -1"));
  EXPECT_EQ(CatchInvalid({.host = kHost, .port = 65536, .is_master = true}),
            "port must have value from 0 to 65535 but was 65536.");
  EXPECT_THAT(CatchInvalid({.host = kHost}), HasSubstr("port 0"));
  EXPECT_THAT(CatchInvalid({.port = 1}), HasSubstr("host missing"));
  EXPECT_THAT(
      CatchInvalid({.host = kHost, .port = 1, .timeout = milliseconds(0)}),
      HasSubstr("must be positive"));
  EXPECT_THAT(CatchInvalid({.host = kHost,
                            .port = 1,
                            .is_master = true,
                            .master_listen_fd = -1}),
              HasSubstr("master_listen_fd -1 is no descriptor"));
  EXPECT_THAT(CatchInvalid({.host = kHost, .port = 1, .master_listen_fd = 999}),
              HasSubstr("master_listen_fd 999 is for the server"));
}

TEST(TcpStoreTest, ServesOnAnyFreePortAndTells) {
  TcpStore server({.host = "localhost", .is_master = true});
  EXPECT_GT(server.port(), 0);
  EXPECT_EQ(server.host(), "localhost");
  TcpStore client({.host = "localhost", .port = server.port()});
  client.Set("k", "v");
  EXPECT_EQ(server.Get("k"), "v");
  // Without a world size there is no wait for workers, and no key for it.
  EXPECT_EQ(server.NumKeys(), 1);
}

TEST(TcpStoreTest, ATooLargeValueIsRefusedWithAdviceThatItsUserCanFollow) {
  TcpStore store({.host = kHost, .is_master = true});
  constexpr size_t kMost = 16 << 20;
  store.Set("k", std::string(kMost, 'x'));
  try {
    store.Set("k", std::string(kMost + 1, 'x'));
    FAIL();
  } catch (const DistStoreError& error) {
    EXPECT_EQ(error.status().code(), StatusCode::kResourceExhausted);
    EXPECT_THAT(
        std::string(error.what()),
        HasSubstr("limit value_bytes is 16777216, offered 16777217 (key "
                  "\"k\"); divide the value among several keys; a coordinator "
                  "inside a program, as a TcpStore's, keeps this limit"));
  }
}

TEST(TcpStoreTest, TheServerWaitsForAllTheOthers) {
  const ReservedPort port;
  TcpStoreOptions options = {
      .host = kHost, .port = port.port(), .world_size = 3};
  auto client = [options] { TcpStore(options).Set("k", "v"); };
  auto first = std::async(std::launch::async, client);
  options.is_master = true;
  auto server = std::async(std::launch::async, [options] {
    auto store = std::make_unique<TcpStore>(options);
    EXPECT_EQ(store->Get("k"), "v");
    return store;
  });
  first.get();
  EXPECT_EQ(server.wait_for(milliseconds(0)), std::future_status::timeout);
  client();
  EXPECT_EQ(server.get()->NumKeys(), 2);
}

TEST(TcpStoreTest, TheServerSaysHowManyHaveNotCome) {
  try {
    TcpStore store({.host = kHost,
                    .world_size = 2,
                    .is_master = true,
                    .timeout = milliseconds(300)});
    FAIL();
  } catch (const DistStoreError& error) {
    EXPECT_EQ(error.status().code(), StatusCode::kDeadlineExceeded);
    EXPECT_STREQ(error.what(),
                 "Timed out after 0.3 seconds waiting for clients. 1/2 clients "
                 "joined. (timeout: TcpStoreOptions::timeout)");
  }
}

TEST(TcpStoreTest, NobodyIsWaitedForWhenNobodyAsksForIt) {
  TcpStore store({.host = kHost,
                  .world_size = 2,
                  .is_master = true,
                  .wait_for_workers = false});
  EXPECT_EQ(store.NumKeys(), 0);
}

TEST(TcpStoreTest, APortInUseIsANetworkError) {
  TcpStore first({.host = kHost, .is_master = true});
  EXPECT_EQ(
      CatchNetworkError([&] {
        TcpStore({.host = kHost, .port = first.port(), .is_master = true});
      }),
      "The server socket has failed to listen on any local network "
      "address. cannot listen on 127.0.0.1:" +
          std::to_string(first.port()) + ": address already in use");
}

TEST(TcpStoreTest, NoServerIsANetworkErrorAtTheTimeout) {
  const ReservedPort port;
  EXPECT_THAT(
      CatchNetworkError([&] {
        TcpStore(
            {.host = kHost, .port = port.port(), .timeout = milliseconds(200)});
      }),
      StartsWith("The client socket has timed out after 200ms while trying to "
                 "connect to (127.0.0.1, " +
                 std::to_string(port.port()) + "). "));
}

TEST(TcpStoreTest, AClientMayComeBeforeTheServer) {
  const ReservedPort port;
  auto client = std::async(std::launch::async, [&] {
    return TcpStore({.host = kHost, .port = port.port()}).Get("k");
  });
  TcpStore server({.host = kHost, .port = port.port(), .is_master = true});
  server.Set("k", "v");
  EXPECT_EQ(client.get(), "v");
}

TEST(TcpStoreTest, AsLongAsTheServerHasACloneItServes) {
  auto server = std::make_unique<TcpStore>(
      TcpStoreOptions{.host = kHost, .is_master = true});
  TcpStore client({.host = kHost, .port = server->port()});
  const std::shared_ptr<Store> clone = server->Clone();
  server = nullptr;
  client.Set("k", "v");
  EXPECT_EQ(clone->Get("k"), "v");
}

TEST(TcpStoreTest, AWaitFailsWhenTheServerGoes) {
  auto server = std::make_unique<TcpStore>(
      TcpStoreOptions{.host = kHost, .is_master = true});
  TcpStore client({.host = kHost, .port = server->port()});
  auto wait = std::async(std::launch::async, [&] {
    return CatchNetworkError([&] { client.Get("k"); });
  });
  client.Set("is there", "");
  server = nullptr;
  EXPECT_THAT(wait.get(), HasSubstr("TCPStore's server"));
}

TEST(TcpStoreTest, TenantsShareThePortAndTheKeys) {
  TcpStoreOptions options = {
      .host = kHost, .is_master = true, .multi_tenant = true};
  auto first = std::make_unique<TcpStore>(options);
  options.port = first->port();
  TcpStore second(options);
  first->Set("k", "v");
  first = nullptr;
  EXPECT_EQ(second.Get("k"), "v");
  options.multi_tenant = false;
  EXPECT_NE(CatchNetworkError([&] { TcpStore third(options); }), "no error");
}

TEST(TcpStoreTest, TakesOverASocketThatListens) {
  int port = 0;
  const int fd = Listen(&port);
  {
    TcpStore server({.host = kHost,
                     .port = port,
                     .is_master = true,
                     .master_listen_fd = fd});
    EXPECT_EQ(server.port(), port);
    TcpStore({.host = kHost, .port = port}).Set("k", "v");
    EXPECT_EQ(server.Get("k"), "v");
  }
  EXPECT_EQ(close(fd), -1);
}

TEST(TcpStoreTest, TheSocketMustHaveThePort) {
  int port = 0;
  const int fd = Listen(&port);
  const ReservedPort other;
  EXPECT_EQ(CatchInvalid({.host = kHost,
                          .port = other.port(),
                          .is_master = true,
                          .master_listen_fd = fd}),
            "TCPStore: master_listen_fd " + std::to_string(fd) +
                " is bound to port " + std::to_string(port) +
                ", expected to be bound to port " +
                std::to_string(other.port()));
  EXPECT_EQ(close(fd), -1);
}

TEST(TcpStoreTest, TakesOverASocketThatItRefuses) {
  int port = 0;
  const int fd = Listen(&port);
  EXPECT_THAT(
      CatchInvalid({.host = kHost, .port = port, .master_listen_fd = fd}),
      HasSubstr(" is for the server"));
  EXPECT_EQ(close(fd), -1);
}

TEST(TcpStoreTest, TheLaunchersStoreIsNotServedAgain) {
  TcpStore agent({.host = kHost, .is_master = true});
  setenv("TORCHELASTIC_USE_AGENT_STORE", "True", 1);
  setenv("MASTER_ADDR", kHost, 1);
  setenv("MASTER_PORT", std::to_string(agent.port()).c_str(), 1);
  TcpStore rank({.host = kHost,
                 .port = agent.port(),
                 .world_size = 2,
                 .is_master = true});
  rank.Set("k", "v");
  EXPECT_EQ(agent.Get("k"), "v");
  // Another store of the program is served.
  TcpStore own({.host = kHost, .is_master = true});
  EXPECT_FALSE(own.Check({"k"}));
  for (const char* name :
       {"TORCHELASTIC_USE_AGENT_STORE", "MASTER_ADDR", "MASTER_PORT"}) {
    unsetenv(name);
  }
}

}  // namespace
}  // namespace muster
