// A job's memory count always equals the sum over its tables.

#include <map>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "coordinator/core/coordinator.h"
#include "coordinator/core/testing/core_test_util.h"
#include "coordinator/core/total_memory.h"
#include "gtest/gtest.h"

namespace muster::coordinator::core {
namespace {

constexpr int64_t kLimit = 400 << 10;
constexpr int kSteps = 1500;

class Dice {
 public:
  explicit Dice(uint64_t seed) : engine_(seed) {}
  // Returns 0 to n - 1.
  uint64_t Below(uint64_t n) { return engine_() % n; }
  std::string Text(uint64_t bytes_max) {
    return std::string(Below(bytes_max + 1), 'x');
  }

 private:
  std::mt19937_64 engine_;
};

// A job with some members and plain clients, which call at random.
class World {
 public:
  World(uint64_t seed, TotalMemory* total) : dice_(seed), total_(*total) {
    Begin();
  }

  void Step() {
    out_.Clear();
    switch (dice_.Below(12)) {
      case 0:
        return Register();
      case 1:
        return Heartbeat();
      case 2:
        return Depart();
      case 3:
        return Pass();
      case 4:
        return GiveUp();
      case 5:
        return dice_.Below(20) == 0 ? Restart() : Queue();
      case 6:
      case 7:
        return Queue();
      case 8:
        return Wait();
      default:
        return Write();
    }
  }

  // Call it after a step. Recomputes the sums from the tables.
  Status Check() {
    for (const Reply& reply : out_.replies) {
      if (IsResourceExhausted(reply.status)) ++refused_;
    }
    for (Record& record : coordinator_->TakeChanges()) Store(std::move(record));
    return coordinator_->CheckInvariants();
  }

  // All members leave and are forgotten, with all that they kept.
  void Clear() {
    for (size_t i = 0; i < kMembers; ++i) {
      coordinator_->Leave(MakeCall(i), "", now_, out_);
    }
    for (uint64_t waiter = 1; waiter <= waiter_; ++waiter) {
      coordinator_->CancelWaiter(WaiterId(waiter), out_);
    }
    now_ += std::chrono::hours(1);
    coordinator_->Tick(now_, out_);
    const Call call = Client();
    coordinator_->Mutate(
        call, "DeletePrefix", now_, out_,
        [&](StoreEngine& store) { store.DeletePrefix(call, "", out_); });
  }

  int64_t held() const { return share_->held(); }
  int refused() const { return refused_; }

 private:
  static constexpr size_t kMembers = 6;

  void Begin() {
    // The coordinator is destroyed first, because it releases memory to the
    // share.
    coordinator_.reset();
    share_ = std::make_unique<MemoryShare>(&total_);
    CoordinatorOptions options;
    options.durable = true;
    options.membership.departed_retention = std::chrono::seconds(40);
    options.limits.memory = share_.get();
    options.limits.retained_replies = 32;
    options.limits.watch_history_changes = 50;
    coordinator_ =
        std::make_unique<Coordinator>(CoordinatorEpoch(++epoch_), options);
  }

  void Restart() {
    std::vector<Record> records;
    records.reserve(records_.size());
    for (const auto& [name, record] : records_) records.push_back(record);
    Begin();
    coordinator_->Restore(std::move(records), now_);
  }

  void Store(Record record) {
    std::string name = std::to_string(record.index()) + "/";
    if (const auto* entry = std::get_if<EntryRecord>(&record)) {
      name += entry->key;
    } else if (const auto* item = std::get_if<ItemRecord>(&record)) {
      name += item->key + "/" + std::to_string(item->number);
    } else if (const auto* change = std::get_if<ChangeRecord>(&record)) {
      name += std::to_string(change->revision) + "/" + change->key;
    } else if (const auto* member = std::get_if<MemberRecord>(&record)) {
      name += member->id.value();
    } else if (const auto* reply = std::get_if<ReplyRecord>(&record)) {
      name +=
          reply->member.value() + "/" + std::to_string(reply->sequence.value());
    }
    if (IsErased(record)) {
      records_.erase(name);
    } else {
      records_.insert_or_assign(name, std::move(record));
    }
  }

  Call Client() {
    Call call;
    call.waiter = WaiterId(++waiter_);
    return call;
  }

  Call MakeCall(size_t i) {
    Call call = Client();
    call.member = MemberId("m" + std::to_string(i));
    call.incarnation = Incarnation(incarnations_[i]);
    return call;
  }

  // Makes a numbered call that acknowledges some answers, or a call without a
  // number.
  Call Mutation() {
    if (dice_.Below(5) == 0) return Client();
    const size_t i = dice_.Below(kMembers);
    Call call = MakeCall(i);
    uint64_t& next = sequences_[i];
    const bool again = next > 1 && dice_.Below(8) == 0;
    call.sequence = SequenceNumber(again ? 1 + dice_.Below(next) : next);
    next += again ? 0 : 1 + dice_.Below(2) * dice_.Below(2);
    if (dice_.Below(6) == 0) {
      const uint64_t through = dice_.Below(next);
      call.acknowledged_through = SequenceNumber(through);
      for (uint64_t n = 1 + dice_.Below(through + 1); n < through; n += 3) {
        call.unanswered.emplace_back(n);
      }
    }
    return call;
  }

  std::string Key() { return "k" + std::to_string(dice_.Below(12)); }

