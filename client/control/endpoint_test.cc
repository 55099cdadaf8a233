#include "client/control/endpoint.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <chrono>
#include <string>
#include <thread>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace muster::internal {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::AllOf;
using ::testing::HasSubstr;

// A bound socket, so that no other process has its port. Listens if asked to.
class LoopbackSocket {
 public:
  explicit LoopbackSocket(bool listening)
      : fd_(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof(address);
    EXPECT_EQ(bind(fd_, reinterpret_cast<sockaddr*>(&address), size), 0);
    if (listening) {
      EXPECT_EQ(listen(fd_, 1), 0);
    }
    EXPECT_EQ(getsockname(fd_, reinterpret_cast<sockaddr*>(&address), &size),
              0);
    endpoint_ = {"127.0.0.1", ntohs(address.sin_port)};
  }
  ~LoopbackSocket() { close(fd_); }

  int fd() const { return fd_; }
  const Endpoint& endpoint() const { return endpoint_; }

 private:
  const int fd_;
  Endpoint endpoint_;
};

TEST(EndpointTest, BracketsGoWhereAHostStandsAlone) {
  EXPECT_EQ(WithoutBrackets("[::1]"), "::1");
  EXPECT_EQ(WithoutBrackets("::1"), "::1");
  EXPECT_EQ(WithoutBrackets("node-1"), "node-1");
  EXPECT_EQ(WithoutBrackets("[]"), "[]");
}

std::string Parsed(const std::string& text, int default_port = 0) {
  const auto endpoints = ParseEndpoints("--to", text, default_port);
  return endpoints.ok() ? JoinEndpoints(*endpoints)
                        : std::string(endpoints.status().message());
}

TEST(EndpointTest, SeveralStandWithCommasBetween) {
  EXPECT_EQ(Parsed("a:1"), "a:1");
  EXPECT_EQ(Parsed("a:1,[::1]:2, c:3"), "a:1,[::1]:2,c:3");
  EXPECT_EQ(Parsed("a:1,b:2,a:1"), "a:1,b:2");
  EXPECT_EQ(Parsed("a,b:2,[::1]", 7070), "a:7070,b:2,[::1]:7070");
}

TEST(EndpointTest, AWrongListIsNamedWithItsElement) {
  EXPECT_EQ(Parsed(""), "--to \"\": port number missing");
  EXPECT_EQ(Parsed("a"), "--to \"a\": port number missing");
  EXPECT_EQ(Parsed("a:1,b"),
            "--to \"a:1,b\": address 2 \"b\": port number missing");
  EXPECT_EQ(Parsed("a:1,,b:2"), "--to \"a:1,,b:2\": address 2 is empty");
  EXPECT_EQ(Parsed("a:1,"), "--to \"a:1,\": address 2 is empty");
  EXPECT_EQ(Parsed(","), "--to \",\": address 1 is empty");
  EXPECT_EQ(Parsed("", 7070), "--to \"\": port number missing");
}

TEST(EndpointTest, AListHasALimit) {
  std::string most = "h:1";
  for (size_t i = 1; i < kEndpointsMax; ++i) most += ",h:1";
  EXPECT_EQ(Parsed(most), "h:1");
  EXPECT_THAT(Parsed(most + ",h:1"),
              HasSubstr(": 65 addresses, and 64 is the most"));
}

TEST(EndpointTest, ProbeFindsAListener) {
  const LoopbackSocket listener(/*listening=*/true);
  EXPECT_TRUE(Probe(listener.endpoint(), seconds(5)).ok());
}

TEST(EndpointTest, ProbeGivesTheSystemsReason) {
  const LoopbackSocket closed(/*listening=*/false);
  const Status refused = Probe(closed.endpoint(), seconds(5));
  EXPECT_TRUE(IsUnavailable(refused));
  EXPECT_EQ(refused.message(), "connection refused");
  EXPECT_TRUE(IsConnectionRefused(refused));
  EXPECT_FALSE(IsConnectionRefused(UnavailableError(refused.message())));
  EXPECT_THAT(Probe({"no-such-host.invalid", 1}, seconds(5)).message(),
              AllOf(HasSubstr("cannot resolve \"no-such-host.invalid\""),
                    HasSubstr("is the name right?")));
}

