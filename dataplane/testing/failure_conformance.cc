#include <dirent.h>

#include <chrono>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "dataplane/communicator.h"
#include "dataplane/culprit.h"
#include "dataplane/testing/backend_conformance.h"
#include "dataplane/testing/local_world.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace muster::dataplane::testing {
namespace {

using std::chrono::milliseconds;
using ::testing::AllOf;
using ::testing::HasSubstr;

// Much longer than a failure needs to reach every rank, much shorter than the
// timeouts of collectives that must not be waited for.
constexpr std::chrono::seconds kSoon{10};

constexpr size_t kSmall = 8;
constexpr size_t kStream = 300'000;

std::shared_ptr<Work> StartAllReduce(Communicator& communicator,
                                     std::vector<float>& values,
                                     milliseconds timeout = milliseconds(0)) {
  return communicator.Start({.kind = CollectiveKind::kAllReduce,
                             .tensors = {Tensor(values)},
                             .timeout = timeout});
}

int CountEntries(const char* directory) {
  int entries = 0;
  DIR* opened = opendir(directory);
  while (readdir(opened) != nullptr) ++entries;
  closedir(opened);
  return entries;
}

int Threads() { return CountEntries("/proc/self/task"); }
int Descriptors() { return CountEntries("/proc/self/fd"); }

// The number of threads after joined ones are gone: a join returns a moment
// before the system removes its thread from the list.
int ThreadsAfterEnding(int expected) {
  const Instant until = Clock::now() + kSoon;
  while (Threads() > expected && Clock::now() < until) {
    std::this_thread::yield();
  }
  return Threads();
}

TEST_P(FailureConformance, LeavingRankFailsTheOthersAndIsNamed) {
  const int leaver = world_size() - 1;
  for (const size_t count : {kSmall, kStream}) {
    LocalWorld world({.backend = backend(), .world_size = world_size()});
    world.OnEachRank([&](Communicator& communicator) {
      if (communicator.rank() == leaver) {
        world.Destroy(leaver);
        return;
      }
      std::vector<float> values(count, 1);
      const auto work = StartAllReduce(communicator, values);
      const Status status = work->Wait(Clock::now() + kSoon);
      EXPECT_EQ(status.code(), StatusCode::kUnavailable) << status;
      EXPECT_EQ(CulpritRank(status), leaver) << status;
      EXPECT_THAT(std::string(status.message()),
                  HasSubstr(absl::StrCat("rank ", leaver, " left the group")));
      EXPECT_THAT(std::string(status.message()),
                  HasSubstr("all_reduce #1 on group \"world\": "));
    });
  }
}

TEST_P(FailureConformance, PassedDeadlineNamesTheAwaitedRankAndPoisons) {
  for (const size_t count : {kSmall, kStream}) {
    LocalWorld world({.backend = backend(), .world_size = world_size()});
    const Instant start = Clock::now();
    world.OnEachRank([&](Communicator& communicator) {
      if (communicator.rank() == 0) return;  // Alive, but never calls.
      std::vector<float> values(count, 1);
      const auto work = StartAllReduce(communicator, values, milliseconds(300));
      const Status status = work->Wait(start + kSoon);
      EXPECT_EQ(status.code(), StatusCode::kDeadlineExceeded) << status;
      EXPECT_GE(Clock::now() - start, milliseconds(300));
      EXPECT_THAT(std::string(status.message()),
                  HasSubstr("all_reduce #1 on group \"world\": timed out after "
                            "300ms waiting for rank "));
      EXPECT_TRUE(CulpritRank(status).has_value());
      if (world_size() == 2) {
        EXPECT_EQ(CulpritRank(status), 0);
      }

      const auto later = communicator.Start({.kind = CollectiveKind::kBarrier});
      EXPECT_TRUE(later->IsCompleted());
      EXPECT_EQ(later->Wait(), status);
      EXPECT_EQ(communicator.status(), status);
    });
    // The rank that slept gets the error when it next needs the others. One
    // collective may still succeed with data that they had sent before they
    // failed.
    std::vector<float> values(count, 1);
    Status status =
        StartAllReduce(world.at(0), values)->Wait(Clock::now() + kSoon);
    if (status.ok()) {
      status = StartAllReduce(world.at(0), values)->Wait(Clock::now() + kSoon);
    }
    EXPECT_EQ(status.code(), StatusCode::kDeadlineExceeded) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr("failed: all_reduce"));
  }
}

