// Tests which callers may make which calls of a server with tokens, over real
// channels.

#include "coordinator/server/auth/auth.h"

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "coordinator/core/limits.h"
#include "coordinator/server/auth/test_certificates.h"
#include "coordinator/server/rpc/test_methods.h"
#include "coordinator/server/test_server.h"
#include "gmock/gmock.h"
#include "google/protobuf/descriptor.h"
#include "grpcpp/grpcpp.h"
#include "gtest/gtest.h"
#include "muster/base/status.h"
#include "proto/muster/v1/status_wire.h"

namespace muster::coordinator {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr char kReader[] = "token-of-a-reader";
constexpr char kMember[] = "token-of-a-member";
constexpr char kAdmin[] = "token-of-an-admin";

std::string Bearer(const std::string& token) { return "Bearer " + token; }

class AuthTest : public ::testing::Test {
 protected:
  AuthTest()
      : file_(TestPath(
            ::testing::UnitTest::GetInstance()->current_test_info()->name())),
        server_(Options(file_)),
        channel_(server_.NewChannel()) {}

  static std::string Tokens() {
    return TestTokenLine(kReader, "read mine") +
           TestTokenLine(kMember, "member mine") +
           TestTokenLine(kAdmin, "admin *");
  }

  static ServerOptions Options(const std::string& file) {
    WriteTestFile(file, Tokens());
    ServerOptions options;
    options.token_file = file;
    return options;
  }

  // Makes a call with an authorization header, if it is not empty.
  template <typename Service, typename Request, typename Response>
  Status Call(const std::string& header,
              grpc::Status (Service::Stub::*method)(grpc::ClientContext*,
                                                    const Request&, Response*),
              const Request& request, Response* response) {
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + kTestDeadline);
    if (!header.empty()) context.AddMetadata("authorization", header);
    const auto stub = Service::NewStub(channel_);
    return v1::FromGrpc(((*stub).*method)(&context, request, response));
  }

  Status Set(const std::string& header, const std::string& job) {
    v1::SetRequest request;
    *request.mutable_caller() = MakeCaller(job);
    request.set_key("k");
    request.set_value("v");
    v1::SetResponse response;
    return Call<v1::StoreService>(header, &v1::StoreService::Stub::Set, request,
                                  &response);
  }

  Status TryGet(const std::string& header, const v1::Caller& caller) {
    v1::TryGetRequest request;
    *request.mutable_caller() = caller;
    request.set_key("k");
    v1::TryGetResponse response;
    return Call<v1::StoreService>(header, &v1::StoreService::Stub::TryGet,
                                  request, &response);
  }

  Status GetJob(const std::string& header, const std::string& job) {
    v1::GetJobRequest request;
    request.set_job(job);
    v1::GetJobResponse response;
    return Call<v1::AdminService>(header, &v1::AdminService::Stub::GetJob,
                                  request, &response);
  }

  std::vector<std::string> ListJobs(const std::string& header) {
    v1::ListJobsResponse response;
    const Status status =
        Call<v1::AdminService>(header, &v1::AdminService::Stub::ListJobs,
                               v1::ListJobsRequest(), &response);
    EXPECT_TRUE(status.ok()) << status;
    std::vector<std::string> jobs;
    for (const v1::JobSummary& job : response.jobs()) jobs.push_back(job.job());
    return jobs;
  }

  const std::string file_;
  TestServer server_;
  const std::shared_ptr<grpc::Channel> channel_;
};

