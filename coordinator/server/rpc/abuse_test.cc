// Tests a server against hostile clients, and the effects on others.

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "coordinator/server/auth/test_certificates.h"
#include "coordinator/server/test_server.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "muster/base/status.h"
#include "proto/muster/v1/status_wire.h"

namespace muster::coordinator {
namespace {

using std::chrono::milliseconds;
using ::testing::AllOf;
using ::testing::HasSubstr;

// A TCP connection without a protocol.
class RawConnection {
 public:
  explicit RawConnection(int port)
      : fd_(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in address = {};
    address.sin_family = AF_INET;
    address.sin_port = htons(static_cast<uint16_t>(port));
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    connected_ = connect(fd_, reinterpret_cast<sockaddr*>(&address),
                         sizeof(address)) == 0;
  }
  ~RawConnection() { close(fd_); }
  RawConnection(const RawConnection&) = delete;
  RawConnection& operator=(const RawConnection&) = delete;

  bool connected() const { return connected_; }
  // The server may have closed the connection already, which is fine.
  void Send(const std::string& bytes) {
    send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
  }

  // Reads until the server closes. Returns false if the server sends anything
  // first.
  bool AwaitHangUp() {
    char byte = 0;
    return recv(fd_, &byte, 1, 0) <= 0;
  }

