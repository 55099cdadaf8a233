// The unary services, each call's good and bad path, over a real channel.

#include "coordinator/server/rpc/unary.h"

#include <future>
#include <string>
#include <utility>
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
using ::testing::StartsWith;
using Store = v1::StoreService::Stub;
using Members = v1::MembershipService::Stub;

class UnaryTest : public ::testing::Test {
 protected:
  // A store request in job "j" by a plain client.
  template <typename Request>
  static Request Plain() {
    Request request;
    *request.mutable_caller() = MakeCaller("j");
    return request;
  }

  template <typename Stub, typename Request, typename Response>
  Status Call(Stub& stub,
              grpc::Status (Stub::*method)(grpc::ClientContext*, const Request&,
                                           Response*),
              const Request& request, Response* response) {
    Status status = v1::FromGrpc(CallGrpc(stub, method, request, response));
    if (status.ok()) {
      EXPECT_EQ(response->coordinator_epoch(), server_.server().epoch());
    }
    return status;
  }

  Status Set(const std::string& key, const std::string& value) {
    auto request = Plain<v1::SetRequest>();
    request.set_key(key);
    request.set_value(value);
    v1::SetResponse response;
    return Call(server_.store(), &Store::Set, request, &response);
  }

  Status Register(const std::string& member, uint64_t incarnation) {
    v1::RegisterRequest request;
    *request.mutable_caller() = MakeCaller("j", member, incarnation);
    request.set_host("host-" + member);
    v1::RegisterResponse response;
    Status status =
        Call(server_.membership(), &Members::Register, request, &response);
    if (status.ok()) {
      EXPECT_EQ(response.lease().seconds(), 10);
      EXPECT_EQ(response.rank(), -1);
    }
    return status;
  }

  std::future<std::pair<Status, v1::JoinResponse>> Join(
      const std::string& member, int rank, int world_size) {
    v1::JoinRequest request;
    *request.mutable_caller() = MakeCaller("j", member, 1);
    request.set_rank(rank);
    request.set_world_size(world_size);
    request.set_address("address of " + member);
    return std::async(std::launch::async, [this, request] {
      v1::JoinResponse response;
      Status status =
          Call(server_.membership(), &Members::Join, request, &response);
      return std::make_pair(std::move(status), response);
    });
  }

  std::future<std::pair<Status, v1::AwaitBarrierResponse>> Arrive(
      const std::string& member, int rank, int timeout_seconds) {
    v1::AwaitBarrierRequest request;
    *request.mutable_caller() = MakeCaller("j", member, 1);
    request.set_group("world");
    request.set_name("epoch_end");
    request.set_rank(rank);
    request.mutable_timeout()->set_seconds(timeout_seconds);
    return std::async(std::launch::async, [this, request] {
      v1::AwaitBarrierResponse response;
      Status status =
          Call(server_.barrier(), &v1::BarrierService::Stub::AwaitBarrier,
               request, &response);
      return std::make_pair(std::move(status), response);
    });
  }

  // Members a and b with ranks 0 and 1.
  void FormWorldOfTwo() {
    ASSERT_TRUE(Register("a", 1).ok());
    ASSERT_TRUE(Register("b", 1).ok());
    auto a = Join("a", 0, 2);
    auto b = Join("b", 1, 2);
    ASSERT_TRUE(a.get().first.ok());
    ASSERT_TRUE(b.get().first.ok());
  }

  TestServer server_;
};

TEST_F(UnaryTest, SetAndGet) {
  ASSERT_TRUE(Set("k", std::string("v\0w", 3)).ok());
  auto request = Plain<v1::GetRequest>();
  request.set_key("k");
  v1::GetResponse response;
  ASSERT_TRUE(Call(server_.store(), &Store::Get, request, &response).ok());
  EXPECT_EQ(response.value(), std::string("v\0w", 3));
  EXPECT_EQ(response.revision(), 1);
}

TEST_F(UnaryTest, GetWaitsForTheKey) {
  auto get = std::async(std::launch::async, [&] {
    auto request = Plain<v1::GetRequest>();
    request.set_key("late");
    v1::GetResponse response;
    const Status status =
        Call(server_.store(), &Store::Get, request, &response);
    return status.ok() ? response.value() : status.ToString();
  });
  server_.AwaitWaiters("j", 1);
  ASSERT_TRUE(Set("late", "here").ok());
  EXPECT_EQ(get.get(), "here");
}

