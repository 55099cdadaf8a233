#include "dataplane/observe/consistency_check.h"

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "dataplane/culprit.h"
#include "dataplane/testing/in_memory_store.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace muster::dataplane {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// Completes every collective at once.
class InstantBackend : public Backend {
 public:
  explicit InstantBackend(std::atomic<int>* started) : started_(started) {}
  std::string name() const override { return "instant"; }
  std::span<const DeviceType> devices() const override { return {}; }
  Status Supports(const Collective&) const override { return OkStatus(); }
  std::shared_ptr<Work> Start(const Collective& collective) override {
    ++*started_;
    auto work = std::make_shared<PromisedWork>(collective.Describe());
    work->Complete(OkStatus());
    return work;
  }
  void Abort(Status) override {}

 private:
  std::atomic<int>* const started_;
};

// Lists the calls that it gets.
class ListingBackend : public InstantBackend {
 public:
  explicit ListingBackend(std::vector<std::string>* calls)
      : InstantBackend(&started_), calls_(calls) {}
  std::shared_ptr<Work> Start(const Collective& collective) override {
    calls_->emplace_back(CollectiveKindName(collective.kind));
    auto work = std::make_shared<PromisedWork>(collective.Describe());
    if (collective.kind == CollectiveKind::kRecv) work->SetSourceRank(2);
    work->Complete(OkStatus());
    return work;
  }
  void BeginTogether() override { calls_->emplace_back("begin"); }
  void EndTogether() override { calls_->emplace_back("end"); }

 private:
  std::vector<std::string>* const calls_;
  std::atomic<int> started_{0};
};

class ConsistencyCheckTest : public ::testing::Test {
 protected:
  static constexpr int kRanks = 3;

  ConsistencyCheckTest() {
    for (int rank = 0; rank < kRanks; ++rank) {
      checks_.push_back(std::make_unique<ConsistencyCheck>(
          std::make_unique<InstantBackend>(&started_),
          ConsistencyCheckOptions{.group_name = "world",
                                  .rank = rank,
                                  .world_size = kRanks,
                                  .store = store_}));
    }
  }

  Collective AllReduce(uint64_t sequence, int64_t count) {
    Collective collective;
    collective.kind = CollectiveKind::kAllReduce;
    collective.tensors = {Tensor(values_.data(), {count})};
    collective.sequence = sequence;
    collective.timeout = std::chrono::milliseconds(300);
    collective.deadline = Clock::now() + std::chrono::seconds(60);
    return collective;
  }

  const std::shared_ptr<testing::InMemoryStore> store_ =
      std::make_shared<testing::InMemoryStore>();
  std::vector<float> values_ = std::vector<float>(100);
  std::atomic<int> started_{0};
  std::vector<std::unique_ptr<ConsistencyCheck>> checks_;
};

TEST_F(ConsistencyCheckTest, StartsWhenAllHaveCome) {
  for (uint64_t sequence = 1; sequence <= 20; ++sequence) {
    std::vector<std::shared_ptr<Work>> works;
    works.push_back(checks_[0]->Start(AllReduce(sequence, 5)));
    works.push_back(checks_[1]->Start(AllReduce(sequence, 5)));
    EXPECT_FALSE(works[0]->IsCompleted());
    works.push_back(checks_[2]->Start(AllReduce(sequence, 5)));
    for (const auto& work : works) EXPECT_TRUE(work->Wait().ok());
    EXPECT_EQ(works[0]->description(),
              "all_reduce #" + std::to_string(sequence) + " float32[5] sum");
  }
  EXPECT_EQ(started_, 60);
  // The keys of the last collective, and possibly of the one before.
  EXPECT_LE(store_->size(), 6U);
}

TEST_F(ConsistencyCheckTest, ADifferenceFailsOnEveryRankAndStartsNothing) {
  std::vector<std::shared_ptr<Work>> works;
  works.reserve(kRanks);
  for (int rank = 0; rank < kRanks; ++rank) {
    works.push_back(checks_[rank]->Start(AllReduce(1, rank == 1 ? 6 : 5)));
  }
  for (const auto& work : works) {
    const Status status = work->Wait();
    EXPECT_EQ(status.message(),
              "all_reduce #1 on group \"world\": Detected mismatch between "
              "collectives on ranks. ranks 0, 2 of 3 run all_reduce #1 "
              "float32[5] sum; rank 1 runs all_reduce #1 float32[6] sum "
              "(different shape)");
    EXPECT_EQ(CulpritRank(status), 1);
  }
  EXPECT_EQ(started_, 0);
}

