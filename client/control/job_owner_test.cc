// Sessions and admin clients of a job that another coordinator has.

#include <atomic>
#include <chrono>
#include <functional>
#include <future>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "client/control/admin_client.h"
#include "client/control/logging.h"
#include "client/testing/processes.h"
#include "coordinator/server/auth/test_certificates.h"
#include "glog/logging.h"
#include "gmock/gmock.h"
#include "grpcpp/grpcpp.h"
#include "gtest/gtest.h"
#include "muster/base/mutex.h"
#include "muster/base/status.h"
#include "muster/errors.h"
#include "muster/session.h"
#include "muster/store.h"
#include "muster/v1/session.grpc.pb.h"
#include "muster/v1/store.grpc.pb.h"
#include "proto/muster/v1/status_wire.h"

namespace muster::internal {
namespace {

using muster::testing::ReservedPort;
using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::StartsWith;

constexpr uint64_t kJobEpoch = 7;

// The status of a coordinator that says who has the job.
grpc::Status OwnerIs(const std::string& address) {
  Status status = UnavailableError("another coordinator has the job");
  v1::JobOwner owner;
  owner.set_address(address);
  v1::SetJobOwner(owner, &status);
  return v1::ToGrpc(status);
}

// A coordinator whose answers the test writes. Its job has no members: it
// answers a Set, and the reads of a store.
class FakeCoordinator final : public v1::SessionService::Service,
                              public v1::StoreService::Service {
 public:
  using Messages =
      grpc::ServerReaderWriter<v1::StreamResponse, v1::StreamRequest>;

  explicit FakeCoordinator(uint64_t epoch,
                           const std::shared_ptr<grpc::ServerCredentials>&
                               credentials = grpc::InsecureServerCredentials())
      : epoch_(epoch) {
    grpc::ServerBuilder builder;
    builder.AddListeningPort("127.0.0.1:0", credentials, &port_);
    builder.RegisterService(static_cast<v1::SessionService::Service*>(this));
    builder.RegisterService(static_cast<v1::StoreService::Service*>(this));
    server_ = builder.BuildAndStart();
  }
  ~FakeCoordinator() override { Stop(); }

  void Stop() { server_->Shutdown(std::chrono::system_clock::now()); }

  int port() const { return port_; }
  std::string address() const { return absl::StrCat("127.0.0.1:", port_); }
  uint64_t epoch() const { return epoch_; }

  // Called with the number, from 1, of the stream or call. If its status is not
  // OK, the stream or call ends with it. Set before the first client.
  std::function<grpc::Status(int)> on_hello = [](int) {
    return grpc::Status::OK;
  };
  // Called with every operation of a stream, before its answer, which a status
  // that is not OK replaces: the stream ends with that.
  std::function<grpc::Status(const v1::Operation&)> on_operation =
      [](const v1::Operation&) { return grpc::Status::OK; };
  uint64_t job_epoch = kJobEpoch;

  // The callers of the streams' hellos.
  std::vector<v1::Caller> hellos() const {
    MutexLock lock(mutex_);
    return hellos_;
  }
  std::vector<v1::Operation> operations() const {
    MutexLock lock(mutex_);
    return operations_;
  }
  std::vector<v1::WatchRequest> watches() const {
    MutexLock lock(mutex_);
    return watches_;
  }
  // How many streams and calls there were.
  int asked() const { return asked_; }

  grpc::Status Stream(grpc::ServerContext*, Messages* stream) override {
    v1::StreamRequest request;
    if (!stream->Read(&request)) return grpc::Status::OK;
    {
      MutexLock lock(mutex_);
      hellos_.push_back(request.hello().caller());
    }
    const grpc::Status refusal = on_hello(++asked_);
    if (!refusal.ok()) return refusal;
    v1::StreamResponse response;
    response.mutable_welcome()->set_coordinator_epoch(epoch_);
    response.mutable_welcome()->set_job_epoch(job_epoch);
    do {
      for (const v1::Operation& operation : request.operations()) {
        {
          MutexLock lock(mutex_);
          operations_.push_back(operation);
        }
        const grpc::Status end = on_operation(operation);
        if (!end.ok()) return end;
        v1::Result& result = *response.add_results();
        result.set_id(operation.id());
        if (operation.has_set()) result.mutable_set()->set_revision(1);
        if (operation.has_leave()) result.mutable_leave();
      }
      if (response.ByteSizeLong() > 0) stream->Write(response);
      response.Clear();
    } while (stream->Read(&request));
    return grpc::Status::OK;
  }

  grpc::Status TryGet(grpc::ServerContext*, const v1::TryGetRequest*,
                      v1::TryGetResponse* response) override {
    const grpc::Status refusal = on_hello(++asked_);
    if (refusal.ok()) response->set_coordinator_epoch(epoch_);
    return refusal;
  }

  grpc::Status Watch(grpc::ServerContext*, const v1::WatchRequest* request,
                     grpc::ServerWriter<v1::WatchResponse>* writer) override {
    {
      MutexLock lock(mutex_);
      watches_.push_back(*request);
    }
    v1::WatchResponse response;
    response.set_coordinator_epoch(epoch_);
    response.set_revision(request->after_revision() + 5);
    writer->Write(response);
    return on_hello(++asked_);
  }

 private:
  const uint64_t epoch_;
  int port_ = 0;
  std::unique_ptr<grpc::Server> server_;
  std::atomic<int> asked_ = 0;
  mutable Mutex mutex_;
  std::vector<v1::Caller> hellos_ MUSTER_GUARDED_BY(mutex_);
  std::vector<v1::Operation> operations_ MUSTER_GUARDED_BY(mutex_);
  std::vector<v1::WatchRequest> watches_ MUSTER_GUARDED_BY(mutex_);
};

// Collects the log's lines about coordinators while it exists.
class LogLines : public google::LogSink {
 public:
  LogLines() {
    // Sets the level, once.
    EnsureLogging();
    level_ = std::exchange(FLAGS_minloglevel, google::GLOG_INFO);
    google::AddLogSink(this);
  }
  ~LogLines() override {
    google::RemoveLogSink(this);
    FLAGS_minloglevel = level_;
  }

