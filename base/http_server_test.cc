#include "base/http_server.h"

#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <httplib.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "muster/base/clock.h"
#include "muster/base/status.h"

namespace muster::base {
namespace {

using ::testing::EndsWith;

// More than twice the number of the server's threads.
constexpr int kManyClients = 9;

// A client that sends and reads only when the test tells it to.
class RawClient {
 public:
  RawClient(int port, const std::string& text)
      : socket_(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    // Small, so that a large answer does not fit into the buffers.
    const int bytes = 4096;
    setsockopt(socket_, SOL_SOCKET, SO_RCVBUF, &bytes, sizeof(bytes));
    sockaddr_in address = {};
    address.sin_family = AF_INET;
    address.sin_port = htons(static_cast<uint16_t>(port));
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    EXPECT_EQ(connect(socket_, reinterpret_cast<const sockaddr*>(&address),
                      sizeof(address)),
              0);
    Send(text);
  }
  ~RawClient() { close(socket_); }
  RawClient(const RawClient&) = delete;
  RawClient& operator=(const RawClient&) = delete;

  bool Send(const std::string& text) {
    return send(socket_, text.data(), text.size(), MSG_NOSIGNAL) >= 0;
  }

  // Reads until the server closes the connection.
  std::string ReadAll() {
    std::string text;
    std::array<char, 4096> buffer;
    ssize_t count = 0;
    while ((count = recv(socket_, buffer.data(), buffer.size(), 0)) > 0) {
      text.append(buffer.data(), static_cast<size_t>(count));
    }
    return text;
  }

  // Whether the server closes the connection within `time`. Discards what it
  // reads.
  bool ClosedWithin(std::chrono::milliseconds time) {
    const auto until = Clock::now() + time;
    while (true) {
      const auto left =
          std::chrono::ceil<std::chrono::milliseconds>(until - Clock::now());
      pollfd ready = {socket_, POLLIN, 0};
      const int wait = left.count() > 0 ? static_cast<int>(left.count()) : 0;
      if (poll(&ready, 1, wait) <= 0) return false;
      std::array<char, 65536> buffer;
      if (recv(socket_, buffer.data(), buffer.size(), 0) <= 0) return true;
    }
  }

 private:
  const int socket_;
};

class HttpServerTest : public ::testing::Test {
 protected:
  explicit HttpServerTest(const HttpServerOptions& options = {}) {
    auto server = HttpServer::Start(
        {"127.0.0.1", 0},
        {{"/healthz", RenderAs("text/plain", [] { return "ok\n"; })},
         {"/large",
          RenderAs("text/plain", [] { return std::string(1 << 23, 'x'); })},
         {"/set", RenderAs("text/plain", [] { return "set\n"; }),
          [](const std::string&) { return OkStatus(); }}},
        options);
    EXPECT_TRUE(server.ok()) << server.status();
    server_ = *std::move(server);
  }

  std::vector<std::unique_ptr<RawClient>> Connect(const std::string& text,
                                                  int count = kManyClients) {
    std::vector<std::unique_ptr<RawClient>> clients;
    for (int i = 0; i < count; ++i) {
      clients.push_back(std::make_unique<RawClient>(server_->port(), text));
    }
    return clients;
  }

  std::string Health() {
    httplib::Client client("127.0.0.1", server_->port());
    client.set_read_timeout(10 * kHttpRequestTime);
    const auto answer = client.Get("/healthz");
    return answer ? answer->body : "no answer";
  }

  std::unique_ptr<HttpServer> server_;
};

TEST_F(HttpServerTest, SlowClientsHoldUpNobody) {
  for (const char* const text :
       {"", "GET /healthz HT", "GET /healthz HTTP/1.1\r\nHost: here\r\n",
        "POST /set HTTP/1.1\r\nContent-Length: 9\r\n\r\nbody",
        "GET /large HTTP/1.1\r\n\r\n"}) {
    const auto start = Clock::now();
    const auto slow = Connect(text);
    EXPECT_EQ(Health(), "ok\n") << text;
    // Less than the time in which two clients time out in turn.
    EXPECT_LT(Clock::now() - start, 2 * kHttpRequestTime) << text;
  }
}

TEST_F(HttpServerTest, ARequestHasADeadlineHoweverOftenAByteComes) {
  RawClient client(server_->port(), "GET /healthz HTTP/1.1\r\nDrip: ");
  const auto until = Clock::now() + 10 * kHttpRequestTime;
  while (!client.ClosedWithin(std::chrono::milliseconds(100))) {
    client.Send("x");
    ASSERT_LT(Clock::now(), until);
  }
}

TEST_F(HttpServerTest, OfARequestWithoutAnEndLittleIsRead) {
  RawClient client(server_->port(), "GET /healthz HTTP/1.1\r\nEndless: ");
  const std::string more(1 << 16, 'x');
  int64_t sent = 0;
  while (client.Send(more)) sent += 1 << 16;
  // The kernel's buffers on both sides count, too.
  EXPECT_LT(sent, 1 << 24);
}

TEST_F(HttpServerTest, AnAnswerHasADeadline) {
  RawClient client(server_->port(), "GET /large HTTP/1.1\r\n\r\n");
  // The client reads nothing until the server gives up.
  const auto until = Clock::now() + 10 * kHttpRequestTime;
  while (client.Send("x")) ASSERT_LT(Clock::now(), until);
}

TEST_F(HttpServerTest, TheEndWaitsForNoClient) {
  const auto slow = Connect("GET /healthz HTTP/1.1\r\n");
  EXPECT_EQ(Health(), "ok\n");
  const auto start = Clock::now();
  server_.reset();
  EXPECT_LT(Clock::now() - start, kHttpRequestTime);
  for (const auto& client : slow) {
    EXPECT_TRUE(client->ClosedWithin(kHttpRequestTime));
  }
}

// Its clients have time enough to send their requests.
class PatientHttpServerTest : public HttpServerTest {
 protected:
  PatientHttpServerTest()
      : HttpServerTest({.threads = 2, .patience = kHttpRequestTime}) {}
};

TEST_F(PatientHttpServerTest, ACrowdIsAnsweredInTurn) {
  for (const auto& client : Connect("")) {
    client->Send("GET /healthz HTTP/1.1\r\n\r\n");
    EXPECT_THAT(client->ReadAll(), EndsWith("\r\n\r\nok\n"));
  }
}

// The accepting thread waits for the queue to shrink.
TEST_F(PatientHttpServerTest, TheEndWaitsForNoCrowd) {
  const auto silent = Connect("", 100);
  const auto start = Clock::now();
  server_.reset();
  EXPECT_LT(Clock::now() - start, kHttpRequestTime);
}

}  // namespace
}  // namespace muster::base