TEST_F(ConsistencyCheckTest, ARefusalFailsOnTheOthersAtOnce) {
  const auto first = checks_[0]->Start(AllReduce(1, 5));
  const auto last = checks_[2]->Start(AllReduce(1, 5));
  checks_[1]->Refused(AllReduce(1, 5), InvalidArgumentError("no tensor"));
  for (const auto& work : {first, last}) {
    const Status status = work->Wait();
    EXPECT_EQ(status.message(),
              "all_reduce #1 on group \"world\": rank 1 refused all_reduce #1 "
              "float32[5] sum: no tensor");
    EXPECT_EQ(CulpritRank(status), 1);
  }
  EXPECT_EQ(started_, 0);
}

// A program may handle the error and go on if all ranks refuse the call.
TEST_F(ConsistencyCheckTest, WhatAllRefuseDisturbsNothing) {
  for (const auto& check : checks_) {
    check->Refused(AllReduce(1, 5), InvalidArgumentError("no tensor"));
  }
  std::vector<std::shared_ptr<Work>> works;
  works.reserve(kRanks);
  for (const auto& check : checks_) {
    works.push_back(check->Start(AllReduce(2, 5)));
  }
  for (const auto& work : works) EXPECT_TRUE(work->Wait().ok());
}

// Like the job's store after other ranks have ended the group: after the first
// Get of a single key that times out, every Get fails.
class EndingStore : public BootstrapStore {
 public:
  Status Set(const std::string& key, const std::string& value) override {
    return store_.Set(key, value);
  }
  StatusOr<int64_t> Add(const std::string& key, int64_t delta) override {
    return store_.Add(key, delta);
  }
  StatusOr<std::vector<std::string>> Get(const std::vector<std::string>& keys,
                                         Instant deadline) override {
    if (over_) return AbortedError("the group is over");
    auto values = store_.Get(keys, deadline);
    over_ = !values.ok() && keys.size() == 1;
    return values;
  }

 private:
  testing::InMemoryStore store_;
  std::atomic<bool> over_{false};
};

TEST(ConsistencyCheckEndTest, WhoWasNotAskedForIsNotMissing) {
  std::atomic<int> started{0};
  ConsistencyCheck check(std::make_unique<InstantBackend>(&started),
                         {.group_name = "world",
                          .rank = 0,
                          .world_size = 3,
                          .store = std::make_shared<EndingStore>()});
  std::vector<float> values(5);
  Collective collective;
  collective.kind = CollectiveKind::kAllReduce;
  collective.tensors = {Tensor(values.data(), {5})};
  collective.sequence = 2;
  collective.timeout = std::chrono::milliseconds(300);
  collective.deadline = Clock::now() + collective.timeout;
  const Status status = check.Start(collective)->Wait();
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("waiting for rank 1 to"));
  EXPECT_THAT(CulpritRanks(status), ElementsAre(1));
}

TEST_F(ConsistencyCheckTest, WhoDoesNotComeIsNamed) {
  Collective collective = AllReduce(1, 5);
  collective.deadline = Clock::now() + collective.timeout;
  const auto zero = checks_[0]->Start(collective);
  const auto one = checks_[1]->Start(collective);
  const Status status = zero->Wait();
  EXPECT_EQ(status.code(), StatusCode::kDeadlineExceeded);
  EXPECT_EQ(status.message(),
            "all_reduce #1 on group \"world\": timed out after 300ms waiting "
            "for rank 2 to come to it, which the debug level DETAIL checks: is "
            "it set there, too?");
  EXPECT_EQ(CulpritRank(status), 2);
  EXPECT_EQ(one->Wait(), status);
}

TEST_F(ConsistencyCheckTest, OfManyThatDoNotComeAFewAreNamed) {
  // Outlives the check's thread, so that the status is destroyed on this
  // thread: TSan does not see its reference count.
  std::shared_ptr<Work> work;
  ConsistencyCheck check(
      std::make_unique<InstantBackend>(&started_),
      {.group_name = "world", .rank = 0, .world_size = 1000, .store = store_});
  Collective collective = AllReduce(1, 5);
  collective.deadline = Clock::now() + collective.timeout;
  work = check.Start(collective);
  const Status status = work->Wait();
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("waiting for ranks 1, 2, 3, 4, 5, 6, 7, 8 and maybe "
                        "more to come"));
  EXPECT_THAT(CulpritRanks(status), ElementsAre(1, 2, 3, 4, 5, 6, 7, 8));
  EXPECT_LT(store_->gets(), 20);
}

// A store that does not answer.
class SilentStore : public testing::InMemoryStore {
 public:
  Status Set(const std::string&, const std::string&) override {
    return UnimplementedError("has no deadline");
  }
  Status SetBy(const std::string&, const std::string&,
               Instant deadline) override {
    return Get({"what nobody sets"}, deadline).status();
  }
};

