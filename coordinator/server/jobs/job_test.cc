#include "coordinator/server/jobs/job.h"

#include <atomic>
#include <condition_variable>
#include <future>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "coordinator/core/call.h"
#include "coordinator/server/jobs/commit_queue.h"
#include "coordinator/server/jobs/sink.h"
#include "coordinator/server/ops/metrics.h"
#include "coordinator/storage/storage.h"
#include "gtest/gtest.h"
#include "muster/base/status.h"

namespace muster::coordinator {
namespace {

constexpr size_t kMiB = 1 << 20;

// While it is shut, writes wait.
class Gate {
 public:
  void Set(bool open) {
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      open_ = open;
    }
    changed_.notify_all();
  }
  void Pass() {
    std::unique_lock<std::mutex> lock(mutex_);
    while (!open_) changed_.wait(lock);
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool open_ = false;
};

class GatedStorage : public Storage {
 public:
  GatedStorage(Gate* gate, const std::atomic<bool>* owned)
      : gate_(*gate), owned_(*owned) {}

  Status Load(absl::FunctionRef<Status(absl::string_view, absl::string_view)>)
      override {
    return OkStatus();
  }
  Status Write(const std::vector<StorageChange>&) override {
    gate_.Pass();
    return OkStatus();
  }
  Status ErasePrefix(absl::string_view) override { return OkStatus(); }
  Status Sync() override { return OkStatus(); }
  bool owned() const override { return owned_; }

 private:
  Gate& gate_;
  const std::atomic<bool>& owned_;
};

class Client : public Sink {
 public:
  void Deliver(absl::Span<Answer>) override {}
  void Publish(const SharedEvent&) override {}
  void Flush() override {}
  void Close(const Status&) override {}
};

class JobTest : public testing::Test {
 protected:
  ~JobTest() override {
    gate_.Set(true);
    commits_->Stop().IgnoreError();
  }

  std::shared_ptr<Job> NewJob(const std::string& name) {
    Job::Options options;
    options.core.durable = true;
    options.metrics = &metrics_;
    options.commits = commits_;
    options.untold_bytes = &untold_bytes_;
    options.arm = [](const std::shared_ptr<Job>&, core::Instant) {};
    return std::make_shared<Job>(name, std::move(options));
  }

  // Makes a call of a plain client.
  template <typename Verb>
  void Run(Job& job, const Verb& verb) {
    job.Run(
        client_, 1,
        [&](size_t, core::WaiterId waiter, JobContext& context) {
          core::Call call;
          call.waiter = waiter;
          verb(call, context);
          return Job::Applied::kCalled;
        },
        [](size_t) { return CallName{}; });
  }

  void Set(Job& job, size_t bytes) {
    Run(job, [&](const core::Call& call, JobContext& context) {
      context.core.Mutate(call, "Set", context.now, context.out,
                          [&](core::StoreEngine& store) {
                            store.Set(call, "k", std::string(bytes, 'v'), {},
                                      context.now, context.out);
                          });
    });
  }

  // Makes steps until the job is behind. Returns their number.
  template <typename Step>
  static int UntilBehind(Job& job, const Step& step) {
    int steps = 0;
    while (steps < 1000 && !job.Behind()) {
      step();
      ++steps;
    }
    return steps;
  }
  int SetUntilBehind(Job& job, size_t bytes) {
    return UntilBehind(job, [&] { Set(job, bytes); });
  }

  static void AwaitTold(Job& job) {
    std::promise<void> told;
    job.WhenTold([&] { told.set_value(); });
    told.get_future().wait();
  }

  Gate gate_;
  std::atomic<bool> owned_ = true;
  std::atomic<int64_t> untold_bytes_ = 0;
  Metrics metrics_{[] { return Gauges(); }};
  const std::shared_ptr<CommitQueue> commits_ = std::make_shared<CommitQueue>(
      std::make_unique<GatedStorage>(&gate_, &owned_), SyncPolicy(),
      CommitQueue::Observer());
  const std::shared_ptr<Client> client_ = std::make_shared<Client>();
};

TEST_F(JobTest, IsBehindWhenManySmallStepsAreNotStored) {
  const std::shared_ptr<Job> job = NewJob("j");
  EXPECT_EQ(SetUntilBehind(*job, 10), 65);
}

TEST_F(JobTest, IsBehindWhenFewLargeStepsAreNotStored) {
  const std::shared_ptr<Job> job = NewJob("j");
  EXPECT_EQ(SetUntilBehind(*job, 8 * kMiB), 2);
  EXPECT_GE(untold_bytes_, 16 * int64_t{kMiB});
  EXPECT_LT(untold_bytes_, 17 * int64_t{kMiB});
}

// The popped values are not in the store any more, and not in the records.
TEST_F(JobTest, IsBehindWhenItsAnswersHoldWhatWasPopped) {
  gate_.Set(true);
  const std::shared_ptr<Job> job = NewJob("j");
  for (int i = 0; i < 40; ++i) {
    Run(*job, [](const core::Call& call, JobContext& context) {
      context.core.Mutate(call, "QueuePush", context.now, context.out,
                          [&](core::StoreEngine& store) {
                            store.QueuePush(call, "q", std::string(kMiB, 'v'),
                                            context.out);
                          });
    });
  }
  AwaitTold(*job);
  gate_.Set(false);
  const int pops = UntilBehind(*job, [&] {
    Run(*job, [](const core::Call& call, JobContext& context) {
      context.core.MutateAndPark(call, "QueuePop", context.now, context.out,
                                 [&](core::StoreEngine& store) {
                                   store.QueuePop(call, "q", std::nullopt,
                                                  context.now, context.out);
                                 });
    });
  });
  EXPECT_EQ(pops, 16);
}

TEST_F(JobTest, RefusesNoMemberWhenAnotherCoordinatorMayHaveTheJob) {
  const std::shared_ptr<Job> job = NewJob("j");
  core::Call call;
  call.member = core::MemberId("member");
  call.incarnation = core::Incarnation(1);
  EXPECT_TRUE(job->Attach(client_, call, {}).ok());
  call.incarnation = core::Incarnation(2);
  EXPECT_TRUE(job->Attach(client_, call, {}).ok());
  // It has been replaced.
  call.incarnation = core::Incarnation(1);
  EXPECT_TRUE(IsFailedPrecondition(job->Attach(client_, call, {}).status()));
  owned_ = false;
  EXPECT_TRUE(IsUnavailable(job->Attach(client_, call, {}).status()));
}

TEST_F(JobTest, IsNotBehindAnyMoreWhenAllIsStored) {
  const std::shared_ptr<Job> job = NewJob("j");
  SetUntilBehind(*job, 8 * kMiB);
  EXPECT_TRUE(job->Behind());
  gate_.Set(true);
  AwaitTold(*job);
  // Stop waits until the queue's thread has counted the step as told.
  commits_->Stop().IgnoreError();
  EXPECT_FALSE(job->Behind());
  EXPECT_EQ(untold_bytes_, 0);
}

TEST_F(JobTest, WhereManyJobsHoldMuchTheyWaitSooner) {
  std::vector<std::shared_ptr<Job>> jobs;
  for (int i = 0; i < 5; ++i) {
    jobs.push_back(NewJob("large" + std::to_string(i)));
    SetUntilBehind(*jobs.back(), 8 * kMiB);
  }
  const std::shared_ptr<Job> small = NewJob("small");
  EXPECT_FALSE(small->Behind());
  EXPECT_EQ(SetUntilBehind(*small, 10), 1);
}

}  // namespace
}  // namespace muster::coordinator
