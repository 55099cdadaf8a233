// Tests what a server does when its fleet gives it shards and takes them away.

#include "coordinator/server/shards.h"

#include <future>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "coordinator/server/test_disk.h"
#include "coordinator/server/test_server.h"
#include "coordinator/storage/fleet.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "proto/muster/v1/status_wire.h"

namespace muster::coordinator {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

constexpr char kJob[] = "demo";

// A fleet whose assignments are made by the test, which is its only etcd.
class TestFleet final : public Fleet {
 public:
  struct State {
    FleetHost* host = nullptr;
    std::string owner;  // of all shards, as the coordinator believes
    Status ready;
    std::map<int, std::string> moved;
    bool left = false;
  };

  TestFleet(State* state, FleetHost* host) : state_(*state) {
    state_.host = host;
  }

  FleetView View() const override {
    FleetView view;
    FleetMember one;
    one.address = "a:1";
    one.version = "0.1";
    FleetMember other;
    other.address = "b:2";
    other.http_address = "b:3";
    other.draining = true;
    view.members = {one, other};
    view.shards[0].owner = "b:2";
    view.shards[5].pin = "a:1";
    return view;
  }
  FleetCounts Counts() const override {
    FleetCounts counts;
    counts.members = 2;
    counts.owned = 7;
    counts.lost = 3;
    counts.errors[StatusCode::kUnavailable] = 4;
    return counts;
  }
  std::string FindOwner(int) override { return state_.owner; }
  Status Move(int shard, const std::string& address) override {
    if (address == "nobody:1") return InvalidArgumentError("to is nobody");
    state_.moved[shard] = address;
    return OkStatus();
  }
  Status CheckReady() const override { return state_.ready; }
  void Leave(std::chrono::milliseconds) override { state_.left = true; }

 private:
  State& state_;
};

// A coordinator of the fleet, on the disk that all share.
class Coordinator {
 public:
  explicit Coordinator(Disk& disk) : disk_(disk), server_(Options()) {}

  void Take() {
    ASSERT_EQ(fleet_.host->Take(kShard, std::make_unique<DiskStorage>(&disk_)),
              OkStatus());
  }
  // Gives the shard to a coordinator at `owner`.
  void HandOver(const std::string& owner) {
    ASSERT_EQ(fleet_.host->Hold(kShard, owner), OkStatus());
    fleet_.host->Release(kShard, owner);
  }

  grpc::Status Set(const std::string& key, const std::string& value,
                   uint64_t sequence = 0) {
    v1::SetRequest request;
    *request.mutable_caller() =
        sequence == 0 ? MakeCaller(kJob) : MakeCaller(kJob, "m", 7);
    request.set_key(key);
    request.set_value(value);
    request.set_sequence(sequence);
    v1::SetResponse response;
    const grpc::Status status = CallGrpc(
        server_.store(), &v1::StoreService::Stub::Set, request, &response);
    revision = response.revision();
    return status;
  }
  // Waits for the key.
  grpc::Status Get(const std::string& key, std::string* value = nullptr) {
    v1::GetRequest request;
    *request.mutable_caller() = MakeCaller(kJob);
    request.set_key(key);
    request.mutable_timeout()->set_seconds(60);
    v1::GetResponse response;
    const grpc::Status status = CallGrpc(
        server_.store(), &v1::StoreService::Stub::Get, request, &response);
    if (value != nullptr) *value = response.value();
    return status;
  }

  static constexpr int kShard = 22;  // of kJob; see the first test
  FleetHost& host() { return *fleet_.host; }
  TestServer& server() { return server_; }
  TestFleet::State& fleet() { return fleet_; }

  int64_t revision = 0;  // that Set returned

 private:
  ServerOptions Options() {
    ServerOptions options;
    options.http_listen = "127.0.0.1:0";
    options.open_fleet =
        [this](const FleetMember& self,
               FleetHost& host) -> StatusOr<std::unique_ptr<Fleet>> {
      EXPECT_THAT(self.address, StartsWith("127.0.0.1:"));
      return std::unique_ptr<Fleet>(
          std::make_unique<TestFleet>(&fleet_, &host));
    };
    return options;
  }

