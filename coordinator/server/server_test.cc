// Tests a whole coordinator: options, ports, health, reflection, HTTP,
// draining.

#include "coordinator/server/server.h"

#include <arpa/inet.h>
#include <dirent.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <future>
#include <memory>
#include <string>
#include <vector>

#include "coordinator/server/test_server.h"
#include "glog/logging.h"
#include "gmock/gmock.h"
#include "grpcpp/generic/generic_stub.h"
#include "grpcpp/grpcpp.h"
#include "gtest/gtest.h"
#include "muster/base/mutex.h"
#include "muster/base/status.h"
#include "muster/base/thread_annotations.h"
#include "proto/muster/v1/status_wire.h"

namespace muster::coordinator {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;

Status StartError(const ServerOptions& options) {
  return Server::Start(options).status();
}

int ConnectTo(int port) {
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  EXPECT_EQ(connect(fd, reinterpret_cast<sockaddr*>(&address), sizeof(address)),
            0);
  return fd;
}

v1::Operation CheckOperation(uint64_t id, const std::string& key) {
  v1::Operation operation;
  operation.set_id(id);
  operation.mutable_check()->add_keys(key);
  return operation;
}

// Keeps the log lines while it lives.
class LogLines : public google::LogSink {
 public:
  LogLines() { google::AddLogSink(this); }
  ~LogLines() override { google::RemoveLogSink(this); }

  void send(google::LogSeverity, const char*, const char*, int,
            const google::LogMessageTime&, const char* message,
            size_t bytes) override {
    MutexLock lock(mu_);
    lines_.emplace_back(message, bytes);
    changed_.NotifyAll();
  }

  // Waits for a line that begins with `prefix` and returns it.
  std::string Await(const std::string& prefix) {
    const auto until = std::chrono::steady_clock::now() + kTestDeadline;
    MutexLock lock(mu_);
    for (;;) {
      for (const std::string& line : lines_) {
        if (line.compare(0, prefix.size(), prefix) == 0) return line;
      }
      if (std::chrono::steady_clock::now() >= until) return "";
      changed_.WaitUntil(mu_, until);
    }
  }

 private:
  Mutex mu_;
  CondVar changed_;
  std::vector<std::string> lines_ MUSTER_GUARDED_BY(mu_);
};

// Makes one call with encoded messages, for services without stubs here.
std::string RawCall(const std::shared_ptr<grpc::Channel>& channel,
                    const std::string& method, const std::string& request) {
  grpc::GenericStub stub(channel);
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + kTestDeadline);
  grpc::CompletionQueue queue;
  const auto call = stub.PrepareCall(&context, method, &queue);
  void* tag = nullptr;
  bool ok = false;
  call->StartCall(nullptr);
  queue.Next(&tag, &ok);
  const grpc::Slice slice(request);
  call->Write(grpc::ByteBuffer(&slice, 1), nullptr);
  queue.Next(&tag, &ok);
  grpc::ByteBuffer answer;
  call->Read(&answer, nullptr);
  queue.Next(&tag, &ok);
  context.TryCancel();
  grpc::Status status;
  call->Finish(&status, nullptr);
  queue.Next(&tag, &ok);
  queue.Shutdown();
  while (queue.Next(&tag, &ok)) {
  }
  std::vector<grpc::Slice> slices;
  std::string bytes;
  if (!answer.Valid() || !answer.Dump(&slices).ok()) return bytes;
  for (const grpc::Slice& s : slices) {
    bytes.append(reinterpret_cast<const char*>(s.begin()), s.size());
  }
  return bytes;
}

// HealthCheckResponse{status}: SERVING is 1, NOT_SERVING 2.
std::string Health(const TestServer& server, const std::string& service) {
  std::string request;
  if (!service.empty()) {
    request =
        "\x0a" + std::string(1, static_cast<char>(service.size())) + service;
  }
  return RawCall(server.NewChannel(), "/grpc.health.v1.Health/Check", request);
}

int ThreadCount() {
  int count = 0;
  DIR* const tasks = opendir("/proc/self/task");
  while (readdir(tasks) != nullptr) ++count;
  closedir(tasks);
  return count;
}

TEST(ServerTest, PortInUseIsAClearError) {
  TestServer first;
  ServerOptions options;
  options.listen = "127.0.0.1:" + std::to_string(first.server().port());
  EXPECT_EQ(StartError(options),
            UnavailableError("cannot listen on " + options.listen +
                             ": address already in use"));
}

