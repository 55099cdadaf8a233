// Runs muster-coordinator as a process: flags, first line, signals, exit
// status.

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "coordinator/core/limits.h"
#include "coordinator/server/auth/test_certificates.h"
#include "coordinator/server/jobs/memory_limit.h"
#include "gmock/gmock.h"
#include "grpcpp/grpcpp.h"
#include "gtest/gtest.h"
#include "muster/v1/admin.grpc.pb.h"
#include "muster/v1/session.grpc.pb.h"
#include "muster/v1/store.grpc.pb.h"
#include "muster/version.h"

namespace muster::coordinator {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::MatchesRegex;
using ::testing::Not;
using ::testing::StartsWith;

// One run of the program, which dies at the latest with the test.
class Process {
 public:
  explicit Process(std::vector<std::string> flags,
                   std::vector<std::string> environment = {}) {
    int out[2], err[2];
    EXPECT_EQ(pipe2(out, O_CLOEXEC), 0);
    EXPECT_EQ(pipe2(err, O_CLOEXEC), 0);
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, out[1], STDOUT_FILENO);
    posix_spawn_file_actions_adddup2(&actions, err[1], STDERR_FILENO);
    flags.insert(flags.begin(), "coordinator/muster-coordinator");
    // The sanitizers' options.
    for (const char* const name :
         {"ASAN_OPTIONS", "TSAN_OPTIONS", "UBSAN_OPTIONS", "LSAN_OPTIONS"}) {
      if (const char* const value = getenv(name)) {
        environment.push_back(std::string(name) + "=" + value);
      }
    }
    EXPECT_EQ(posix_spawn(&pid_, flags[0].c_str(), &actions, nullptr,
                          Pointers(flags).data(), Pointers(environment).data()),
              0);
    posix_spawn_file_actions_destroy(&actions);
    close(out[1]);
    close(err[1]);
    out_ = out[0];
    err_ = err[0];
  }

  ~Process() {
    if (pid_ > 0) {
      kill(pid_, SIGKILL);
      waitpid(pid_, nullptr, 0);
    }
    close(out_);
    close(err_);
  }

  // Returns the first line of standard output; "" if there is none in time.
  std::string FirstLine() {
    std::string line;
    char c = 0;
    while (ReadByte(out_, &c) && c != '\n') line += c;
    return line;
  }

  // Reads standard error until `text` appears.
  void AwaitError(const std::string& text) {
    char c = 0;
    while (errors_.find(text) == std::string::npos && ReadByte(err_, &c)) {
      errors_ += c;
    }
    EXPECT_THAT(errors_, HasSubstr(text));
  }

  void Signal(int number) { kill(pid_, number); }

  // The peak of the process's memory so far.
  int64_t PeakBytes() const {
    std::ifstream status(absl::StrCat("/proc/", pid_, "/status"));
    std::string word;
    int64_t kilobytes = 0;
    while (status >> word) {
      if (word == "VmHWM:" && status >> kilobytes) return kilobytes << 10;
    }
    ADD_FAILURE() << "no VmHWM of process " << pid_;
    return 0;
  }

  // Reads the streams to their ends. Returns the exit status as a shell shows
  // it.
  int Wait() {
    char c = 0;
    while (ReadByte(err_, &c)) errors_ += c;
    while (ReadByte(out_, &c)) output_ += c;
    int status = 0;
    waitpid(pid_, &status, 0);
    pid_ = 0;
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  }

  const std::string& errors() const { return errors_; }
  const std::string& output() const { return output_; }

 private:
  static std::vector<char*> Pointers(std::vector<std::string>& strings) {
    std::vector<char*> pointers;
    pointers.reserve(strings.size() + 1);
    for (std::string& s : strings) pointers.push_back(s.data());
    pointers.push_back(nullptr);
    return pointers;
  }

  static bool ReadByte(int fd, char* c) {
    pollfd ready = {fd, POLLIN, 0};
    constexpr int kPatienceMs = 30'000;
    if (poll(&ready, 1, kPatienceMs) != 1) {
      ADD_FAILURE() << "the coordinator says nothing and does not end";
      return false;
    }
    return read(fd, c, 1) == 1;
  }

  pid_t pid_ = 0;
  int out_ = -1;
  int err_ = -1;
  std::string errors_;
  std::string output_;
};

const std::vector<std::string> kAnyPorts = {"--listen=127.0.0.1:0",
                                            "--http_listen=127.0.0.1:0"};

std::string GrpcAddress(const std::string& first_line) {
  const size_t begin = first_line.find("grpc=") + 5;
  return first_line.substr(begin, first_line.find(' ', begin) - begin);
}