  Disk& disk_;
  TestFleet::State fleet_;
  TestServer server_;
};

void ExpectOwner(const grpc::Status& status, const std::string& owner) {
  EXPECT_EQ(status.error_code(), grpc::UNAVAILABLE) << status.error_message();
  const auto payload = v1::GetJobOwner(v1::FromGrpc(status));
  ASSERT_TRUE(payload.has_value()) << status.error_message();
  EXPECT_EQ(payload->address(), owner);
}

void ExpectOwner(const Status& status, const std::string& owner) {
  ExpectOwner(v1::ToGrpc(status), owner);
}

TEST(ShardsTest, TheShardOfTheTests) {
  EXPECT_EQ(FindShard(kJob), Coordinator::kShard);
}

TEST(ShardsTest, ACallForAJobElsewhereIsToldItsOwner) {
  Disk disk;
  Coordinator one(disk);
  one.fleet().owner = "b:2";
  ExpectOwner(one.Set("k", "v"), "b:2");
  EXPECT_THAT(one.Set("k", "v").error_message(), HasSubstr("b:2"));
  TestStream stream(one.server().NewChannel());
  stream.Hello(kJob);
  ExpectOwner(stream.Finish(), "b:2");
  v1::GetJobRequest request;
  request.set_job(kJob);
  v1::GetJobResponse response;
  ExpectOwner(CallGrpc(one.server().admin(), &v1::AdminService::Stub::GetJob,
                       request, &response),
              "b:2");
  one.fleet().owner = "";
  ExpectOwner(one.Set("k", "v"), "");
}

TEST(ShardsTest, AJobThatIsHandedOverGoesOnElsewhere) {
  Disk disk;
  Coordinator one(disk);
  Coordinator two(disk);
  one.Take();
  TestStream stream(one.server().NewChannel());
  const v1::Welcome welcome = stream.HelloMember(kJob, "m", 7);
  ASSERT_TRUE(one.Set("k", "v", 1).ok());
  const int64_t revision = one.revision;
  std::future<grpc::Status> waiting =
      std::async(std::launch::async, [&] { return one.Get("later"); });
  one.server().AwaitWaiters(kJob, 1);
  one.HandOver("b:2");
  ExpectOwner(stream.Finish(), "b:2");
  ExpectOwner(waiting.get(), "b:2");
  one.fleet().owner = "b:2";
  ExpectOwner(one.Set("k", "w"), "b:2");

  two.Take();
  TestStream again(two.server().NewChannel());
  EXPECT_EQ(again.HelloMember(kJob, "m", 7).job_epoch(), welcome.job_epoch());
  std::string value;
  ASSERT_TRUE(two.Get("k", &value).ok());
  EXPECT_EQ(value, "v");
  // The same mutation is not applied again.
  ASSERT_TRUE(two.Set("k", "v", 1).ok());
  EXPECT_EQ(two.revision, revision);
}

// Between Hold and Release the next owner does not have the job yet.
TEST(ShardsTest, WhatComesWhileAJobIsHeldIsNotAppliedAndNotAnswered) {
  Disk disk;
  Coordinator one(disk);
  one.Take();
  TestStream stream(one.server().NewChannel());
  stream.HelloMember(kJob, "m", 7);
  ASSERT_EQ(one.host().Hold(Coordinator::kShard, "b:2"), OkStatus());
  stream.SendOperation(SetOperation(1, "k", "v"));
  ExpectOwner(one.Set("k", "v"), "");
  one.host().Release(Coordinator::kShard, "b:2");
  v1::StreamResponse response;
  EXPECT_FALSE(stream.Read(&response)) << response.ShortDebugString();
  ExpectOwner(stream.Finish(), "b:2");
  Coordinator two(disk);
  two.Take();
  EXPECT_EQ(two.server().Job(kJob).summary().keys(), 0);
}

TEST(ShardsTest, AHandoverStoresAndAnswersWhatWasApplied) {
  Disk disk;
  Coordinator one(disk);
  one.Take();
  TestStream stream(one.server().NewChannel());
  stream.HelloMember(kJob, "m", 7);
  disk.Shut();
  stream.SendOperation(SetOperation(1, "k", "v"));
  one.server().Await(kJob, [](const v1::GetJobResponse& job) {
    return job.summary().keys() == 1;
  });
  std::thread handover([&] { one.HandOver("b:2"); });
  disk.Open();
  EXPECT_EQ(stream.Await(1).status().code(), 0);
  handover.join();
  ExpectOwner(stream.Finish(), "b:2");
  Coordinator two(disk);
  two.Take();
  std::string value;
  ASSERT_TRUE(two.Get("k", &value).ok());
  EXPECT_EQ(value, "v");
}

TEST(ShardsTest, ALostShardAnswersNothingMore) {
  Disk disk;
  Coordinator one(disk);
  one.Take();
  TestStream stream(one.server().NewChannel());
  stream.HelloMember(kJob, "m", 7);
  disk.Shut();
  std::future<grpc::Status> written =
      std::async(std::launch::async, [&] { return one.Set("k", "v"); });
  one.server().Await(kJob, [](const v1::GetJobResponse& job) {
    return job.summary().keys() == 1;
  });
  std::thread lose([&] { one.host().Lose({Coordinator::kShard}); });
  ExpectOwner(stream.Finish(), "");
  disk.Open();
  lose.join();
  EXPECT_EQ(written.get().error_code(), grpc::UNAVAILABLE);
  ExpectOwner(one.Set("k", "v"), "");
}

// As when another coordinator has begun and etcd refuses the write.
TEST(ShardsTest, AfterAFailedWriteNothingIsAnswered) {
  Disk disk;
  Coordinator one(disk);
  one.Take();
  ASSERT_TRUE(one.Set("k", "v").ok());
  disk.Break();
  EXPECT_EQ(one.Set("k", "w").error_code(), grpc::UNAVAILABLE);
  EXPECT_EQ(one.Get("k").error_code(), grpc::UNAVAILABLE);
  EXPECT_FALSE(one.host().Hold(Coordinator::kShard, "b:2").ok());
  one.host().Lose({Coordinator::kShard});
  ExpectOwner(one.Get("k"), "");
}

TEST(ShardsTest, AShardThatDoesNotLoadIsNotServed) {
  Disk disk;
  ASSERT_TRUE(disk.Write({{"no record", "of a job"}}).ok());
  Coordinator one(disk);
  EXPECT_TRUE(IsDataLoss(one.host().Take(
      Coordinator::kShard, std::make_unique<DiskStorage>(&disk))));
  ExpectOwner(one.Set("k", "v"), "");
}

TEST(ShardsTest, OperatorsSeeTheFleet) {
  Disk disk;
  Coordinator one(disk);
  one.fleet().ready = UnavailableError("shard 5 is loaded");
  EXPECT_THAT(one.server().Http("/readyz"),
              AllOf(HasSubstr("503"), HasSubstr("shard 5 is loaded")));
  v1::GetClusterRequest request;
  request.set_job(kJob);
  v1::GetClusterResponse cluster;
  ASSERT_TRUE(CallGrpc(one.server().admin(),
                       &v1::AdminService::Stub::GetCluster, request, &cluster)
                  .ok());
  EXPECT_EQ(cluster.job_shard(), Coordinator::kShard);
  EXPECT_EQ(cluster.not_ready(), "shard 5 is loaded");
  ASSERT_EQ(cluster.coordinators_size(), 2);
  EXPECT_EQ(cluster.coordinators(1).address(), "b:2");
  EXPECT_EQ(cluster.coordinators(1).shards(), 1);
  EXPECT_TRUE(cluster.coordinators(1).draining());
  ASSERT_EQ(cluster.shards_size(), kShards);
  EXPECT_EQ(cluster.shards(5).pin(), "a:1");
  one.fleet().ready = OkStatus();
  EXPECT_THAT(one.server().Http("/readyz"), HasSubstr("200"));
  EXPECT_THAT(one.server().Http("/"),
              AllOf(HasSubstr("<td>b:2</td>"), HasSubstr("drains"),
                    HasSubstr("63 shards of jobs have no coordinator")));
  EXPECT_THAT(one.server().Http("/metrics"),
              AllOf(HasSubstr("muster_coordinator_shards_owned 7"),
                    HasSubstr("shard_changes_total{change=\"lost\"} 3"),
                    HasSubstr("etcd_errors_total{code=\"UNAVAILABLE\"} 4")));
}

TEST(ShardsTest, AnOperatorMovesAJob) {
  Disk disk;
  Coordinator one(disk);
  v1::MoveJobRequest request;
  request.set_job(kJob);
  request.set_to("b:2");
  v1::MoveJobResponse response;
  const auto move = [&] {
    return CallGrpc(one.server().admin(), &v1::AdminService::Stub::MoveJob,
                    request, &response);
  };
  EXPECT_TRUE(move().ok());
  EXPECT_EQ(one.fleet().moved[Coordinator::kShard], "b:2");
  request.set_to("nobody:1");
  EXPECT_EQ(move().error_code(), grpc::INVALID_ARGUMENT);
  request.set_job("no job/");
  EXPECT_EQ(move().error_code(), grpc::INVALID_ARGUMENT);
  TestServer alone;
  EXPECT_EQ(CallGrpc(alone.admin(), &v1::AdminService::Stub::MoveJob, request,
                     &response)
                .error_code(),
            grpc::INVALID_ARGUMENT);
  request.set_job(kJob);
  EXPECT_EQ(CallGrpc(alone.admin(), &v1::AdminService::Stub::MoveJob, request,
                     &response)
                .error_code(),
            grpc::FAILED_PRECONDITION);
  v1::GetClusterResponse cluster;
  ASSERT_TRUE(
      CallGrpc(alone.admin(), &v1::AdminService::Stub::GetCluster, {}, &cluster)
          .ok());
  EXPECT_EQ(cluster.coordinators_size(), 1);
  EXPECT_EQ(cluster.shards_size(), 0);
}

TEST(ShardsTest, ADrainLeavesTheFleetFirst) {
  Disk disk;
  Coordinator one(disk);
  one.server().server().Drain(std::chrono::milliseconds(100));
  EXPECT_TRUE(one.fleet().left);
}

}  // namespace
}  // namespace muster::coordinator
