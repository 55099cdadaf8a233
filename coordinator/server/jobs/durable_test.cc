// Tests the order of a server's answers and its writes to the storage.

#include <stdlib.h>

#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "coordinator/server/test_disk.h"
#include "coordinator/server/test_server.h"
#include "coordinator/storage/rocksdb_storage.h"
#include "coordinator/storage/storage.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace muster::coordinator {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

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

// A folder for a database, removed at the end.
class Folder {
 public:
  Folder() : path_(testing::TempDir() + "/durable.XXXXXX") {
    EXPECT_NE(mkdtemp(path_.data()), nullptr);
  }
  ~Folder() { std::filesystem::remove_all(path_); }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

// `put k=1 r3`.
std::vector<std::string> Changes(const v1::Result& result) {
  if (!result.has_watch()) return {result.ShortDebugString()};
  std::vector<std::string> changes;
  for (const v1::KeyChange& change : result.watch().changes()) {
    changes.push_back(absl::StrCat(
        change.kind() == v1::CHANGE_KIND_PUT ? "put" : "gone", " ",
        change.key(), "=", change.value(), " r", change.revision()));
  }
  return changes;
}

// The watcher knows revision 1 when the server ends.
TEST(DurableTest, AWatchGoesOnFromItsRevisionAtANewServer) {
  const Folder folder;
  ServerOptions options;
  options.limits.watch_history_changes = 4;
  options.open_storage = [&] { return OpenRocksDb(folder.path()); };
  auto first = std::make_unique<TestServer>(options);
  {
    TestStream stream(first->NewChannel());
    stream.HelloMember("j", "a", 1);
    stream.Call(SetOperation(1, "k", "1"));
    v1::Operation watch;
    watch.set_id(2);
    watch.mutable_watch()->set_prefix(true);
    EXPECT_EQ(stream.Call(watch).watch().revision(), 1);
    stream.Call(SetOperation(3, "k", "2"));
    stream.Call(SetOperation(4, "k", "3"));
    v1::Operation lock = SetOperation(5, "lock", "a");
    lock.mutable_set()->set_ephemeral(true);
    stream.Call(lock);
    v1::Operation leave;
    leave.set_id(6);
    leave.mutable_leave();
    stream.Call(leave);
  }
  first->Stop();

  TestServer second(options);
  TestStream stream(second.NewChannel());
  stream.HelloMember("j", "b", 1);
  v1::Operation watch;
  watch.set_id(1);
  watch.mutable_watch()->set_prefix(true);
  watch.mutable_watch()->set_after_revision(1);
  EXPECT_THAT(Changes(stream.Call(watch)),
              ElementsAre("put k=2 r2", "put k=3 r3", "put lock=a r4",
                          "gone lock= r5"));
  stream.Call(SetOperation(2, "k", "4"));
  watch.set_id(3);
  EXPECT_THAT(Changes(stream.Call(watch)),
              ElementsAre(HasSubstr("the oldest to go on from is 2")));
  watch.set_id(4);
  watch.mutable_watch()->set_after_revision(4);
  EXPECT_THAT(Changes(stream.Call(watch)),
              ElementsAre("gone lock= r5", "put k=4 r6"));
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
