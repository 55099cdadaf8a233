#include "client/tools/fetch.h"

#include <arpa/inet.h>
#include <httplib.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <chrono>
#include <map>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "client/tools/diagnosis.h"
#include "gtest/gtest.h"

namespace muster::tools {
namespace {

using std::chrono::milliseconds;

// For an answer that does not come, and for one that does.
constexpr milliseconds kShort(300);
constexpr std::chrono::seconds kLong(20);

// A port of this host at which nobody says anything.
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

  // The kernel takes connections: any, or, once it is full, none, and drops
  // what comes then as if the host were not there.
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
            absl::UnavailableError(absl::StrCat(
                "no answer from ", port.address(), ": connection refused")));
}

TEST(FetchTest, TheProcessTakesTheConnectionAndSaysNothing) {
  Port port;
  port.Listen();
  const Fetched fetched = Fetch(port.address(), "/healthz", "", kShort);
  EXPECT_EQ(fetched.answer, Answer::kSilent);
  EXPECT_TRUE(absl::IsUnavailable(fetched.status)) << fetched.status;
}

TEST(FetchTest, NobodyTakesTheConnection) {
  Port port;
  port.ListenAndBeFull();
  const Fetched fetched = Fetch(port.address(), "/healthz", "", kShort);
  EXPECT_EQ(fetched.answer, Answer::kUnreachable);
  EXPECT_TRUE(absl::IsUnavailable(fetched.status)) << fetched.status;
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
  const std::map<std::string, absl::StatusCode> codes = {
      {"/here", absl::StatusCode::kOk},
      {"/401", absl::StatusCode::kUnauthenticated},
      {"/403", absl::StatusCode::kPermissionDenied},
      {"/404", absl::StatusCode::kUnknown},
      {"/500", absl::StatusCode::kUnknown}};
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
  const auto pages =
      FetchAll({{3, address}, {5, "nowhere"}}, "/here", "", kLong);
  EXPECT_TRUE(pages.at(3).status.ok());
  EXPECT_EQ(pages.at(5).status,
            absl::InvalidArgumentError("\"nowhere\" is no HOST:PORT"));
  server.stop();
  serving.join();
}

}  // namespace
}  // namespace muster::tools
