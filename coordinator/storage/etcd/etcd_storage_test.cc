#include "coordinator/storage/etcd/etcd_storage.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <filesystem>
#include <iterator>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "coordinator/storage/etcd/testing/model_etcd.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace muster::coordinator {
namespace {

using ::testing::HasSubstr;
using testing::ModelEtcd;
using Fate = ModelEtcd::Fate;
using Map = std::map<std::string, std::string>;

constexpr char kPrefix[] = "muster/";
constexpr char kOwner[] = "muster/owner";

// Makes this process the owner, as a handover does.
int64_t Own(ModelEtcd& etcd) {
  etcd.Put(kOwner, "node-a:7070");
  return etcd.ModRevision(kOwner);
}

EtcdStorageOptions Options(int64_t revision) {
  EtcdStorageOptions options;
  options.prefix = kPrefix;
  options.owner_key = kOwner;
  options.owner_revision = revision;
  options.try_again = [](const Status&) { return true; };
  return options;
}

StatusOr<Map> LoadAll(EtcdStorage& storage) {
  Map map;
  Status status =
      storage.Load([&](absl::string_view key, absl::string_view value) {
        map[std::string(key)] = std::string(value);
        return OkStatus();
      });
  if (!status.ok()) return status;
  return map;
}

Map Contents(ModelEtcd& etcd) {
  EtcdStorage storage(etcd, Options(Own(etcd)));
  StatusOr<Map> map = LoadAll(storage);
  EXPECT_TRUE(map.ok()) << map.status();
  return map.ok() ? *map : Map();
}

void Apply(const std::vector<StorageChange>& changes, Map& map) {
  for (const StorageChange& change : changes) {
    if (change.value.has_value()) {
      map[change.key] = *change.value;
    } else {
      map.erase(change.key);
    }
  }
}

size_t CountKeys(ModelEtcd& etcd, const std::string& folder) {
  const std::vector<std::string> keys = etcd.Keys();
  return std::count_if(keys.begin(), keys.end(), [&](const auto& key) {
    return absl::StartsWith(key, kPrefix + folder);
  });
}

TEST(EtcdStorageTest, LoadsWhatWasWritten) {
  ModelEtcd etcd;
  EtcdStorage storage(etcd, Options(Own(etcd)));
  EXPECT_EQ(LoadAll(storage).value(), Map());
  ASSERT_EQ(storage.Write({{"a", "1"}, {"b", "2"}, {"a", "3"}}), OkStatus());
  ASSERT_EQ(storage.Write({{"b", std::nullopt}, {"c", ""}}), OkStatus());
  ASSERT_EQ(storage.Write({{"job/1", "x"}, {"job/2", "y"}, {"joc", "z"}}),
            OkStatus());
  ASSERT_EQ(storage.ErasePrefix("job/"), OkStatus());
  EXPECT_EQ(storage.Sync(), OkStatus());
  EXPECT_EQ(Contents(etcd), (Map{{"a", "3"}, {"c", ""}, {"joc", "z"}}));
}

TEST(EtcdStorageTest, AWriteOfManyChangesIsOneRequest) {
  ModelEtcd etcd;
  EtcdStorage storage(etcd, Options(Own(etcd)));
  ASSERT_TRUE(LoadAll(storage).ok());
  std::vector<StorageChange> changes;
  for (int i = 0; i < 1000; ++i) changes.push_back({absl::StrCat(i), "value"});
  const int64_t before = etcd.requests();
  ASSERT_EQ(storage.Write(changes), OkStatus());
  EXPECT_EQ(etcd.requests(), before + 1);
  EXPECT_EQ(Contents(etcd).size(), 1000u);
}

TEST(EtcdStorageTest, AWriteLargerThanARequestIsCut) {
  ModelEtcd etcd;
  EtcdStorage storage(etcd, Options(Own(etcd)));
  ASSERT_TRUE(LoadAll(storage).ok());
  const std::string large(5'000'000, 'x');
  ASSERT_EQ(storage.Write({{"large", large}, {"small", "1"}}), OkStatus());
  ASSERT_EQ(storage.Write({{"small", "2"}}), OkStatus());
  EXPECT_EQ(CountKeys(etcd, "log/"), 6u);
  EXPECT_EQ(Contents(etcd), (Map{{"large", large}, {"small", "2"}}));
}

TEST(EtcdStorageTest, ALoadOfFewPartsIsOneRequest) {
  ModelEtcd etcd;
  const int64_t revision = Own(etcd);
  EtcdStorage storage(etcd, Options(revision));
  EXPECT_EQ(LoadAll(storage).value(), Map());
  EXPECT_EQ(etcd.requests(), 1);
  ASSERT_EQ(storage.Write({{"a", "1"}}), OkStatus());
  ASSERT_EQ(storage.Write({{"b", "2"}}), OkStatus());

  EtcdStorage next(etcd, Options(revision));
  const int64_t before = etcd.requests();
  EXPECT_EQ(LoadAll(next).value(), (Map{{"a", "1"}, {"b", "2"}}));
  EXPECT_EQ(etcd.requests(), before + 1);
}

TEST(EtcdStorageTest, ALoadOfManySmallPartsIsFewRequests) {
  ModelEtcd etcd;
  const int64_t revision = Own(etcd);
  EtcdStorage storage(etcd, Options(revision));
  ASSERT_TRUE(LoadAll(storage).ok());
  for (int i = 0; i < 2'000; ++i) {
    ASSERT_EQ(storage.Write({{absl::StrCat(i), "1"}}), OkStatus());
  }
  EtcdStorage next(etcd, Options(revision));
  const int64_t before = etcd.requests();
  EXPECT_EQ(LoadAll(next).value().size(), 2'000u);
  // Two of 32 parts, whose size tells how many are read with the third.
  EXPECT_EQ(etcd.requests(), before + 3);
}

TEST(EtcdStorageTest, ALoadOfLargePartsReadsFewAtATime) {
  ModelEtcd etcd;
  EtcdStorageOptions options = Options(Own(etcd));
  options.snapshot_bytes_min = 1'000'000'000;
  EtcdStorage storage(etcd, options);
  ASSERT_TRUE(LoadAll(storage).ok());
  Map written;
  for (int i = 0; i < 80; ++i) {
    written[absl::StrCat(i)] = std::string(1'000'000, 'a' + i % 26);
    ASSERT_EQ(storage.Write({{absl::StrCat(i), written[absl::StrCat(i)]}}),
              OkStatus());
  }
  EtcdStorage next(etcd, options);
  const int64_t before = etcd.requests();
  EXPECT_TRUE(LoadAll(next).value() == written);
  // Two of 32 parts, then 4 MB at a time.
  EXPECT_GE(etcd.requests(), before + 2 + 16 / 4);
}

int CountThreads() {
  const std::filesystem::directory_iterator threads("/proc/self/task");
  return static_cast<int>(std::distance(begin(threads), end(threads)));
}

TEST(EtcdStorageTest, AStorageWithoutASnapshotHasNoThread) {
  ModelEtcd etcd;
  const int before = CountThreads();
  std::vector<std::unique_ptr<EtcdStorage>> storages;
  for (int i = 0; i < 64; ++i) {
    EtcdStorageOptions options = Options(Own(etcd));
    options.prefix = absl::StrCat("muster/shards/", i, "/");
    storages.push_back(std::make_unique<EtcdStorage>(etcd, options));
    ASSERT_TRUE(LoadAll(*storages.back()).ok());
    ASSERT_EQ(storages.back()->Write({{"a", "1"}}), OkStatus());
  }
  EXPECT_EQ(CountThreads(), before);
}

TEST(EtcdStorageTest, StoragesShareAClient) {
  ModelEtcd etcd;
  const int64_t revision = Own(etcd);
  const auto make = [&](int i) {
    EtcdStorageOptions options = Options(revision);
    options.prefix = absl::StrCat("muster/shards/", i, "/");
    options.snapshot_bytes_min = 1'000;
    return std::make_unique<EtcdStorage>(etcd, options);
  };
  std::vector<std::thread> threads;
  for (int i = 0; i < 8; ++i) {
    threads.emplace_back([&, i] {
      const auto storage = make(i);
      EXPECT_EQ(LoadAll(*storage).value(), Map());
      for (int k = 0; k < 200; ++k) {
        EXPECT_EQ(storage->Write({{absl::StrCat(k % 10), absl::StrCat(i)}}),
                  OkStatus());
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (int i = 0; i < 8; ++i) {
    Map expected;
    for (int k = 0; k < 10; ++k) {
      expected[absl::StrCat(k)] = absl::StrCat(i);
    }
    EXPECT_EQ(LoadAll(*make(i)).value(), expected);
  }
}

TEST(EtcdStorageTest, OnlyTheOwnerReadsAndWrites) {
  ModelEtcd etcd;
  const int64_t revision = Own(etcd);
  EtcdStorage storage(etcd, Options(revision));
  ASSERT_TRUE(LoadAll(storage).ok());
  ASSERT_EQ(storage.Write({{"a", "1"}}), OkStatus());

  etcd.Erase(kOwner);
  Status status = storage.Write({{"a", "2"}});
  EXPECT_TRUE(IsAborted(status)) << status;
  EXPECT_THAT(status.message(), HasSubstr("its lease has ended"));

  // The same process again, or another with the same address, is another owner.
  etcd.Put(kOwner, "node-b:7070");
  status = storage.Write({{"a", "2"}});
  EXPECT_TRUE(IsAborted(status)) << status;
  EXPECT_THAT(status.message(), HasSubstr("\"node-b:7070\""));

  EtcdStorage late(etcd, Options(revision));
  EXPECT_TRUE(IsAborted(LoadAll(late).status()));

  // A handover puts another owner over this one.
  EtcdStorage owner(etcd, Options(Own(etcd)));
  ASSERT_TRUE(LoadAll(owner).ok());
  etcd.Put(kOwner, "node-c:7070");
  status = owner.Write({{"a", "2"}});
  EXPECT_TRUE(IsAborted(status)) << status;
  EXPECT_THAT(status.message(), HasSubstr("\"node-c:7070\""));
  EXPECT_EQ(Contents(etcd), (Map{{"a", "1"}}));
}

TEST(EtcdStorageTest, ALostAnswerIsNoSecondEntry) {
  ModelEtcd etcd;
  EtcdStorage storage(etcd, Options(Own(etcd)));
  ASSERT_TRUE(LoadAll(storage).ok());
  std::vector<Fate> fates = {Fate::kAnswered, Fate::kNoSpace, Fate::kNotApplied,
                             Fate::kLost, Fate::kLost};
  etcd.SetFates([&] {
    const Fate fate = fates.back();
    if (fates.size() > 1) fates.pop_back();
    return fate;
  });
  ASSERT_EQ(storage.Write({{"a", "1"}}), OkStatus());
  EXPECT_EQ(fates.size(), 1u);
  EXPECT_EQ(CountKeys(etcd, "log/"), 1u);
}

TEST(EtcdStorageTest, GivesUpWhenItIsTold) {
  ModelEtcd etcd;
  EtcdStorageOptions options = Options(Own(etcd));
  Status told;
  options.try_again = [&](const Status& status) {
    told = status;
    return false;
  };
  EtcdStorage storage(etcd, options);
  ASSERT_TRUE(LoadAll(storage).ok());
  etcd.SetFates([] { return Fate::kNoSpace; });
  const Status status = storage.Write({{"a", "1"}});
  EXPECT_TRUE(IsResourceExhausted(status)) << status;
  EXPECT_EQ(told, status);
}

// A condition that one thread awaits and another one makes true.
class Signal {
 public:
  void Set() {
    MutexLock lock(mu_);
    set_ = true;
    changed_.NotifyAll();
  }
  void Await() {
    MutexLock lock(mu_);
    while (!set_) changed_.Wait(mu_);
  }

 private:
  Mutex mu_;
  CondVar changed_;
  bool set_ MUSTER_GUARDED_BY(mu_) = false;
};

TEST(EtcdStorageTest, ItsHealthTellsWhileAWriteWaitsForSpace) {
  ModelEtcd etcd;
  EtcdStorageOptions options = Options(Own(etcd));
  Signal waits, space;
  options.try_again = [&](const Status&) {
    waits.Set();
    space.Await();
    return true;
  };
  EtcdStorage storage(etcd, options);
  options.prefix = "muster/other/";
  EtcdStorage other(etcd, options);
  ASSERT_TRUE(LoadAll(storage).ok());
  ASSERT_TRUE(LoadAll(other).ok());
  EXPECT_EQ(storage.health(), OkStatus());
  int requests = 0;
  etcd.SetFates(
      [&] { return ++requests == 1 ? Fate::kNoSpace : Fate::kAnswered; });
  std::thread writer([&] {
    EXPECT_EQ(storage.Write({{"a", "1"}}), OkStatus());
  });
  waits.Await();
  for (const EtcdStorage* each : {&storage, &other}) {
    const Status status = each->health();
    EXPECT_TRUE(IsResourceExhausted(status)) << status;
    EXPECT_THAT(status.message(), HasSubstr("etcd has no space: "));
  }
  space.Set();
  writer.join();
  EXPECT_EQ(storage.health(), OkStatus());
  EXPECT_EQ(other.health(), OkStatus());
}

TEST(EtcdStorageTest, ItsHealthForgetsAWriteThatWasGivenUp) {
  ModelEtcd etcd;
  EtcdStorageOptions options = Options(Own(etcd));
  options.try_again = [&](const Status&) { return false; };
  EtcdStorage storage(etcd, options);
  ASSERT_TRUE(LoadAll(storage).ok());
  etcd.SetFates([] { return Fate::kNoSpace; });
  EXPECT_TRUE(IsResourceExhausted(storage.Write({{"a", "1"}})));
  EXPECT_EQ(storage.health(), OkStatus());
}

TEST(EtcdStorageTest, ItsHealthTellsAfterAWhileWithoutAnAnswer) {
  ModelEtcd etcd;
  EtcdStorageOptions options = Options(Own(etcd));
  std::atomic<EtcdStorage*> self = nullptr;
  int tries = 0;
  Status health;
  options.try_again = [&](const Status&) {
    health = self.load()->health();
    // The first failure is none yet.
    if (tries++ == 0) {
      EXPECT_EQ(health, OkStatus());
    }
    return health.ok();
  };
  EtcdStorage storage(etcd, options);
  self = &storage;
  ASSERT_TRUE(LoadAll(storage).ok());
  etcd.SetFates([] { return Fate::kNotApplied; });
  EXPECT_TRUE(IsUnavailable(storage.Write({{"a", "1"}})));
  EXPECT_TRUE(IsUnavailable(health)) << health;
  EXPECT_THAT(health.message(), HasSubstr("etcd does not answer: "));
}

TEST(EtcdStorageTest, AnAnswerThatTakesLongIsAwaited) {
  ModelEtcd etcd;
  EtcdStorage storage(etcd, Options(Own(etcd)));
  ASSERT_TRUE(LoadAll(storage).ok());
  Signal asked, answers;
  etcd.SetFates([&] {
    asked.Set();
    answers.Await();
    return Fate::kAnswered;
  });
  std::thread writer([&] {
    EXPECT_EQ(storage.Write({{"a", "1"}}), OkStatus());
  });
  asked.Await();
  // etcd's disk is slow, but nothing has failed.
  EXPECT_EQ(storage.health(), OkStatus());
  answers.Set();
  writer.join();
  EXPECT_EQ(Contents(etcd), (Map{{"a", "1"}}));
}

TEST(EtcdStorageTest, StoragesCompactOnceInAWhile) {
  ModelEtcd etcd;
  EtcdStorageOptions options = Options(Own(etcd));
  options.snapshot_bytes_min = 1'000;
  options.space = std::make_shared<EtcdSpace>(std::chrono::hours(1));
  EtcdStorage storage(etcd, options);
  ASSERT_TRUE(LoadAll(storage).ok());
  const auto make_snapshot = [&] {
    ASSERT_EQ(storage.Write({{"a", std::string(3'000, 'x')}}), OkStatus());
    ASSERT_EQ(storage.AwaitSnapshots(), OkStatus());
  };
  make_snapshot();
  const int64_t first = etcd.ModRevision("muster/snapshot");
  make_snapshot();
  make_snapshot();
  make_snapshot();
  // The second snapshot compacted the history before the first.
  EXPECT_GT(etcd.compacted(), 0);
  EXPECT_LT(etcd.compacted(), first);
}

// Writes until the process "dies" at a random request, again and again.
class CrashTest : public ::testing::TestWithParam<int> {};

TEST_P(CrashTest, EachWriteIsWholeOrAbsentAndTheAcknowledgedAreThere) {
  std::mt19937 random(GetParam());
  const auto below = [&](int n) { return static_cast<int>(random() % n); };
  ModelEtcd etcd;
  Map acknowledged;
  for (int life = 0; life < 6; ++life) {
    etcd.SetFates(nullptr);
    int left = 1 + below(60);
    std::atomic<bool> dead = false;
    EtcdStorageOptions options = Options(Own(etcd));
    options.part_bytes_max = 64;
    options.snapshot_bytes_min = 400;
    options.try_again = [&](const Status&) { return !dead; };
    EtcdStorage storage(etcd, options);
    Mutex mu;
    etcd.SetFates([&] {
      MutexLock lock(mu);
      if (--left <= 0) dead = true;
      if (dead) return left == 0 && below(2) ? Fate::kLost : Fate::kNotApplied;
      const int fate = below(12);
      return fate == 0   ? Fate::kNotApplied
             : fate == 1 ? Fate::kLost
             : fate == 2 ? Fate::kLate
             : fate == 3 ? Fate::kNoSpace
                         : Fate::kAnswered;
    });
    const StatusOr<Map> loaded = LoadAll(storage);
    if (!loaded.ok()) continue;
    ASSERT_EQ(*loaded, acknowledged);
    Map unsure;
    while (true) {
      std::vector<StorageChange> changes;
      for (int i = 0; i <= below(4); ++i) {
        const std::string key = absl::StrCat("key", below(10));
        if (below(3) == 0) {
          changes.push_back({key, std::nullopt});
        } else {
          changes.push_back({key, std::string(below(90), 'a' + below(26))});
        }
      }
      unsure = acknowledged;
      Apply(changes, unsure);
      if (!storage.Write(changes).ok()) break;
      acknowledged = unsure;
    }
    // The next owner decides about the write that had no answer.
    etcd.SetFates(nullptr);
    const Map found = Contents(etcd);
    ASSERT_TRUE(found == acknowledged || found == unsure);
    acknowledged = found;
  }
}

INSTANTIATE_TEST_SUITE_P(Seeds, CrashTest, ::testing::Range(0, 200));

TEST(EtcdStorageTest, SnapshotsKeepTheLogShort) {
  ModelEtcd etcd;
  EtcdStorageOptions options = Options(Own(etcd));
  options.snapshot_bytes_min = 10'000;
  options.space = std::make_shared<EtcdSpace>(std::chrono::milliseconds(0));
  EtcdStorage storage(etcd, options);
  ASSERT_TRUE(LoadAll(storage).ok());
  Map written;
  for (int i = 0; i < 2'000; ++i) {
    const std::vector<StorageChange> changes = {
        {absl::StrCat("key", i % 50), std::string(100, 'a' + i % 26)}};
    ASSERT_EQ(storage.Write(changes), OkStatus());
    Apply(changes, written);
    if (i % 100 == 99) {
      ASSERT_EQ(storage.AwaitSnapshots(), OkStatus());
    }
  }
  // 50 values are 6 kB; 10 kB of log are fewer than 100 entries.
  EXPECT_LE(CountKeys(etcd, "log/"), 100u);
  EXPECT_LE(CountKeys(etcd, "snapshots/"), 2u);
  EXPECT_GT(etcd.compacted(), 1'000);
  EXPECT_EQ(Contents(etcd), written);
}

TEST(EtcdStorageTest, ASnapshotThatFailedIsMadeLater) {
  ModelEtcd etcd;
  EtcdStorageOptions options = Options(Own(etcd));
  options.snapshot_bytes_min = 1'000;
  options.snapshot_pause = std::chrono::milliseconds(1);
  EtcdStorage storage(etcd, options);
  ASSERT_TRUE(LoadAll(storage).ok());
  // The write, and three snapshots: one that is not begun, one that is not
  // finished, and one whose log is not removed.
  int request = 0;
  etcd.SetFates([&] {
    ++request;
    return request == 2 || request == 5 ? Fate::kRefused : Fate::kAnswered;
  });
  const std::string value(1'000, 'x');
  ASSERT_EQ(storage.Write({{"a", value}}), OkStatus());
  EXPECT_EQ(storage.AwaitSnapshots(), OkStatus());
  EXPECT_GE(request, 8);
  EXPECT_EQ(Contents(etcd), (Map{{"a", value}}));
}

TEST(EtcdStorageTest, ASnapshotWaitsAfterAFailure) {
  ModelEtcd etcd;
  EtcdStorageOptions options = Options(Own(etcd));
  options.snapshot_bytes_min = 1'000;
  options.snapshot_pause = std::chrono::hours(1);
  EtcdStorage storage(etcd, options);
  ASSERT_TRUE(LoadAll(storage).ok());
  Signal refused;
  int request = 0;
  etcd.SetFates([&] {
    if (++request != 2) return Fate::kAnswered;
    refused.Set();
    return Fate::kRefused;
  });
  ASSERT_EQ(storage.Write({{"a", std::string(1'000, 'x')}}), OkStatus());
  refused.Await();
  for (int i = 0; i < 100; ++i) {
    ASSERT_EQ(storage.Write({{"b", absl::StrCat(i)}}), OkStatus());
  }
  EXPECT_EQ(request, 102);
}

TEST(EtcdStorageTest, SnapshotsEndWithTheOwnership) {
  ModelEtcd etcd;
  EtcdStorageOptions options = Options(Own(etcd));
  options.snapshot_bytes_min = 1'000;
  options.try_again = [&](const Status&) {
    etcd.Put(kOwner, "node-b:7070");
    return true;
  };
  EtcdStorage storage(etcd, options);
  ASSERT_TRUE(LoadAll(storage).ok());
  int request = 0;
  etcd.SetFates(
      [&] { return ++request == 2 ? Fate::kNotApplied : Fate::kAnswered; });
  ASSERT_EQ(storage.Write({{"a", std::string(1'000, 'x')}}), OkStatus());
  EXPECT_TRUE(IsAborted(storage.AwaitSnapshots()));
}

TEST(EtcdStorageTest, ALoadIgnoresWhatTheSnapshotContains) {
  ModelEtcd etcd;
  EtcdStorageOptions options = Options(Own(etcd));
  options.snapshot_bytes_min = 1'000;
  EtcdStorage storage(etcd, options);
  ASSERT_TRUE(LoadAll(storage).ok());
  const std::string value(1'000, 'x');
  ASSERT_EQ(storage.Write({{"a", value}}), OkStatus());
  ASSERT_EQ(storage.AwaitSnapshots(), OkStatus());
  ASSERT_EQ(storage.Write({{"b", "1"}}), OkStatus());
  // A part whose removal was interrupted.
  etcd.Put("muster/log/0000000000000000", "something");
  EXPECT_EQ(Contents(etcd), (Map{{"a", value}, {"b", "1"}}));
}

TEST(EtcdStorageTest, OthersMayCompactWhileItLoads) {
  ModelEtcd etcd;
  EtcdStorage storage(etcd, Options(Own(etcd)));
  ASSERT_TRUE(LoadAll(storage).ok());
  for (int i = 0; i < 100; ++i) {
    ASSERT_EQ(storage.Write({{absl::StrCat(i), "1"}}), OkStatus());
  }
  EtcdStorage next(etcd, Options(Own(etcd)));
  // Before its second request.
  etcd.CompactBefore(2);
  const StatusOr<Map> map = LoadAll(next);
  ASSERT_TRUE(map.ok()) << map.status();
  EXPECT_EQ(map->size(), 100u);
  EXPECT_GT(etcd.compacted(), 100);
}

TEST(EtcdStorageTest, ALoadEndsWhenItIsNoLongerTheOwners) {
  ModelEtcd etcd;
  EtcdStorageOptions options = Options(Own(etcd));
  EtcdStorage storage(etcd, options);
  ASSERT_TRUE(LoadAll(storage).ok());
  for (int i = 0; i < 100; ++i) {
    ASSERT_EQ(storage.Write({{absl::StrCat(i), "1"}}), OkStatus());
  }
  // Another one owns it, and changes it, between two requests.
  options.try_again = [&](const Status&) {
    etcd.Put(kOwner, "node-b:7070");
    etcd.Erase("muster/log/0000000000000050");
    return true;
  };
  EtcdStorage next(etcd, options);
  int request = 0;
  etcd.SetFates(
      [&] { return ++request == 2 ? Fate::kNotApplied : Fate::kAnswered; });
  const Status status = LoadAll(next).status();
  EXPECT_TRUE(IsAborted(status)) << status;
}

TEST(EtcdStorageTest, DamageIsAnErrorThatNamesTheKey) {
  const auto load_after = [](const std::function<void(ModelEtcd&)>& damage) {
    ModelEtcd etcd;
    {
      EtcdStorage storage(etcd, Options(Own(etcd)));
      EXPECT_TRUE(LoadAll(storage).ok());
      for (int i = 0; i < 3; ++i) {
        EXPECT_EQ(storage.Write({{absl::StrCat(i), "1"}}), OkStatus());
      }
    }
    damage(etcd);
    EtcdStorage storage(etcd, Options(Own(etcd)));
    return LoadAll(storage).status();
  };
  const std::string second = "muster/log/0000000000000001";
  Status status = load_after([&](ModelEtcd& etcd) { etcd.Erase(second); });
  EXPECT_TRUE(IsDataLoss(status)) << status;
  EXPECT_THAT(status.message(), HasSubstr(second));

  status = load_after([&](ModelEtcd& etcd) { etcd.Put(second, "\xff\xff"); });
  EXPECT_TRUE(IsDataLoss(status)) << status;
  EXPECT_THAT(status.message(), HasSubstr(second));

  status = load_after(
      [&](ModelEtcd& etcd) { etcd.Put("muster/snapshot", "something"); });
  EXPECT_TRUE(IsDataLoss(status)) << status;
  EXPECT_THAT(status.message(), HasSubstr("muster/snapshot"));
}

}  // namespace
}  // namespace muster::coordinator