TEST_F(UnaryTest, GetTimesOutAndNamesTheKey) {
  auto request = Plain<v1::GetRequest>();
  request.set_key("never");
  request.mutable_timeout()->set_nanos(20'000'000);
  v1::GetResponse response;
  const Status status = Call(server_.store(), &Store::Get, request, &response);
  EXPECT_EQ(status.code(), StatusCode::kDeadlineExceeded);
  EXPECT_THAT(std::string(status.message()), HasSubstr("never"));
}

TEST_F(UnaryTest, TryGetTellsAbsentFromEmpty) {
  ASSERT_TRUE(Set("empty", "").ok());
  auto request = Plain<v1::TryGetRequest>();
  v1::TryGetResponse response;
  request.set_key("empty");
  ASSERT_TRUE(Call(server_.store(), &Store::TryGet, request, &response).ok());
  EXPECT_TRUE(response.found());
  request.set_key("absent");
  ASSERT_TRUE(Call(server_.store(), &Store::TryGet, request, &response).ok());
  EXPECT_FALSE(response.found());
}

TEST_F(UnaryTest, AddCountsAndRefusesText) {
  auto request = Plain<v1::AddRequest>();
  request.set_key("n");
  request.set_delta(5);
  v1::AddResponse response;
  ASSERT_TRUE(Call(server_.store(), &Store::Add, request, &response).ok());
  request.set_delta(-7);
  ASSERT_TRUE(Call(server_.store(), &Store::Add, request, &response).ok());
  EXPECT_EQ(response.value(), -2);
  ASSERT_TRUE(Set("n", "text").ok());
  const Status status = Call(server_.store(), &Store::Add, request, &response);
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr("text"));
}

TEST_F(UnaryTest, AppendCompareSetDelete) {
  auto append = Plain<v1::AppendRequest>();
  append.set_key("k");
  append.set_value("ab");
  v1::AppendResponse appended;
  ASSERT_TRUE(Call(server_.store(), &Store::Append, append, &appended).ok());

  auto compare = Plain<v1::CompareSetRequest>();
  compare.set_key("k");
  compare.set_expected("wrong");
  compare.set_desired("new");
  v1::CompareSetResponse compared;
  ASSERT_TRUE(
      Call(server_.store(), &Store::CompareSet, compare, &compared).ok());
  EXPECT_EQ(compared.value(), "ab");
  EXPECT_FALSE(compared.written());
  compare.set_expected("ab");
  ASSERT_TRUE(
      Call(server_.store(), &Store::CompareSet, compare, &compared).ok());
  EXPECT_EQ(compared.value(), "new");
  EXPECT_TRUE(compared.written());

  auto drop = Plain<v1::DeleteRequest>();
  drop.set_key("k");
  v1::DeleteResponse dropped;
  ASSERT_TRUE(Call(server_.store(), &Store::Delete, drop, &dropped).ok());
  EXPECT_TRUE(dropped.deleted());
  ASSERT_TRUE(Call(server_.store(), &Store::Delete, drop, &dropped).ok());
  EXPECT_FALSE(dropped.deleted());
}