 private:
  const int fd_;
  bool connected_ = false;
};

constexpr char kPreface[] = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

std::string RandomBytes(std::mt19937& random, size_t bytes) {
  std::string text(bytes, '\0');
  std::generate(text.begin(), text.end(),
                [&] { return static_cast<char>(random()); });
  return text;
}

// Nine bytes of header with a plausible type and length, then random bytes.
std::string RandomFrame(std::mt19937& random) {
  const size_t length = random() % 100;
  std::string frame = {0, 0, static_cast<char>(length),
                       static_cast<char>(random() % 12),
                       static_cast<char>(random())};
  frame += std::string(3, '\0') + static_cast<char>(random() % 8);
  return frame + RandomBytes(random, random() % (length + 1));
}

void Abuse(int port, uint32_t seed) {
  std::mt19937 random(seed);
  for (size_t length = 0; length < sizeof(kPreface); ++length) {
    RawConnection(port).Send(std::string(kPreface, length));
  }
  for (int i = 0; i < 200; ++i) {
    RawConnection(port).Send(RandomBytes(random, 1 + random() % 300));
    RawConnection frames(port);
    frames.Send(kPreface);
    for (int f = 0; f < 5; ++f) frames.Send(RandomFrame(random));
  }
}

// Sets up to `count` new keys of `value_bytes` in a job until one is refused.
Status Fill(TestServer& server, const std::string& job, int count,
            size_t value_bytes) {
  Status status;
  for (int i = 0; i < count && status.ok(); ++i) {
    v1::SetRequest request;
    *request.mutable_caller() = MakeCaller(job);
    request.set_key(absl::StrCat("key", i));
    request.set_value(std::string(value_bytes, 'v'));
    v1::SetResponse response;
    status = v1::FromGrpc(CallGrpc(server.store(), &v1::StoreService::Stub::Set,
                                   request, &response));
  }
  return status;
}

TEST(AbuseTest, JobsThatTakeAllTheyGetLeaveRoomForOthers) {
  constexpr int64_t kTotal = 64 << 20;
  ServerOptions options;
  options.total_bytes_max = kTotal;
  TestServer server(options);
  for (const char* const job : {"hog1", "hog2", "hog3", "hog4"}) {
    const Status status = Fill(server, job, 1000, 1 << 20);
    EXPECT_EQ(status.code(), StatusCode::kResourceExhausted) << job;
    EXPECT_THAT(std::string(status.message()),
                AllOf(HasSubstr(absl::StrCat("limit total_bytes is ", kTotal)),
                      HasSubstr("whose share is 2097152"),
                      HasSubstr("--limit_total_bytes")));
  }
  // Many small keys are within the job's share.
  EXPECT_EQ(Fill(server, "modest", 1000, 16), OkStatus());
  int64_t held = 0;
  v1::ListJobsResponse jobs;
  ASSERT_TRUE(CallGrpc(server.admin(), &v1::AdminService::Stub::ListJobs,
                       v1::ListJobsRequest(), &jobs)
                  .ok());
  for (const v1::JobSummary& job : jobs.jobs()) held += job.store_bytes();
  EXPECT_GT(held, kTotal / 3);
  EXPECT_LE(held, kTotal);
}

TEST(AbuseTest, MalformedBytesHurtNobodyElse) {
  TestServer server;
  TestStream honest(server.NewChannel());
  honest.Hello("j");
  for (uint32_t seed = 1; seed <= 5; ++seed) {
    Abuse(server.server().port(), seed);
    EXPECT_FALSE(honest.Call(SetOperation(seed, "k", "v")).has_status());
  }
  TestStream next(server.NewChannel());
  next.Hello("j");
  EXPECT_FALSE(next.Call(GetOperation(1, "k")).has_status());
}

TEST(AbuseTest, MalformedBytesInsteadOfTlsHurtNobodyElse) {
  TestAuthority authority("authority");
  const TestIdentity identity = authority.Issue("server");
  ServerOptions options;
  options.tls_cert = identity.cert;
  options.tls_key = identity.key;
  TestServer server(options);
  for (uint32_t seed = 1; seed <= 2; ++seed) {
    Abuse(server.server().port(), seed);
  }
  grpc::SslCredentialsOptions ssl;
  ssl.pem_root_certs = ReadTestFile(authority.ca());
  TestStream honest(
      grpc::CreateChannel(absl::StrCat("127.0.0.1:", server.server().port()),
                          grpc::SslCredentials(ssl)));
  honest.Hello("j");
  EXPECT_FALSE(honest.Call(SetOperation(1, "k", "v")).has_status());
}

TEST(AbuseTest, TenThousandSilentConnectionsLeaveRoomForOthers) {
  rlimit limit = {};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &limit), 0);
  limit.rlim_cur = limit.rlim_max;
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &limit), 0);
  // Both ends are in this process.
  const size_t count = std::min<size_t>(10'000, (limit.rlim_max - 200) / 2);
  TestServer server;
  TestStream before(server.NewChannel());
  before.Hello("j");
  std::vector<std::unique_ptr<RawConnection>> silent;
  while (silent.size() < count) {
    silent.push_back(std::make_unique<RawConnection>(server.server().port()));
    ASSERT_TRUE(silent.back()->connected()) << silent.size();
  }
  EXPECT_FALSE(before.Call(SetOperation(1, "k", "v")).has_status());
  TestStream after(server.NewChannel());
  after.Hello("j");
  EXPECT_FALSE(after.Call(GetOperation(1, "k")).has_status());
  RecordProperty("connections", static_cast<int>(count));
}

// Lowers this process's limit of descriptors while it lives.
class DescriptorLimit {
 public:
  explicit DescriptorLimit(rlim_t count) {
    EXPECT_EQ(getrlimit(RLIMIT_NOFILE, &before_), 0);
    rlimit limit = before_;
    limit.rlim_cur = count;
    EXPECT_EQ(setrlimit(RLIMIT_NOFILE, &limit), 0);
  }
  ~DescriptorLimit() { setrlimit(RLIMIT_NOFILE, &before_); }

 private:
  rlimit before_ = {};
};