// Returns when a call of job "j" waits.
void AwaitWaiter(const std::string& address) {
  const auto stub = v1::AdminService::NewStub(
      grpc::CreateChannel(address, grpc::InsecureChannelCredentials()));
  v1::GetJobRequest request;
  request.set_job("j");
  const auto deadline =
      std::chrono::steady_clock::now() + std::chrono::seconds(30);
  while (std::chrono::steady_clock::now() < deadline) {
    grpc::ClientContext context;
    v1::GetJobResponse response;
    if (stub->GetJob(&context, request, &response).ok() &&
        response.summary().waiters() == 1) {
      return;
    }
  }
  FAIL() << "no call waits";
}

// Opens a connection to a port of this host and sends `words`.
int Say(int port, absl::string_view words) {
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  EXPECT_EQ(connect(fd, reinterpret_cast<sockaddr*>(&address), sizeof(address)),
            0);
  EXPECT_EQ(write(fd, words.data(), words.size()),
            static_cast<ssize_t>(words.size()));
  return fd;
}

std::string OwnAddress(int fd) {
  sockaddr_in own = {};
  socklen_t bytes = sizeof(own);
  getsockname(fd, reinterpret_cast<sockaddr*>(&own), &bytes);
  return absl::StrCat("127.0.0.1:", ntohs(own.sin_port));
}

TEST(MainTest, AHandshakeThatFailsIsLoggedWithItsPeer) {
  const TestProtection protection("*");
  std::vector<std::string> flags = protection.flags();
  flags.push_back("--listen=127.0.0.1:0");
  flags.push_back("--http_listen=");
  Process process(flags);
  const std::string grpc = GrpcAddress(process.FirstLine());
  const int port = std::stoi(grpc.substr(grpc.find(':') + 1));
  // The first connection sends nothing.
  const int silent = Say(port, "");
  const int plain = Say(port, "GET / HTTP/1.1\r\n\r\n");
  process.AwaitError(
      "tls_handshakes_failed: count=1 peer=" + OwnAddress(plain) + " cause=\"");
  close(silent);
  close(plain);
}

TEST(MainTest, SaysWhereItListensAndServes) {
  Process process(kAnyPorts);
  const std::string line = process.FirstLine();
  ASSERT_THAT(line, MatchesRegex("listening grpc=127\\.0\\.0\\.1:[1-9][0-9]* "
                                 "http=127\\.0\\.0\\.1:[1-9][0-9]*"));
  const auto stub = v1::StoreService::NewStub(grpc::CreateChannel(
      GrpcAddress(line), grpc::InsecureChannelCredentials()));
  v1::SetRequest request;
  request.mutable_caller()->set_job("j");
  request.set_key("k");
  v1::SetResponse response;
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() +
                       std::chrono::seconds(30));
  EXPECT_TRUE(stub->Set(&context, request, &response).ok());
  EXPECT_NE(response.coordinator_epoch(), 0u);
  process.Signal(SIGTERM);
  EXPECT_EQ(process.Wait(), 0);
  EXPECT_THAT(process.errors(),
              AllOf(HasSubstr("started: "), HasSubstr("draining: signal=15"),
                    HasSubstr("drained")));
}

TEST(MainTest, AnOperatorsDrainEndsItAsTermDoes) {
  Process process(kAnyPorts);
  const auto stub = v1::AdminService::NewStub(grpc::CreateChannel(
      GrpcAddress(process.FirstLine()), grpc::InsecureChannelCredentials()));
  grpc::ClientContext context;
  v1::DrainRequest request;
  request.set_reason("a new \"version\"");
  v1::DrainResponse response;
  const grpc::Status status = stub->Drain(&context, request, &response);
  EXPECT_TRUE(status.ok()) << status.error_message();
  EXPECT_NE(response.coordinator_epoch(), 0u);
  EXPECT_EQ(process.Wait(), 0) << process.errors();
  EXPECT_THAT(process.errors(), HasSubstr("reason=\"a new \\\"version\\\"\""));
  EXPECT_THAT(process.errors(), HasSubstr("draining: asked_by=operator"));
}

TEST(MainTest, InterruptDrainsToo) {
  Process process(kAnyPorts);
  process.FirstLine();
  process.Signal(SIGINT);
  EXPECT_EQ(process.Wait(), 0);
}

TEST(MainTest, TermWithParkedCallsEndsThem) {
  Process process(kAnyPorts);
  const std::string address = GrpcAddress(process.FirstLine());
  const auto stub = v1::StoreService::NewStub(
      grpc::CreateChannel(address, grpc::InsecureChannelCredentials()));
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() +
                       std::chrono::seconds(30));
  v1::GetRequest request;
  request.mutable_caller()->set_job("j");
  request.set_key("never");
  v1::GetResponse response;
  grpc::CompletionQueue queue;
  grpc::Status status;
  const auto call = stub->AsyncGet(&context, request, &queue);
  call->Finish(&response, &status, nullptr);
  AwaitWaiter(address);
  process.Signal(SIGTERM);
  EXPECT_EQ(process.Wait(), 0);
  void* tag = nullptr;
  bool ok = false;
  EXPECT_TRUE(queue.Next(&tag, &ok));
  EXPECT_EQ(status.error_code(), grpc::UNAVAILABLE);
  queue.Shutdown();
  while (queue.Next(&tag, &ok)) {
  }
}

