// Elastic rendezvous and groups over real channels: by unary call and as
// operations of a session.

#include <cstdint>
#include <string>
#include <vector>

#include "coordinator/server/test_server.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "muster/base/status.h"
#include "proto/muster/v1/status_wire.h"

namespace muster::coordinator {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using Members = v1::MembershipService::Stub;

class MemberStream : public TestStream {
 public:
  MemberStream(const TestServer& server, const std::string& member)
      : TestStream(server.NewChannel()) {
    HelloMember("j", member, 1);
  }
};

class MembershipCallsTest : public ::testing::Test {
 protected:
  static v1::Operation JoinOperation(uint64_t id, int64_t last_call_s) {
    v1::Operation operation;
    operation.set_id(id);
    v1::JoinRequest& join = *operation.mutable_join();
    join.set_rank(-1);
    join.set_min_world_size(1);
    join.set_max_world_size(2);
    join.mutable_last_call()->set_seconds(last_call_s);
    return operation;
  }

  template <typename Request, typename Response>
  Status Call(grpc::Status (Members::*method)(grpc::ClientContext*,
                                              const Request&, Response*),
              Request request, Response* response) {
    *request.mutable_caller() = MakeCaller("j", "a", 1);
    return v1::FromGrpc(
        CallGrpc(server_.membership(), method, request, response));
  }

  Status Join(const v1::JoinRequest& request) {
    v1::JoinResponse response;
    return Call(&Members::Join, request, &response);
  }

  void Register() {
    v1::RegisterRequest request;
    request.set_host("host-a");
    request.set_pid(7);
    v1::RegisterResponse response;
    ASSERT_TRUE(Call(&Members::Register, request, &response).ok());
  }

  static v1::GroupDefinition Group(const std::string& name,
                                   const std::vector<int32_t>& ranks) {
    v1::GroupDefinition group;
    group.set_name(name);
    for (const int32_t rank : ranks) group.add_ranks(rank);
    return group;
  }

  static ServerOptions WithHttp() {
    ServerOptions options;
    options.http_listen = "127.0.0.1:0";
    return options;
  }

  TestServer server_{WithHttp()};
};

TEST_F(MembershipCallsTest, ANewcomerIsToldOfAndHasTheSeatThatIsFree) {
  MemberStream a(server_, "a");
  MemberStream b(server_, "b");
  MemberStream c(server_, "c");
  a.SendOperation(JoinOperation(1, 100));
  server_.AwaitWaiters("j", 1);
  const v1::GetJobResponse forming = server_.Job("j");
  EXPECT_EQ(forming.forming_min_world_size(), 1);
  EXPECT_EQ(forming.forming_world_size(), 2);
  EXPECT_EQ(forming.joined(), 1);
  ASSERT_EQ(forming.joined_members_size(), 1);
  EXPECT_EQ(forming.joined_members(0), "a");
  EXPECT_GT(forming.last_call_remaining().seconds(), 0);
  EXPECT_EQ(b.Call(JoinOperation(1, 100)).join().rank(), 1);
  EXPECT_EQ(a.Await(1).join().seats_size(), 2);

  c.SendOperation(JoinOperation(1, 100));
  for (TestStream* stream : {&a, &b}) {
    const v1::MemberEvent event = stream->NextEvent();
    EXPECT_EQ(event.member().state(), v1::MEMBER_STATE_ALIVE);
    EXPECT_EQ(event.member().member(), "c");
    EXPECT_EQ(event.member().rank(), -1);
    EXPECT_EQ(event.members_waiting(), 1);
    EXPECT_EQ(event.generation(), 1);
    EXPECT_FALSE(event.generation_ended());
  }
  v1::HeartbeatResponse beat;
  ASSERT_TRUE(Call(&Members::Heartbeat, v1::HeartbeatRequest(), &beat).ok());
  EXPECT_EQ(beat.members_waiting(), 1);
  v1::RegisterResponse registered;
  ASSERT_TRUE(
      Call(&Members::Register, v1::RegisterRequest(), &registered).ok());
  EXPECT_EQ(registered.members_waiting(), 1);

  v1::Operation report;
  report.set_id(2);
  report.mutable_report_failure()->set_error("SIGSEGV");
  b.Call(report);
  EXPECT_EQ(a.Call(JoinOperation(2, 100)).join().rank(), 0);
  const v1::Result joined = c.Await(1);
  EXPECT_EQ(joined.join().rank(), 1);
  EXPECT_EQ(joined.join().generation(), 2);
}

TEST_F(MembershipCallsTest, TheLastCallEndsByItself) {
  MemberStream a(server_, "a");
  EXPECT_EQ(a.Call(JoinOperation(1, 0)).join().seats_size(), 1);
  v1::Operation soon = JoinOperation(2, 0);
  soon.mutable_join()->mutable_last_call()->set_nanos(20'000'000);
  EXPECT_EQ(a.Call(soon).join().generation(), 2);
}

TEST_F(MembershipCallsTest, MalformedElasticJoinsAreRefused) {
  Register();
  v1::JoinRequest join;
  join.set_rank(-1);
  join.set_min_world_size(2);
  join.set_max_world_size(4);
  join.mutable_last_call()->set_seconds(-1);
  Status status = Join(join);
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(status.message(), "last_call is -1s and 0ns, must not be negative");
  join.clear_last_call();
  join.set_world_size(4);
  status = Join(join);
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(status.message(),
            "rendezvous: member \"a\" (host-a, pid 7) asks for world size 4 "
            "and for 2 to 4; set world_size, or min_world_size and "
            "max_world_size");
  join.clear_world_size();
  join.set_rank(0);
  status = Join(join);
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("asks for rank 0 of world size 2 to 4"));
}