TEST_F(UnaryTest, MultiSetMultiGetCheckWaitListCount) {
  auto set = Plain<v1::MultiSetRequest>();
  for (const char* key : {"p/1", "p/2", "q"}) {
    v1::KeyValue* entry = set.add_entries();
    entry->set_key(key);
    entry->set_value(std::string("v:") + key);
  }
  v1::MultiSetResponse set_done;
  ASSERT_TRUE(Call(server_.store(), &Store::MultiSet, set, &set_done).ok());

  auto get = Plain<v1::MultiGetRequest>();
  get.add_keys("q");
  get.add_keys("p/1");
  v1::MultiGetResponse got;
  ASSERT_TRUE(Call(server_.store(), &Store::MultiGet, get, &got).ok());
  EXPECT_THAT(got.values(), ElementsAre("v:q", "v:p/1"));

  auto check = Plain<v1::CheckRequest>();
  check.add_keys("q");
  v1::CheckResponse checked;
  ASSERT_TRUE(Call(server_.store(), &Store::Check, check, &checked).ok());
  EXPECT_TRUE(checked.all_present());
  check.add_keys("absent");
  ASSERT_TRUE(Call(server_.store(), &Store::Check, check, &checked).ok());
  EXPECT_FALSE(checked.all_present());

  auto wait = Plain<v1::WaitRequest>();
  wait.add_keys("q");
  v1::WaitResponse waited;
  ASSERT_TRUE(Call(server_.store(), &Store::Wait, wait, &waited).ok());
  wait.add_keys("absent");
  wait.mutable_timeout()->set_nanos(1'000'000);
  EXPECT_EQ(Call(server_.store(), &Store::Wait, wait, &waited).code(),
            StatusCode::kDeadlineExceeded);

  auto list = Plain<v1::ListKeysRequest>();
  list.set_prefix("p/");
  list.set_limit(1);
  v1::ListKeysResponse listed;
  ASSERT_TRUE(Call(server_.store(), &Store::ListKeys, list, &listed).ok());
  EXPECT_THAT(listed.keys(), ElementsAre("p/1"));
  EXPECT_TRUE(listed.more());
  list.set_start_after("p/1");
  list.set_limit(0);
  ASSERT_TRUE(Call(server_.store(), &Store::ListKeys, list, &listed).ok());
  EXPECT_THAT(listed.keys(), ElementsAre("p/2"));
  EXPECT_FALSE(listed.more());

  v1::NumKeysResponse counted;
  ASSERT_TRUE(Call(server_.store(), &Store::NumKeys,
                   Plain<v1::NumKeysRequest>(), &counted)
                  .ok());
  EXPECT_EQ(counted.count(), 3);
}

TEST_F(UnaryTest, MalformedJobNamesAreRefused) {
  const std::string kNames[] = {"", "a/b", std::string(129, 'x'),
                                "caf\xC3\xA9"};
  for (const std::string& job : kNames) {
    v1::NumKeysRequest request;
    *request.mutable_caller() = MakeCaller(job);
    v1::NumKeysResponse response;
    const Status status =
        Call(server_.store(), &Store::NumKeys, request, &response);
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << job;
    EXPECT_THAT(std::string(status.message()), HasSubstr("job name \""));
  }
}

TEST_F(UnaryTest, LimitNamesItselfAndTheOffer) {
  const Status status = Set(std::string(5000, 'k'), "v");
  EXPECT_EQ(status.code(), StatusCode::kResourceExhausted);
  EXPECT_EQ(status.message(), "limit key_bytes is 4096, offered 5000 (key \"" +
                                  std::string(64, 'k') + "...\")");
}

TEST_F(UnaryTest, NegativeTimeoutsAreRefused) {
  v1::GetRequest get;
  *get.mutable_caller() = MakeCaller("j");
  get.set_key("k");
  get.mutable_timeout()->set_seconds(-1);
  v1::GetResponse value;
  const Status expected =
      InvalidArgumentError("timeout is -1s and 0ns, must not be negative");
  EXPECT_EQ(Call(server_.store(), &Store::Get, get, &value), expected);
  v1::WaitRequest wait;
  *wait.mutable_caller() = MakeCaller("j");
  wait.add_keys("k");
  *wait.mutable_timeout() = get.timeout();
  v1::WaitResponse waited;
  EXPECT_EQ(Call(server_.store(), &Store::Wait, wait, &waited), expected);
  v1::MultiGetRequest several;
  *several.mutable_caller() = MakeCaller("j");
  several.add_keys("k");
  *several.mutable_timeout() = get.timeout();
  v1::MultiGetResponse values;
  EXPECT_EQ(Call(server_.store(), &Store::MultiGet, several, &values),
            expected);
  ASSERT_TRUE(Register("a", 1).ok());
  v1::JoinRequest join;
  *join.mutable_caller() = MakeCaller("j", "a", 1);
  join.set_world_size(2);
  *join.mutable_timeout() = get.timeout();
  v1::JoinResponse joined;
  EXPECT_EQ(Call(server_.membership(), &Members::Join, join, &joined),
            expected);
  v1::AwaitBarrierRequest arrive;
  *arrive.mutable_caller() = MakeCaller("j", "a", 1);
  *arrive.mutable_timeout() = get.timeout();
  v1::AwaitBarrierResponse arrived;
  EXPECT_EQ(Call(server_.barrier(), &v1::BarrierService::Stub::AwaitBarrier,
                 arrive, &arrived),
            expected);
  v1::HeartbeatRequest beat;
  *beat.mutable_caller() = MakeCaller("j", "a", 1);
  beat.add_groups()->mutable_running_for()->set_nanos(-5);
  v1::HeartbeatResponse heard;
  EXPECT_EQ(Call(server_.membership(), &Members::Heartbeat, beat, &heard),
            InvalidArgumentError(
                "heartbeat: groups.running_for is -5ns, must not be negative"));
  EXPECT_EQ(server_.Job("j").summary().waiters(), 0);
}

