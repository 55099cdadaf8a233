// The records of the watch history, and the watches that they let go on after a
// restart.

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "coordinator/core/coordinator.h"
#include "coordinator/core/testing/core_test_util.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace muster::coordinator::core {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// `put a=1 r3`, `kind 1 of a r4`; then `through 4`, or the error.
std::vector<std::string> Describe(const Reply& reply) {
  const auto* watched = std::get_if<WatchReply>(&reply.payload);
  if (watched == nullptr) return {GetMessage(reply)};
  std::vector<std::string> lines;
  for (const auto& change : watched->changes) {
    const std::string after = change->key + "=" +
                              (change->value == nullptr ? "" : *change->value) +
                              " r" + std::to_string(change->revision);
    lines.push_back(change->kind == ChangeKind::kPut
                        ? "put " + after
                        : "kind " +
                              std::to_string(static_cast<int>(change->kind)) +
                              " of " + after);
  }
  lines.push_back("through " + std::to_string(watched->revision));
  return lines;
}

class WatchRecordsTest : public testing::Test {
 protected:
  void TearDown() override {
    EXPECT_EQ(coordinator_->CheckInvariants(), OkStatus());
  }

  // Runs one verb of the store.
  template <typename Verb>
  void Mutate(const Verb& verb, Call call = Anonymous(1)) {
    coordinator_->Mutate(call, "Verb", now_, out_,
                         [&](StoreEngine& store) { verb(store, call); });
  }
  void Set(const std::string& key, const std::string& value,
           const SetOptions& options = {}, const Call& call = Anonymous(1)) {
    Mutate(
        [&](StoreEngine& store, const Call& by) {
          store.Set(by, key, value, options, now_, out_);
        },
        call);
  }

  std::vector<std::string> Watch(Coordinator& coordinator, WatchSelector keys,
                                 std::optional<int64_t> after,
                                 Duration timeout = 0s) {
    Outbox out;
    const Call call = Anonymous(++waiter_);
    coordinator.Read(call, now_, out, [&](StoreEngine& store) {
      store.Watch(call, {std::move(keys), after, timeout}, now_, out);
    });
    if (out.replies.empty()) return {"waits"};
    return Describe(out.replies.front());
  }
  std::vector<std::string> Watch(std::optional<int64_t> after,
                                 Duration timeout = 0s) {
    return Watch(*coordinator_, {"", true}, after, timeout);
  }

  // Ends the step. Returns the changes that it has stored, without the erased
  // ones.
  std::vector<ChangeRecord> Commit() {
    out_.Clear();
    std::vector<ChangeRecord> written;
    for (Record& record : coordinator_->TakeChanges()) {
      const std::string name = Name(record);
      if (const auto* change = std::get_if<ChangeRecord>(&record)) {
        if (change->erased) {
          EXPECT_TRUE(stored_.contains(name)) << "erases what is not stored";
        } else {
          written.push_back(*change);
        }
      }
      stored_.erase(name);
      if (!IsErased(record)) stored_.emplace(name, std::move(record));
    }
    return written;
  }

  std::unique_ptr<Coordinator> Restore() const {
    std::vector<Record> records;
    for (const auto& [name, record] : stored_) records.push_back(record);
    auto coordinator =
        std::make_unique<Coordinator>(CoordinatorEpoch(2), options_);
    coordinator->Restore(std::move(records), now_);
    EXPECT_EQ(coordinator->CheckInvariants(), OkStatus());
    return coordinator;
  }

  void Restart() { coordinator_ = Restore(); }

  int64_t revision() const { return coordinator_->Snapshot(now_).revision; }

  int stored_changes() const {
    int count = 0;
    for (const auto& [name, record] : stored_) {
      if (std::holds_alternative<ChangeRecord>(record)) ++count;
    }
    return count;
  }

  void Advance(Duration time) {
    const Instant end = now_ + time;
    while (coordinator_->NextDeadline().value_or(Instant::max()) <= end) {
      now_ = std::max(now_, *coordinator_->NextDeadline());
      coordinator_->Tick(now_, out_);
    }
    now_ = end;
    Commit();
  }

  static CoordinatorOptions Options() {
    CoordinatorOptions options;
    options.durable = true;
    options.limits.watch_history_changes = 12;
    return options;
  }

  static std::string Name(const Record& record) {
    std::string name = std::to_string(record.index());
    if (const auto* entry = std::get_if<EntryRecord>(&record)) {
      name += entry->key;
    } else if (const auto* item = std::get_if<ItemRecord>(&record)) {
      name += item->key + "/" + std::to_string(item->number);
    } else if (const auto* change = std::get_if<ChangeRecord>(&record)) {
      // Not in the order of the revisions: a restoration sorts them.
      name += change->key + "/" + std::to_string(change->revision);
    } else if (const auto* member = std::get_if<MemberRecord>(&record)) {
      name += member->id.value();
    } else if (const auto* reply = std::get_if<ReplyRecord>(&record)) {
      name += reply->member.value() + std::to_string(reply->sequence.value());
    }
    return name;
  }

