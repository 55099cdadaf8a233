#include "coordinator/server/rpc/admin_service.h"

#include <atomic>
#include <cstdint>
#include <future>
#include <memory>
#include <string>
#include <utility>

#include "coordinator/server/jobs/driver.h"
#include "coordinator/server/jobs/fair_queue.h"
#include "coordinator/server/ops/metrics.h"
#include "coordinator/server/rpc/open_calls.h"
#include "coordinator/server/test_server.h"
#include "grpcpp/grpcpp.h"
#include "gtest/gtest.h"
#include "muster/base/status.h"
#include "proto/muster/v1/status_wire.h"

namespace muster::coordinator {
namespace {

class AdminServiceTest : public ::testing::Test {
 protected:
  template <typename Stub, typename Request, typename Response>
  static Status Call(Stub& stub,
                     grpc::Status (Stub::*method)(grpc::ClientContext*,
                                                  const Request&, Response*),
                     const Request& request, Response* response) {
    return v1::FromGrpc(CallGrpc(stub, method, request, response));
  }

  Status Set(const std::string& key, const std::string& value) {
    v1::SetRequest request;
    *request.mutable_caller() = MakeCaller("j");
    request.set_key(key);
    request.set_value(value);
    v1::SetResponse response;
    return Call(server_.store(), &v1::StoreService::Stub::Set, request,
                &response);
  }

  Status Register(const std::string& member, uint64_t incarnation) {
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
  // Waits for the next sample, which is taken once a second.
  server_.Await("j", [](const v1::GetJobResponse& state) {
    return state.summary().operations_per_second() > 0;
  });
}

// An embedded coordinator does not end its process.
TEST_F(AdminServiceTest, ADrainIsRefusedWhereTheProcessDoesNotTakeIt) {
  v1::DrainResponse response;
  EXPECT_EQ(Call(server_.admin(), &v1::AdminService::Stub::Drain,
                 v1::DrainRequest(), &response),
            FailedPreconditionError(
                "this coordinator is embedded in another process and ends "
                "with it"));
}

TEST_F(AdminServiceTest, UnknownJobIsNotFound) {
  v1::GetJobRequest request;
  request.set_job("nobody");
  v1::GetJobResponse response;
  const Status status = Call(server_.admin(), &v1::AdminService::Stub::GetJob,
                             request, &response);
  EXPECT_EQ(status, NotFoundError("no job \"nobody\" here"));
}

// Messages that name no existing job occupy the only threads of one share.
TEST(AdminServiceTurnsTest, ACallWaitsForNoJobAndForNoOtherCall) {
  FairQueue fair_queue(4);
  std::promise<void> released;
  const std::shared_future<void> release = released.get_future().share();
  for (const void* owner : {static_cast<const void*>(nullptr),
                            static_cast<const void*>(&fair_queue)}) {
    fair_queue.Post(nullptr, owner, [release] { release.wait(); });
  }
  Metrics metrics([] { return Gauges(); });
  Driver::Options options;
  options.epoch = core::CoordinatorEpoch(1);
  options.metrics = &metrics;
  options.fair_queue = &fair_queue;
  Driver driver(options);
  OpenCalls open_calls;
  const ServiceContext context{&driver, &metrics, &open_calls, 1 << 20,
                               &fair_queue};
  // The first call waits inside the hook for the second.
  std::atomic<int> calls = 0;
  std::promise<void> second;
  AdminHooks hooks;
  hooks.sessions = [&calls, &second] {
    if (calls.fetch_add(1) == 0) {
      EXPECT_EQ(second.get_future().wait_for(kTestDeadline / 3),
                std::future_status::ready);
    } else {
      second.set_value();
    }
    return 0;
  };
  hooks.draining = [] { return false; };
  const std::unique_ptr<grpc::Service> service =
      MakeAdminService(context, std::move(hooks));
  int port = 0;
  grpc::ServerBuilder builder;
  builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(),
                           &port);
  builder.RegisterService(service.get());
  const std::unique_ptr<grpc::Server> server = builder.BuildAndStart();
  const std::unique_ptr<v1::AdminService::Stub> stub =
      v1::AdminService::NewStub(
          grpc::CreateChannel("127.0.0.1:" + std::to_string(port),
                              grpc::InsecureChannelCredentials()));
  const auto list = [&stub] {
    v1::ListJobsResponse jobs;
    return CallGrpc(*stub, &v1::AdminService::Stub::ListJobs,
                    v1::ListJobsRequest(), &jobs)
        .error_code();
  };
  auto first = std::async(std::launch::async, list);
  EXPECT_EQ(list(), grpc::OK);
  EXPECT_EQ(first.get(), grpc::OK);
  released.set_value();
  fair_queue.Stop();
  server->Shutdown();
}

}  // namespace
}  // namespace muster::coordinator
