// Tests the order of a server's answers and its writes to the storage.

#include <condition_variable>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "coordinator/server/test_server.h"
#include "coordinator/storage/storage.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace muster::coordinator {
namespace {

using ::testing::HasSubstr;

// The storage, which outlives the servers of a test. While it is shut, writes
// wait.
class Disk {
 public:
  void Shut() {
    const std::lock_guard<std::mutex> lock(mutex_);
    open_ = false;
  }
  void Open() {
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      open_ = true;
    }
    changed_.notify_all();
  }
  void Break() {
    const std::lock_guard<std::mutex> lock(mutex_);
    broken_ = true;
  }
  // Returns a copy of the present records, as after the end of the process.
  std::map<std::string, std::string> Records() {
    const std::lock_guard<std::mutex> lock(mutex_);
    return records_;
  }

  Status Write(const std::vector<StorageChange>& changes) {
    std::unique_lock<std::mutex> lock(mutex_);
    while (!open_) changed_.wait(lock);
    if (broken_) return UnavailableError("no space left on device");
    for (const StorageChange& change : changes) {
      if (change.value.has_value()) {
        records_[change.key] = *change.value;
      } else {
        records_.erase(change.key);
      }
    }
    return OkStatus();
  }

  Status ErasePrefix(absl::string_view prefix) {
    const std::lock_guard<std::mutex> lock(mutex_);
    std::erase_if(records_, [&](const auto& record) {
      return absl::StartsWith(record.first, prefix);
    });
    return OkStatus();
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool open_ = true;
  bool broken_ = false;
  std::map<std::string, std::string> records_;
};

class DiskStorage : public Storage {
 public:
  explicit DiskStorage(Disk* disk) : disk_(*disk) {}

  Status Load(absl::FunctionRef<Status(absl::string_view, absl::string_view)>
                  entry) override {
    for (const auto& [key, value] : disk_.Records()) {
      Status status = entry(key, value);
      if (!status.ok()) return status;
    }
    return OkStatus();
  }
  Status Write(const std::vector<StorageChange>& changes) override {
    return disk_.Write(changes);
  }
  Status ErasePrefix(absl::string_view prefix) override {
    return disk_.ErasePrefix(prefix);
  }
  Status Sync() override { return OkStatus(); }

