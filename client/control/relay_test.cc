#include "client/control/relay.h"

#include <grpcpp/grpcpp.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "client/control/channel.h"
#include "client/control/relay_route.h"
#include "coordinator/server/auth/test_certificates.h"
#include "coordinator/server/test_server.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "muster/session.h"
#include "muster/store.h"
#include "muster/v1/session.grpc.pb.h"
#include "proto/muster/v1/status_wire.h"

namespace muster::internal {
namespace {

using coordinator::ServerOptions;
using coordinator::TestServer;
using std::chrono::milliseconds;
using std::chrono::minutes;
using std::chrono::seconds;
using std::chrono::steady_clock;
using ::testing::HasSubstr;

constexpr seconds kLimit(30);

ServerOptions WithHttp(ServerOptions options = {}) {
  options.http_listen = "127.0.0.1:0";
  return options;
}

std::string Address(TestServer& server) {
  return "127.0.0.1:" + std::to_string(server.server().port());
}

// The value of one of the coordinator's metrics without labels.
int Metric(TestServer& server, const std::string& name) {
  const std::string page = server.Http("/metrics");
  const size_t at = page.find("\n" + name + " ");
  if (at == std::string::npos) return -1;
  return std::stoi(page.substr(at + name.size() + 2));
}

void AwaitMetric(TestServer& server, const std::string& name, int value) {
  const auto end = steady_clock::now() + kLimit;
  int now = 0;
  while ((now = Metric(server, name)) != value) {
    ASSERT_LT(steady_clock::now(), end) << name << " is still " << now;
  }
}

constexpr char kRelays[] = "muster_coordinator_relays";
constexpr char kSessions[] = "muster_coordinator_sessions";

// A relay, and sessions of this process that use it.
class RelayTest : public ::testing::Test {
 protected:
  ~RelayTest() override {
    unsetenv(kRelayVariable);
    std::filesystem::remove_all(folder_);
  }

  void StartRelay(const std::string& coordinator) {
    auto relay = Relay::Start(socket_, *ChannelSecurity::Take({}));
    ASSERT_TRUE(relay.ok()) << relay.status();
    relay_ = *std::move(relay);
    setenv(kRelayVariable, absl::StrCat(coordinator, "@", socket_).c_str(), 1);
  }

  static std::shared_ptr<Session> Connect(const std::string& coordinator,
                                          const std::string& member,
                                          const std::string& job = "j") {
    SessionOptions options;
    options.address = coordinator;
    options.job = job;
    options.member = member;
    return Session::Connect(options);
  }

  // The name of a socket must be short; that of the test's folder may not be.
  const std::string folder_ = [] {
    char folder[] = "/tmp/relayXXXXXX";
    return std::string(mkdtemp(folder));
  }();
  const std::string socket_ = folder_ + "/relay";
  std::unique_ptr<Relay> relay_;
};

// A rank that reads only when told to.
class RawRank {
 public:
  RawRank(const std::string& socket, const std::string& coordinator)
      : stub_(v1::SessionService::NewStub(
            NewUnixChannel(UnixTarget(socket), milliseconds(0)))) {
    context_.set_deadline(std::chrono::system_clock::now() + kLimit);
    if (!coordinator.empty()) {
      context_.AddMetadata(kRelayTargetHeader, coordinator);
    }
    stream_ = stub_->Stream(&context_);
  }
  ~RawRank() {
    if (finished_) return;
    context_.TryCancel();
    Finish().IgnoreError();
  }

  void Hello(const std::string& member = "") {
    v1::StreamRequest request;
    *request.mutable_hello()->mutable_caller() =
        coordinator::MakeCaller("j", member, member.empty() ? 0 : 1);
    if (!member.empty()) request.mutable_hello()->mutable_registration();
    EXPECT_TRUE(stream_->Write(request));
  }
  bool Send(const v1::StreamRequest& request) {
    return stream_->Write(request);
  }
  bool Read(v1::StreamResponse* response) { return stream_->Read(response); }
  Status Finish() {
    v1::StreamResponse response;
    while (stream_->Read(&response)) {
    }
    finished_ = true;
    return v1::FromGrpc(stream_->Finish());
  }
  void Cancel() { context_.TryCancel(); }
  bool relay_lives() const {
    return context_.GetServerTrailingMetadata().count(kRelayLivesHeader) > 0;
  }