  void send(google::LogSeverity severity, const char*, const char*, int,
            const google::LogMessageTime&, const char* message,
            size_t bytes) override {
    std::string line(message, bytes);
    line = line.substr(0, line.find(" away_for="));
    line = line.substr(0, line.find(" cause="));
    if (severity == google::GLOG_INFO) line = "INFO " + line;
    MutexLock lock(mutex_);
    lines_.push_back(std::move(line));
  }

  std::vector<std::string> lines() {
    MutexLock lock(mutex_);
    return lines_;
  }

 private:
  int level_ = 0;
  Mutex mutex_;
  std::vector<std::string> lines_ MUSTER_GUARDED_BY(mutex_);
};

SessionOptions Options(const std::string& address) {
  SessionOptions options;
  options.address = address;
  options.member = "a";
  options.connect_timeout = seconds(60);
  return options;
}

std::string ConnectError(const SessionOptions& options) {
  try {
    Session::Connect(options);
  } catch (const DistError& error) {
    return error.what();
  }
  return "connected";
}

TEST(JobOwnerTest, ARedirectedHelloGoesToTheOwner) {
  FakeCoordinator a(1), b(2);
  a.on_hello = [&](int) { return OwnerIs(b.address()); };
  LogLines log;
  const auto session = Session::Connect(Options(a.address()));
  EXPECT_EQ(session->coordinator_epoch(), 2);
  ASSERT_EQ(a.hellos().size(), 1);
  ASSERT_EQ(b.hellos().size(), 1);
  EXPECT_EQ(a.hellos()[0].incarnation(), session->incarnation());
  EXPECT_EQ(b.hellos()[0].incarnation(), session->incarnation());
  EXPECT_THAT(log.lines(), IsEmpty());
}

// The old owner ends the stream when it has read both operations.
TEST(JobOwnerTest, WhatHasNoAnswerIsSentOnceMoreWithTheSameNumber) {
  FakeCoordinator a(1), b(2);
  std::atomic<int> seen = 0;
  a.on_operation = [&](const v1::Operation& operation) {
    return operation.has_set() && ++seen == 2 ? OwnerIs(b.address())
                                              : grpc::Status::OK;
  };
  LogLines log;
  const auto session = Session::Connect(Options(a.address()));
  CoordinatorStore store(session);
  auto first = std::async(std::launch::async, [&] { store.Set("k", "v"); });
  auto second = std::async(std::launch::async, [&] { store.Set("l", "w"); });
  first.get();
  second.get();
  EXPECT_TRUE(session->status().ok());
  EXPECT_EQ(session->coordinator_epoch(), 2);
  ASSERT_EQ(b.hellos().size(), 1);
  EXPECT_EQ(b.hellos()[0].incarnation(), a.hellos()[0].incarnation());
  const std::vector<v1::Operation> before = a.operations();
  ASSERT_EQ(before.size(), 2);
  // The last one has no answer; the first one has none if both were in one
  // message.
  const std::vector<v1::Operation> again = b.operations();
  ASSERT_THAT(again.size(), AllOf(::testing::Ge(1), ::testing::Le(2)));
  for (size_t i = 0; i < again.size(); ++i) {
    const v1::SetRequest& sent = before[2 - again.size() + i].set();
    EXPECT_EQ(again[i].set().key(), sent.key());
    EXPECT_EQ(again[i].set().sequence(), sent.sequence());
    EXPECT_NE(sent.sequence(), 0);
  }
  EXPECT_THAT(log.lines(),
              ElementsAre(absl::StrCat("INFO job moved: from=", a.address(),
                                       " to=", b.address())));
}

TEST(JobOwnerTest, AnotherLifeOfTheJobEndsTheSession) {
  FakeCoordinator a(1), b(2);
  a.on_operation = [&](const v1::Operation&) { return OwnerIs(b.address()); };
  b.job_epoch = kJobEpoch + 1;
  const auto session = Session::Connect(Options(a.address()));
  EXPECT_THROW(CoordinatorStore(session).Set("k", "v"), DistStoreError);
  EXPECT_EQ(session->status().code(), StatusCode::kAborted);
  EXPECT_THAT(std::string(session->status().message()),
              StartsWith("coordinator at " + b.address() + ": "));
}

TEST(JobOwnerTest, AnOwnerThatLoadsAndNoOwnerAreAskedAgain) {
  for (const bool loads : {true, false}) {
    FakeCoordinator a(1);
    a.on_hello = [&](int hello) {
      return hello < 5 ? OwnerIs(loads ? a.address() : "") : grpc::Status::OK;
    };
    const auto session = Session::Connect(Options(a.address()));
    EXPECT_EQ(session->coordinator_epoch(), 1);
    EXPECT_EQ(a.asked(), 5);
  }
}

TEST(JobOwnerTest, TwoThatNameEachOtherDoNotSpin) {
  FakeCoordinator a(1), b(2);
  a.on_hello = [&](int) { return OwnerIs(b.address()); };
  b.on_hello = [&](int) { return OwnerIs(a.address()); };
  SessionOptions options = Options(a.address());
  options.connect_timeout = seconds(1);
  EXPECT_THAT(ConnectError(options),
              AllOf(StartsWith("coordinator at 127.0.0.1:"),
                    HasSubstr("another coordinator has the job for ")));
  EXPECT_GE(a.asked(), 2);
  // Without pauses there would be thousands.
  EXPECT_LT(a.asked() + b.asked(), 60);
}

TEST(JobOwnerTest, ADeadOwnerDoesNotHideTheOthers) {
  FakeCoordinator a(1), b(2);
  const ReservedPort dead;
  const std::string nobody = absl::StrCat("127.0.0.1:", dead.port());
  a.on_hello = [&](int) { return OwnerIs(nobody); };
  b.on_hello = [&](int hello) {
    return hello < 3 ? OwnerIs(nobody) : grpc::Status::OK;
  };
  const auto session =
      Session::Connect(Options(absl::StrCat(a.address(), ",", b.address())));
  EXPECT_EQ(session->coordinator_epoch(), 2);
}

TEST(JobOwnerTest, ADeadFirstAddressIsNoMatter) {
  FakeCoordinator a(1);
  const ReservedPort dead;
  LogLines log;
  const auto session = Session::Connect(
      Options(absl::StrCat("127.0.0.1:", dead.port(), ",", a.address())));
  EXPECT_EQ(session->coordinator_epoch(), 1);
  EXPECT_THAT(log.lines(), IsEmpty());
}

TEST(JobOwnerTest, NobodyAtAnyAddress) {
  const ReservedPort one, other;
  SessionOptions options = Options(
      absl::StrCat("127.0.0.1:", one.port(), ",127.0.0.1:", other.port()));
  options.connect_timeout = milliseconds(300);
  EXPECT_THAT(ConnectError(options),
              AllOf(HasSubstr(": connection refused for 300ms (timeout: "
                              "SessionOptions::connect_timeout); tried " +
                              options.address),
                    StartsWith("coordinator at 127.0.0.1:")));
}

// The owner that the session learned about is not in the list. When it is gone,
// the list knows the next one.
TEST(JobOwnerTest, AfterTheOwnersEndTheListIsAsked) {
  FakeCoordinator a(1), c(3);
  auto b = std::make_unique<FakeCoordinator>(2);
  std::atomic<bool> owner_lives = true;
  const std::string second = b->address();
  a.on_hello = [&](int) { return OwnerIs(owner_lives ? second : c.address()); };
  LogLines log;
  const auto session = Session::Connect(Options(a.address()));
  EXPECT_EQ(session->coordinator_epoch(), 2);
  owner_lives = false;
  b->Stop();
  CoordinatorStore(session).Set("k", "v");
  EXPECT_EQ(session->coordinator_epoch(), 3);
  EXPECT_EQ(session->address(), a.address());
  // It has another epoch, and was not restarted.
  EXPECT_THAT(log.lines(),
              ElementsAre("coordinator disconnected: address=" + second,
                          "coordinator reconnected: address=" + c.address()));
  EXPECT_EQ(c.operations().size(), 1);
}

TEST(JobOwnerTest, GiveUpAfterCountsForAllCoordinators) {
  FakeCoordinator a(1), b(2);
  std::atomic<bool> owned = true;
  for (FakeCoordinator* each : {&a, &b}) {
    each->on_hello = [&](int) {
      return owned ? grpc::Status::OK : OwnerIs("");
    };
    each->on_operation = [&](const v1::Operation&) {
      owned = false;
      return OwnerIs("");
    };
  }
  SessionOptions options = Options(absl::StrCat(a.address(), ",", b.address()));
  options.give_up_after = milliseconds(300);
  std::promise<Status> over;
  options.on_over = [&](const Status& why) { over.set_value(why); };
  const auto session = Session::Connect(options);
  EXPECT_THROW(CoordinatorStore(session).Set("k", "v"), DistError);
  const Status why = over.get_future().get();
  EXPECT_TRUE(IsUnavailable(why));
  EXPECT_THAT(std::string(why.message()),
              AllOf(HasSubstr(" is gone: another coordinator has the job for "),
                    HasSubstr("; tried " + options.address)));
}

// 0.0.0.0 leads to this host, and is no loopback address.
TEST(JobOwnerTest, ATokenGoesToNoOwnerInPlainText) {
  FakeCoordinator a(1), b(2);
  a.on_hello = [&](int hello) {
    return hello == 1 ? OwnerIs(absl::StrCat("0.0.0.0:", b.port()))
                      : grpc::Status::OK;
  };
  SessionOptions options = Options(a.address());
  options.token = "secret";
  const auto session = Session::Connect(options);
  EXPECT_EQ(session->coordinator_epoch(), 1);
  EXPECT_EQ(b.asked(), 0);
  options.address = absl::StrCat(a.address(), ",0.0.0.0:", b.port());
  EXPECT_THAT(ConnectError(options),
              HasSubstr(absl::StrCat("a token for 0.0.0.0:", b.port(),
                                     " would go there in plain text")));
}

std::shared_ptr<grpc::ServerCredentials> ServerTls(
    const coordinator::TestIdentity& identity) {
  grpc::SslServerCredentialsOptions options;
  options.pem_key_cert_pairs.push_back(
      {coordinator::ReadTestFile(identity.key),
       coordinator::ReadTestFile(identity.cert)});
  return grpc::SslServerCredentials(options);
}

TEST(JobOwnerTest, TheOwnersCertificateMustBearItsName) {
  coordinator::TestAuthority authority("authority");
  FakeCoordinator a(1, ServerTls(authority.Issue("a")));
  FakeCoordinator b(2, ServerTls(authority.Issue("b")));
  FakeCoordinator other(
      3, ServerTls(authority.Issue("other", {.names = "DNS:other.test"})));
  a.on_hello = [&](int hello) {
    return OwnerIs(hello == 1 ? other.address() : b.address());
  };
  SessionOptions options = Options(a.address());
  options.tls_ca = authority.ca();
  EXPECT_EQ(Session::Connect(options)->coordinator_epoch(), 2);
  EXPECT_EQ(other.asked(), 0);
  // The same settings are for every address.
  options.address =
      absl::StrCat(a.address(), ",", b.address(), ",", other.address());
  options.tls_server_name = "other.test";
  EXPECT_EQ(Session::Connect(options)->coordinator_epoch(), 3);
}

TEST(JobOwnerTest, AWrongListIsAnErrorAtOnce) {
  EXPECT_EQ(ConnectError(Options("a:1,,b:2")),
            "address \"a:1,,b:2\": address 2 is empty");
  EXPECT_EQ(ConnectError(Options("a:1,b")),
            "address \"a:1,b\": address 2 \"b\": port number missing");
  EXPECT_EQ(AdminClient::Open(Options("a:1,")).status().message(),
            "coordinator address \"a:1,\": address 2 is empty");
}

std::unique_ptr<AdminClient> Admin(const std::string& address,
                                   milliseconds timeout = seconds(60)) {
  SessionOptions options;
  options.address = address;
  options.connect_timeout = timeout;
  return *AdminClient::Open(options);
}

StatusOr<uint64_t> TryGet(AdminClient& admin) {
  v1::TryGetResponse response;
  Status status = admin.TryGet({}, &response);
  if (!status.ok()) return status;
  return response.coordinator_epoch();
}

TEST(JobOwnerTest, AUnaryCallGoesToTheOwnerAndStaysThere) {
  FakeCoordinator a(1), b(2);
  a.on_hello = [&](int) { return OwnerIs(b.address()); };
  const auto admin = Admin(a.address());
  EXPECT_EQ(*TryGet(*admin), 2);
  EXPECT_EQ(*TryGet(*admin), 2);
  EXPECT_EQ(a.asked(), 1);
  EXPECT_EQ(b.asked(), 2);
  EXPECT_EQ(admin->endpoint().ToString(), b.address());
}

TEST(JobOwnerTest, AUnaryCallWaitsForAnOwner) {
  FakeCoordinator a(1), b(2);
  a.on_hello = [&](int call) {
    return call < 4 ? OwnerIs(call < 2 ? "" : a.address()) : grpc::Status::OK;
  };
  b.on_hello = [&](int) { return OwnerIs(a.address()); };
  EXPECT_EQ(*TryGet(*Admin(absl::StrCat(a.address(), ",", b.address()))), 1);
  EXPECT_EQ(a.asked(), 4);
}

TEST(JobOwnerTest, AUnaryCallThatFindsNoOwnerEndsWithItsTimeout) {
  FakeCoordinator a(1), b(2);
  a.on_hello = [&](int) { return OwnerIs(b.address()); };
  b.on_hello = [&](int) { return OwnerIs(a.address()); };
  const Status status = TryGet(*Admin(a.address(), milliseconds(500))).status();
  EXPECT_TRUE(IsUnavailable(status));
  EXPECT_THAT(std::string(status.message()),
              AllOf(StartsWith("no answer from a coordinator at 127.0.0.1:"),
                    HasSubstr("another coordinator has the job")));
  EXPECT_LT(a.asked() + b.asked(), 60);
}

TEST(JobOwnerTest, AUnaryCallTriesEveryAddressOnce) {
  FakeCoordinator a(1);
  const ReservedPort dead, other;
  const std::string nobody = absl::StrCat("127.0.0.1:", dead.port());
  EXPECT_EQ(*TryGet(*Admin(absl::StrCat(nobody, ",", a.address()))), 1);
  const std::string none = absl::StrCat(nobody, ",127.0.0.1:", other.port());
  const Status status = TryGet(*Admin(none)).status();
  EXPECT_EQ(status.message(),
            absl::StrCat("no answer from a coordinator at 127.0.0.1:",
                         other.port(), ": connection refused; tried ", none));
}

TEST(JobOwnerTest, AWatchGoesOnAtTheNewOwner) {
  FakeCoordinator a(1), b(2);
  a.on_hello = [&](int) { return OwnerIs(b.address()); };
  std::vector<int64_t> revisions;
  v1::WatchRequest request;
  request.set_after_revision(10);
  const Status status =
      Admin(a.address())
          ->Watch(request, [&](const v1::WatchResponse& response) {
            revisions.push_back(response.revision());
            return response.coordinator_epoch() != 2;
          });
  EXPECT_TRUE(status.ok()) << status;
  EXPECT_THAT(revisions, ElementsAre(15, 20));
  ASSERT_EQ(b.watches().size(), 1);
  EXPECT_EQ(b.watches()[0].after_revision(), 15);
}

TEST(JobOwnerTest, ADrainIsForOneCoordinator) {
  v1::DrainResponse response;
  EXPECT_EQ(Admin("127.0.0.1:1,127.0.0.1:2")->Drain({}, &response).message(),
            "coordinator address \"127.0.0.1:1,127.0.0.1:2\": a drain is for "
            "one coordinator, not for a list");
}

}  // namespace
}  // namespace muster::internal