TEST(ServerTest, HttpPortInUseIsAClearError) {
  ServerOptions options;
  options.http_listen = "127.0.0.1:0";
  TestServer first(options);
  options.http_listen =
      "127.0.0.1:" + std::to_string(first.server().http_port());
  EXPECT_EQ(StartError(options),
            UnavailableError("cannot listen on " + options.http_listen +
                             ": address already in use"));
}

// Serves on a socket that listens, or is only bound.
void ServeOn(bool listens) {
  const int fd = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t bytes = sizeof(address);
  ASSERT_EQ(bind(fd, reinterpret_cast<sockaddr*>(&address), bytes), 0);
  if (listens) {
    ASSERT_EQ(listen(fd, 1), 0);
  }
  ASSERT_EQ(getsockname(fd, reinterpret_cast<sockaddr*>(&address), &bytes), 0);
  {
    ServerOptions options;
    options.listen_fd = fd;
    TestServer server(options);
    EXPECT_EQ(server.server().port(), ntohs(address.sin_port));
    TestStream stream(server.NewChannel());
    stream.Hello("j");
    EXPECT_FALSE(stream.Call(SetOperation(1, "k", "v")).has_status());
  }
  EXPECT_EQ(close(fd), 0);
}

TEST(ServerTest, ServesOnASocketThatListens) { ServeOn(/*listens=*/true); }

TEST(ServerTest, ServesOnASocketThatIsBound) { ServeOn(/*listens=*/false); }

TEST(ServerTest, NoSocketToServeOnIsAClearError) {
  ServerOptions options;
  options.listen_fd = socket(AF_INET, SOCK_STREAM, 0);
  EXPECT_EQ(
      StartError(options),
      InvalidArgumentError("listen_fd is " + std::to_string(options.listen_fd) +
                           ", which is no TCP socket that listens "
                           "or is bound to a port"));
  EXPECT_EQ(close(options.listen_fd), 0);
  EXPECT_EQ(StartError(options).code(), StatusCode::kInvalidArgument);
}

TEST(ServerTest, PortCanBeUsedAgainAtOnce) {
  ServerOptions options;
  {
    TestServer first;
    options.listen = "127.0.0.1:" + std::to_string(first.server().port());
    TestStream stream(first.NewChannel());
    stream.Hello("j");
    stream.Call(SetOperation(1, "k", "v"));
  }
  TestServer second(options);
  TestStream stream(second.NewChannel());
  stream.Hello("j");
  EXPECT_FALSE(stream.Call(SetOperation(1, "k", "v")).has_status());
}

TEST(ServerTest, PlainTextStaysOnLoopbackUnlessToldOtherwise) {
  ServerOptions options;
  options.listen = "0.0.0.0:0";
  const Status refused = StartError(options);
  EXPECT_EQ(refused.code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(refused.message()),
              AllOf(HasSubstr("0.0.0.0:0"), HasSubstr("--insecure")));
  options.insecure = true;
  TestServer server(options);
  EXPECT_GT(server.server().port(), 0);
}

TEST(ServerTest, OptionsThatMakeNoSenseAreNamed) {
  ServerOptions options;
  options.lease = milliseconds(0);
  EXPECT_EQ(
      StartError(options),
      InvalidArgumentError("lease (milliseconds) is 0, must be positive"));
  options = ServerOptions();
  options.reconnect_grace = milliseconds(-1);
  EXPECT_EQ(StartError(options),
            InvalidArgumentError(
                "reconnect_grace (milliseconds) is -1, must not be negative"));
  options = ServerOptions();
  options.listen = "nowhere";
  EXPECT_EQ(StartError(options),
            InvalidArgumentError("listen \"nowhere\": port number missing"));
  options = ServerOptions();
  options.http_listen = "nowhere";
  EXPECT_EQ(
      StartError(options),
      InvalidArgumentError("http_listen \"nowhere\": port number missing"));
}

TEST(ServerTest, SeveralServersInOneProcessKnowNothingOfEachOther) {
  TestServer one;
  TestServer two;
  EXPECT_NE(one.server().port(), two.server().port());
  EXPECT_NE(one.server().epoch(), two.server().epoch());
  TestStream stream(one.NewChannel());
  stream.Hello("j");
  stream.Call(SetOperation(1, "k", "v"));
  EXPECT_EQ(one.Job("j").summary().keys(), 1);
  EXPECT_EQ(two.Job("j").summary().keys(), 0);
}