TEST_F(UnaryTest, OlderIncarnationIsFenced) {
  ASSERT_TRUE(Register("a", 1).ok());
  ASSERT_TRUE(Register("a", 2).ok());
  v1::HeartbeatRequest request;
  *request.mutable_caller() = MakeCaller("j", "a", 1);
  v1::HeartbeatResponse response;
  const Status status =
      Call(server_.membership(), &Members::Heartbeat, request, &response);
  EXPECT_EQ(status.code(), StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("stale incarnation 1 of member \"a\", current is 2"));
}

TEST_F(UnaryTest, RetriedMutationIsAppliedOnce) {
  ASSERT_TRUE(Register("a", 1).ok());
  v1::AddRequest request;
  *request.mutable_caller() = MakeCaller("j", "a", 1);
  request.set_key("n");
  request.set_delta(1);
  request.set_sequence(1);
  v1::AddResponse response;
  for (int i = 0; i < 3; ++i) {
    ASSERT_TRUE(Call(server_.store(), &Store::Add, request, &response).ok());
    EXPECT_EQ(response.value(), 1);
  }
  request.mutable_caller()->set_acknowledged_through(1);
  EXPECT_EQ(Call(server_.store(), &Store::Add, request, &response).code(),
            StatusCode::kFailedPrecondition);
}

TEST_F(UnaryTest, JoinGivesEverybodyTheSameSeats) {
  ASSERT_TRUE(Register("a", 1).ok());
  ASSERT_TRUE(Register("b", 1).ok());
  auto a = Join("a", -1, 2);
  server_.AwaitWaiters("j", 1);
  auto b = Join("b", 0, 2);
  const auto [status_a, of_a] = a.get();
  const auto [status_b, of_b] = b.get();
  ASSERT_TRUE(status_a.ok()) << status_a;
  ASSERT_TRUE(status_b.ok()) << status_b;
  EXPECT_EQ(of_a.generation(), 1);
  EXPECT_EQ(of_a.rank(), 1);
  EXPECT_EQ(of_b.rank(), 0);
  ASSERT_EQ(of_a.seats_size(), 2);
  EXPECT_EQ(of_a.seats(0).member(), "b");
  EXPECT_EQ(of_a.seats(1).address(), "address of a");
  EXPECT_EQ(of_a.seats(1).host(), "host-a");
  EXPECT_EQ(of_b.seats(1).member(), "a");
  EXPECT_EQ(server_.Job("j").summary().world_size(), 2);
}

TEST_F(UnaryTest, SecondClaimantOfARankIsNamed) {
  ASSERT_TRUE(Register("a", 1).ok());
  ASSERT_TRUE(Register("b", 1).ok());
  auto a = Join("a", 0, 2);
  server_.AwaitWaiters("j", 1);
  const Status status = Join("b", 0, 2).get().first;
  EXPECT_EQ(status.code(), StatusCode::kAlreadyExists);
  EXPECT_THAT(std::string(status.message()), HasSubstr("a"));
  EXPECT_THAT(std::string(status.message()), HasSubstr("b"));
  EXPECT_TRUE(Join("b", 1, 2).get().first.ok());
  EXPECT_TRUE(a.get().first.ok());
}

TEST_F(UnaryTest, BarrierReleasesAll) {
  FormWorldOfTwo();
  auto a = Arrive("a", 0, 30);
  server_.AwaitWaiters("j", 1);
  const v1::GetJobResponse open = server_.Job("j");
  ASSERT_EQ(open.barriers_size(), 1);
  EXPECT_EQ(open.barriers(0).missing(0).member(), "b");
  auto b = Arrive("b", 1, 30);
  const auto [status_a, of_a] = a.get();
  const auto [status_b, of_b] = b.get();
  ASSERT_TRUE(status_a.ok()) << status_a;
  ASSERT_TRUE(status_b.ok()) << status_b;
  EXPECT_EQ(of_a.instance(), 1);
  EXPECT_EQ(of_b.instance(), 1);
}