  CoordinatorOptions options_ = Options();
  Instant now_ = t0;
  uint64_t waiter_ = 1000;
  Outbox out_;
  std::unique_ptr<Coordinator> coordinator_ =
      std::make_unique<Coordinator>(CoordinatorEpoch(1), options_);
  std::map<std::string, Record> stored_;
};

// After every step, from every revision, and for several selectors.
TEST_F(WatchRecordsTest, AWatchGoesOnAsIfNothingHadHappened) {
  uint64_t incarnation = 1;
  const auto member = [&] { return From("m", incarnation, 1); };
  coordinator_->Register(member(), {.host = "h"}, now_, out_);
  EXPECT_THAT(Watch(0), ElementsAre("through 0"));
  const std::vector<std::string> keys = {"a", "b", "b/1", "b/2", "c"};
  int64_t seen_expired = 0;
  for (int step = 0; step < 60; ++step) {
    const std::string& key = keys[static_cast<size_t>(step * 7 % 5)];
    const std::string value = std::to_string(step);
    switch (step % 10) {
      case 0:
        Set("going", value, {.ttl = 1s});
        break;
      case 1:
        Set(key, value, {.ephemeral = true}, member());
        break;
      case 2:
        Mutate([&](StoreEngine& store, const Call& call) {
          store.MultiSet(call, keys, {value, "", "x", value, "y"}, out_);
        });
        break;
      case 3:
        Mutate([&](StoreEngine& store, const Call& call) {
          store.DeletePrefix(call, "b/", out_);
        });
        break;
      case 4:
        Mutate([&](StoreEngine& store, const Call& call) {
          store.QueuePush(call, "queue", value, out_);
        });
        break;
      case 5:
        // Several changes of one key in one step.
        Set(key, "first");
        Mutate([&](StoreEngine& store, const Call& call) {
          store.Append(call, key, " second", out_);
        });
        break;
      case 6:
        coordinator_->Leave(member(), "done", now_, out_);
        ++incarnation;
        coordinator_->Register(member(), {.host = "h"}, now_, out_);
        break;
      case 7:
        Advance(2s);
        break;
      case 8:
        Mutate([&](StoreEngine& store, const Call& call) {
          store.DeleteKey(call, key, out_);
        });
        break;
      default:
        Set(key, value);
    }
    Commit();
    const std::unique_ptr<Coordinator> restored = Restore();
    for (int64_t after = 0; after <= revision() + 1; ++after) {
      for (const WatchSelector& selector :
           {WatchSelector{"", true}, WatchSelector{"b", true},
            WatchSelector{"a", false}}) {
        const auto uninterrupted = Watch(*coordinator_, selector, after);
        ASSERT_EQ(Watch(*restored, selector, after), uninterrupted)
            << "step " << step << " after " << after;
        for (const std::string& line : uninterrupted) {
          if (line.starts_with("kind 2")) ++seen_expired;
        }
      }
    }
  }
  EXPECT_GT(seen_expired, 0);
  EXPECT_THAT(Watch(1), ElementsAre(HasSubstr("no longer in the history")));
}

// Once more after the restart.
TEST_F(WatchRecordsTest, TheHistoryGoesOnAfterARestart) {
  Watch(0);
  Set("a", "1");
  Commit();
  Restart();
  Set("a", "2");
  Commit();
  Restart();
  EXPECT_THAT(Watch(0), ElementsAre("put a=1 r1", "put a=2 r2", "through 2"));
  for (int i = 0; i < 12; ++i) Set("b", "");
  Commit();
  EXPECT_EQ(stored_changes(), 12);
}

TEST_F(WatchRecordsTest, BeginsWithWhatTheFirstWatchDoesNotKnow) {
  for (const char* value : {"1", "2", "3", "4", "5"}) Set("a", value);
  EXPECT_THAT(Commit(), IsEmpty());
  Watch(3);
  EXPECT_EQ(Commit().size(), 2u);
  // One that knows less.
  Watch(1);
  EXPECT_EQ(Commit().size(), 2u);
  EXPECT_THAT(Commit(), IsEmpty());
  Watch(2);
  Watch(std::nullopt);
  EXPECT_THAT(Commit(), IsEmpty());
  Restart();
  EXPECT_THAT(Watch(2), ElementsAre("put a=3 r3", "put a=4 r4", "put a=5 r5",
                                    "through 5"));
  EXPECT_THAT(Watch(0), ElementsAre("watch: revision 0 is no longer in the "
                                    "history, the oldest to go on from is 1"));
}