TEST(AbuseTest, AServerWithoutDescriptorsComesBack) {
  const DescriptorLimit limit(600);
  TestServer server;
  TestStream before(server.NewChannel());
  before.Hello("j");
  {
    // Half of the descriptors belong to the clients in this process.
    std::vector<std::unique_ptr<RawConnection>> silent;
    silent.reserve(280);
    for (int i = 0; i < 280; ++i) {
      silent.push_back(std::make_unique<RawConnection>(server.server().port()));
    }
    EXPECT_TRUE(silent.back()->AwaitHangUp());
    EXPECT_FALSE(before.Call(SetOperation(1, "k", "v")).has_status());
  }
  // The server notices the closed connections one by one.
  Status last;
  const auto deadline = std::chrono::steady_clock::now() + kTestDeadline;
  do {
    v1::TryGetRequest request;
    *request.mutable_caller() = MakeCaller("j");
    request.set_key("k");
    v1::TryGetResponse response;
    last = v1::FromGrpc(
        CallGrpc(*v1::StoreService::NewStub(server.NewChannel()),
                 &v1::StoreService::Stub::TryGet, request, &response));
  } while (!last.ok() && std::chrono::steady_clock::now() < deadline);
  EXPECT_TRUE(last.ok()) << last;
}

TEST(AbuseTest, AStreamWithoutAHelloIsEnded) {
  ServerOptions options;
  options.stalled_reader_timeout = milliseconds(100);
  TestServer server(options);
  TestStream silent(server.NewChannel());
  const Status end = silent.Finish();
  EXPECT_EQ(end.code(), StatusCode::kDeadlineExceeded);
  EXPECT_THAT(std::string(end.message()), HasSubstr("no hello"));
}

// The text of a result that must be RESOURCE_EXHAUSTED.
std::string Exhausted(const v1::Result& result) {
  EXPECT_EQ(result.status().code(),
            static_cast<int>(StatusCode::kResourceExhausted));
  return result.status().message();
}

TEST(AbuseTest, WhatIsTooLargeIsRefusedAndTheStreamGoesOn) {
  ServerOptions options;
  options.limits.value_bytes = 1000;
  options.limits.store_bytes = 3000;
  options.limits.keys = 3;
  options.limits.keys_per_call = 10;
  TestServer server(options);
  TestStream stream(server.NewChannel());
  stream.Hello("j");
  EXPECT_THAT(
      Exhausted(stream.Call(SetOperation(1, std::string(4097, 'k'), "v"))),
      AllOf(HasSubstr("key_bytes"), HasSubstr("4097")));
  EXPECT_THAT(
      Exhausted(stream.Call(SetOperation(2, "k", std::string(1001, 'v')))),
      AllOf(HasSubstr("value_bytes"), HasSubstr("1001")));
  v1::Operation many;
  many.set_id(3);
  for (int i = 0; i < 11; ++i) many.mutable_check()->add_keys("k");
  EXPECT_THAT(Exhausted(stream.Call(many)),
              AllOf(HasSubstr("keys_per_call"), HasSubstr("11")));
  for (int i = 0; i < 3; ++i) {
    EXPECT_FALSE(stream.Call(SetOperation(10 + i, absl::StrCat("k", i), "v"))
                     .has_status());
  }
  EXPECT_THAT(Exhausted(stream.Call(SetOperation(4, "k3", "v"))),
              HasSubstr("limit keys is 3"));
  for (int i = 0; i < 2; ++i) {
    EXPECT_FALSE(stream
                     .Call(SetOperation(20 + i, absl::StrCat("k", i),
                                        std::string(1000, 'v')))
                     .has_status());
  }
  EXPECT_THAT(
      Exhausted(stream.Call(SetOperation(5, "k2", std::string(1000, 'v')))),
      HasSubstr("limit store_bytes is 3000"));
  EXPECT_FALSE(stream.Call(SetOperation(6, "k0", "v")).has_status());
}

TEST(AbuseTest, CallsThatWaitForTooMuchAreRefused) {
  ServerOptions options;
  options.limits.waiter_bytes = 100'000;
  TestServer server(options);
  TestStream stream(server.NewChannel());
  stream.Hello("j");
  v1::Operation wait;
  for (int i = 0; i < 20; ++i) {
    wait.mutable_wait()->add_keys(absl::StrCat(std::string(4000, 'k'), i));
  }
  for (const uint64_t id : {1, 2}) {
    wait.set_id(id);
    stream.SendOperation(wait);
  }
  EXPECT_THAT(Exhausted(stream.Await(2)),
              HasSubstr("limit waiter_bytes is 100000"));
  EXPECT_EQ(server.Job("j").summary().waiters(), 1);
  EXPECT_FALSE(stream.Call(SetOperation(3, "k0", "v")).has_status());
}