TEST_F(UnaryTest, BarrierTimeoutCarriesTheCulprits) {
  FormWorldOfTwo();
  const Status status = Arrive("a", 0, 0).get().first;
  ASSERT_EQ(status.code(), StatusCode::kDeadlineExceeded) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("host-b"));
  const absl::optional<v1::Culprits> culprits = v1::GetCulprits(status);
  ASSERT_TRUE(culprits.has_value());
  ASSERT_EQ(culprits->members_size(), 1);
  EXPECT_EQ(culprits->members(0).rank(), 1);
  EXPECT_EQ(culprits->members(0).host(), "host-b");
}

TEST_F(UnaryTest, FailureReportEndsTheBarrierOfTheOthers) {
  FormWorldOfTwo();
  auto a = Arrive("a", 0, 30);
  server_.AwaitWaiters("j", 1);
  v1::ReportFailureRequest request;
  *request.mutable_caller() = MakeCaller("j", "b", 1);
  request.set_error("CUDA error 700");
  v1::ReportFailureResponse response;
  ASSERT_TRUE(
      Call(server_.membership(), &Members::ReportFailure, request, &response)
          .ok());
  const Status status = a.get().first;
  EXPECT_EQ(status.code(), StatusCode::kAborted);
  EXPECT_THAT(std::string(status.message()), HasSubstr("CUDA error 700"));
  ASSERT_TRUE(v1::GetCulprits(status).has_value());
  EXPECT_EQ(v1::GetCulprits(status)->members(0).state(),
            v1::MEMBER_STATE_FAILED);
}

TEST_F(UnaryTest, AVerdictKeepsTheRanksOfManyCulpritsNotTheirTexts) {
  FormWorldOfTwo();
  v1::RegisterGroupsRequest groups;
  *groups.mutable_caller() = MakeCaller("j", "a", 1);
  groups.set_generation(1);
  v1::GroupDefinition& group = *groups.add_groups();
  group.set_name("g");
  group.add_ranks(0);
  group.add_ranks(1);
  v1::RegisterGroupsResponse registered;
  ASSERT_TRUE(
      Call(server_.membership(), &Members::RegisterGroups, groups, &registered)
          .ok());
  v1::ReportGroupFailureRequest request;
  *request.mutable_caller() = MakeCaller("j", "a", 1);
  request.set_generation(1);
  request.set_group("g");
  request.set_kind(v1::ReportGroupFailureRequest::DECISION);
  for (int rank = 0; rank < 1000; ++rank) {
    v1::MemberInfo& culprit = *request.mutable_culprits()->add_members();
    culprit.set_rank(rank);
    culprit.set_cause(std::string(1000, 'x'));
  }
  v1::ReportGroupFailureResponse response;
  ASSERT_TRUE(Call(server_.membership(), &Members::ReportGroupFailure, request,
                   &response)
                  .ok());
  const v1::Culprits& culprits = response.verdict().culprits();
  EXPECT_LE(culprits.ByteSizeLong(), 16u << 10);
  const int described = culprits.members_size();
  EXPECT_GT(described, 0);
  ASSERT_EQ(culprits.others_size(), 2);
  EXPECT_EQ(culprits.others(1), static_cast<uint32_t>(1000 - described));
}

TEST_F(UnaryTest, LeaveMakesTheMemberAStranger) {
  ASSERT_TRUE(Register("a", 1).ok());
  v1::LeaveRequest request;
  *request.mutable_caller() = MakeCaller("j", "a", 1);
  request.set_reason("finished");
  v1::LeaveResponse response;
  ASSERT_TRUE(
      Call(server_.membership(), &Members::Leave, request, &response).ok());
  EXPECT_EQ(server_.Job("j").summary().members_alive(), 0);
  EXPECT_EQ(
      Call(server_.membership(), &Members::Leave, request, &response).code(),
      StatusCode::kFailedPrecondition);
}

