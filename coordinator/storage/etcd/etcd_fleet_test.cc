#include "coordinator/storage/etcd/etcd_fleet.h"

#include <array>
#include <chrono>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "coordinator/storage/etcd/fleet_plan.h"
#include "coordinator/storage/etcd/testing/model_etcd.h"
#include "glog/logging.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace muster::coordinator {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using testing::ModelEtcd;
using ::testing::Pair;

// From the hash's authors' list of test vectors.
TEST(FleetTest, ShardsAreTheHashOfTheName) {
  EXPECT_EQ(HashName(""), 0xcbf29ce484222325);
  EXPECT_EQ(HashName("a"), 0xaf63dc4c8601ec8c);
  EXPECT_EQ(HashName("foobar"), 0x85944171f73967e8);
  EXPECT_EQ(FindShard("foobar"), 0xe8 % 64);
}

FleetState MakeState(const std::vector<std::string>& addresses) {
  FleetState state;
  for (const std::string& address : addresses) {
    FleetState::Member& member = state.members["id-" + address];
    member.member.address = address;
    member.revision = static_cast<int64_t>(state.members.size());
  }
  return state;
}

std::vector<std::string> Addresses(int count) {
  std::vector<std::string> addresses;
  for (int i = 0; i < count; ++i) {
    addresses.push_back(absl::StrCat("host-", i, ":7070"));
  }
  return addresses;
}

std::map<std::string, int> CountShards(const FleetState& state) {
  std::map<std::string, int> counts;
  for (int shard = 0; shard < kShards; ++shard) {
    ++counts[ChooseOwner(state, shard)];
  }
  return counts;
}

TEST(FleetPlanTest, EveryCoordinatorHasItsPartOfTheShards) {
  for (int count = 1; count <= 8; ++count) {
    const auto counts = CountShards(MakeState(Addresses(count)));
    EXPECT_EQ(static_cast<int>(counts.size()), count);
    for (const auto& [id, shards] : counts) {
      EXPECT_GE(shards, kShards / count / 3) << id << " of " << count;
    }
  }
}

TEST(FleetPlanTest, ANewCoordinatorTakesShardsAndMovesNoOther) {
  const FleetState before = MakeState(Addresses(3));
  const FleetState after = MakeState(Addresses(4));
  int moved = 0;
  for (int shard = 0; shard < kShards; ++shard) {
    const std::string owner = ChooseOwner(after, shard);
    if (owner == ChooseOwner(before, shard)) continue;
    EXPECT_EQ(owner, "id-host-3:7070");
    ++moved;
  }
  EXPECT_GT(moved, 0);
  EXPECT_LT(moved, kShards / 2);
}

TEST(FleetPlanTest, APinCountsWhileItsCoordinatorIsThere) {
  FleetState state = MakeState(Addresses(3));
  const std::string usual = ChooseOwner(state, 5);
  for (const std::string& address : Addresses(3)) {
    state.pins[5] = address;
    EXPECT_EQ(ChooseOwner(state, 5), "id-" + address);
    state.members["id-" + address].member.draining = true;
    EXPECT_NE(ChooseOwner(state, 5), "id-" + address);
    state.members["id-" + address].member.draining = false;
  }
  state.pins[5] = "gone:7070";
  EXPECT_EQ(ChooseOwner(state, 5), usual);
}

TEST(FleetPlanTest, NobodyOwnsWhatOnlyCoordinatorsThatDrainCouldOwn) {
  FleetState state = MakeState(Addresses(1));
  state.members.begin()->second.member.draining = true;
  EXPECT_EQ(ChooseOwner(state, 0), "");
}

// The one before is still in etcd, until its lease ends.
TEST(FleetPlanTest, OfTwoStartsAtOneAddressTheLaterOneOwns) {
  FleetState state = MakeState(Addresses(1));
  state.members["a later start"] = state.members.begin()->second;
  state.members["a later start"].revision = 100;
  EXPECT_EQ(ChooseOwner(state, 0), "a later start");
}

TEST(FleetPlanTest, FreeShardsAreClaimedByTheirOwnersAlone) {
  const FleetState state = MakeState(Addresses(3));
  std::set<int> claimed;
  for (const auto& [id, member] : state.members) {
    const FleetPlan plan = MakePlan(state, id, false);
    EXPECT_THAT(plan.hand_over, IsEmpty());
    for (const int shard : plan.claim) {
      EXPECT_TRUE(claimed.insert(shard).second) << shard;
    }
  }
  EXPECT_EQ(claimed.size(), static_cast<size_t>(kShards));
}

TEST(FleetPlanTest, ShardsAreHandedOverOneByOneAndOnlyWhenItIsQuiet) {
  FleetState state = MakeState(Addresses(2));
  const std::string self = state.members.begin()->first;
  for (FleetState::Owner& owner : state.owners) owner = {self, 7};
  EXPECT_THAT(MakePlan(state, self, false).hand_over, IsEmpty());
  EXPECT_EQ(MakePlan(state, self, true).hand_over.size(), 1u);
  state.members[self].member.draining = true;
  EXPECT_EQ(MakePlan(state, self, false).hand_over.size(),
            static_cast<size_t>(kShards));
}