TEST(ServerTest, NoThreadIsLeftBehind) {
  // gRPC keeps some of its own threads once it has been used.
  { TestServer warm_up; }
  ServerOptions options;
  options.http_listen = "127.0.0.1:0";
  const int before = ThreadCount();
  for (int i = 0; i < 3; ++i) {
    TestServer server(options);
    TestStream stream(server.NewChannel());
    stream.Hello("j");
    stream.Call(SetOperation(1, "k", "v"));
  }
  EXPECT_LE(ThreadCount(), before + 2);
}

TEST(ServerTest, HealthIsServingByServiceAndOverall) {
  TestServer server;
  EXPECT_EQ(Health(server, ""), "\x08\x01");
  EXPECT_EQ(Health(server, "muster.v1.StoreService"), "\x08\x01");
  EXPECT_EQ(Health(server, "muster.v1.SessionService"), "\x08\x01");
  EXPECT_EQ(Health(server, "nobody"), "");
}

TEST(ServerTest, ReflectionListsTheServices) {
  TestServer server;
  // ServerReflectionRequest{list_services: "*"}.
  const std::string answer =
      RawCall(server.NewChannel(),
              "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo",
              "\x3a\x01*");
  for (const char* const service :
       {"muster.v1.StoreService", "muster.v1.MembershipService",
        "muster.v1.BarrierService", "muster.v1.AdminService",
        "muster.v1.SessionService", "grpc.health.v1.Health"}) {
    EXPECT_THAT(answer, HasSubstr(service));
  }
}

// A generic client needs this to make a call.
TEST(ServerTest, ReflectionDescribesTheServices) {
  TestServer server;
  for (const std::string service :
       {"muster.v1.StoreService", "grpc.health.v1.Health"}) {
    // ServerReflectionRequest{file_containing_symbol: service}.
    const std::string answer = RawCall(
        server.NewChannel(),
        "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo",
        std::string("\x22") + static_cast<char>(service.size()) + service);
    EXPECT_THAT(answer, HasSubstr("Request")) << service;
  }
}

TEST(ServerTest, HttpPages) {
  ServerOptions options;
  options.http_listen = "127.0.0.1:0";
  TestServer server(options);
  TestStream stream(server.NewChannel());
  stream.HelloMember("j", "<script>", 1);
  EXPECT_THAT(server.Http("/healthz"),
              AllOf(StartsWith("HTTP/1.1 200"), HasSubstr("\r\n\r\nok\n")));
  EXPECT_THAT(server.Http("/readyz"), HasSubstr("\r\n\r\nready\n"));
  EXPECT_THAT(server.Http("/metrics"),
              HasSubstr("muster_coordinator_sessions 1\n"));
  const std::string page = server.Http("/");
  EXPECT_THAT(page, HasSubstr("job j"));
  EXPECT_THAT(page, HasSubstr("&lt;script&gt;"));
  EXPECT_EQ(page.find("<script>"), std::string::npos);
  EXPECT_THAT(server.Http("/nothing"), StartsWith("HTTP/1.1 404"));
}

// Each connection holds a thread only for the read timeout, and there are
// enough threads.
TEST(ServerTest, SilentConnectionsDoNotStarveTheProbes) {
  ServerOptions options;
  options.http_listen = "127.0.0.1:0";
  TestServer server(options);
  std::vector<int> silent;
  silent.reserve(64);
  for (int i = 0; i < 64; ++i) {
    silent.push_back(ConnectTo(server.server().http_port()));
  }
  // Answered after all of them, because the server ends silent connections.
  EXPECT_THAT(server.Http("/healthz"), StartsWith("HTTP/1.1 200"));
  for (const int fd : silent) close(fd);
}

// Sends the beginning of a request and then a byte every 100 ms, until the
// server closes the connection. Returns false if it has not after 30 s.
bool IsHungUpOn(int fd) {
  std::string bytes = "GET / HTTP/1.1\r\nX: ";
  for (int i = 0; i < 300; ++i) {
    // An answer, an end or an error.
    pollfd answer = {fd, POLLIN, 0};
    if (send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL) < 0 ||
        poll(&answer, 1, 100) != 0) {
      return true;
    }
    bytes = "a";
  }
  return false;
}