 private:
  Disk& disk_;
};

ServerOptions On(Disk& disk) {
  ServerOptions options;
  options.http_listen = "127.0.0.1:0";
  options.open_storage = [&disk] {
    return std::unique_ptr<Storage>(std::make_unique<DiskStorage>(&disk));
  };
  return options;
}

// Returns one sample of /metrics; 0 if there is none.
double Metric(const TestServer& server, const std::string& sample) {
  const std::string page = server.Http("/metrics");
  for (const absl::string_view line : absl::StrSplit(page, '\n')) {
    double value = 0;
    if (absl::StartsWith(line, sample + " ") &&
        absl::SimpleAtod(line.substr(sample.size() + 1), &value)) {
      return value;
    }
  }
  return 0;
}

double Uncommitted(const TestServer& server) {
  return Metric(server, "muster_coordinator_storage_uncommitted_steps");
}

double Answered(const TestServer& server, const std::string& method) {
  return Metric(server,
                absl::StrCat("muster_coordinator_rpc_requests_total{code=\"OK\""
                             ",method=\"",
                             method, "\"}"));
}

TEST(DurableTest, AnAnswerWaitsForTheStorage) {
  Disk disk;
  TestServer server(On(disk));
  TestStream stream(server.NewChannel());
  stream.HelloMember("j", "a", 1);
  disk.Shut();
  stream.SendOperation(SetOperation(1, "k", "v"));
  while (Uncommitted(server) < 1) std::this_thread::yield();
  EXPECT_EQ(Answered(server, "Set"), 0);
  disk.Open();
  EXPECT_TRUE(stream.Await(1).has_set());
}

// A crash could undo the state that the read saw.
TEST(DurableTest, AReadWaitsForTheWriteThatItSaw) {
  Disk disk;
  TestServer server(On(disk));
  TestStream writer(server.NewChannel());
  TestStream reader(server.NewChannel());
  writer.HelloMember("j", "a", 1);
  reader.HelloMember("j", "b", 1);
  disk.Shut();
  writer.SendOperation(SetOperation(1, "k", "v"));
  while (Uncommitted(server) < 1) std::this_thread::yield();
  reader.SendOperation(GetOperation(1, "k"));
  while (Uncommitted(server) < 2) std::this_thread::yield();
  EXPECT_EQ(Answered(server, "Get"), 0);
  disk.Open();
  EXPECT_EQ(reader.Await(1).get().value(), "v");
}

TEST(DurableTest, AReadOfWhatIsStoredWaitsForNothing) {
  Disk disk;
  TestServer server(On(disk));
  TestStream stream(server.NewChannel());
  stream.HelloMember("j", "a", 1);
  stream.Call(SetOperation(1, "k", "v"));
  TestStream other(server.NewChannel());
  other.HelloMember("elsewhere", "a", 1);
  while (Uncommitted(server) > 0) std::this_thread::yield();
  disk.Shut();
  // A read does not wait for another job's write.
  other.SendOperation(SetOperation(1, "k", "v"));
  while (Uncommitted(server) < 1) std::this_thread::yield();
  EXPECT_EQ(stream.Call(GetOperation(2, "k")).get().value(), "v");
  disk.Open();
  EXPECT_TRUE(other.Await(1).has_set());
}

TEST(DurableTest, ANewServerGoesOnWithTheJob) {
  Disk disk;
  auto first = std::make_unique<TestServer>(On(disk));
  const uint64_t epoch = first->server().epoch();
  TestStream stream(first->NewChannel());
  const v1::Welcome before = stream.HelloMember("j", "a", 1);
  v1::Operation add;
  add.set_id(1);
  add.mutable_add()->set_key("n");
  add.mutable_add()->set_delta(5);
  add.mutable_add()->set_sequence(1);
  EXPECT_EQ(stream.Call(add).add().value(), 5);
  first->Stop();

  TestServer second(On(disk));
  EXPECT_NE(second.server().epoch(), epoch);
  TestStream again(second.NewChannel());
  const v1::Welcome after = again.HelloMember("j", "a", 1);
  EXPECT_NE(before.job_epoch(), 0u);
  EXPECT_EQ(after.job_epoch(), before.job_epoch());
  // A retry of a call that was answered before, then the next one.
  EXPECT_EQ(again.Call(add).add().value(), 5);
  add.set_id(2);
  add.mutable_add()->set_sequence(2);
  EXPECT_EQ(again.Call(add).add().value(), 10);
}

TEST(DurableTest, WithoutStorageAnotherServerHasAnotherJob) {
  auto first = std::make_unique<TestServer>();
  TestStream stream(first->NewChannel());
  const v1::Welcome before = stream.HelloMember("j", "a", 1);
  first->Stop();
  TestServer second;
  TestStream again(second.NewChannel());
  EXPECT_NE(again.HelloMember("j", "a", 1).job_epoch(), before.job_epoch());
}

TEST(DurableTest, AClientIsReadAtTheStoragesPace) {
  constexpr int kMessages = 400;
  Disk disk;
  TestServer server(On(disk));
  TestStream stream(server.NewChannel());
  stream.HelloMember("j", "a", 1);
  disk.Shut();
  for (int i = 1; i <= kMessages; ++i) {
    stream.SendOperation(SetOperation(static_cast<uint64_t>(i), "k", "v"));
  }
  while (Uncommitted(server) < 65) std::this_thread::yield();
  // Gives the server time to read more.
  for (int i = 0; i < 50; ++i) EXPECT_LE(Uncommitted(server), 66);
  disk.Open();
  for (int i = 1; i <= kMessages; ++i) {
    EXPECT_TRUE(stream.Await(static_cast<uint64_t>(i)).has_set());
  }
}

TEST(DurableTest, WhenTheStorageFailsNobodyIsAnsweredAndTheOwnerIsTold) {
  Disk disk;
  std::mutex mutex;
  std::condition_variable told;
  std::string failure;
  ServerOptions options = On(disk);
  options.on_storage_failure = [&](const Status& status) {
    const std::lock_guard<std::mutex> lock(mutex);
    failure = std::string(status.message());
    told.notify_all();
  };
  TestServer server(options);
  TestStream stream(server.NewChannel());
  stream.HelloMember("j", "a", 1);
  disk.Break();
  stream.SendOperation(SetOperation(1, "k", "v"));
  std::unique_lock<std::mutex> lock(mutex);
  told.wait(lock, [&] { return !failure.empty(); });
  EXPECT_THAT(failure, HasSubstr("no space left"));
  EXPECT_EQ(Answered(server, "Set"), 0);
}

TEST(DurableTest, ACorruptRecordIsRefusedAtTheStart) {
  Disk disk;
  ASSERT_TRUE(disk.Write({{std::string("j\0?", 3), "x"}}).ok());
  const auto server = Server::Start(On(disk));
  EXPECT_EQ(server.status().code(), StatusCode::kDataLoss);
  EXPECT_THAT(server.status().message(), HasSubstr("corrupt"));
}

TEST(DurableTest, AForgottenJobLeavesNothing) {
  Disk disk;
  ServerOptions options = On(disk);
  options.idle_job_retention = std::chrono::milliseconds(1);
  TestServer server(options);
  {
    TestStream stream(server.NewChannel());
    stream.HelloMember("j", "a", 1);
    stream.Call(SetOperation(1, "k", "v"));
    v1::Operation leave;
    leave.set_id(2);
    leave.mutable_leave();
    stream.Call(leave);
  }
  while (!disk.Records().empty()) std::this_thread::yield();
}

}  // namespace
}  // namespace muster::coordinator