TEST_F(UnaryTest, HeartbeatProgressIsShown) {
  ASSERT_TRUE(Register("a", 1).ok());
  v1::HeartbeatRequest request;
  *request.mutable_caller() = MakeCaller("j", "a", 1);
  v1::GroupProgress* group = request.add_groups();
  group->set_group("world");
  group->set_last_enqueued(418);
  group->set_last_completed(417);
  group->set_current("all_reduce float32[1024]");
  v1::HeartbeatResponse response;
  ASSERT_TRUE(
      Call(server_.membership(), &Members::Heartbeat, request, &response).ok());
  const v1::GetJobResponse job = server_.Job("j");
  ASSERT_EQ(job.members_size(), 1);
  EXPECT_THAT(job.members(0).last_progress(),
              HasSubstr("all_reduce float32[1024]"));
  EXPECT_EQ(job.members(0).state(), v1::MEMBER_STATE_ALIVE);
}

TEST_F(UnaryTest, CancelledCallDoesNotStayParked) {
  grpc::ClientContext context;
  auto get = std::async(std::launch::async, [&] {
    auto request = Plain<v1::GetRequest>();
    request.set_key("never");
    v1::GetResponse response;
    return server_.store().Get(&context, request, &response).error_code();
  });
  server_.AwaitWaiters("j", 1);
  context.TryCancel();
  EXPECT_EQ(get.get(), grpc::CANCELLED);
  server_.AwaitWaiters("j", 0);
}

TEST_F(UnaryTest, DeadlineOfTheTransportUnparksTheCall) {
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() +
                       std::chrono::milliseconds(50));
  auto request = Plain<v1::GetRequest>();
  request.set_key("never");
  v1::GetResponse response;
  EXPECT_EQ(server_.store().Get(&context, request, &response).error_code(),
            grpc::DEADLINE_EXCEEDED);
  server_.AwaitWaiters("j", 0);
}

TEST_F(UnaryTest, JobsDoNotSeeEachOther) {
  ASSERT_TRUE(Set("k", "of j").ok());
  v1::TryGetRequest request;
  *request.mutable_caller() = MakeCaller("other");
  request.set_key("k");
  v1::TryGetResponse response;
  ASSERT_TRUE(Call(server_.store(), &Store::TryGet, request, &response).ok());
  EXPECT_FALSE(response.found());

  v1::ListJobsResponse jobs;
  ASSERT_TRUE(Call(server_.admin(), &v1::AdminService::Stub::ListJobs,
                   v1::ListJobsRequest(), &jobs)
                  .ok());
  ASSERT_EQ(jobs.jobs_size(), 2);
  EXPECT_EQ(jobs.jobs(0).job(), "j");
  EXPECT_EQ(jobs.jobs(0).keys(), 1);
  EXPECT_EQ(jobs.jobs(0).store_bytes(), 5);
  EXPECT_EQ(jobs.jobs(1).job(), "other");
  EXPECT_EQ(jobs.jobs(1).keys(), 0);
}

TEST(UnaryLimitTest, OneJobTooManyIsRefused) {
  ServerOptions options;
  options.jobs_max = 1;
  TestServer server(options);
  v1::NumKeysRequest request;
  v1::NumKeysResponse response;
  *request.mutable_caller() = MakeCaller("a");
  ASSERT_TRUE(
      CallGrpc(server.store(), &Store::NumKeys, request, &response).ok());
  *request.mutable_caller() = MakeCaller("b");
  const grpc::Status status =
      CallGrpc(server.store(), &Store::NumKeys, request, &response);
  EXPECT_EQ(status.error_code(), grpc::RESOURCE_EXHAUSTED);
  EXPECT_THAT(status.error_message(),
              StartsWith("limit jobs is 1, offered 2 (job \""));
}

TEST(UnaryLimitTest, AnswerThatNoMessageHoldsIsRefused) {
  ServerOptions options;
  options.message_bytes_max = 10'000;
  TestServer server(options);
  v1::SetRequest set;
  *set.mutable_caller() = MakeCaller("j");
  set.set_key("k");
  set.set_value(std::string(8'000, 'v'));
  v1::SetResponse set_done;
  ASSERT_TRUE(CallGrpc(server.store(), &Store::Set, set, &set_done).ok());
  v1::MultiGetRequest get;
  *get.mutable_caller() = MakeCaller("j");
  get.add_keys("k");
  get.add_keys("k");
  v1::MultiGetResponse got;
  const grpc::Status status =
      CallGrpc(server.store(), &Store::MultiGet, get, &got);
  EXPECT_EQ(status.error_code(), grpc::RESOURCE_EXHAUSTED);
  EXPECT_THAT(status.error_message(),
              HasSubstr("limit message_bytes is 10000, offered 16"));
}

}  // namespace
}  // namespace muster::coordinator