TEST_F(MembershipCallsTest, ACloseIsForGoodAndTheFirstReasonStays) {
  MemberStream b(server_, "b");
  b.SendOperation(JoinOperation(1, 100));
  server_.AwaitWaiters("j", 1);
  Register();
  v1::CloseRendezvousRequest close;
  close.set_sequence(1);
  close.set_reason("finished");
  v1::CloseRendezvousResponse closed;
  ASSERT_TRUE(Call(&Members::CloseRendezvous, close, &closed).ok());
  ASSERT_TRUE(Call(&Members::CloseRendezvous, close, &closed).ok());
  EXPECT_EQ(closed.coordinator_epoch(), server_.server().epoch());
  v1::RegisterGroupsRequest groups;
  groups.set_sequence(1);
  v1::RegisterGroupsResponse none;
  EXPECT_EQ(Call(&Members::RegisterGroups, groups, &none).message(),
            "sequence 1 of RegisterGroups was used for CloseRendezvous before");
  Status status = v1::FromWire(b.Await(1).status());
  EXPECT_EQ(status.code(), StatusCode::kOutOfRange);
  EXPECT_EQ(status.message(),
            "rendezvous: closed by member \"a\" (host-a, pid 7): finished");

  v1::Operation again;
  again.set_id(2);
  again.mutable_close_rendezvous()->set_reason("never");
  EXPECT_TRUE(b.Call(again).has_close_rendezvous());
  status = v1::FromWire(b.Call(JoinOperation(3, 0)).status());
  EXPECT_EQ(status.code(), StatusCode::kOutOfRange);
  EXPECT_EQ(server_.Job("j").rendezvous_closed(),
            "member \"a\" (host-a, pid 7): finished");
}

