#include "coordinator/server/jobs/commit_queue.h"

#include <future>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "coordinator/storage/record_codec.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace muster::coordinator {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::UnorderedElementsAre;

core::Record Entry(const std::string& key, const std::string& value) {
  return core::EntryRecord{key, std::make_shared<const std::string>(value), 1};
}

// The contents and behaviour of a test's storage; outlives the queue.
struct Disk {
  std::map<std::string, std::string> synced;
  std::map<std::string, std::string> written;
  int writes = 0;
  int syncs = 0;
  Status status;
  // A write first sets `entered` and then waits for `gate`.
  std::promise<void>* entered = nullptr;
  std::future<void>* gate = nullptr;

  std::vector<std::string> Keys() const {
    std::vector<std::string> keys;
    for (const auto& [key, value] : synced) keys.push_back(key);
    return keys;
  }
};

class FakeStorage : public Storage {
 public:
  explicit FakeStorage(Disk* disk) : disk_(*disk) {}

  Status Load(absl::FunctionRef<Status(absl::string_view, absl::string_view)>)
      override {
    return OkStatus();
  }
  Status Write(const std::vector<StorageChange>& changes) override {
    if (disk_.entered != nullptr) {
      std::exchange(disk_.entered, nullptr)->set_value();
      disk_.gate->wait();
    }
    ++disk_.writes;
    if (!disk_.status.ok()) return disk_.status;
    for (const StorageChange& change : changes) {
      if (change.value.has_value()) {
        disk_.written[change.key] = *change.value;
      } else {
        disk_.written.erase(change.key);
      }
    }
    return OkStatus();
  }
  Status ErasePrefix(absl::string_view prefix) override {
    std::erase_if(disk_.written, [&](const auto& entry) {
      return entry.first.substr(0, prefix.size()) == prefix;
    });
    return OkStatus();
  }
  Status Sync() override {
    ++disk_.syncs;
    disk_.synced = disk_.written;
    return disk_.status;
  }

 private:
  Disk& disk_;
};

std::string MakeKey(const std::string& job, const std::string& key) {
  return EncodeKey(job, Entry(key, ""));
}

std::unique_ptr<CommitQueue> Queue(Disk& disk, SyncPolicy sync = {},
                                   CommitQueue::Observer observer = {}) {
  return std::make_unique<CommitQueue>(std::make_unique<FakeStorage>(&disk),
                                       sync, std::move(observer));
}

TEST(CommitQueueTest, ACommitCompletesWhenItsRecordsAreOnTheDisk) {
  Disk disk;
  const auto queue = Queue(disk);
  std::promise<std::vector<std::string>> done;
  queue->Append("job", {Entry("a", "1")},
                [&](const Status&) { done.set_value(disk.Keys()); });
  EXPECT_THAT(done.get_future().get(), ElementsAre(MakeKey("job", "a")));
}

TEST(CommitQueueTest, WhatComesDuringAWriteSharesTheNextOne) {
  Disk disk;
  std::promise<void> entered;
  std::promise<void> open;
  std::future<void> gate = open.get_future();
  disk.entered = &entered;
  disk.gate = &gate;
  auto queue = Queue(disk);
  std::vector<int> completed;
  queue->Append("job", {Entry("a", "1")},
                [&](const Status&) { completed.push_back(0); });
  entered.get_future().wait();
  for (int i = 1; i <= 10; ++i) {
    queue->Append("job", {Entry("a", std::to_string(i))},
                  [&completed, i](const Status&) { completed.push_back(i); });
  }
  EXPECT_EQ(queue->depth(), 11);
  open.set_value();
  queue.reset();
  EXPECT_EQ(disk.writes, 2);
  EXPECT_EQ(disk.syncs, 2);
  EXPECT_THAT(completed, ElementsAre(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10));
}

// The storage copies its writes.
TEST(CommitQueueTest, LargeCommitsAreWrittenAFewAtATimeWithOneSync) {
  Disk disk;
  std::promise<void> entered;
  std::promise<void> open;
  std::future<void> gate = open.get_future();
  disk.entered = &entered;
  disk.gate = &gate;
  auto queue = Queue(disk);
  int completed = 0;
  queue->Append("job", {Entry("a", "1")}, [&](const Status&) { ++completed; });
  entered.get_future().wait();
  const std::string value(3 << 20, 'v');
  for (int i = 1; i <= 5; ++i) {
    queue->Append("job", {Entry(std::to_string(i), value)},
                  [&](const Status&) { ++completed; });
  }
  open.set_value();
  queue.reset();
  // Two, two, and one commit.
  EXPECT_EQ(disk.writes, 1 + 3);
  EXPECT_EQ(disk.syncs, 2);
  EXPECT_EQ(completed, 6);
  EXPECT_EQ(disk.synced.size(), 6u);
}

TEST(CommitQueueTest, ACommitWithoutRecordsKeepsItsPlaceAndWritesNothing) {
  Disk disk;
  auto queue = Queue(disk);
  std::vector<std::string> order;
  queue->Append("job", {Entry("a", "1")},
                [&](const Status&) { order.push_back("write"); });
  queue->Append("job", {}, [&](const Status&) { order.push_back("read"); });
  queue.reset();
  EXPECT_THAT(order, ElementsAre("write", "read"));
  EXPECT_EQ(disk.synced.size(), 1u);
}

