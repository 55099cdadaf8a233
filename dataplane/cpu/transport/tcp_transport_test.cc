// Tests a rank's goodbye as seen from the other end of its connections.

#include "dataplane/cpu/transport/tcp_transport.h"

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <future>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "dataplane/cpu/transport/address_exchange.h"
#include "dataplane/cpu/transport/control_connections.h"
#include "dataplane/cpu/transport/goodbye_message.h"
#include "dataplane/cpu/transport/listener.h"
#include "dataplane/cpu/transport/transport.h"
#include "dataplane/culprit.h"
#include "dataplane/testing/directory_store.h"
#include "dataplane/testing/in_memory_store.h"
#include "gtest/gtest.h"

namespace muster::dataplane::cpu {
namespace {

// More than the receiving socket buffers, less than can be sent without
// waiting.
constexpr size_t kBytes = 256 << 10;

StatusOr<std::unique_ptr<Transport>> ConnectOneOfTwo(
    int rank, std::shared_ptr<BootstrapStore> store,
    const std::string& address) {
  return ConnectTcp("gloo",
                    {.rank = rank,
                     .world_size = 2,
                     .group_name = "world",
                     .store = std::move(store),
                     .deadline = Clock::now() + std::chrono::seconds(60),
                     .local_address = address});
}

// The body of a rank that stops itself after it has announced a receive. When
// it continues, it reports how that receive and the next one ended.
std::string ReceiveAfterAStop(const std::string& directory) {
  auto transport = ConnectOneOfTwo(
      1, std::make_shared<testing::DirectoryStore>(directory), "127.0.0.1");
  if (!transport.ok()) return transport.status().ToString();
  std::vector<char> data(kBytes);
  const auto buffer = (*transport)->CreateBuffer(data.data(), data.size());
  Status first = buffer->Receive(0, 0, kBytes);
  raise(SIGSTOP);
  if (first.ok()) first = buffer->WaitReceive(0);
  Status second = buffer->Receive(0, 0, kBytes);
  if (second.ok()) second = buffer->WaitReceive(0);
  return absl::StrCat(first.ToString(), "; last byte ",
                      static_cast<int>(data.back()), "; ", second.message());
}

// Stands first in this file because it forks: later there may be other threads.
TEST(TransportTest,
     WhatWasSentBeforeTheGoodbyeAndItselfReachAPeerThatIsBehind) {
  // Use the connections, because a stopped peer reads no memory.
  setenv("MUSTER_GLOO_PEER_MEMORY", "0", 1);
  std::string directory = absl::StrCat(::testing::TempDir(), "/mesh.XXXXXX");
  ASSERT_NE(mkdtemp(directory.data()), nullptr);
  int report[2];
  ASSERT_EQ(pipe(report), 0);
  const pid_t peer = fork();
  if (peer == 0) {
    const std::string text = ReceiveAfterAStop(directory);
    _exit(write(report[1], text.data(), text.size()) < 0);
  }
  close(report[1]);
  auto transport = ConnectOneOfTwo(
      0, std::make_shared<testing::DirectoryStore>(directory), "127.0.0.1");
  ASSERT_TRUE(transport.ok()) << transport.status();
  int state = 0;
  ASSERT_EQ(waitpid(peer, &state, WUNTRACED), peer);
  ASSERT_TRUE(WIFSTOPPED(state));
  {
    std::vector<char> data(kBytes, 7);
    const auto buffer = (*transport)->CreateBuffer(data.data(), data.size());
    EXPECT_TRUE(buffer->Send(1, 0, kBytes).ok());
    EXPECT_TRUE(buffer->WaitSend(1).ok());
  }
  // The peer has read neither message: both are in this side's socket.
  (*transport)->Close(AbortedError("on purpose"));
  transport->reset();
  kill(peer, SIGCONT);
  char text[1024] = {};
  EXPECT_GT(read(report[0], text, sizeof(text) - 1), 0);
  EXPECT_EQ(waitpid(peer, &state, 0), peer);
  EXPECT_EQ(std::string(text), "OK; last byte 7; rank 0 failed: on purpose");
  close(report[0]);
  unsetenv("MUSTER_GLOO_PEER_MEMORY");
  std::filesystem::remove_all(directory);
}

// Rank 1, played by sockets.
class SilentPeer {
 public:
  ~SilentPeer() { HangUp(); }