TEST_F(ConsistencyCheckTest, AStoreThatDoesNotAnswerHoldsUpNothingForLong) {
  ConsistencyCheck check(std::make_unique<InstantBackend>(&started_),
                         {.group_name = "world",
                          .rank = 0,
                          .world_size = 2,
                          .store = std::make_shared<SilentStore>()});
  Collective collective = AllReduce(1, 5);
  collective.deadline = Clock::now() + collective.timeout;
  const Status status = check.Start(collective)->Wait();
  EXPECT_EQ(status.code(), StatusCode::kDeadlineExceeded);
  EXPECT_EQ(status.message(),
            "all_reduce #1 on group \"world\": timed out after 300ms telling "
            "the other ranks of it, which the debug level DETAIL does: the "
            "store does not answer");
  // The end of the group does not wait, either: this deadline is longer than
  // the test may take.
  collective.sequence = 2;
  collective.deadline = Clock::now() + std::chrono::hours(1);
  const auto work = check.Start(collective);
  check.Abort(AbortedError("stop"));
  EXPECT_EQ(work->Wait(), AbortedError("stop"));
}

TEST_F(ConsistencyCheckTest, SendsAndReceivesPass) {
  Collective send = {.kind = CollectiveKind::kSend,
                     .inputs = {Tensor(values_)}};
  EXPECT_TRUE(checks_[0]->Start(send)->IsCompleted());
  EXPECT_EQ(started_, 1);
}

// As NCCL requires: a batch uses the communicator of the collectives, at the
// same place in their order on all ranks.
TEST_F(ConsistencyCheckTest, WhatBeginsTogetherHasItsTurnAmongTheCollectives) {
  std::vector<std::string> calls;
  auto check = std::make_unique<ConsistencyCheck>(
      std::make_unique<ListingBackend>(&calls),
      ConsistencyCheckOptions{.group_name = "world",
                              .rank = 0,
                              .world_size = kRanks,
                              .store = store_});
  const Tensor on_device(values_.data(), DataType::kFloat32, {1},
                         {DeviceType::kCuda, 0});
  const auto first = check->Start(AllReduce(1, 5));
  check->BeginTogether();
  const auto send =
      check->Start({.kind = CollectiveKind::kSend, .inputs = {on_device}});
  const auto recv =
      check->Start({.kind = CollectiveKind::kRecv, .outputs = {on_device}});
  check->EndTogether();
  const auto last = check->Start(AllReduce(2, 5));
  EXPECT_FALSE(send->IsCompleted());
  for (const int rank : {1, 2}) {
    for (const uint64_t sequence : {1, 2}) {
      checks_[static_cast<size_t>(rank)]->Start(AllReduce(sequence, 5));
    }
  }
  for (const auto& work : {first, send, recv, last}) {
    EXPECT_EQ(work->Wait(), OkStatus());
  }
  EXPECT_EQ(recv->source_rank(), 2);
  check = nullptr;
  EXPECT_THAT(calls, ElementsAre("all_reduce", "begin", "send", "recv", "end",
                                 "all_reduce"));
}

TEST_F(ConsistencyCheckTest, AnAbortEndsWhatIsToBeginTogether) {
  const Tensor on_device(values_.data(), DataType::kFloat32, {1},
                         {DeviceType::kCuda, 0});
  const Collective send = {.kind = CollectiveKind::kSend,
                           .inputs = {on_device}};
  const auto first = checks_[0]->Start(AllReduce(1, 5));
  checks_[0]->BeginTogether();
  const auto before = checks_[0]->Start(send);
  checks_[0]->EndTogether();
  checks_[0]->BeginTogether();
  const auto within = checks_[0]->Start(send);
  checks_[0]->Abort(AbortedError("stop"));
  checks_[0]->EndTogether();
  EXPECT_EQ(before->Wait(), AbortedError("stop"));
  EXPECT_EQ(within->Wait(), AbortedError("stop"));
  EXPECT_EQ(started_, 0);
}

TEST_F(ConsistencyCheckTest, AnAbortEndsWhatWaits) {
  const auto first = checks_[0]->Start(AllReduce(1, 5));
  const auto second = checks_[0]->Start(AllReduce(2, 5));
  checks_[0]->Abort(AbortedError("stop"));
  EXPECT_EQ(first->Wait(), AbortedError("stop"));
  EXPECT_EQ(second->Wait(), AbortedError("stop"));
  EXPECT_EQ(checks_[0]->Start(AllReduce(3, 5))->Wait(), AbortedError("stop"));
  // The destructor ends them, too.
  const auto third = checks_[1]->Start(AllReduce(1, 5));
  checks_[1] = nullptr;
  EXPECT_TRUE(IsCancelled(third->Wait()));
  EXPECT_EQ(started_, 0);
}

}  // namespace
}  // namespace muster::dataplane