TEST(FleetPlanTest, AnOperatorsChoiceIsCarriedOutAtOnce) {
  FleetState state = MakeState(Addresses(2));
  for (FleetState::Owner& owner : state.owners) owner = {"id-host-0:7070", 7};
  state.pins[3] = "host-1:7070";
  EXPECT_THAT(MakePlan(state, "id-host-0:7070", false).hand_over,
              ElementsAre(Pair(3, "id-host-1:7070")));
}

// etcd, as one coordinator reaches it.
class Link final : public EtcdKv {
 public:
  Link(ModelEtcd& etcd, std::mt19937& random) : etcd_(etcd), random_(random) {}

  // Requests are not answered; some are applied.
  bool cut = false;
  // One of so many requests is not answered; 0: none.
  int lossy = 0;

  Status Range(const etcdserverpb::RangeRequest& request,
               etcdserverpb::RangeResponse& response) override {
    return Send([&] { return etcd_.Range(request, response); });
  }
  Status Txn(const etcdserverpb::TxnRequest& request,
             etcdserverpb::TxnResponse& response) override {
    return Send([&] { return etcd_.Txn(request, response); });
  }
  Status Compact(const etcdserverpb::CompactionRequest& request,
                 etcdserverpb::CompactionResponse& response) override {
    return Send([&] { return etcd_.Compact(request, response); });
  }
  StatusOr<int64_t> GrantLease(std::chrono::seconds ttl) override {
    StatusOr<int64_t> lease = UnavailableError("no answer");
    const Status status = Send([&] {
      lease = etcd_.GrantLease(ttl);
      return lease.status();
    });
    if (!status.ok()) return status;
    return lease;
  }
  Status KeepLeaseAlive(int64_t lease,
                        std::chrono::milliseconds timeout) override {
    return Send([&] { return etcd_.KeepLeaseAlive(lease, timeout); });
  }
  Status RevokeLease(int64_t lease) override {
    return Send([&] { return etcd_.RevokeLease(lease); });
  }

 private:
  template <typename Request>
  Status Send(const Request& request) {
    const bool lost = cut || (lossy > 0 && random_() % lossy == 0);
    // A request of one that is cut off may still be on its way.
    if (lost && (cut || random_() % 2 == 0)) {
      return UnavailableError("no answer");
    }
    const Status status = request();
    return lost ? UnavailableError("no answer") : status;
  }

  ModelEtcd& etcd_;
  std::mt19937& random_;
};

// A coordinator without gRPC: each shard is a number, as stored and in memory.
class Node final : public FleetHost {
 public:
  Node(ModelEtcd& etcd, std::mt19937& random,
       std::function<std::chrono::nanoseconds()> clock, int number)
      : link(std::make_shared<Link>(etcd, random)) {
    EtcdFleetOptions options;
    options.clock = std::move(clock);
    options.has_threads = false;
    FleetMember self;
    self.address = absl::StrCat("host-", number, ":7070");
    fleet = std::make_unique<EtcdFleet>(link, options, self, *this);
  }

  Status Take(int shard, std::unique_ptr<Storage> storage) override {
    EXPECT_EQ(shards[shard].storage, nullptr);
    int value = 0;
    Status status =
        storage->Load([&](absl::string_view, absl::string_view stored) {
          EXPECT_TRUE(absl::SimpleAtoi(stored, &value));
          return OkStatus();
        });
    if (status.ok())
      shards[shard] = {.storage = std::move(storage), .value = value};
    return status;
  }
  Status Hold(int shard, const std::string&) override {
    EXPECT_NE(shards[shard].storage, nullptr);
    shards[shard].held = true;
    return shards[shard].failed ? UnavailableError("failed") : OkStatus();
  }
  void Release(int shard, const std::string&) override {
    EXPECT_TRUE(shards[shard].held);
    shards[shard] = {};
  }
  void Lose(const std::vector<int>& lost) override {
    for (const int shard : lost) shards[shard] = {};
  }

  struct Shard {
    std::unique_ptr<Storage> storage;
    int value = 0;
    bool held = false;
    bool failed = false;  // as in CommitQueue
  };

  // None: the node does not answer.
  std::optional<int> Read(int shard) {
    const Shard& state = shards[shard];
    if (state.storage == nullptr || state.held || state.failed) return {};
    const int value = state.value;
    if (!state.storage->owned()) return {};
    return value;
  }

  // Whether the node acknowledges the write.
  bool Write(int shard, int value) {
    Shard& state = shards[shard];
    if (state.storage == nullptr || state.held || state.failed) return false;
    state.value = value;
    state.failed = !state.storage->Write({{"key", absl::StrCat(value)}}).ok();
    return !state.failed && state.storage->owned();
  }

  const std::shared_ptr<Link> link;
  std::array<Shard, kShards> shards;
  std::unique_ptr<EtcdFleet> fleet;
};