TEST(AbuseTest, AStateThatNoMessageHoldsIsNotSent) {
  ServerOptions options;
  options.message_bytes_max = 10'000;
  TestServer server(options);
  v1::RegisterRequest registration;
  registration.set_host(std::string(250, 'h'));
  for (int i = 0; i < 50; ++i) {
    *registration.mutable_caller() = MakeCaller("j", absl::StrCat("m", i), 1);
    v1::RegisterResponse registered;
    ASSERT_TRUE(CallGrpc(server.membership(),
                         &v1::MembershipService::Stub::Register, registration,
                         &registered)
                    .ok());
  }
  v1::GetJobRequest request;
  request.set_job("j");
  v1::GetJobResponse job;
  const grpc::Status status =
      CallGrpc(server.admin(), &v1::AdminService::Stub::GetJob, request, &job);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_THAT(status.error_message(),
              HasSubstr("limit message_bytes is 10000"));
}

TEST(AbuseTest, AMessageThatIsTooLargeEndsItsStreamAndNotTheConnection) {
  ServerOptions options;
  options.message_bytes_max = 10'000;
  TestServer server(options);
  const auto channel = server.NewChannel();
  TestStream other(channel);
  other.Hello("j");
  {
    TestStream stream(channel);
    stream.Hello("j");
    stream.Send([] {
      v1::StreamRequest request;
      *request.add_operations() =
          SetOperation(1, "k", std::string(20'000, 'v'));
      return request;
    }());
    EXPECT_EQ(stream.Finish().code(), StatusCode::kResourceExhausted);
  }
  EXPECT_FALSE(other.Call(SetOperation(1, "k", "v")).has_status());
}

// Floods its job with costly calls until `stop` is set.
void Flood(TestServer& server, const std::atomic<bool>& stop) {
  while (!stop) {
    TestStream stream(server.NewChannel());
    stream.Hello("flood");
    uint64_t id = 0;
    for (int message = 0; message < 50 && !stop; ++message) {
      v1::StreamRequest request;
      for (int i = 0; i < 2000; ++i) {
        *request.add_operations() =
            SetOperation(++id, absl::StrCat("k", i), std::string(500, 'v'));
      }
      if (!stream.Send(request)) break;
      for (uint64_t done = id - 1999; done <= id; ++done) stream.Await(done);
    }
  }
}

TEST(AbuseTest, OneJobsFloodDoesNotStarveAnother) {
  TestServer server;
  std::atomic<bool> stop = false;
  std::vector<std::thread> floods;
  floods.reserve(4);
  for (int i = 0; i < 4; ++i) {
    floods.emplace_back([&] { Flood(server, stop); });
  }
  server.Await("flood", [](const v1::GetJobResponse& state) {
    return state.summary().keys() >= 1000;
  });
  TestStream honest(server.NewChannel());
  honest.Hello("honest");
  std::vector<double> took;
  for (uint64_t id = 1; id <= 1000; ++id) {
    const auto start = std::chrono::steady_clock::now();
    EXPECT_FALSE(honest.Call(SetOperation(id, "k", "v")).has_status());
    took.push_back(std::chrono::duration<double, std::milli>(
                       std::chrono::steady_clock::now() - start)
                       .count());
  }
  stop = true;
  for (std::thread& flood : floods) flood.join();
  std::sort(took.begin(), took.end());
  RecordProperty("p50_ms", absl::StrCat(took[500]));
  RecordProperty("p99_ms", absl::StrCat(took[990]));
}

}  // namespace
}  // namespace muster::coordinator
