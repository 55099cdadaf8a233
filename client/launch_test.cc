// Spawn and Record, with real processes. No threads, because Spawn forks.

#include "muster/launch.h"

#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdint>
#include <cstdlib>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "client/control/endpoint.h"
#include "client/control/error_file.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "muster/base/status.h"
#include "muster/muster.hpp"

namespace muster {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr SpawnOptions kAtOnce = {.failure_grace = milliseconds(0),
                                  .stop_grace = seconds(20)};

template <typename Call>
std::string CatchError(Call call, StatusCode code) {
  try {
    call();
  } catch (const DistError& error) {
    EXPECT_EQ(error.status().code(), code);
    return error.what();
  }
  return "no error";
}

TEST(SpawnTest, EachProcessHasAnIndexAndItsOwnId) {
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  const auto spawned = SpawnAsync(
      [&](int index) {
        const int32_t line[2] = {index, getpid()};
        EXPECT_EQ(write(ends[1], line, sizeof(line)), ssize_t{sizeof(line)});
      },
      3);
  EXPECT_TRUE(spawned->Join());
  int32_t lines[3][2];
  ASSERT_EQ(read(ends[0], lines, sizeof(lines)), ssize_t{sizeof(lines)});
  for (const auto& [index, pid] : lines) {
    EXPECT_EQ(pid, spawned->pids()[static_cast<size_t>(index)]);
  }
  close(ends[0]);
  close(ends[1]);
}

TEST(SpawnTest, RanksFormAGroup) {
  Spawn(
      [](int index) {
        // The parent's pid makes the name unique on this host.
        InitProcessGroup({.init_method = "file://" + ::testing::TempDir() +
                                         "/spawn-" + std::to_string(getppid()),
                          .world_size = 3,
                          .rank = index});
        std::vector<float> sum = {static_cast<float>(index)};
        AllReduce(Tensor(sum));
        DestroyProcessGroup();
        if (sum[0] != 3.0F) throw std::runtime_error("wrong sum");
      },
      3);
}

// The child has neither threads nor connections of its own.
TEST(SpawnTest, WhatARankForksOffHasNoGroupAndLeavesThatOfItsParentAlone) {
  Spawn(
      [](int index) {
        // The child exits here, after destructors of later objects have run:
        // the leak sanitizer would look for memory of threads that do not
        // exist.
        static const pid_t rank = getpid();
        static int status = 0;
        std::atexit([] {
          if (getpid() != rank) _exit(status);
        });
        InitProcessGroup({.init_method = "file://" + ::testing::TempDir() +
                                         "/forks-" + std::to_string(getppid()),
                          .world_size = 2,
                          .rank = index});
        EXPECT_EQ(GetRank(), index);
        const pid_t child = fork();
        if (child == 0) {
          const bool has_group = IsInitialized();
          EXPECT_THROW(GetRank(), DistError);
          EXPECT_THAT(
              CatchError([] { InitProcessGroup({.world_size = 1, .rank = 0}); },
                         StatusCode::kFailedPrecondition),
              HasSubstr("fork before InitProcessGroup"));
          status = has_group || ::testing::Test::HasFailure() ? 1 : 0;
          std::exit(status);
        }
        int how = -1;
        waitpid(child, &how, 0);
        std::vector<float> sum = {1};
        AllReduce(Tensor(sum));
        DestroyProcessGroup();
        if (how != 0) {
          throw std::runtime_error("status " + std::to_string(how));
        }
        if (sum[0] != 2.0F) throw std::runtime_error("wrong sum");
      },
      2);
}

TEST(SpawnTest, WhatAProcessThrowsIsThrown) {
  const auto call = [] {
    Spawn(
        [](int index) {
          if (index == 1) throw std::runtime_error("no grain");
          while (true) pause();
        },
        3, kAtOnce);
  };
  EXPECT_THAT(CatchError(call, StatusCode::kAborted),
              ::testing::MatchesRegex(
                  "Spawn: process 1 \\(pid [0-9]+\\) threw: no grain"));
}

TEST(SpawnTest, TheCulpritIsWhoDoesNotBlameOthers) {
  const auto call = [] {
    Spawn(
        [](int index) {
          if (index == 2) kill(getpid(), SIGKILL);
          throw DistError(AbortedError("rank 2 is gone"), {{.rank = 2}});
        },
        3);
  };
  try {
    call();
    FAIL() << "nothing was thrown";
  } catch (const DistError& error) {
    EXPECT_THAT(error.what(), HasSubstr("was killed by signal 9 (SIGKILL)"));
    EXPECT_THAT(error.culprit_ranks(), ElementsAre(2));
  }
}

TEST(SpawnTest, WhoIsNamedByItsOwnErrorIsTheCulprit) {
  const auto call = [] {
    Spawn(
        [](int index) {
          const MemberInfo self = {.rank = 1,
                                   .host = internal::HostName(),
                                   .pid = index == 1 ? getpid() : getppid()};
          throw DistError(AbortedError("rank 1 differs"), {self});
        },
        3);
  };
  EXPECT_THAT(CatchError(call, StatusCode::kAborted),
              HasSubstr("process 1 (pid "));
}

TEST(SpawnTest, RanksThatDisagreeNameTheOneOfTheError) {
  const auto call = [] {
    Spawn(
        [](int index) {
          InitProcessGroup({.init_method = "file://" + ::testing::TempDir() +
                                           "/disagree-" +
                                           std::to_string(getppid()),
                            .world_size = 3,
                            .rank = index});
          std::vector<float> sum(index == 2 ? 4 : 64);
          AllReduce(Tensor(sum));
        },
        3,
        // Rank 2 may wait for the coordinator, in rank 0's process, before it
        // throws.
        {.failure_grace = std::chrono::seconds(60)});
  };
  try {
    call();
    FAIL() << "nothing was thrown";
  } catch (const DistError& error) {
    ASSERT_EQ(error.culprits().size(), 1U);
    const MemberInfo& culprit = error.culprits()[0];
    EXPECT_EQ(culprit.rank, 2);
    EXPECT_THAT(error.what(),
                HasSubstr("; rank " + std::to_string(culprit.rank) +
                          " is pid " + std::to_string(culprit.pid) + " on "));
  }
}

TEST(SpawnTest, ATimeoutOfJoinIsNoFailure) {
  const auto spawned = SpawnAsync([](int) { pause(); }, 1, kAtOnce);
  EXPECT_FALSE(spawned->Join(milliseconds(1)));
  EXPECT_EQ(kill(spawned->pids()[0], 0), 0);
  const int pid = spawned->pids()[0];
  kill(pid, SIGTERM);
  EXPECT_THAT(CatchError([&] { spawned->Join(); }, StatusCode::kAborted),
              HasSubstr("process 0 (pid " + std::to_string(pid) +
                        ") was killed by signal 15 (SIGTERM)"));
}

TEST(SpawnTest, TheDestructorLeavesNobody) {
  int pid = 0;
  {
    const auto spawned = SpawnAsync([](int) { pause(); }, 1);
    pid = spawned->pids()[0];
  }
  EXPECT_EQ(kill(pid, 0), -1);
}

TEST(SpawnTest, ArgumentsAreChecked) {
  for (const int nprocs : {-1, 0, 1025}) {
    EXPECT_EQ(CatchError([&] { Spawn([](int) {}, nprocs); },
                         StatusCode::kInvalidArgument),
              "Spawn: nprocs must be 1 to 1024, got " + std::to_string(nprocs));
  }
  std::thread other([] {
    EXPECT_EQ(CatchError([] { Spawn([](int) {}, 1); },
                         StatusCode::kFailedPrecondition),
              "Spawn: this process has 2 threads, and a fork would have only "
              "one of them; call it before all else");
  });
  other.join();
}

class RecordTest : public ::testing::Test {
 protected:
  RecordTest() { setenv("TORCHELASTIC_ERROR_FILE", path_.c_str(), 1); }
  ~RecordTest() override { unsetenv("TORCHELASTIC_ERROR_FILE"); }

  const std::string path_ =
      ::testing::TempDir() + "/" +
      ::testing::UnitTest::GetInstance()->current_test_info()->name();
};

TEST_F(RecordTest, GoodEndsAndOwnStatusesPass) {
  EXPECT_EQ(Record([] { return 0; }), 0);
  EXPECT_EQ(Record([] { return 3; }), 3);
  EXPECT_EQ(internal::ReadErrorFile(path_), "");
}

TEST_F(RecordTest, WhatIsThrownIsLeftInTheErrorFile) {
  EXPECT_EQ(Record([]() -> int { throw std::runtime_error("no grain"); }), 1);
  EXPECT_EQ(internal::ReadErrorFile(path_), "no grain");
  EXPECT_EQ(Record([]() -> int { throw 3; }), 1);
  EXPECT_EQ(internal::ReadErrorFile(path_),
            "an exception that is no std::exception");
}

TEST_F(RecordTest, WhoLostAPeerSaysSo) {
  EXPECT_EQ(Record([]() -> int {
              throw DistError(AbortedError("rank 2"), {{.rank = 2}});
            }),
            kExitPeerFailed);
  EXPECT_EQ(Record([]() -> int { throw DistError(AbortedError("x")); }), 1);
}

}  // namespace
}  // namespace muster
