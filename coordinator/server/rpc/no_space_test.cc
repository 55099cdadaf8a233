// Tests the answers of a server whose storage has no space.

#include <condition_variable>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "coordinator/server/test_server.h"
#include "coordinator/storage/storage.h"
#include "gtest/gtest.h"

namespace muster::coordinator {
namespace {

constexpr char kNoSpace[] = "etcd has no space: quota";

// Outlives the servers of a test.
struct Disk {
  std::mutex mutex;
  std::condition_variable changed;
  bool open = true;   // else writes wait
  bool space = true;  // else the health tells so
  std::map<std::string, std::string> records;

  void Set(bool has_open, bool has_space) {
    const std::lock_guard<std::mutex> lock(mutex);
    open = has_open;
    space = has_space;
    changed.notify_all();
  }
};

class DiskStorage : public Storage {
 public:
  explicit DiskStorage(Disk& disk) : disk_(disk) {}

  Status Load(absl::FunctionRef<Status(absl::string_view, absl::string_view)>)
      override {
    return OkStatus();
  }
  Status Write(const std::vector<StorageChange>& changes) override {
    std::unique_lock<std::mutex> lock(disk_.mutex);
    disk_.changed.wait(lock, [&] { return disk_.open; });
    for (const StorageChange& change : changes) {
      disk_.records[change.key] = change.value.value_or("");
    }
    return OkStatus();
  }
  Status ErasePrefix(absl::string_view) override { return OkStatus(); }
  Status Sync() override { return OkStatus(); }
  Status health() const override {
    const std::lock_guard<std::mutex> lock(disk_.mutex);
    return disk_.space ? OkStatus() : ResourceExhaustedError(kNoSpace);
  }

 private:
  Disk& disk_;
};

class NoSpaceTest : public ::testing::Test {
 protected:
  NoSpaceTest() { stream_.HelloMember("j", "a", 1); }
  // Before the server's end, which waits for its storage.
  ~NoSpaceTest() override { disk_.Set(true, true); }

  static ServerOptions On(Disk& disk) {
    ServerOptions options;
    options.http_listen = "127.0.0.1:0";
    options.open_storage = [&disk] {
      return std::unique_ptr<Storage>(std::make_unique<DiskStorage>(disk));
    };
    return options;
  }

  // Waits until so many steps are not committed, or more; 0: none.
  void AwaitUncommitted(int count) {
    const std::string name = "muster_coordinator_storage_uncommitted_steps ";
    while (true) {
      for (absl::string_view line :
           absl::StrSplit(server_.Http("/metrics"), '\n')) {
        int value = 0;
        if (!absl::ConsumePrefix(&line, name) ||
            !absl::SimpleAtoi(line, &value)) {
          continue;
        }
        if (count == 0 ? value == 0 : value >= count) return;
      }
      std::this_thread::yield();
    }
  }

  // Fills the disk while `operation` waits for it.
  void FillDuring(const v1::Operation& operation) {
    AwaitUncommitted(0);
    disk_.Set(false, true);
    stream_.SendOperation(operation);
    AwaitUncommitted(1);
    disk_.Set(false, false);
  }

  static void ExpectRefused(const v1::Result& result) {
    EXPECT_EQ(result.status().code(),
              static_cast<int>(StatusCode::kResourceExhausted));
    EXPECT_EQ(result.status().message(), kNoSpace);
  }