TEST_F(AuthTest, EveryCallNeedsATokenThatIsKnown) {
  const auto methods = AllMethods();
  for (const google::protobuf::MethodDescriptor* const method : methods) {
    const std::string path = MakePath(*method);
    const Status none = CallWithBytes(channel_, path, "");
    EXPECT_EQ(none.code(), StatusCode::kUnauthenticated) << path;
    EXPECT_THAT(std::string(none.message()), HasSubstr("no token")) << path;
    const Status unknown = CallWithBytes(channel_, path, "", "Bearer guess");
    EXPECT_EQ(unknown, UnauthenticatedError("the token is not known here"))
        << path;
    // The request is not parsed either.
    EXPECT_EQ(CallWithBytes(channel_, path, "\xff\xff", "Bearer guess"),
              unknown)
        << path;
  }
  EXPECT_GE(methods.size(), 22);
  EXPECT_THAT(ListJobs(Bearer(kAdmin)), ElementsAre());
}

// Otherwise a reader could use up the limit of jobs.
TEST_F(AuthTest, WhoMayOnlyReadBringsNoJobIntoBeing) {
  EXPECT_EQ(TryGet(Bearer(kReader), MakeCaller("mine")).code(),
            StatusCode::kNotFound);
  EXPECT_THAT(ListJobs(Bearer(kAdmin)), ElementsAre());
  EXPECT_TRUE(Set(Bearer(kMember), "mine").ok());
  EXPECT_TRUE(TryGet(Bearer(kReader), MakeCaller("mine")).ok());
}

TEST(JobsPerTokenTest, ATokenCannotUseUpTheJobsOfOthers) {
  const std::string file = TestPath("ATokenCannotUseUpTheJobsOfOthers");
  WriteTestFile(file, TestTokenLine(kMember, "member a*") +
                          TestTokenLine(kAdmin, "admin *"));
  ServerOptions options;
  options.token_file = file;
  options.jobs_max = 4;
  options.jobs_per_token_max = 2;
  TestServer server(options);
  const auto set = [&](const std::string& token, const std::string& job) {
    grpc::ClientContext context;
    context.AddMetadata("authorization", Bearer(token));
    v1::SetRequest request;
    *request.mutable_caller() = MakeCaller(job);
    request.set_key("k");
    v1::SetResponse response;
    return v1::FromGrpc(server.store().Set(&context, request, &response));
  };
  EXPECT_EQ(set(kMember, "a1"), OkStatus());
  EXPECT_EQ(set(kMember, "a2"), OkStatus());
  EXPECT_EQ(set(kMember, "a3"),
            ResourceExhaustedError(
                "limit jobs_per_token is 2, offered 3 (job \"a3\") by one "
                "token" +
                core::LimitAdvice("jobs_per_token")));
  // Existing jobs stay usable, and other tokens can create jobs.
  EXPECT_EQ(set(kMember, "a1"), OkStatus());
  EXPECT_EQ(set(kAdmin, "b1"), OkStatus());
}

TEST_F(AuthTest, HealthAndReflectionStayOpen) {
  EXPECT_TRUE(CallWithBytes(channel_, "/grpc.health.v1.Health/Check", "").ok());
  const Status reflection = CallWithBytes(
      channel_,
      "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo", "");
  EXPECT_TRUE(reflection.ok()) << reflection;
}

TEST_F(AuthTest, OnlyOneBearerCounts) {
  for (const char* const header : {"Basic eDp5", "Bearer", "token-of-a-member",
                                   "Bearer token of-a-member"}) {
    EXPECT_TRUE(IsUnauthenticated(Set(header, "mine"))) << header;
  }
  EXPECT_TRUE(Set(absl::StrCat("bearer ", kMember), "mine").ok());
  grpc::ClientContext context;
  context.AddMetadata("authorization", Bearer(kMember));
  context.AddMetadata("authorization", Bearer(kAdmin));
  v1::ListJobsResponse response;
  EXPECT_EQ(v1::AdminService::NewStub(channel_)
                ->ListJobs(&context, v1::ListJobsRequest(), &response)
                .error_code(),
            grpc::UNAUTHENTICATED);
}