  StatusOr<std::unique_ptr<Transport>> ConnectRank0() {
    auto transport = std::async(std::launch::async, [&] {
      return ConnectOneOfTwo(0, store_, "127.0.0.1");
    });
    const Instant deadline = Clock::now() + std::chrono::seconds(60);
    const auto values = store_->Get({"gloo/0"}, deadline);
    const RankAddress rank0 = *DecodeAddress((*values)[0], 2);
    const RankAddress own = *listener_.Listen(rank0.socket);
    EXPECT_TRUE(store_->Set("gloo/1", EncodeAddress(own, 2)).ok());
    const auto sockets = listener_.Connect({rank0, own}, deadline);
    EXPECT_TRUE(sockets.ok()) << sockets.status();
    sockets_ = {sockets->data[0], sockets->control[0]};
    return transport.get();
  }

  void HangUp() {
    for (const int socket : std::exchange(sockets_, {})) close(socket);
  }

 private:
  Listener listener_{/*rank=*/1, /*world_size=*/2};
  std::vector<int> sockets_;
  const std::shared_ptr<testing::InMemoryStore> store_ =
      std::make_shared<testing::InMemoryStore>();
};

TEST(TransportTest, WhoWaitsInVainForAPeerToConnectTellsTheOthersSo) {
  const auto store = std::make_shared<testing::InMemoryStore>();
  const Instant deadline = Clock::now() + std::chrono::seconds(2);
  auto transport = std::async(std::launch::async, [&] {
    return ConnectTcp("gloo", {.rank = 0,
                               .world_size = 3,
                               .group_name = "world",
                               .store = store,
                               .deadline = deadline,
                               .local_address = "127.0.0.1"});
  });
  const auto values = store->Get({"gloo/0"}, deadline);
  ASSERT_TRUE(values.ok()) << values.status();
  std::vector<RankAddress> addresses = {*DecodeAddress((*values)[0], 3)};
  // Both ranks are played by sockets. Rank 2 never connects.
  Listener listeners[] = {Listener(1, 3), Listener(2, 3)};
  for (int rank : {1, 2}) {
    addresses.push_back(*listeners[rank - 1].Listen(addresses[0].socket));
    ASSERT_TRUE(store
                    ->Set(absl::StrCat("gloo/", rank),
                          EncodeAddress(addresses[rank], 3))
                    .ok());
  }
  EXPECT_FALSE(listeners[0].Connect(addresses, deadline).ok());
  ControlConnections control(3);
  EXPECT_TRUE(control.Take(listeners[0].TakeControlConnections()).ok());
  const auto end = control.AwaitEnd(0, Clock::now() + std::chrono::seconds(60));
  ASSERT_TRUE(end.has_value());
  const Status how = InterpretGoodbye(0, end->goodbye, end->text);
  EXPECT_TRUE(IsDeadlineExceeded(how)) << how;
  EXPECT_EQ(CulpritRank(how), 2);
  EXPECT_EQ(transport.get().status().code(), StatusCode::kDeadlineExceeded);
}

TEST(TransportTest, RankThatFailedStaysTheOneWaitedFor) {
  // A deadline that passes during the handling of the failure must name the
  // rank.
  for (const bool waits : {true, false}) {
    SilentPeer peer;
    const auto transport = peer.ConnectRank0();
    ASSERT_TRUE(transport.ok()) << transport.status();
    char byte = 0;
    const auto buffer = (*transport)->CreateBuffer(&byte, 1);
    Status status = buffer->Receive(1, 0, 1);
    EXPECT_TRUE(status.ok()) << status;
    EXPECT_EQ((*transport)->waiting_for(), -1);
    peer.HangUp();
    if (waits) status = buffer->WaitReceive(1);
    // Write until the end of the connection is known here.
    while (status.ok()) status = (*transport)->Write(1, "x", 1, nullptr, 0);
    EXPECT_EQ(status.code(), StatusCode::kUnavailable) << status;
    EXPECT_EQ((*transport)->waiting_for(), 1);
  }
}

}  // namespace
}  // namespace muster::dataplane::cpu