TEST_P(FailureConformance, WaitThatTimesOutLeavesTheCollectiveRunning) {
  LocalWorld world({.backend = backend(), .world_size = world_size()});
  std::vector<float> values(kSmall, 1);
  const auto work = StartAllReduce(world.at(0), values);
  const Status status = work->Wait(Clock::now() + milliseconds(20));
  EXPECT_EQ(status.code(), StatusCode::kDeadlineExceeded) << status;
  EXPECT_FALSE(work->IsCompleted());
  EXPECT_EQ(world.at(0).progress().current, "all_reduce #1 float32[8] sum");
  world.OnEachRank([&](Communicator& communicator) {
    if (communicator.rank() == 0) return;
    std::vector<float> theirs(kSmall, 1);
    EXPECT_TRUE(StartAllReduce(communicator, theirs)->Wait().ok());
  });
  EXPECT_TRUE(work->Wait().ok());
  EXPECT_EQ(values[0], static_cast<float>(world_size()));
}

TEST_P(FailureConformance, AbortWakesEveryOutstandingWorkWithItsCause) {
  const Status cause = AbortedError("rank 5 (trainer-5) was lost");
  for (const size_t count : {kSmall, kStream}) {
    LocalWorld world({.backend = backend(), .world_size = world_size()});
    Communicator& communicator = world.at(0);
    std::vector<float> values(count, 1);
    std::vector<float> more(count, 1);
    const auto running = StartAllReduce(communicator, values);
    const auto queued = StartAllReduce(communicator, more);
    std::thread aborter([&] { communicator.Abort(cause); });
    EXPECT_EQ(running->Wait(Clock::now() + kSoon), cause);
    EXPECT_EQ(queued->Wait(Clock::now() + kSoon), cause);
    aborter.join();
    EXPECT_EQ(StartAllReduce(communicator, values)->Wait(), cause);
    // Only the first error counts.
    communicator.Abort(InternalError("later"));
    EXPECT_EQ(communicator.status(), cause);

    // Its peers get the cause, not only a closed connection; at the latest in
    // the second collective, see above.
    Communicator& peer = world.at(1);
    Status told = StartAllReduce(peer, values)->Wait(Clock::now() + kSoon);
    if (told.ok()) {
      told = StartAllReduce(peer, values)->Wait(Clock::now() + kSoon);
    }
    EXPECT_EQ(told.code(), StatusCode::kAborted) << told;
    EXPECT_THAT(std::string(told.message()),
                HasSubstr("rank 0 failed: rank 5 (trainer-5) was lost"));
  }
}

TEST_P(FailureConformance, FirstFailurePoisonsWithoutAnybodyWaiting) {
  LocalWorld world({.backend = backend(), .world_size = world_size()});
  std::vector<float> values(kSmall, 1);
  Status seen;
  const auto work = StartAllReduce(world.at(0), values, milliseconds(50));
  // No thread waits for the work; its callback reports its failure.
  Mutex mutex;
  CondVar changed;
  bool completed = false;
  work->OnCompletion([&](const Status&) {
    MutexLock lock(mutex);
    completed = true;
    changed.NotifyAll();
  });
  {
    MutexLock lock(mutex);
    while (!completed) changed.Wait(mutex);
  }
  EXPECT_FALSE(world.at(0).status().ok());
  const auto later = world.at(0).Start({.kind = CollectiveKind::kBarrier});
  EXPECT_TRUE(later->IsCompleted());
  EXPECT_EQ(later->status(), world.at(0).status());
}

TEST_P(FailureConformance, DifferentCountsAreAnErrorThatShowsBoth) {
  struct Counts {
    size_t rank0;
    size_t others;
  };
  for (const Counts counts :
       {Counts{4, 8}, Counts{8, 4}, Counts{0, 4}, Counts{kStream, kStream + 1},
        Counts{kStream + 1, kStream}}) {
    LocalWorld world({.backend = backend(), .world_size = world_size()});
    std::atomic<int> told{0};
    world.OnEachRank([&](Communicator& communicator) {
      const size_t count =
          communicator.rank() == 0 ? counts.rank0 : counts.others;
      std::vector<float> values(count, 1);
      const Status status =
          StartAllReduce(communicator, values)->Wait(Clock::now() + kSoon);
      EXPECT_FALSE(status.ok());
      EXPECT_NE(status.code(), StatusCode::kDeadlineExceeded) << status;
      const std::string text(status.message());
      if (text.find(absl::StrCat(counts.rank0, " float32")) !=
              std::string::npos &&
          text.find(absl::StrCat(counts.others, " float32")) !=
              std::string::npos) {
        ++told;
      }
    });
    EXPECT_GE(told.load(), 1) << counts.rank0 << " and " << counts.others;
  }
}