TEST_F(AuthTest, AReaderLooksAndChangesNothing) {
  ASSERT_TRUE(Set(Bearer(kMember), "mine").ok());
  EXPECT_TRUE(TryGet(Bearer(kReader), MakeCaller("mine")).ok());
  EXPECT_TRUE(GetJob(Bearer(kReader), "mine").ok());
  EXPECT_THAT(ListJobs(Bearer(kReader)), ElementsAre("mine"));
  EXPECT_EQ(Set(Bearer(kReader), "mine"),
            PermissionDeniedError(
                "Set needs role member in job \"mine\", the token has role "
                "read there"));
  // A caller that speaks for a member could acknowledge its answers.
  EXPECT_TRUE(
      IsPermissionDenied(TryGet(Bearer(kReader), MakeCaller("mine", "m", 1))));
  TestStream stream(channel_, kReader);
  stream.Hello("mine");
  EXPECT_EQ(stream.Finish(),
            PermissionDeniedError(
                "Stream needs role member in job \"mine\", the token has role "
                "read there"));
}

TEST_F(AuthTest, OnlyAnAdminOfAllJobsMayDrain) {
  const auto drain = [&](const char* token) {
    v1::DrainResponse response;
    return Call<v1::AdminService>(Bearer(token), &v1::AdminService::Stub::Drain,
                                  v1::DrainRequest(), &response);
  };
  EXPECT_EQ(drain(kMember),
            PermissionDeniedError(
                "Drain needs role admin for all jobs, the token has no role "
                "there"));
  WriteTestFile(file_, TestTokenLine(kMember, "admin mine") +
                           TestTokenLine(kReader, "member *") +
                           TestTokenLine(kAdmin, "admin *"));
  Status status;
  // Until the file is read again.
  do {
    status = drain(kReader);
  } while (absl::StrContains(status.message(), "no role"));
  EXPECT_EQ(status, PermissionDeniedError(
                        "Drain needs role admin for all jobs, the token has "
                        "role member there"));
  EXPECT_TRUE(IsPermissionDenied(drain(kMember)));
  // The token allows it; this process does not accept drains.
  EXPECT_TRUE(IsFailedPrecondition(drain(kAdmin)));
}

TEST_F(AuthTest, AJobIsClosedToTheTokensOfOthers) {
  ASSERT_TRUE(Set(Bearer(kAdmin), "theirs").ok());
  EXPECT_EQ(TryGet(Bearer(kMember), MakeCaller("theirs")),
            PermissionDeniedError(
                "TryGet needs role read in job \"theirs\", the token has no "
                "role there"));
  EXPECT_TRUE(IsPermissionDenied(Set(Bearer(kMember), "theirs")));
  EXPECT_TRUE(IsPermissionDenied(GetJob(Bearer(kMember), "theirs")));
  // The answer does not tell whether the job exists.
  EXPECT_EQ(GetJob(Bearer(kMember), "nobodys").code(),
            StatusCode::kPermissionDenied);
  TestStream stream(channel_, kMember);
  stream.Hello("theirs");
  EXPECT_TRUE(IsPermissionDenied(stream.Finish()));
  EXPECT_THAT(ListJobs(Bearer(kMember)), ElementsAre());
  EXPECT_THAT(ListJobs(Bearer(kAdmin)), ElementsAre("theirs"));
}

TEST_F(AuthTest, ARemovedTokenEndsItsStreamAndNoOther) {
  TestStream mine(channel_, kMember);
  TestStream admins(server_.NewChannel(), kAdmin);
  mine.Hello("mine");
  admins.Hello("mine");
  EXPECT_FALSE(mine.Call(SetOperation(1, "k", "v")).has_status());
  WriteTestFile(file_, TestTokenLine(kAdmin, "member mine"));
  EXPECT_EQ(mine.Finish(), UnauthenticatedError("the token is not known here"));
  EXPECT_FALSE(admins.Call(GetOperation(1, "k")).has_status());
  EXPECT_TRUE(IsUnauthenticated(Set(Bearer(kMember), "mine")));
}