TEST_F(WatchRecordsTest, AWatchThatBeginsNowGoesOnFromThere) {
  Set("a", "1");
  EXPECT_THAT(Watch(std::nullopt), ElementsAre("through 1"));
  Commit();
  Set("a", "2");
  Commit();
  Restart();
  EXPECT_THAT(Watch(1), ElementsAre("put a=2 r2", "through 2"));
}

TEST_F(WatchRecordsTest, WithoutAWatchNoChangeHasARecord) {
  Set("a", "1");
  Set("a", "2");
  Mutate([&](StoreEngine& store, const Call& call) {
    store.DeleteKey(call, "a", out_);
  });
  EXPECT_THAT(Commit(), IsEmpty());
  EXPECT_EQ(stored_.size(), 1u);  // the store's revision
  Restart();
  EXPECT_THAT(Watch(2), ElementsAre("watch: revision 2 is no longer in the "
                                    "history, the oldest to go on from is 3"));
}

TEST_F(WatchRecordsTest, AValueIsStoredOnceWhileTheKeyHasIt) {
  Watch(0);
  Set("a", "1");
  std::vector<ChangeRecord> written = Commit();
  ASSERT_EQ(written.size(), 1u);
  EXPECT_EQ(written[0].value, nullptr);
  Set("a", "2");
  written = Commit();
  ASSERT_EQ(written.size(), 2u);
  EXPECT_EQ(written[0].revision, 1);
  EXPECT_EQ(*written[0].value, "1");
  EXPECT_EQ(written[1].value, nullptr);
  Mutate([&](StoreEngine& store, const Call& call) {
    store.DeleteKey(call, "a", out_);
  });
  written = Commit();
  ASSERT_EQ(written.size(), 2u);
  EXPECT_EQ(*written[0].value, "2");
  EXPECT_EQ(written[1].kind, ChangeKind::kDeleted);
}

// Commit checks that nothing is erased that was never written.
TEST_F(WatchRecordsTest, AStepThatIsTooLargeForTheHistoryStoresItsEndOnly) {
  for (int i = 0; i < 100; ++i) Set("k" + std::to_string(i), "");
  Watch(90);
  Commit();
  EXPECT_EQ(stored_changes(), 10);
  Mutate([&](StoreEngine& store, const Call& call) {
    store.DeletePrefix(call, "", out_);
  });
  EXPECT_EQ(Commit().size(), 12u);
  EXPECT_EQ(stored_changes(), 12);
}

TEST_F(WatchRecordsTest, TheRecordsGoWhenNobodyHasWatchedForAWhile) {
  Set("a", "1");
  Watch(0);
  Commit();
  EXPECT_EQ(stored_changes(), 1);
  Advance(5min);
  EXPECT_EQ(stored_changes(), 1);
  Advance(5min);
  EXPECT_EQ(stored_changes(), 0);
  EXPECT_EQ(coordinator_->NextDeadline(), std::nullopt);
  // The history itself is still there, and is stored again.
  EXPECT_THAT(Watch(0), ElementsAre("put a=1 r1", "through 1"));
  Commit();
  EXPECT_EQ(stored_changes(), 1);
  Restart();
  Advance(5min);
  EXPECT_EQ(stored_changes(), 0);
}

TEST_F(WatchRecordsTest, AWatchThatWaitsKeepsTheRecords) {
  Set("a", "1");
  EXPECT_THAT(Watch(*coordinator_, {"b", false}, 0, 1h), ElementsAre("waits"));
  Commit();
  Advance(59min);
  EXPECT_EQ(stored_changes(), 1);
  // It is answered; five minutes to come back.
  Set("b", "1");
  Commit();
  Advance(5min);
  Restart();
  EXPECT_THAT(Watch(*coordinator_, {"b", false}, 1),
              ElementsAre("put b=1 r2", "through 2"));
}

TEST_F(WatchRecordsTest, AChangeWhoseValueIsGoneEndsTheHistory) {
  Watch(0);
  Set("a", "1");
  Set("b", "2");
  Set("c", "3");
  Commit();
  std::erase_if(stored_, [](const auto& named) {
    const auto* entry = std::get_if<EntryRecord>(&named.second);
    return entry != nullptr && entry->key == "b";
  });
  Restart();
  EXPECT_THAT(Watch(1), ElementsAre("watch: revision 1 is no longer in the "
                                    "history, the oldest to go on from is 2"));
  EXPECT_THAT(Watch(2), ElementsAre("put c=3 r3", "through 3"));
}

}  // namespace
}  // namespace muster::coordinator::core