// Coordinators that die, are cut off, stand still, drain and come back, at
// random, on a model of etcd that loses answers.
class Simulation {
 public:
  explicit Simulation(uint32_t seed) : random_(seed) {
    possible_.fill({0});
    for (int i = 0; i < 3; ++i) Start(i);
  }

  void Run() {
    for (int i = 0; i < 800 && !::testing::Test::HasFailure(); ++i) Act();
    Heal();
  }

 private:
  static constexpr int kNodes = 3;

  int Pick(int count) { return static_cast<int>(random_() % count); }

  void Start(int number) {
    nodes_[number] = std::make_unique<Node>(
        etcd_, random_, [this] { return clock_; }, number);
    asleep_until_[number] = clock_;
  }

  void Advance(std::chrono::milliseconds time) {
    clock_ += time;
    etcd_.AdvanceClock(time);
  }

  void Act() {
    const int number = Pick(kNodes);
    Node& node = *nodes_[number];
    const bool awake = clock_ >= asleep_until_[number];
    switch (Pick(40)) {
      case 0:  // kill -9
        node.link->cut = true;
        Start(number);
        return;
      case 1:
        node.link->cut = !node.link->cut;
        return;
      case 2:  // SIGSTOP
        asleep_until_[number] = clock_ + std::chrono::seconds(Pick(12));
        return;
      case 3:
        if (Pick(4) == 0) node.fleet->Leave(std::chrono::milliseconds(0));
        return;
      case 4:
        node.link->lossy = Pick(2) * 20;
        return;
      case 5:
        if (awake && node.fleet->lease() != nullptr) {
          (void)node.fleet->Move(Pick(kShards),
                                 absl::StrCat("host-", Pick(kNodes), ":7070"));
        }
        return;
      default:
        break;
    }
    if (Pick(4) == 0) Advance(std::chrono::milliseconds(Pick(1'500)));
    if (!awake) {
      // A thread that the kernel runs before it stops all others.
      if (Pick(8) == 0) Use(node);
      return;
    }
    if (node.fleet->lease() != nullptr && Pick(2) == 0) {
      (void)node.fleet->lease()->Renew();
    }
    if (Pick(2) == 0) (void)node.fleet->Step();
    for (int i = 0; i < 8; ++i) Use(node);
  }

  void Use(Node& node) {
    const int shard = Pick(kShards);
    if (Pick(2) == 0) {
      const std::optional<int> read = node.Read(shard);
      if (read.has_value()) Check(shard, *read);
      return;
    }
    const int value = ++values_;
    // It may be stored without an answer.
    possible_[shard].insert(value);
    if (node.Write(shard, value)) possible_[shard] = {value};
  }

  // A read sees the last acknowledged write or one after it, and so do later
  // reads.
  void Check(int shard, int value) {
    EXPECT_TRUE(possible_[shard].contains(value))
        << "shard " << shard << " has " << value;
    possible_[shard] = {value};
    ++reads_;
  }

  void Heal() {
    for (int i = 0; i < kNodes; ++i) {
      nodes_[i]->link->cut = true;
      Start(i);
    }
    for (int i = 0; i < 60; ++i) {
      for (auto& node : nodes_) {
        if (node->fleet->lease() != nullptr) {
          (void)node->fleet->lease()->Renew();
        }
        EXPECT_EQ(node->fleet->Step(), OkStatus());
      }
      Advance(std::chrono::milliseconds(1'000));
    }
    for (int shard = 0; shard < kShards; ++shard) {
      int owners = 0;
      for (auto& node : nodes_) {
        const std::optional<int> read = node->Read(shard);
        if (!read.has_value()) continue;
        ++owners;
        Check(shard, *read);
        EXPECT_TRUE(node->Write(shard, ++values_));
      }
      EXPECT_EQ(owners, 1) << "shard " << shard;
    }
    for (auto& node : nodes_) {
      EXPECT_EQ(node->fleet->CheckReady(), OkStatus());
    }
    EXPECT_GT(reads_, 0);
  }

  std::mt19937 random_;
  ModelEtcd etcd_;
  std::chrono::nanoseconds clock_ = std::chrono::hours(1);
  std::array<std::unique_ptr<Node>, kNodes> nodes_;
  std::array<std::chrono::nanoseconds, kNodes> asleep_until_;
  int values_ = 0;
  int reads_ = 0;
  // The values that a shard may have: the last one that was acknowledged or
  // read, and later ones without an answer.
  std::array<std::set<int>, kShards> possible_;
};

TEST(EtcdFleetTest, NothingAcknowledgedIsLostAndNothingOldIsRead) {
  FLAGS_minloglevel = google::FATAL;
  for (uint32_t seed = 1; seed <= 200; ++seed) {
    SCOPED_TRACE(absl::StrCat("seed ", seed));
    Simulation(seed).Run();
    if (HasFailure()) return;
  }
}

}  // namespace
}  // namespace muster::coordinator