TEST_F(AuthTest, AWatchTellsNothingToARemovedToken) {
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + kTestDeadline);
  context.AddMetadata("authorization", Bearer(kReader));
  v1::WatchRequest request;
  *request.mutable_caller() = MakeCaller("mine");
  request.set_key("k");
  const auto stub = v1::StoreService::NewStub(channel_);
  const auto watch = stub->Watch(&context, request);
  WriteTestFile(file_, TestTokenLine(kMember, "member mine"));
  while (!IsUnauthenticated(TryGet(Bearer(kReader), MakeCaller("mine")))) {
  }
  ASSERT_TRUE(Set(Bearer(kMember), "mine").ok());
  v1::WatchResponse response;
  while (watch->Read(&response)) EXPECT_EQ(response.changes_size(), 0);
  EXPECT_EQ(watch->Finish().error_code(), grpc::UNAUTHENTICATED);
}

TEST_F(AuthTest, ATokenThatLosesItsRoleEndsItsStream) {
  TestStream mine(channel_, kMember);
  mine.Hello("mine");
  EXPECT_FALSE(mine.Call(SetOperation(1, "k", "v")).has_status());
  WriteTestFile(file_, TestTokenLine(kMember, "read mine"));
  EXPECT_TRUE(IsPermissionDenied(mine.Finish()));
}

TEST_F(AuthTest, AnExpiredTokenEndsItsStream) {
  TestStream stream(channel_, kMember);
  stream.Hello("mine");
  EXPECT_FALSE(stream.Call(SetOperation(1, "k", "v")).has_status());
  // Opens the stream before its token gets an expiry.
  const absl::Time soon = absl::Now() + absl::Seconds(1);
  const std::string time = absl::FormatTime(soon, absl::UTCTimeZone());
  WriteTestFile(
      file_,
      TestTokenLine(kMember, absl::StrCat("member mine expires=", time)));
  const Status end = stream.Finish();
  EXPECT_EQ(end.code(), StatusCode::kUnauthenticated);
  EXPECT_THAT(std::string(end.message()), HasSubstr("the token expired at 20"));
  EXPECT_GE(absl::Now(), soon);
}

TEST(AuthFileTest, WhatCannotBeReadChangesNothing) {
  const std::string file = TestPath("tokens");
  WriteTestFile(file, TestTokenLine("a", "member j"));
  const auto auth = Auth::Load(file);
  ASSERT_TRUE(auth.ok()) << auth.status();
  const auto allowed = [&](const std::string& token) {
    Auth::Pass pass{ComputeDigest(token), absl::InfinitePast()};
    return (*auth)->Renew(Method::kStream, "j", pass).ok();
  };
  EXPECT_TRUE(allowed("a"));
  WriteTestFile(file, TestTokenLine("b", "member j") + "nonsense\n");
  (*auth)->Reload();
  EXPECT_TRUE(allowed("a"));
  EXPECT_FALSE(allowed("b"));
  EXPECT_TRUE((*auth)->refused());
  ASSERT_EQ(remove(file.c_str()), 0);
  (*auth)->Reload();
  EXPECT_TRUE(allowed("a"));
  WriteTestFile(file, TestTokenLine("b", "member j"));
  (*auth)->Reload();
  EXPECT_FALSE(allowed("a"));
  EXPECT_TRUE(allowed("b"));
  EXPECT_FALSE((*auth)->refused());
}

TEST(AuthFileTest, AtTheStartABadFileIsNamed) {
  ServerOptions options;
  options.token_file = TestPath("bad_tokens");
  EXPECT_THAT(std::string(Server::Start(options).status().message()),
              AllOf(HasSubstr("token_file"), HasSubstr("no such file")));
  WriteTestFile(options.token_file, "# tokens\nhunter2 member j\n");
  EXPECT_THAT(std::string(Server::Start(options).status().message()),
              AllOf(HasSubstr(options.token_file + "\" line 2: "),
                    Not(HasSubstr("hunter2"))));
}

}  // namespace
}  // namespace muster::coordinator