TEST(CommitQueueTest, TheEndOfAJobErasesItAloneAndInItsPlace) {
  Disk disk;
  auto queue = Queue(disk);
  queue->Append("job", {Entry("a", "1")}, nullptr);
  queue->Append("other", {Entry("a", "1")}, nullptr);
  queue->AppendErasure("job");
  queue->Append("job", {Entry("b", "2")}, nullptr);
  queue.reset();
  EXPECT_THAT(disk.Keys(),
              UnorderedElementsAre(MakeKey("job", "b"), MakeKey("other", "a")));
}

TEST(CommitQueueTest, AfterAFailureAllFailAndItIsToldOnce) {
  Disk disk;
  disk.status = UnavailableError("disk full");
  std::vector<std::string> failures;
  std::vector<Status> ends;
  const auto done = [&](const Status& status) { ends.push_back(status); };
  auto queue =
      Queue(disk, {}, {.written = nullptr, .failed = [&](auto status) {
                         failures.push_back(std::string(status.message()));
                       }});
  queue->Append("job", {Entry("a", "1")}, done);
  queue->Append("job", {Entry("b", "1")}, done);
  queue->Append("job", {}, done);
  EXPECT_TRUE(IsUnavailable(queue->Stop()));
  EXPECT_FALSE(queue->owned());
  EXPECT_THAT(ends, ElementsAre(UnavailableError("disk full"),
                                UnavailableError("disk full"),
                                UnavailableError("disk full")));
  EXPECT_THAT(failures, ElementsAre(HasSubstr("disk full")));
  EXPECT_THAT(disk.Keys(), IsEmpty());
}

TEST(CommitQueueTest, AnAbandonedQueueWritesNothingMoreAndItsCommitsFail) {
  Disk disk;
  std::promise<void> entered;
  std::promise<void> open;
  std::future<void> gate = open.get_future();
  disk.entered = &entered;
  disk.gate = &gate;
  auto queue = Queue(disk);
  std::vector<bool> ends;
  const auto done = [&](const Status& status) { ends.push_back(status.ok()); };
  queue->Append("job", {Entry("a", "1")}, done);
  entered.get_future().wait();
  queue->Append("job", {Entry("b", "1")}, done);
  std::thread abandon([&] { queue->Abandon(UnavailableError("lost")); });
  while (queue->owned()) std::this_thread::yield();
  open.set_value();
  abandon.join();
  EXPECT_THAT(ends, ElementsAre(testing::_, false));
  EXPECT_THAT(disk.Keys(), ElementsAre(MakeKey("job", "a")));
}

// The completion of one commit may append another.
TEST(CommitQueueTest, StopCompletesWhatIsAppendedByACompletion) {
  Disk disk;
  auto queue = Queue(disk);
  bool completed = false;
  queue->Append("job", {Entry("a", "1")}, [&](const Status&) {
    queue->Append("job", {Entry("b", "1")},
                  [&](const Status& status) { completed = status.ok(); });
  });
  EXPECT_TRUE(queue->Stop().ok());
  EXPECT_TRUE(completed);
  EXPECT_EQ(disk.synced.size(), 2u);
}

TEST(CommitQueueTest, WithAnIntervalItCompletesBeforeTheSync) {
  Disk disk;
  auto queue = Queue(disk, {.interval = std::chrono::hours(1)});
  std::promise<int> syncs;
  queue->Append("job", {Entry("a", "1")},
                [&](const Status&) { syncs.set_value(disk.syncs); });
  EXPECT_EQ(syncs.get_future().get(), 0);
  queue.reset();
  // Stop syncs the rest.
  EXPECT_EQ(disk.syncs, 1);
}

TEST(CommitQueueTest, WithAnIntervalItSyncsWithoutFurtherCommits) {
  Disk disk;
  auto queue = Queue(disk, {.interval = std::chrono::milliseconds(1)});
  std::promise<void> written;
  queue->Append("job", {Entry("a", "1")},
                [&](const Status&) { written.set_value(); });
  written.get_future().wait();
  // Only the queue's thread uses the disk, so a commit without records reads
  // the count there.
  for (;;) {
    std::promise<int> syncs;
    queue->Append("job", {},
                  [&](const Status&) { syncs.set_value(disk.syncs); });
    if (syncs.get_future().get() > 0) break;
  }
  EXPECT_EQ(disk.synced.size(), 1u);
}

TEST(CommitQueueTest, TheObserverIsToldWhatAWriteTookAndHeld) {
  Disk disk;
  int64_t commits = 0;
  int64_t records = 0;
  auto queue = Queue(disk, {},
                     {.written =
                          [&](core::Duration, int64_t c, int64_t r) {
                            commits += c;
                            records += r;
                          },
                      .failed = nullptr});
  queue->Append("job", {Entry("a", "1"), Entry("b", "2")}, nullptr);
  queue.reset();
  EXPECT_EQ(commits, 1);
  EXPECT_EQ(records, 2);
}

}  // namespace
}  // namespace muster::coordinator