  void Register() {
    const size_t i = dice_.Below(kMembers);
    if (incarnations_[i] == 0 || dice_.Below(3) > 0) {
      ++incarnations_[i];
      sequences_[i] = 1;
    }
    coordinator_->Register(MakeCall(i), {.host = dice_.Text(200), .pid = 7},
                           now_, out_);
  }

  void Heartbeat() {
    std::vector<GroupProgress> progress(dice_.Below(60));
    for (GroupProgress& group : progress) {
      group.group = dice_.Text(300);
      group.current = dice_.Text(300);
    }
    coordinator_->Heartbeat(MakeCall(dice_.Below(kMembers)),
                            std::move(progress), now_, out_);
  }

  void Depart() {
    const size_t i = dice_.Below(kMembers);
    switch (dice_.Below(6)) {
      case 0:
        return coordinator_->Leave(MakeCall(i), dice_.Text(5000), now_, out_);
      case 1:
        return coordinator_->ReportFailure(
            MakeCall(i), {.text = dice_.Text(5000)}, now_, out_);
      case 2:
        return coordinator_->Disconnected(
            MakeCall(i).member, Incarnation(incarnations_[i]), now_, out_);
      default:
        return;
    }
  }

  // Members without calls are lost, and forgotten in the end.
  void Pass() {
    now_ += std::chrono::milliseconds(dice_.Below(4000));
    coordinator_->Tick(now_, out_);
  }

  void GiveUp() {
    const WaiterId waiter(1 + dice_.Below(waiter_ + 1));
    if (dice_.Below(2) == 0) {
      coordinator_->CancelWaiter(waiter, out_);
    } else {
      coordinator_->DetachWaiter(waiter, out_);
    }
  }

  void Queue() {
    const std::string key = "q" + std::to_string(dice_.Below(3));
    if (dice_.Below(2) == 0) {
      const Call call = Mutation();
      return coordinator_->Mutate(
          call, "QueuePush", now_, out_, [&](StoreEngine& store) {
            store.QueuePush(call, key, dice_.Text(6000), out_);
          });
    }
    const auto timeout =
        dice_.Below(2) == 0
            ? std::nullopt
            : std::optional<Duration>(std::chrono::seconds(dice_.Below(20)));
    const Call call = Mutation();
    coordinator_->MutateAndPark(
        call, "QueuePop", now_, out_, [&](StoreEngine& store) {
          store.QueuePop(call, key, timeout, now_, out_);
        });
  }

  void Wait() {
    const Call call = Client();
    coordinator_->Read(call, now_, out_, [&](StoreEngine& store) {
      if (dice_.Below(4) == 0) {
        const auto after = static_cast<int64_t>(
            dice_.Below(static_cast<uint64_t>(store.revision()) + 1));
        return store.Watch(call, {{"k1", true}, after, std::chrono::seconds(9)},
                           now_, out_);
      }
      store.Wait(call, {Key(), dice_.Text(300)},
                 std::chrono::seconds(dice_.Below(30)), now_, out_);
    });
  }

  void Write() {
    const Call call = Mutation();
    const auto write = [&](absl::string_view method,
                           Coordinator::StoreVerb verb) {
      coordinator_->Mutate(call, method, now_, out_, verb);
    };
    switch (dice_.Below(7)) {
      case 0:
        return write("CompareSet", [&](StoreEngine& store) {
          store.CompareSet(call, Key(), "", dice_.Text(6000), out_);
        });
      case 1:
        return write("Append", [&](StoreEngine& store) {
          store.Append(call, Key(), dice_.Text(300), out_);
        });
      case 2:
        return write("Delete", [&](StoreEngine& store) {
          store.DeleteKey(call, Key(), out_);
        });
      case 3:
        return write("DeletePrefix", [&](StoreEngine& store) {
          store.DeletePrefix(call, "k1", out_);
        });
      case 4:
        return write("MultiSet", [&](StoreEngine& store) {
          store.MultiSet(call, std::vector{Key(), Key() + "/"},
                         {dice_.Text(300), dice_.Text(300)}, out_);
        });
      default:
        return write("Set", [&](StoreEngine& store) {
          store.Set(call, Key(), dice_.Text(6000), {}, now_, out_);
        });
    }
  }

  Dice dice_;
  TotalMemory& total_;
  std::unique_ptr<MemoryShare> share_;
  std::unique_ptr<Coordinator> coordinator_;
  Outbox out_;
  Instant now_ = t0;
  uint64_t epoch_ = 0;
  uint64_t waiter_ = 0;
  uint64_t incarnations_[kMembers] = {};
  uint64_t sequences_[kMembers] = {1, 1, 1, 1, 1, 1};
  std::map<std::string, Record> records_;
  int refused_ = 0;
};

TEST(HeldMemoryTest, IsThatOfTheTablesAfterEveryStep) {
  int refused = 0;
  for (uint64_t seed = 1; seed <= 30; ++seed) {
    TotalMemory total(kLimit);
    {
      World world(seed, &total);
      for (int step = 0; step < kSteps; ++step) {
        world.Step();
        ASSERT_EQ(world.Check(), OkStatus())
            << "seed " << seed << ", step " << step;
        ASSERT_EQ(total.held(), world.held());
      }
      world.Clear();
      EXPECT_EQ(world.Check(), OkStatus());
      // Only the history of changes is left.
      EXPECT_LE(total.held(), total.share() / 2) << "seed " << seed;
      refused += world.refused();
    }
    EXPECT_EQ(total.held(), 0) << "seed " << seed;
  }
  EXPECT_GT(refused, 0);
}

}  // namespace
}  // namespace muster::coordinator::core