 private:
  grpc::ClientContext context_;
  std::unique_ptr<v1::SessionService::Stub> stub_;
  std::unique_ptr<
      grpc::ClientReaderWriter<v1::StreamRequest, v1::StreamResponse>>
      stream_;
  bool finished_ = false;
};

TEST_F(RelayTest, APathThatIsTooLongIsAnError) {
  const std::string path = "/" + std::string(107, 'x');
  EXPECT_EQ(Relay::Start(path, *ChannelSecurity::Take({})).status(),
            FailedPreconditionError("the path \"" + path +
                                    "\" of a socket has 108 bytes, may have "
                                    "107: set a shorter TMPDIR"));
}

TEST_F(RelayTest, AFolderThatIsNotThereIsAnError) {
  EXPECT_EQ(
      Relay::Start("/nowhere/relay", *ChannelSecurity::Take({})).status(),
      FailedPreconditionError("cannot listen on a socket \"/nowhere/relay\""));
}

TEST_F(RelayTest, SessionsOfAHostShareOneCall) {
  TestServer server(WithHttp());
  StartRelay(Address(server));
  {
    std::vector<std::shared_ptr<Session>> sessions;
    for (int i = 0; i < 5; ++i) {
      sessions.push_back(
          Connect(Address(server), absl::StrCat("m", i), i < 3 ? "j" : "k"));
    }
    EXPECT_EQ(Metric(server, kRelays), 1);
    EXPECT_EQ(Metric(server, kSessions), 5);
    CoordinatorStore first(sessions[0]);
    CoordinatorStore second(sessions[1]);
    CoordinatorStore other_job(sessions[4]);
    std::thread setter([&] { second.Set("k", "v"); });
    EXPECT_EQ(first.Get("k"), "v");
    setter.join();
    EXPECT_FALSE(other_job.Check({"k"}));
    // Larger than all windows on the way.
    std::string value(12 << 20, 'v');
    value.back() = 'w';
    first.Set("large", value);
    EXPECT_TRUE(second.Get("large") == value);
  }
  // The call ends with its last session, and a later session has a new one.
  AwaitMetric(server, kRelays, 0);
  CoordinatorStore again(Connect(Address(server), "again"));
  EXPECT_EQ(again.Get("k"), "v");
  EXPECT_EQ(Metric(server, kRelays), 1);
}

TEST_F(RelayTest, ManySessionsComeAndGo) {
  TestServer server(WithHttp());
  StartRelay(Address(server));
  std::vector<std::thread> threads;
  for (int t = 0; t < 6; ++t) {
    threads.emplace_back([&, t] {
      for (int round = 0; round < 8; ++round) {
        CoordinatorStore store(
            Connect(Address(server), absl::StrCat("m", t, ".", round)));
        EXPECT_GT(store.Add("n", 1), 0);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  AwaitMetric(server, kRelays, 0);
  unsetenv(kRelayVariable);
  CoordinatorStore store(Connect(Address(server), "last"));
  EXPECT_EQ(store.Add("n", 0), 48);
}

TEST_F(RelayTest, ARankThatIsGoneIsLostAfterTheGrace) {
  ServerOptions options;
  options.reconnect_grace = milliseconds(100);
  options.lease = minutes(5);
  TestServer server(WithHttp(options));
  StartRelay(Address(server));
  const auto other = Connect(Address(server), "other");
  RawRank rank(socket_, Address(server));
  rank.Hello("m");
  v1::StreamResponse response;
  ASSERT_TRUE(rank.Read(&response));
  rank.Cancel();
  server.Await("j", [](const v1::GetJobResponse& job) {
    for (const v1::MemberInfo& member : job.members()) {
      if (member.member() == "m" && member.state() == v1::MEMBER_STATE_LOST) {
        return member.cause() == "connection closed, not restored within 100ms";
      }
    }
    return false;
  });
  EXPECT_EQ(CoordinatorStore(other).Add("n", 1), 1);
  EXPECT_EQ(Metric(server, kSessions), 1);
}

TEST_F(RelayTest, AnOrderlyEndTellsTheCoordinatorOfAllRanks) {
  ServerOptions options;
  options.reconnect_grace = milliseconds(1);
  options.lease = minutes(5);
  TestServer server(WithHttp(options));
  StartRelay(Address(server));
  RawRank rank(socket_, Address(server));
  rank.Hello("m");
  v1::StreamResponse response;
  ASSERT_TRUE(rank.Read(&response));
  relay_.reset();
  EXPECT_EQ(Metric(server, kRelays), 0);
  // Not only when the lease ends.
  server.Await("j", [](const v1::GetJobResponse& job) {
    return job.members_size() == 1 &&
           job.members(0).state() == v1::MEMBER_STATE_LOST;
  });
}

TEST_F(RelayTest, ARankThatDoesNotReadHoldsUpNobody) {
  ServerOptions options;
  options.stalled_reader_timeout = milliseconds(1000);
  TestServer server(WithHttp(options));
  StartRelay(Address(server));
  CoordinatorStore other(Connect(Address(server), "other"));
  other.Set("big", std::string(1 << 20, 'v'));
  RawRank rank(socket_, Address(server));
  rank.Hello();
  AwaitMetric(server, kSessions, 2);
  v1::StreamRequest batch;
  for (uint64_t id = 1; id <= 64; ++id) {
    *batch.add_operations() = coordinator::GetOperation(id, "big");
  }
  ASSERT_TRUE(rank.Send(batch));
  // Until the coordinator has cut it off.
  for (int64_t n = 1; Metric(server, kSessions) > 1; ++n) {
    EXPECT_EQ(other.Add("n", 1), n);
  }
  EXPECT_EQ(rank.Finish().code(), StatusCode::kResourceExhausted);
  EXPECT_TRUE(rank.relay_lives());
  EXPECT_EQ(other.Get("big").size(), size_t{1} << 20);
}

TEST_F(RelayTest, ARankThatSendsMuchAtOnceHoldsUpNobody) {
  TestServer server(WithHttp());
  StartRelay(Address(server));
  CoordinatorStore other(Connect(Address(server), "other"));
  RawRank rank(socket_, Address(server));
  rank.Hello();
  std::thread flood([&] {
    for (uint64_t id = 1; id <= 20; ++id) {
      v1::StreamRequest request;
      *request.add_operations() =
          coordinator::SetOperation(id, "big", std::string(4 << 20, 'v'));
      EXPECT_TRUE(rank.Send(request));
    }
  });
  for (int64_t n = 1; n <= 100; ++n) EXPECT_EQ(other.Add("n", 1), n);
  flood.join();
  int results = 0;
  v1::StreamResponse response;
  while (results < 20 && rank.Read(&response)) {
    results += response.results_size();
  }
  EXPECT_EQ(results, 20);
}

TEST_F(RelayTest, TheEndOfASessionIsTheCoordinators) {
  TestServer server(WithHttp());
  StartRelay(Address(server));
  RawRank first(socket_, Address(server));
  first.Hello("m");
  v1::StreamResponse response;
  ASSERT_TRUE(first.Read(&response));
  RawRank second(socket_, Address(server));
  second.Hello("m");
  EXPECT_EQ(first.Finish(),
            AbortedError("another stream of member \"m\" took over"));
  EXPECT_TRUE(first.relay_lives());
  v1::StreamRequest request;
  request.mutable_hello();
  ASSERT_TRUE(second.Send(request));
  EXPECT_EQ(second.Finish(), InvalidArgumentError("a second hello"));
  EXPECT_TRUE(second.relay_lives());
}

TEST_F(RelayTest, RanksComeBackThroughTheRelayAfterADrain) {
  TestServer server(WithHttp());
  StartRelay(Address(server));
  RawRank rank(socket_, Address(server));
  rank.Hello("m");
  v1::StreamResponse response;
  ASSERT_TRUE(rank.Read(&response));
  server.server().Drain(seconds(20));
  EXPECT_EQ(rank.Finish(), UnavailableError("the coordinator drains"));
  EXPECT_TRUE(rank.relay_lives());
}

TEST_F(RelayTest, AnUnreachedCoordinatorIsToTryDirectly) {
  StartRelay("127.0.0.1:1");
  RawRank rank(socket_, "127.0.0.1:1");
  rank.Hello();
  const Status status = rank.Finish();
  EXPECT_EQ(status.code(), StatusCode::kUnavailable);
  EXPECT_FALSE(rank.relay_lives());
}

TEST_F(RelayTest, AMissingOrBadCoordinatorIsNamed) {
  StartRelay("127.0.0.1:1");
  for (const char* const address : {"", "nowhere"}) {
    RawRank rank(socket_, address);
    EXPECT_EQ(rank.Finish().code(), StatusCode::kInvalidArgument) << address;
    EXPECT_FALSE(rank.relay_lives());
  }
}

// A coordinator whose frames make no sense.
class BadCoordinator final : public v1::SessionService::Service {
 public:
  explicit BadCoordinator(v1::RelayFrame frame) : frame_(std::move(frame)) {
    grpc::ServerBuilder builder;
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(),
                             &port_);
    builder.RegisterService(this);
    server_ = builder.BuildAndStart();
  }
  ~BadCoordinator() override {
    server_->Shutdown(std::chrono::system_clock::now());
  }
  std::string address() const { return absl::StrCat("127.0.0.1:", port_); }

  grpc::Status Relay(
      grpc::ServerContext*,
      grpc::ServerReaderWriter<v1::RelayResponse, v1::RelayRequest>* stream)
      override {
    v1::RelayResponse response;
    *response.add_frames() = frame_;
    stream->Write(response);
    v1::RelayRequest request;
    while (stream->Read(&request)) {
    }
    return grpc::Status::OK;
  }

 private:
  const v1::RelayFrame frame_;
  int port_ = 0;
  std::unique_ptr<grpc::Server> server_;
};

TEST_F(RelayTest, FramesThatMakeNoSenseEndTheCallAlone) {
  TestServer server(WithHttp());
  StartRelay(Address(server));
  const auto other = Connect(Address(server), "other");
  v1::RelayFrame credit;
  credit.set_session(1);
  credit.set_credit(1 << 30);
  v1::RelayFrame part;
  part.set_session(1);
  part.set_part(std::string(100'000, 'x'));
  v1::RelayFrame empty;
  empty.set_session(1);
  for (const v1::RelayFrame& frame : {credit, part, empty}) {
    BadCoordinator bad(frame);
    RawRank rank(socket_, bad.address());
    rank.Hello();
    const Status status = rank.Finish();
    EXPECT_FALSE(status.ok());
    EXPECT_NE(status.code(), StatusCode::kDeadlineExceeded);
    EXPECT_FALSE(rank.relay_lives());
  }
  EXPECT_EQ(CoordinatorStore(other).Add("n", 1), 1);
}

TEST_F(RelayTest, ARankWithAnotherTokenConnectsByItself) {
  using coordinator::TestTokenLine;
  const std::string tokens = coordinator::TestPath("tokens");
  coordinator::WriteTestFile(tokens,
                             TestTokenLine("of-the-launcher", "member j*") +
                                 TestTokenLine("of-the-rank", "member j*"));
  ServerOptions options;
  options.token_file = tokens;
  TestServer server(WithHttp(options));
  setenv("MUSTER_TOKEN", "of-the-launcher", 1);
  StartRelay(Address(server));
  const auto same = Connect(Address(server), "same");
  SessionOptions other;
  other.address = Address(server);
  other.job = "j";
  other.token = "of-the-rank";
  const auto direct = Session::Connect(other);
  unsetenv("MUSTER_TOKEN");
  EXPECT_EQ(Metric(server, kRelays), 1);
  EXPECT_EQ(Metric(server, kSessions), 2);
  CoordinatorStore(same).Set("k", "v");
  EXPECT_EQ(CoordinatorStore(direct).Get("k"), "v");
  // The call of the relay has one of them.
  relay_.reset();
  AwaitMetric(server, kRelays, 0);
  EXPECT_EQ(CoordinatorStore(direct).Get("k"), "v");
}

TEST_F(RelayTest, SessionsGoOnByThemselvesWhenTheRelayEnds) {
  ServerOptions options;
  options.reconnect_grace = minutes(5);
  options.lease = minutes(5);
  TestServer server(WithHttp(options));
  StartRelay(Address(server));
  CoordinatorStore waiter(Connect(Address(server), "waiter"));
  std::string got;
  std::thread waits([&] { got = waiter.Get("k"); });
  server.AwaitWaiters("j", 1);
  relay_.reset();
  // It waits again, on a stream of its own.
  CoordinatorStore setter(Connect(Address(server), "setter"));
  setter.Set("k", "v");
  waits.join();
  EXPECT_EQ(got, "v");
  EXPECT_EQ(Metric(server, kRelays), 0);
  EXPECT_EQ(Metric(server, kSessions), 2);
}

}  // namespace
}  // namespace muster::internal