  Disk disk_;
  TestServer server_{On(disk_)};
  TestStream stream_{server_.NewChannel()};
};

v1::Operation AddOperation(uint64_t id, uint64_t sequence) {
  v1::Operation operation;
  operation.set_id(id);
  operation.mutable_add()->set_key("n");
  operation.mutable_add()->set_delta(1);
  operation.mutable_add()->set_sequence(sequence);
  return operation;
}

TEST_F(NoSpaceTest, AMutationIsRefusedAndNotApplied) {
  FillDuring(AddOperation(1, 1));
  // At once, although an earlier call waits.
  ExpectRefused(stream_.Call(AddOperation(2, 2)));
  ExpectRefused(stream_.Call(AddOperation(3, 3)));
  v1::AddRequest request;
  *request.mutable_caller() = MakeCaller("j");
  request.set_key("n");
  request.set_delta(1);
  v1::AddResponse response;
  const grpc::Status status = CallGrpc(
      server_.store(), &v1::StoreService::Stub::Add, request, &response);
  EXPECT_EQ(status.error_code(), grpc::RESOURCE_EXHAUSTED);
  EXPECT_EQ(status.error_message(), kNoSpace);

  // The one that was applied before is answered, and others go on.
  disk_.Set(true, true);
  EXPECT_EQ(stream_.Await(1).add().value(), 1);
  EXPECT_EQ(stream_.Call(AddOperation(4, 2)).add().value(), 2);
}

TEST_F(NoSpaceTest, ARetryOfACallThatWasAppliedWaits) {
  FillDuring(AddOperation(1, 1));
  v1::AddRequest request = AddOperation(1, 1).add();
  *request.mutable_caller() = MakeCaller("j", "a", 1);
  v1::AddResponse response;
  grpc::Status status;
  std::thread retry([&] {
    status = CallGrpc(server_.store(), &v1::StoreService::Stub::Add, request,
                      &response);
  });
  AwaitUncommitted(2);
  disk_.Set(true, true);
  retry.join();
  EXPECT_TRUE(status.ok()) << status.error_message();
  EXPECT_EQ(response.value(), 1);
}

TEST_F(NoSpaceTest, ARefusedCallCanBeMadeLater) {
  FillDuring(AddOperation(1, 1));
  const v1::Operation second = AddOperation(2, 2);
  ExpectRefused(stream_.Call(second));
  disk_.Set(true, true);
  EXPECT_EQ(stream_.Call(AddOperation(3, 2)).add().value(), 2);
}

TEST_F(NoSpaceTest, AReadGoesOnIfNothingBeforeItIsUncommitted) {
  TestStream other(server_.NewChannel());
  other.HelloMember("elsewhere", "a", 1);
  EXPECT_TRUE(other.Call(SetOperation(1, "k", "v")).has_set());
  FillDuring(AddOperation(1, 1));
  EXPECT_EQ(other.Call(GetOperation(2, "k")).get().value(), "v");
  ExpectRefused(other.Call(SetOperation(3, "k", "w")));
  EXPECT_EQ(other.Call(GetOperation(4, "k")).get().value(), "v");
}

TEST_F(NoSpaceTest, AMemberGoesOnToLeaveAndToReportAFailure) {
  TestStream other(server_.NewChannel());
  other.HelloMember("j", "b", 1);
  FillDuring(AddOperation(1, 1));
  v1::Operation report;
  report.set_id(2);
  report.mutable_report_failure()->set_error("broken");
  other.SendOperation(report);
  v1::Operation leave;
  leave.set_id(2);
  leave.mutable_leave();
  stream_.SendOperation(leave);
  // They are applied, and answered when they are stored.
  AwaitUncommitted(3);
  disk_.Set(true, true);
  EXPECT_TRUE(stream_.Await(2).has_leave());
  EXPECT_TRUE(other.Await(2).has_report_failure());
}

TEST_F(NoSpaceTest, AJobThatIsBehindRefusesReadsAsWell) {
  constexpr uint64_t kReads = 100;
  FillDuring(AddOperation(1, 1));
  for (uint64_t id = 2; id < 2 + kReads; ++id) {
    stream_.SendOperation(GetOperation(id, "n"));
  }
  ExpectRefused(stream_.Await(1 + kReads));
  v1::GetRequest request;
  *request.mutable_caller() = MakeCaller("j");
  request.set_key("n");
  v1::GetResponse response;
  EXPECT_EQ(CallGrpc(server_.store(), &v1::StoreService::Stub::Get, request,
                     &response)
                .error_code(),
            grpc::RESOURCE_EXHAUSTED);
  disk_.Set(true, true);
  EXPECT_EQ(stream_.Await(2).get().value(), "1");
}

}  // namespace
}  // namespace muster::coordinator