TEST(MainTest, SecondSignalEndsItAtOnce) {
  std::vector<std::string> flags = kAnyPorts;
  flags.push_back("--drain_timeout=1h");
  Process process(flags);
  const auto stub = v1::SessionService::NewStub(grpc::CreateChannel(
      GrpcAddress(process.FirstLine()), grpc::InsecureChannelCredentials()));
  grpc::ClientContext context;
  const auto stream = stub->Stream(&context);
  v1::StreamRequest request;
  request.mutable_hello()->mutable_caller()->set_job("j");
  v1::Operation* set = request.add_operations();
  set->mutable_set()->set_key("big");
  set->mutable_set()->set_value(std::string(1 << 20, 'v'));
  for (int i = 0; i < 64; ++i) {
    request.add_operations()->mutable_get()->set_key("big");
  }
  ASSERT_TRUE(stream->Write(request));
  v1::StreamResponse response;
  ASSERT_TRUE(stream->Read(&response));
  // The client reads no more, which holds up the drain as long as allowed.
  process.Signal(SIGTERM);
  process.AwaitError("draining");
  process.Signal(SIGTERM);
  EXPECT_EQ(process.Wait(), 128 + SIGTERM);
  context.TryCancel();
}

TEST(MainTest, BadFlagsAreNamed) {
  const struct {
    std::vector<std::string> flags;
    std::vector<std::string> environment;
    std::string error;
  } kCases[] = {
      {{"--no_such_flag"}, {}, "Unknown command line flag 'no_such_flag'"},
      {{"--lease=soon"}, {}, "lease"},
      {{"extra"}, {}, "unexpected argument \"extra\""},
      {{},
       {"MUSTER_COORDINATOR_LEASE=soon"},
       "MUSTER_COORDINATOR_LEASE=\"soon\" does not parse"},
      {{},
       {"MUSTER_COORDINATOR_LEES=1s"},
       "environment variable MUSTER_COORDINATOR_LEES: there is no --lees"},
      {{"--listen=7070"}, {}, "listen \"7070\": port number missing"},
      {{"--listen=0.0.0.0:0"}, {}, "--insecure"},
      {{"--tls_cert=c.pem"},
       {},
       "tls_cert is \"c.pem\", but there is no tls_key"},
      {{"--tls_key=k.pem"},
       {},
       "tls_key is \"k.pem\", but there is no tls_cert"},
      {{"--tls_client_ca=a.pem"},
       {},
       "tls_client_ca is \"a.pem\", but without"},
      {{"--tls_cert=absent.pem", "--tls_key=absent.key"},
       {},
       "tls_cert \"absent.pem\": no such file or directory"},
      {{"--lease=0s"}, {}, "lease (milliseconds) is 0, must be positive"},
      {{"--drain_timeout=-1s"}, {}, "drain_timeout is -1s"},
      {{"--limit_keys=-1"}, {}, "--limit_keys is -1, must be at least 1"},
      {{"--limit_jobs=0"}, {}, "--limit_jobs is 0, must be at least 1"},
      {{},
       {"MUSTER_COORDINATOR_LIMIT_WAITERS=-5"},
       "--limit_waiters is -5, must be at"},
  };
  for (const auto& c : kCases) {
    Process process(c.flags, c.environment);
    EXPECT_EQ(process.Wait(), 1) << c.error;
    EXPECT_THAT(process.errors(), HasSubstr(c.error));
    EXPECT_EQ(process.output(), "");
  }
}

TEST(MainTest, EnvironmentSetsFlagsAndTheCommandLineWins) {
  // The clients' variables, and those that Kubernetes sets, are ignored.
  Process process(
      {"--listen=127.0.0.1:0"},
      {"MUSTER_COORDINATOR_LISTEN=nonsense", "MUSTER_COORDINATOR_HTTP_LISTEN=",
       "MUSTER_COORDINATOR=127.0.0.1:7070", "MUSTER_TOKEN_FILE=absent",
       "MUSTER_TLS_CERT=absent", "MUSTER_COORDINATOR_PORT=tcp://10.0.0.1:7070",
       "MUSTER_COORDINATOR_SERVICE_HOST=10.0.0.1"});
  EXPECT_THAT(process.FirstLine(),
              MatchesRegex("listening grpc=127\\.0\\.0\\.1:[1-9][0-9]*"));
  process.AwaitError("settings=\"--http_listen= --listen=127.0.0.1:0\"");
}