TEST_P(FailureConformance, DifferentCountsToBroadcastAreAnErrorThatShowsBoth) {
  for (const size_t count : {kSmall, kStream}) {
    LocalWorld world({.backend = backend(), .world_size = world_size()});
    world.OnEachRank([&](Communicator& communicator) {
      const bool is_root = communicator.rank() == 0;
      std::vector<float> values(is_root ? count + 1 : count, 1);
      const auto work = communicator.Start({.kind = CollectiveKind::kBroadcast,
                                            .tensors = {Tensor(values)},
                                            .root = 0});
      const Status status = work->Wait(Clock::now() + kSoon);
      EXPECT_NE(status.code(), StatusCode::kDeadlineExceeded) << status;
      // The root may have sent a small tensor before any rank can refuse it.
      if (is_root && status.ok()) return;
      EXPECT_THAT(std::string(status.message()),
                  AllOf(HasSubstr(absl::StrCat(count, " float32")),
                        HasSubstr(absl::StrCat(count + 1, " float32"))));
    });
  }
}

TEST_P(FailureConformance, DifferentAlgorithmsEndByTheDeadlineAtTheLatest) {
  LocalWorld world({.backend = backend(), .world_size = world_size()});
  world.OnEachRank([&](Communicator& communicator) {
    std::vector<float> values(communicator.rank() == 0 ? kSmall : kStream, 1);
    const auto work = StartAllReduce(communicator, values, milliseconds(500));
    EXPECT_FALSE(work->Wait(Clock::now() + kSoon).ok());
    EXPECT_TRUE(work->IsCompleted());
  });
}

TEST_P(FailureConformance, DifferentKindsAreAnError) {
  LocalWorld world({.backend = backend(), .world_size = world_size()});
  world.OnEachRank([&](Communicator& communicator) {
    std::vector<float> values(kSmall, 1);
    const auto work =
        communicator.rank() == 0
            ? communicator.Start({.kind = CollectiveKind::kBarrier})
            : StartAllReduce(communicator, values, milliseconds(2000));
    EXPECT_FALSE(work->Wait(Clock::now() + kSoon).ok());
  });
}

TEST_P(FailureConformance, DestructionCompletesWhatIsOutstanding) {
  LocalWorld world({.backend = backend(), .world_size = world_size()});
  std::vector<float> values(kStream, 1);
  const auto work = StartAllReduce(world.at(0), values);
  world.Destroy(0);
  EXPECT_TRUE(work->IsCompleted());
  EXPECT_EQ(work->Wait().code(), StatusCode::kCancelled);
  EXPECT_THAT(std::string(work->status().message()),
              HasSubstr("group \"world\" was destroyed"));
}

TEST_P(FailureConformance, OneGroupsFailureLeavesTheOtherAlone) {
  LocalWorld failed({.backend = backend(), .world_size = world_size()});
  LocalWorld healthy({.backend = backend(), .world_size = world_size()});
  failed.at(0).Abort(AbortedError("on purpose"));
  healthy.OnEachRank([&](Communicator& communicator) {
    std::vector<float> values(kSmall, 1);
    EXPECT_TRUE(StartAllReduce(communicator, values)->Wait().ok());
  });
}

TEST_P(FailureConformance, NothingIsLeftBehindByFailures) {
  // With few ranks, all combinations of the cases below.
  const int rounds = world_size() <= 4 ? 30 : 3;
  const auto fail_once = [&](int round) {
    LocalWorld world({.backend = backend(), .world_size = world_size()});
    world.OnEachRank([&](Communicator& communicator) {
      std::vector<float> values(round % 2 == 0 ? kSmall : kStream, 1);
      std::vector<float> message(values.size());
      std::shared_ptr<Work> work;
      std::shared_ptr<Work> receive;
      // No rank sends.
      if (round % 5 == 1) {
        receive = communicator.Start({.kind = CollectiveKind::kRecv,
                                      .outputs = {Tensor(message)},
                                      .peer = kAnyPeer});
      }
      // In turn: all ranks in a collective, all but one, none.
      if (round % 3 != 2 && (round % 3 == 0 || communicator.rank() != 0)) {
        work = StartAllReduce(communicator, values);
      }
      if (communicator.rank() == round % world_size()) {
        communicator.Abort(AbortedError("on purpose"));
      }
      if (work != nullptr) {
        (void)work->Wait(Clock::now() + kSoon);
        EXPECT_TRUE(work->IsCompleted());
      }
      if (receive != nullptr) {
        EXPECT_FALSE(receive->Wait(Clock::now() + kSoon).ok());
        EXPECT_TRUE(receive->IsCompleted());
      }
    });
  };
  fail_once(0);  // Makes what a process makes once.
  const int threads = Threads();
  const int descriptors = Descriptors();
  for (int round = 0; round < rounds; ++round) fail_once(round);
  EXPECT_LE(ThreadsAfterEnding(threads), threads);
  EXPECT_EQ(Descriptors(), descriptors);
}

}  // namespace
}  // namespace muster::dataplane::testing
