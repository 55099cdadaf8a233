// Streams over real channels whose clients behave unusually: their operations,
// their heartbeats, and the events that they leave unread.

#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>

#include "coordinator/server/test_server.h"
#include "gmock/gmock.h"
#include "grpcpp/grpcpp.h"
#include "gtest/gtest.h"
#include "muster/base/status.h"

namespace muster::coordinator {
namespace {

using ::testing::AnyOf;
using ::testing::HasSubstr;

constexpr int kCancelled = static_cast<int>(StatusCode::kCancelled);

v1::Operation CancelOperation(uint64_t id, uint64_t cancelled) {
  v1::Operation operation;
  operation.set_id(id);
  operation.mutable_cancel()->set_id(cancelled);
  return operation;
}

v1::Operation AddOperation(uint64_t id, uint64_t sequence) {
  v1::Operation operation;
  operation.set_id(id);
  operation.mutable_add()->set_key("n");
  operation.mutable_add()->set_delta(1);
  operation.mutable_add()->set_sequence(sequence);
  return operation;
}

v1::Operation JoinOperation(uint64_t id, int rank) {
  v1::Operation operation;
  operation.set_id(id);
  operation.mutable_join()->set_rank(rank);
  operation.mutable_join()->set_world_size(2);
  return operation;
}

v1::Operation BarrierOperation(uint64_t id, int rank) {
  v1::Operation operation;
  operation.set_id(id);
  operation.mutable_await_barrier()->set_name("b");
  operation.mutable_await_barrier()->set_rank(rank);
  operation.mutable_await_barrier()->set_sequence(1);
  return operation;
}

TEST(SessionOperationsTest, ACancelReachesAnOperationOfItsOwnMessage) {
  TestServer server;
  TestStream stream(server.NewChannel());
  stream.Hello("j");
  v1::StreamRequest batch;
  *batch.add_operations() = GetOperation(1, "never");
  *batch.add_operations() = CancelOperation(2, 1);
  // The id is free again for the next operation.
  *batch.add_operations() = GetOperation(1, "k");
  *batch.add_operations() = SetOperation(3, "k", "v");
  ASSERT_TRUE(stream.Send(batch));
  v1::StreamResponse answer;
  while (answer.results().empty()) ASSERT_TRUE(stream.Read(&answer));
  // Results come in the order of their completion.
  ASSERT_EQ(answer.results_size(), 3);
  EXPECT_EQ(answer.results(0).id(), 1u);
  EXPECT_EQ(answer.results(0).status().code(), kCancelled);
  EXPECT_EQ(answer.results(1).id(), 3u);
  EXPECT_EQ(answer.results(2).id(), 1u);
  EXPECT_EQ(answer.results(2).get().value(), "v");
  EXPECT_EQ(server.Job("j").summary().waiters(), 0);
}

TEST(SessionOperationsTest, ARetryUnderItsOwnIdTakesThePlaceOfTheFirst) {
  TestServer server;
  TestStream a(server.NewChannel());
  TestStream b(server.NewChannel());
  a.HelloMember("j", "a", 1);
  b.HelloMember("j", "b", 1);
  a.SendOperation(JoinOperation(1, 0));
  b.SendOperation(JoinOperation(1, 1));
  ASSERT_FALSE(a.Await(1).has_status());
  ASSERT_FALSE(b.Await(1).has_status());
  a.SendOperation(BarrierOperation(5, 0));
  server.AwaitWaiters("j", 1);
  a.SendOperation(BarrierOperation(5, 0));
  const v1::Result first = a.Await(5);
  EXPECT_EQ(first.status().code(), kCancelled);
  EXPECT_THAT(first.status().message(), HasSubstr("superseded by a retry"));
  server.AwaitWaiters("j", 1);
  EXPECT_FALSE(b.Call(BarrierOperation(2, 1)).has_status());
  EXPECT_EQ(a.Await(5).await_barrier().instance(), 1);
}

TEST(SessionOperationsTest, AnAcknowledgementThatCannotBeEndsTheStream) {
  TestServer server;
  auto stream = std::make_unique<TestStream>(server.NewChannel());
  stream->HelloMember("j", "a", 1);
  EXPECT_EQ(stream->Call(AddOperation(1, 1)).add().value(), 1);
  v1::StreamRequest request;
  request.set_acknowledged_through(UINT64_MAX);
  *request.add_operations() = AddOperation(2, 2);
  ASSERT_TRUE(stream->Send(request));
  EXPECT_EQ(stream->Finish(),
            InvalidArgumentError(
                "acknowledged_through is 18446744073709551615, must be at most "
                "9223372036854775807"));
  // Earlier operations were applied, and the rest was not.
  stream = std::make_unique<TestStream>(server.NewChannel());
  stream->HelloMember("j", "a", 1);
  EXPECT_EQ(stream->Call(AddOperation(1, 1)).add().value(), 1);
  EXPECT_EQ(stream->Call(AddOperation(2, 2)).add().value(), 2);
}

TEST(SessionOperationsTest, TooManyUnansweredNumbersRefuseTheNumberedOnly) {
  ServerOptions options;
  options.limits.retained_replies = 10;
  TestServer server(options);
  TestStream stream(server.NewChannel());
  stream.HelloMember("j", "a", 1);
  v1::StreamRequest request;
  request.set_acknowledged_through(100'000);
  for (uint64_t i = 100'000; i > 0; --i) request.add_unanswered(i);
  *request.add_operations() = AddOperation(1, 100'001);
  *request.add_operations() = SetOperation(2, "k", "v");
  ASSERT_TRUE(stream.Send(request));
  EXPECT_THAT(stream.Await(1).status().message(),
              HasSubstr("limit retained_replies is 10, offered 11"));
  EXPECT_TRUE(stream.Await(2).has_set());
}

TEST(SessionOperationsTest, AHeartbeatOfImpossibleProgressIsRefusedAloud) {
  TestServer server;
  auto stream = std::make_unique<TestStream>(server.NewChannel());
  stream->HelloMember("j", "a", 1);
  v1::StreamRequest request;
  request.mutable_heartbeat()->add_groups()->set_last_enqueued(-5);
  ASSERT_TRUE(stream->Send(request));
  EXPECT_EQ(stream->Finish(),
            InvalidArgumentError(
                "heartbeat: groups.last_enqueued is -5, must not be negative"));
  stream = std::make_unique<TestStream>(server.NewChannel());
  stream->HelloMember("j", "a", 1);
  v1::GroupProgress* group = request.mutable_heartbeat()->mutable_groups(0);
  group->set_last_enqueued(1);
  group->set_current("barrier");
  // The longest duration of the protocol.
  group->mutable_running_for()->set_seconds(315'576'000'000);
  group->mutable_peer_call()->set_sends(true);
  group->mutable_peer_call()->set_number(7);
  group->mutable_peer_call()->set_peer(-1);
  // A second group, in a collective.
  constexpr uint64_t kHash = uint64_t{1} << 63 | 5;
  request.mutable_heartbeat()->add_groups()->set_arguments_hash(kHash);
  *request.add_operations() = SetOperation(1, "k", "v");
  ASSERT_TRUE(stream->Send(request));
  EXPECT_TRUE(stream->Await(1).has_set());
  const v1::GetJobResponse job = server.Job("j");
  EXPECT_THAT(job.members(0).last_progress(),
              HasSubstr("in barrier for 9223372036.8s"));
  const v1::PeerCall& call = job.progress(0).groups(0).peer_call();
  EXPECT_TRUE(call.sends());
  EXPECT_EQ(call.number(), 7);
  EXPECT_EQ(call.peer(), -1);
  EXPECT_FALSE(job.progress(0).groups(0).has_arguments_hash());
  EXPECT_EQ(job.progress(0).groups(1).arguments_hash(), kHash);
}

// A member that fails again and again, each time with a generation of its own
// and a report of the largest size.
class Failing {
 public:
  explicit Failing(TestServer& server) : server_(server) {
    for (int i = 0; i < 60; ++i) {
      v1::MemberInfo* culprit = report_.mutable_culprits()->add_members();
      culprit->set_rank(i);
      culprit->set_cause(std::string(1000, 'c'));
    }
    report_.set_code(static_cast<int>(StatusCode::kAborted));
  }

  void Fail() {
    const v1::Caller caller = MakeCaller("j", "failing", ++incarnation_);
    v1::RegisterRequest registration;
    *registration.mutable_caller() = caller;
    v1::RegisterResponse registered;
    EXPECT_TRUE(CallGrpc(server_.membership(),
                         &v1::MembershipService::Stub::Register, registration,
                         &registered)
                    .ok());
    v1::JoinRequest join;
    *join.mutable_caller() = caller;
    join.set_rank(-1);
    join.set_world_size(1);
    v1::JoinResponse joined;
    EXPECT_TRUE(CallGrpc(server_.membership(),
                         &v1::MembershipService::Stub::Join, join, &joined)
                    .ok());
    *report_.mutable_caller() = caller;
    v1::ReportFailureResponse reported;
    EXPECT_TRUE(CallGrpc(server_.membership(),
                         &v1::MembershipService::Stub::ReportFailure, report_,
                         &reported)
                    .ok());
  }

 private:
  TestServer& server_;
  v1::ReportFailureRequest report_;
  uint64_t incarnation_ = 0;
};

// A channel that buffers 64 KiB of unread bytes and no more.
std::shared_ptr<grpc::Channel> NarrowChannel(const Server& server) {
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  arguments.SetInt(GRPC_ARG_HTTP2_BDP_PROBE, 0);
  return grpc::CreateCustomChannel("127.0.0.1:" + std::to_string(server.port()),
                                   grpc::InsecureChannelCredentials(),
                                   arguments);
}

TEST(SessionOperationsTest, EventsThatPiledUpArriveInSeveralMessages) {
  TestServer server;
  TestStream stream(NarrowChannel(server.server()));
  stream.HelloMember("j", "a", 1);
  Failing failing(server);
  constexpr int kEvents = 60;
  for (int i = 0; i < kEvents; ++i) failing.Fail();
  // The answer comes after the events before it.
  stream.SendOperation(SetOperation(1, "k", "v"));
  int64_t generation = 0;
  size_t largest = 0;
  bool answered = false;
  while (!answered) {
    v1::StreamResponse message;
    ASSERT_TRUE(stream.Read(&message));
    largest = std::max(largest, message.ByteSizeLong());
    for (const v1::MemberEvent& event : message.events()) {
      EXPECT_EQ(event.generation(), ++generation);
      EXPECT_EQ(event.culprits().members_size(), 60);
    }
    answered = message.results_size() > 0;
  }
  EXPECT_EQ(generation, kEvents);
  EXPECT_LT(largest, size_t{1} << 20);
  EXPECT_GT(largest, size_t{1} << 19) << "no events piled up";
}

TEST(SessionOperationsTest, WhoReadsNoEventsIsCutOff) {
  TestServer server;
  TestStream stream(NarrowChannel(server.server()));
  stream.HelloMember("j", "a", 1);
  Failing failing(server);
  constexpr int kEvents = 1200;  // more than 64 MiB
  for (int i = 0; i < kEvents; ++i) failing.Fail();
  // RESOURCE_EXHAUSTED if the status still gets through, else a reset.
  EXPECT_THAT(stream.Finish().code(),
              AnyOf(StatusCode::kResourceExhausted, StatusCode::kCancelled));
}

}  // namespace
}  // namespace muster::coordinator