// More connections than threads, none of which completes its request.
TEST(ServerTest, SlowRequestsDoNotStarveTheProbes) {
  ServerOptions options;
  options.http_listen = "127.0.0.1:0";
  TestServer server(options);
  std::vector<std::future<bool>> slow;
  slow.reserve(20);
  for (int i = 0; i < 20; ++i) {
    const int fd = ConnectTo(server.server().http_port());
    slow.push_back(std::async(std::launch::async, [fd] {
      const bool hung_up = IsHungUpOn(fd);
      close(fd);
      return hung_up;
    }));
  }
  for (std::future<bool>& connection : slow) EXPECT_TRUE(connection.get());
  EXPECT_THAT(server.Http("/healthz"), StartsWith("HTTP/1.1 200"));
}

TEST(ServerTest, DrainEndsParkedCallsAndStreams) {
  ServerOptions options;
  options.http_listen = "127.0.0.1:0";
  TestServer server(options);
  auto parked = std::async(std::launch::async, [&] {
    v1::GetRequest request;
    *request.mutable_caller() = MakeCaller("j");
    request.set_key("never");
    v1::GetResponse response;
    return CallGrpc(server.store(), &v1::StoreService::Stub::Get, request,
                    &response);
  });
  TestStream idle(server.NewChannel());
  idle.Hello("j");
  idle.Call(SetOperation(1, "k", "v"));
  TestStream waiting(server.NewChannel());
  waiting.Hello("j");
  waiting.SendOperation(GetOperation(1, "never"));
  server.AwaitWaiters("j", 2);

  server.server().Drain(seconds(20));
  const grpc::Status status = parked.get();
  EXPECT_EQ(status.error_code(), grpc::UNAVAILABLE);
  EXPECT_EQ(status.error_message(), "the coordinator drains");
  EXPECT_EQ(idle.Finish(), UnavailableError("the coordinator drains"));
  EXPECT_EQ(waiting.Finish(), UnavailableError("the coordinator drains"));
  EXPECT_THAT(server.Http("/readyz"),
              AllOf(StartsWith("HTTP/1.1 503"), HasSubstr("draining")));
  EXPECT_THAT(server.Http("/healthz"), StartsWith("HTTP/1.1 200"));
  server.server().Drain(seconds(20));
}

// gRPC's Shutdown would wait for the connection until the deadline.
TEST(ServerTest, SilentConnectionDoesNotHoldUpADrain) {
  TestServer server;
  const int fd = ConnectTo(server.server().port());
  const auto before = std::chrono::steady_clock::now();
  server.server().Drain(seconds(60));
  EXPECT_LT(std::chrono::steady_clock::now() - before, seconds(20));
  close(fd);
}

TEST(ServerTest, DestructionWithParkedCallsEndsThem) {
  auto server = std::make_unique<TestServer>();
  TestStream waiting(server->NewChannel());
  waiting.Hello("j");
  waiting.SendOperation(GetOperation(1, "never"));
  server->AwaitWaiters("j", 1);
  server->Stop();
  EXPECT_FALSE(waiting.Finish().ok());
}

TEST(ServerTest, AJobThatWasOnlyAskedForIsForgottenSoon) {
  TestServer server;  // keeps the contents of an idle job for an hour
  std::map<std::string, v1::Operation> operations;
  operations["key"] = SetOperation(1, "k", "v");
  operations["queue"].mutable_queue_push()->set_key("q");
  operations["closed"].mutable_close_rendezvous()->set_reason("done");
  operations["formed"].mutable_join()->set_world_size(1);
  operations["member"] = CheckOperation(1, "k");
  operations["read"] = CheckOperation(1, "k");
  // Last, so that the others have been examined when it is gone.
  for (const char* const job :
       {"key", "queue", "closed", "formed", "member", "read"}) {
    TestStream stream(server.NewChannel());
    if (job == std::string("formed") || job == std::string("member")) {
      stream.HelloMember(job, "a", 1);
    } else {
      stream.Hello(job);
    }
    operations[job].set_id(1);
    EXPECT_FALSE(stream.Call(operations[job]).has_status()) << job;
    if (job != std::string("formed") && job != std::string("member")) continue;
    v1::Operation leave;
    leave.set_id(2);
    leave.mutable_leave();
    stream.Call(leave);
  }
  server.Await("read", [](const v1::GetJobResponse& job) {
    return job.summary().job().empty();
  });
  for (const char* const job : {"key", "queue", "closed", "formed", "member"}) {
    EXPECT_EQ(server.Job(job).summary().job(), job);
  }
}

