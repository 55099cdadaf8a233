#include "client/tools/diagnose/fetch.h"

#include <arpa/inet.h>
#include <httplib.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <chrono>
#include <cstdint>
#include <map>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "client/control/endpoint.h"
#include "client/tools/diagnose/diagnosis_rules.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "muster/base/status.h"

namespace muster::tools {
namespace {

using std::chrono::milliseconds;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// Timeouts for an answer that does not come, and for one that does.
constexpr milliseconds kShort(300);
constexpr std::chrono::seconds kLong(20);

// A port of this host that never answers.
class Port {
 public:
  Port() : fd_(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in address = Loopback();
    socklen_t size = sizeof(address);
    EXPECT_EQ(bind(fd_, reinterpret_cast<sockaddr*>(&address), size), 0);
    getsockname(fd_, reinterpret_cast<sockaddr*>(&address), &size);
    port_ = address.sin_port;
  }
  ~Port() {
    for (const int fd : waiting_) close(fd);
    close(fd_);
  }
  Port(const Port&) = delete;
  Port& operator=(const Port&) = delete;

  // The kernel accepts all connections, or, once the queue is full, none: then
  // it drops packets as if the host did not exist.
  void Listen() { EXPECT_EQ(listen(fd_, SOMAXCONN), 0); }
  void ListenAndBeFull() {
    EXPECT_EQ(listen(fd_, 0), 0);
    for (int i = 0; i < 3; ++i) {
      const int fd =
          socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
      const sockaddr_in address = Loopback();
      connect(fd, reinterpret_cast<const sockaddr*>(&address), sizeof(address));
      waiting_.push_back(fd);
    }
  }

  std::string address() const {
    return absl::StrCat("127.0.0.1:", ntohs(port_));
  }

 private:
  sockaddr_in Loopback() const {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    address.sin_port = port_;
    return address;
  }

  const int fd_;
  in_port_t port_ = 0;
  std::vector<int> waiting_;
};

TEST(FetchTest, NobodyListens) {
  const Port port;
  const Fetched fetched = Fetch(port.address(), "/healthz", "", kLong);
  EXPECT_EQ(fetched.answer, Answer::kRefused);
  EXPECT_EQ(fetched.status,
            UnavailableError(absl::StrCat("no answer from ", port.address(),
                                          ": connection refused")));
}

TEST(FetchTest, TheProcessTakesTheConnectionAndSaysNothing) {
  Port port;
  port.Listen();
  const Fetched fetched = Fetch(port.address(), "/healthz", "", kShort);
  EXPECT_EQ(fetched.answer, Answer::kSilent);
  EXPECT_TRUE(IsUnavailable(fetched.status)) << fetched.status;
}

TEST(FetchTest, NobodyTakesTheConnection) {
  Port port;
  port.ListenAndBeFull();
  const Fetched fetched = Fetch(port.address(), "/healthz", "", kShort);
  EXPECT_EQ(fetched.answer, Answer::kUnreachable);
  EXPECT_TRUE(IsUnavailable(fetched.status)) << fetched.status;
}

TEST(FetchTest, WhoRefusesAPageAnswers) {
  httplib::Server server;
  server.Get("/here", [](const httplib::Request& request,
                         httplib::Response& response) {
    response.set_content(request.get_header_value("Authorization"), "text");
  });
  for (const int code : {401, 403, 500}) {
    server.Get(absl::StrCat("/", code),
               [code](const httplib::Request&, httplib::Response& response) {
                 response.status = code;
                 response.set_content("because\n", "text");
               });
  }
  const std::string address =
      absl::StrCat("127.0.0.1:", server.bind_to_any_port("127.0.0.1"));
  std::thread serving([&] { server.listen_after_bind(); });
  const std::map<std::string, StatusCode> codes = {
      {"/here", StatusCode::kOk},
      {"/401", StatusCode::kUnauthenticated},
      {"/403", StatusCode::kPermissionDenied},
      {"/404", StatusCode::kUnknown},
      {"/500", StatusCode::kUnknown}};
  for (const auto& [path, code] : codes) {
    const Fetched fetched = Fetch(address, path, "Bearer grain", kLong);
    EXPECT_EQ(fetched.answer, Answer::kAnswers) << path;
    EXPECT_EQ(fetched.status.code(), code) << path;
    if (path == "/here") {
      EXPECT_EQ(fetched.body, "Bearer grain");
    }
    if (path == "/403") {
      EXPECT_EQ(fetched.status.message(), "HTTP status 403: because");
    }
  }
  server.stop();
  serving.join();
}

// A rank's server, which reports that it is rank 3 with `pid`.
class Rank {
 public:
  explicit Rank(int64_t pid) {
    server_.set_pre_routing_handler(
        [this](const httplib::Request& request, httplib::Response&) {
          const std::string token = request.get_header_value("Authorization");
          asked_.push_back(token.empty()
                               ? request.path
                               : absl::StrCat(request.path, " with ", token));
          return httplib::Server::HandlerResponse::Unhandled;
        });
    server_.Get("/page",
                [](const httplib::Request&, httplib::Response& response) {
                  response.set_content("text", "text");
                });
    if (pid != 0) {
      server_.Get("/identity", [pid](const httplib::Request&,
                                     httplib::Response& response) {
        response.set_content(absl::StrCat("{\"rank\":3,\"pid\":", pid, "}"),
                             "application/json");
      });
    }
    port_ = server_.bind_to_any_port("127.0.0.1");
    serving_ = std::thread([this] { server_.listen_after_bind(); });
  }
  ~Rank() { Stop(); }
  Rank(const Rank&) = delete;
  Rank& operator=(const Rank&) = delete;