TEST_F(MembershipCallsTest, GroupsAreRegisteredInBulkByStreamAndUnaryCall) {
  MemberStream a(server_, "a");
  MemberStream b(server_, "b");
  v1::Operation join = JoinOperation(1, 0);
  join.mutable_join()->clear_last_call();
  join.mutable_join()->clear_max_world_size();
  join.mutable_join()->clear_min_world_size();
  join.mutable_join()->set_rank(0);
  join.mutable_join()->set_world_size(2);
  a.SendOperation(join);
  server_.AwaitWaiters("j", 1);
  EXPECT_THAT(server_.Job("j").missing_ranks(), ElementsAre(1));
  join.mutable_join()->set_rank(1);
  EXPECT_EQ(b.Call(join).join().rank(), 1);
  a.Await(1);
  EXPECT_THAT(server_.Job("j").missing_ranks(), ElementsAre());

  v1::RegisterGroupsRequest request;
  request.set_sequence(2);
  request.set_generation(1);
  *request.add_groups() = Group("pair", {0, 1});
  *request.add_groups() = Group("alone", {0});
  request.mutable_groups(0)->set_description("tensor parallel");
  v1::RegisterGroupsResponse response;
  ASSERT_TRUE(Call(&Members::RegisterGroups, request, &response).ok());
  EXPECT_THAT(response.registered(), ElementsAre(1, 1));

  v1::Operation operation;
  operation.set_id(2);
  *operation.mutable_register_groups()->add_groups() = Group("pair", {1});
  const Status status = v1::FromWire(b.Call(operation).status());
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(status.message(),
            "group \"pair\": member \"b\" (host-b, pid 0) registers 1 rank "
            "(1), member \"a\" (host-a, pid 0) registered 2 ranks (0, 1)");
  const v1::GetJobResponse job = server_.Job("j");
  ASSERT_EQ(job.groups_size(), 2);
  EXPECT_EQ(job.groups(1).name(), "pair");
  EXPECT_EQ(job.groups(1).description(), "tensor parallel");
  EXPECT_THAT(job.groups(1).ranks(), ElementsAre(0, 1));
  EXPECT_EQ(job.groups(1).registered(), 1);
  EXPECT_THAT(job.groups(1).missing(), ElementsAre(1));
  EXPECT_TRUE(job.groups(1).has_forming_for());
  EXPECT_FALSE(job.groups(0).has_forming_for());

  // Only the group's ranks may use a barrier of the group.
  operation.Clear();
  operation.set_id(3);
  operation.mutable_await_barrier()->set_group("alone");
  operation.mutable_await_barrier()->set_name("b");
  EXPECT_EQ(a.Call(operation).await_barrier().instance(), 1);

  operation.Clear();
  operation.set_id(4);
  *operation.mutable_register_groups()->add_groups() = Group("pair", {0, 1});
  EXPECT_THAT(b.Call(operation).register_groups().registered(), ElementsAre(2));
  // A retry gets the answer of the first attempt.
  response.Clear();
  ASSERT_TRUE(Call(&Members::RegisterGroups, request, &response).ok());
  EXPECT_THAT(response.registered(), ElementsAre(1, 1));
  EXPECT_THAT(server_.Http("/metrics"),
              HasSubstr("\nmuster_coordinator_groups 2\n"));

  // Ranks that pass different arguments to a call are told.
  request.Clear();
  request.set_sequence(3);
  v1::GroupCall& call = *request.mutable_call();
  call.set_series("new_group");
  call.set_number(1);
  call.set_state(v1::GroupCall::WAITS);
  call.set_callers(2);
  call.set_arguments("makes x");
  call.set_arguments_hash(1);
  ASSERT_TRUE(Call(&Members::RegisterGroups, request, &response).ok());
  operation.Clear();
  operation.set_id(6);
  *operation.mutable_register_groups()->mutable_call() = call;
  operation.mutable_register_groups()->mutable_call()->set_arguments("makes y");
  operation.mutable_register_groups()->mutable_call()->set_arguments_hash(2);
  EXPECT_EQ(b.Call(operation).status().code(), 0);
  operation.set_id(7);
  // A state of a later version.
  operation.mutable_register_groups()->mutable_call()->set_state(
      static_cast<v1::GroupCall::State>(99));
  EXPECT_EQ(b.Call(operation).status().code(), 0);
  operation.set_id(8);
  operation.mutable_register_groups()->mutable_call()->set_state(
      v1::GroupCall::STILL_WAITS);
  EXPECT_EQ(v1::FromWire(b.Call(operation).status()).message(),
            "ranks do not mean the same by one call: rank 0 (host-a, pid 0) "
            "makes x, rank 1 (host-b, pid 0) makes y");

  // The last member to leave a group ends it.
  operation.Clear();
  operation.set_id(5);
  operation.mutable_register_groups()->add_left("pair");
  b.Call(operation);
  EXPECT_EQ(server_.Job("j").groups(1).registered(), 1);
  operation.mutable_register_groups()->add_left("alone");
  a.Call(operation);
  EXPECT_EQ(server_.Job("j").groups_size(), 0);
}

TEST_F(MembershipCallsTest, AJoinLeavesTheSeatsOutWhenTheyAreNotWanted) {
  Register();
  v1::JoinRequest request;
  request.set_rank(-1);
  request.set_world_size(1);
  request.set_sequence(1);
  request.set_without_seats(true);
  v1::JoinResponse response;
  ASSERT_TRUE(Call(&Members::Join, request, &response).ok());
  EXPECT_EQ(response.world_size(), 1);
  EXPECT_EQ(response.seats_size(), 0);
  // The retry may request the seats.
  request.set_without_seats(false);
  ASSERT_TRUE(Call(&Members::Join, request, &response).ok());
  EXPECT_EQ(response.generation(), 1);
  EXPECT_EQ(response.seats_size(), 1);
}

}  // namespace
}  // namespace muster::coordinator