TEST(ServerTest, TheLossOfASilentMemberIsToldWithinItsLeaseAndASecond) {
  ServerOptions options;
  options.lease = milliseconds(300);
  TestServer server(options);
  TestStream alive(server.NewChannel());
  TestStream silent(server.NewChannel());
  alive.HelloMember("j", "alive", 1);
  silent.HelloMember("j", "silent", 1);
  v1::Operation join;
  join.set_id(1);
  join.mutable_join()->set_world_size(2);
  join.mutable_join()->set_rank(-1);
  silent.SendOperation(join);
  EXPECT_FALSE(alive.Call(join).has_status());
  const auto formed = std::chrono::steady_clock::now();
  // Each call of the member is a sign of life.
  uint64_t id = 2;
  while (std::chrono::steady_clock::now() - formed <
         options.lease + std::chrono::seconds(1)) {
    alive.Call(SetOperation(id++, "k", "v"));
  }
  // Later events do not come any more.
  alive.HalfClose();
  const v1::MemberEvent event = alive.NextEvent();
  EXPECT_EQ(event.member().member(), "silent");
  EXPECT_EQ(event.member().state(), v1::MEMBER_STATE_LOST);
}

TEST(ServerTest, TheLogTellsWhichLimitIsReachedAndWhyAStreamEnded) {
  LogLines log;
  TestServer server;
  TestStream stream(server.NewChannel());
  stream.HelloMember("j", "a", 1);
  stream.Call(SetOperation(1, std::string(4097, 'k'), "v"));
  EXPECT_THAT(log.Await("limit_reached: count="),
              HasSubstr("limit key_bytes is 4096, offered 4097"));
  v1::StreamRequest second_hello;
  second_hello.mutable_hello();
  stream.Send(second_hello);
  EXPECT_EQ(log.Await("stream_ended: job=j member=a"),
            "stream_ended: job=j member=a cause=\"a second hello\"");
}

TEST(ServerTest, AnswersThatAreNotTakenAreBounded) {
  ServerOptions options;
  options.unsent_bytes_max = 100'000;
  TestServer server(options);
  v1::SetRequest set;
  *set.mutable_caller() = MakeCaller("j");
  set.set_key("k");
  set.set_value(std::string(100'001, 'v'));
  v1::SetResponse done;
  EXPECT_TRUE(
      CallGrpc(server.store(), &v1::StoreService::Stub::Set, set, &done).ok());
  v1::TryGetRequest get;
  *get.mutable_caller() = MakeCaller("j");
  get.set_key("k");
  v1::TryGetResponse got;
  const Status refused = v1::FromGrpc(
      CallGrpc(server.store(), &v1::StoreService::Stub::TryGet, get, &got));
  EXPECT_EQ(refused.code(), StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(refused.message()),
              HasSubstr("limit unsent_bytes is 100000"));
  EXPECT_THAT(std::string(refused.message()),
              HasSubstr("--limit_unsent_bytes"));
}

// Members' texts cannot look like other log lines.
TEST(ServerTest, OneLineOfTheLogIsOneStateChange) {
  LogLines log;
  TestServer server;
  TestStream stream(server.NewChannel());
  stream.HelloMember("j", "a", 1);
  v1::Operation arrive;
  arrive.set_id(1);
  arrive.mutable_await_barrier()->set_name("b\nW0101 forged\x1b[2J");
  EXPECT_EQ(stream.Call(arrive).status().message(),
            "barrier: barrier \"b\\nW0101 forged\\x1b[2J\" has a control "
            "character");
  v1::Operation report;
  report.set_id(2);
  report.mutable_report_failure()->set_error("b\nW0101 forged\x1b[2J");
  EXPECT_FALSE(stream.Call(report).has_status());
  EXPECT_THAT(log.Await("member_failed"),
              HasSubstr("cause=\"b\\nW0101 forged\\x1b[2J\""));
}

TEST(ServerTest, IdleJobIsForgottenAndOneInUseIsNot) {
  ServerOptions options;
  options.idle_job_retention = milliseconds(1);
  TestServer server(options);
  TestStream stream(server.NewChannel());
  stream.Hello("used");
  stream.Call(SetOperation(1, "k", "v"));
  {
    TestStream other(server.NewChannel());
    other.Hello("idle");
    other.Call(SetOperation(1, "k", "v"));
  }
  server.Await("idle", [](const v1::GetJobResponse& job) {
    return job.summary().keys() == 0;
  });
  EXPECT_EQ(stream.Call(GetOperation(2, "k")).get().value(), "v");
}

}  // namespace
}  // namespace muster::coordinator