TEST(MainTest, AnErrorOfALimitNamesTheFlagThatSetsIt) {
  std::vector<std::string> flags = kAnyPorts;
  flags.push_back("--limit_value_bytes=3");
  Process process(flags);
  const auto stub = v1::StoreService::NewStub(grpc::CreateChannel(
      GrpcAddress(process.FirstLine()), grpc::InsecureChannelCredentials()));
  v1::SetRequest request;
  request.mutable_caller()->set_job("j");
  request.set_key("k");
  request.set_value("grain");
  v1::SetResponse response;
  grpc::ClientContext context;
  EXPECT_EQ(stub->Set(&context, request, &response).error_message(),
            "limit value_bytes is 3, offered 5 (key \"k\"); the coordinator's "
            "--limit_value_bytes sets it");
}

TEST(MainTest, ALimitFitsItselfToTheMemoryUnlessItIsSet) {
  Process fitted(kAnyPorts);
  fitted.FirstLine();
  fitted.AwaitError(absl::StrCat("limit_total_bytes=", MemoryLimit() / 8 * 3));
  std::vector<std::string> flags = kAnyPorts;
  flags.push_back("--limit_total_bytes=1000000");
  Process set(flags);
  set.FirstLine();
  set.AwaitError("limit_total_bytes=1000000 ");
}

// Values that wait for the storage do not count towards --limit_total_bytes.
TEST(MainTest, AStreamOfLargeValuesDoesNotPileUpBeforeTheStorage) {
  const std::string folder =
      absl::StrCat(testing::TempDir(), "/large_values_", getpid());
  std::vector<std::string> flags = kAnyPorts;
  flags.push_back("--storage=rocksdb");
  flags.push_back("--storage_path=" + folder);
  Process process(flags);
  const auto stub = v1::SessionService::NewStub(grpc::CreateChannel(
      GrpcAddress(process.FirstLine()), grpc::InsecureChannelCredentials()));
  const int64_t before = process.PeakBytes();
  grpc::ClientContext context;
  const auto stream = stub->Stream(&context);
  constexpr int64_t kSets = 60;
  constexpr size_t kValueBytes = 8 << 20;
  std::thread writer([&] {
    v1::StreamRequest request;
    request.mutable_hello()->mutable_caller()->set_job("j");
    for (int64_t i = 1; i <= kSets; ++i) {
      v1::Operation& operation = *request.add_operations();
      operation.set_id(i);
      operation.mutable_set()->set_key("k");
      operation.mutable_set()->set_value(std::string(kValueBytes, 'v'));
      if (!stream->Write(request)) break;
      request.Clear();
    }
    stream->WritesDone();
  });
  int64_t answers = 0;
  v1::StreamResponse response;
  while (stream->Read(&response)) answers += response.results_size();
  writer.join();
  EXPECT_TRUE(stream->Finish().ok());
  EXPECT_EQ(answers, kSets);
  // Even one copy of all values would be more, and each step has several.
  EXPECT_LT(process.PeakBytes() - before, kSets * int64_t{kValueBytes});
  process.Signal(SIGKILL);
  process.Wait();
  std::filesystem::remove_all(folder);
}

TEST(MainTest, PortInUseIsAClearErrorWithoutACrash) {
  Process first(kAnyPorts);
  const std::string address = GrpcAddress(first.FirstLine());
  Process second({"--listen=" + address, "--http_listen="});
  EXPECT_EQ(second.Wait(), 1);
  EXPECT_EQ(second.errors(), "muster-coordinator: cannot listen on " + address +
                                 ": address already in use\n");
}

TEST(MainTest, HelpAndVersion) {
  for (const char* const asked : {"--help", "-help", "-h"}) {
    // Regardless of other errors.
    Process help({"--lease=2s", asked}, {"MUSTER_COORDINATOR_LEASE=soon"});
    EXPECT_EQ(help.Wait(), 0);
    for (const char* const flag :
         {"--listen", "--http_listen", "--lease", "--reconnect_grace",
          "--insecure", "--drain_timeout", "--limit_store_bytes"}) {
      EXPECT_THAT(help.output(), HasSubstr(flag));
    }
    for (const absl::string_view name : core::LimitsWithFlag()) {
      EXPECT_THAT(help.output(), HasSubstr(absl::StrCat("--limit_", name)));
    }
    EXPECT_THAT(help.output(), Not(HasSubstr("flagfile")));
    EXPECT_EQ(help.errors(), "");
  }
  Process version({"--version"});
  EXPECT_EQ(version.Wait(), 0);
  EXPECT_THAT(version.output(), StartsWith("muster-coordinator " MUSTER_VERSION "\n"));
}

}  // namespace
}  // namespace muster::coordinator
