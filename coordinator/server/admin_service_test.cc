#include "coordinator/server/admin_service.h"

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "coordinator/server/test_server.h"
#include "gtest/gtest.h"
#include "proto/muster/v1/status_wire.h"

namespace muster::coordinator {
namespace {

class AdminServiceTest : public ::testing::Test {
 protected:
  template <typename Stub, typename Request, typename Response>
  static absl::Status Call(Stub& stub,
                           grpc::Status (Stub::*method)(grpc::ClientContext*,
                                                        const Request&,
                                                        Response*),
                           const Request& request, Response* response) {
    return v1::FromGrpc(CallGrpc(stub, method, request, response));
  }

  absl::Status Set(const std::string& key, const std::string& value) {
    v1::SetRequest request;
    *request.mutable_caller() = MakeCaller("j");
    request.set_key(key);
    request.set_value(value);
    v1::SetResponse response;
    return Call(server_.store(), &v1::StoreService::Stub::Set, request,
                &response);
  }

  absl::Status Register(const std::string& member, uint64_t incarnation) {
    v1::RegisterRequest request;
    *request.mutable_caller() = MakeCaller("j", member, incarnation);
    request.set_host("host-" + member);
    v1::RegisterResponse response;
    return Call(server_.membership(), &v1::MembershipService::Stub::Register,
                request, &response);
  }

  TestServer server_;
};

TEST_F(AdminServiceTest, OfAHostOnlyItsMembersAreShown) {
  ASSERT_TRUE(Register("a", 1).ok());
  ASSERT_TRUE(Register("b", 1).ok());
  ASSERT_TRUE(Set("k", "v").ok());
  v1::GetJobRequest request;
  request.set_job("j");
  request.set_host("host-b");
  v1::GetJobResponse job;
  ASSERT_TRUE(
      Call(server_.admin(), &v1::AdminService::Stub::GetJob, request, &job)
          .ok());
  ASSERT_EQ(job.members_size(), 1);
  EXPECT_EQ(job.members(0).member(), "b");
  EXPECT_EQ(job.progress_size(), 1);
  EXPECT_EQ(job.lease().seconds(), 10);
  EXPECT_FALSE(job.has_summary());
}

TEST_F(AdminServiceTest, WhoWaitsForAKeyIsShown) {
  ASSERT_TRUE(Register("a", 1).ok());
  TestStream b(server_.NewChannel());
  b.HelloMember("j", "b", 1);
  v1::Operation operation;
  operation.set_id(1);
  operation.mutable_wait()->add_keys("there");
  operation.mutable_wait()->add_keys("k");
  operation.mutable_wait()->mutable_timeout()->set_seconds(100);
  ASSERT_TRUE(Set("there", "").ok());
  b.SendOperation(operation);
  server_.AwaitWaiters("j", 1);
  const v1::GetJobResponse job = server_.Job("j");
  ASSERT_EQ(job.key_waits_size(), 1);
  EXPECT_EQ(job.key_waits(0).member(), "b");
  EXPECT_EQ(job.key_waits(0).key(), "k");
  EXPECT_EQ(job.key_waits(0).missing(), 1);
  EXPECT_TRUE(job.key_waits(0).has_waiting_for());
  EXPECT_EQ(job.more_key_waits(), 0);
  EXPECT_TRUE(job.has_uptime());
  EXPECT_FALSE(job.durable());
}

TEST_F(AdminServiceTest, TheCallsOfAJobAreCounted) {
  for (int i = 0; i < 3; ++i) ASSERT_TRUE(Set("k", "v").ok());
  EXPECT_EQ(server_.Job("j").summary().operations(), 3);
  // Until the next sample of the second.
  server_.Await("j", [](const v1::GetJobResponse& state) {
    return state.summary().operations_per_second() > 0;
  });
}

// A coordinator that a process embeds is that process's.
TEST_F(AdminServiceTest, ADrainIsRefusedWhereTheProcessDoesNotTakeIt) {
  v1::DrainResponse response;
  EXPECT_EQ(Call(server_.admin(), &v1::AdminService::Stub::Drain,
                 v1::DrainRequest(), &response),
            absl::FailedPreconditionError(
                "this coordinator is embedded in another process and ends "
                "with it"));
}

TEST_F(AdminServiceTest, UnknownJobIsNotFound) {
  v1::GetJobRequest request;
  request.set_job("nobody");
  v1::GetJobResponse response;
  const absl::Status status = Call(
      server_.admin(), &v1::AdminService::Stub::GetJob, request, &response);
  EXPECT_EQ(status, absl::NotFoundError("no job \"nobody\" here"));
}

}  // namespace
}  // namespace muster::coordinator