  Fetched Fetch(Asked asked, const std::string& path = "/page") const {
    asked.address = absl::StrCat("127.0.0.1:", port_);
    return FetchChecked(asked, path, "token", kLong);
  }

  // Returns the requests, with their authorization.
  std::vector<std::string> Stop() {
    while (!server_.is_running() && serving_.joinable()) {
      std::this_thread::yield();
    }
    server_.stop();
    if (serving_.joinable()) serving_.join();
    return asked_;
  }

 private:
  httplib::Server server_;
  int port_ = 0;
  std::vector<std::string> asked_;  // one client at a time
  std::thread serving_;
};

// No process has this pid.
constexpr int64_t kNoPid = int64_t{1} << 40;

TEST(FetchTest, WhoSaysThatItIsTheRankIsShownTheToken) {
  Rank rank(kNoPid);
  const Asked asked = {3, internal::HostName(), kNoPid, ""};
  EXPECT_EQ(rank.Fetch(asked).body, "text");
  EXPECT_EQ(rank.Fetch(asked, "").answer, Answer::kAnswers);
  EXPECT_THAT(rank.Stop(),
              ElementsAre("/identity", "/page with token", "/identity"));
}

TEST(FetchTest, AnotherRankAtTheAddressIsAskedForNothingElse) {
  Rank rank(kNoPid);
  for (const Asked& other : {Asked{3, internal::HostName(), kNoPid + 1, ""},
                             Asked{2, internal::HostName(), kNoPid, ""}}) {
    const Fetched fetched = rank.Fetch(other);
    EXPECT_TRUE(IsFailedPrecondition(fetched.status)) << fetched.status;
    EXPECT_EQ(fetched.body, "");
  }
  EXPECT_THAT(rank.Stop(), ElementsAre("/identity", "/identity"));
}

TEST(FetchTest, LoopbackOfAnotherHostIsNotAsked) {
  Rank rank(kNoPid);
  const Fetched fetched = rank.Fetch({3, "elsewhere", kNoPid, ""});
  EXPECT_TRUE(IsFailedPrecondition(fetched.status)) << fetched.status;
  EXPECT_THAT(fetched.status.message(),
              HasSubstr("not reachable from here: it listens on loopback of "
                        "elsewhere alone"));
  for (const char* address : {"[::1]:9", "localhost:9", "127.9.9.9:9"}) {
    EXPECT_TRUE(IsFailedPrecondition(
        FetchChecked({3, "elsewhere", 7, address}, "/page", "", kLong).status))
        << address;
  }
  EXPECT_THAT(rank.Stop(), IsEmpty());
}

TEST(FetchTest, WhoDoesNotSayWhoItIsMustBeOfThisHostAndGetsNoToken) {
  Rank rank(0);
  EXPECT_TRUE(IsFailedPrecondition(
      rank.Fetch({3, internal::HostName(), kNoPid, ""}).status));
  EXPECT_EQ(rank.Fetch({3, internal::HostName(), getpid(), ""}).body, "text");
  EXPECT_THAT(rank.Stop(), ElementsAre("/identity", "/identity", "/page"));
}

TEST(FetchTest, OnLoopbackOnlyAProcessOfThisHostIsStoppedAndNoneIsDead) {
  const Port nobody;
  EXPECT_TRUE(IsFailedPrecondition(
      FetchChecked({3, internal::HostName(), getpid(), nobody.address()}, "",
                   "", kLong)
          .status));
  Port port;
  port.Listen();
  const Fetched here = FetchChecked(
      {3, internal::HostName(), getpid(), port.address()}, "", "", kShort);
  EXPECT_EQ(here.answer, Answer::kSilent);
  EXPECT_TRUE(IsUnavailable(here.status)) << here.status;
  EXPECT_TRUE(IsFailedPrecondition(
      FetchChecked({3, internal::HostName(), kNoPid, port.address()}, "", "",
                   kShort)
          .status));
}

TEST(FetchTest, AllAreAskedByRank) {
  const auto pages = FetchAll({{3, {3, "elsewhere", kNoPid, "127.0.0.1:9"}},
                               {5, {5, internal::HostName(), 7, "nowhere"}}},
                              "/page", "", kLong);
  EXPECT_TRUE(IsFailedPrecondition(pages.at(3).status));
  EXPECT_EQ(pages.at(5).status,
            InvalidArgumentError("\"nowhere\" is no HOST:PORT"));
}

}  // namespace
}  // namespace muster::tools