// Returns DescribeStranger's text for a server that sends `words` and, if
// `closes`, closes the connection.
std::string StrangerThatSays(absl::string_view words, bool closes) {
  const LoopbackSocket listener(/*listening=*/true);
  std::string said;
  std::thread client(
      [&] { said = DescribeStranger(listener.endpoint(), seconds(60)); });
  const int fd = accept(listener.fd(), nullptr, nullptr);
  EXPECT_EQ(send(fd, words.data(), words.size(), MSG_NOSIGNAL),
            static_cast<ssize_t>(words.size()));
  if (closes) close(fd);
  client.join();
  if (!closes) close(fd);
  return said;
}

TEST(EndpointTest, AStrangerIsToldByItsFirstWords) {
  constexpr char kNoCoordinator[] =
      "what answers there is no muster coordinator: it says ";
  EXPECT_EQ(StrangerThatSays("SSH-2.0-OpenSSH_9.2\r\n", false),
            absl::StrCat(kNoCoordinator, "\"SSH-2.0-OpenSSH_9.2\""));
  EXPECT_EQ(StrangerThatSays("HTTP/1.1 400 Bad Request\r\n\r\n", true),
            absl::StrCat(kNoCoordinator, "\"HTTP/1.1 400 Bad Request\""));
  EXPECT_EQ(StrangerThatSays(absl::string_view("\x4a\0\n", 3), false),
            absl::StrCat(kNoCoordinator, "\"J\\x00\""));
  // The first bytes of a coordinator, and of a server with TLS.
  EXPECT_EQ(StrangerThatSays(absl::string_view("\0\0\x06\x04", 4), false), "");
  EXPECT_EQ(StrangerThatSays("\x15\x03\x01", false), "");
  EXPECT_EQ(StrangerThatSays("", true), "");
  const LoopbackSocket silent(/*listening=*/true);
  EXPECT_THAT(DescribeStranger(silent.endpoint(), milliseconds(1)),
              HasSubstr("says nothing"));
  const LoopbackSocket closed(/*listening=*/false);
  EXPECT_EQ(DescribeStranger(closed.endpoint(), seconds(60)), "");
}

TEST(EndpointTest, TheWayToLoopbackIsLoopback) {
  const auto local = LocalAddressTowards({"127.0.0.1", 7070});
  ASSERT_TRUE(local.ok()) << local.status();
  EXPECT_EQ(*local, "127.0.0.1");
}

TEST(EndpointTest, ListensWhereEverybodyCanReachIt) {
  EXPECT_EQ(ListenAddress({"127.0.0.1", 1}), "127.0.0.1:1");
  EXPECT_EQ(ListenAddress({"localhost", 1}), "127.0.0.1:1");
  EXPECT_EQ(ListenAddress({"10.1.2.3", 1}), "10.1.2.3:1");
  EXPECT_EQ(ListenAddress({"fe80::1%lo", 1}), "[fe80::1%lo]:1");
  EXPECT_EQ(ListenAddress({"trainer-0.svc", 1}), "[::]:1");
}

TEST(ReachableAddressTest, IsTheFirstInterfacesElseOneOfTheHosts) {
  EXPECT_EQ(ReachableAddress("lo,eth0"), "127.0.0.1");
  const std::string address = ReachableAddress(nullptr);
  EXPECT_EQ(ReachableAddress("nosuch1"), address);
  const StatusOr<std::string> own =
      LocalAddressTowards({.host = address, .port = 1});
  ASSERT_TRUE(own.ok()) << own.status();
  EXPECT_EQ(*own, address);
}

}  // namespace
}  // namespace muster::internal
