// Tests the logged reason why ranks of one host share no memory, equal on all
// ranks. Only the first group of a process logs it, so this process makes none.

#include <malloc.h>
#include <pthread.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <ctime>
#include <fstream>
#include <functional>
#include <numeric>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "dataplane/communicator.h"
#include "dataplane/cpu/shm/shm_backend.h"
#include "dataplane/testing/process_world.h"
#include "glog/logging.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "muster/base/status.h"
#include "muster/dataplane/collective.h"
#include "muster/dataplane/factory.h"
#include "muster/dataplane/tensor.h"

namespace muster::dataplane {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

constexpr int kRanks = 3;

// The texts that this process has logged since the first Get.
class LoggedTexts : public google::LogSink {
 public:
  static LoggedTexts& Get() {
    static auto* const texts = [] {
      auto* const made = new LoggedTexts;
      google::AddLogSink(made);
      return made;
    }();
    return *texts;
  }
  void send(google::LogSeverity, const char*, const char*, int, const std::tm*,
            const char* message, size_t bytes) override {
    text_.append(message, bytes);
  }
  const std::string& text() const { return text_; }

 private:
  std::string text_;
};

void LimitTo(int resource, rlim_t most) {
  const rlimit limit = {.rlim_cur = most, .rlim_max = RLIM_INFINITY};
  setrlimit(static_cast<__rlimit_resource>(resource), &limit);
}

// Checks broadcasts of more than a ring from each rank.
bool Works(Communicator& communicator) {
  std::vector<int64_t> data(512 << 10);
  for (int root = 0; root < kRanks; ++root) {
    if (communicator.rank() == root) {
      std::iota(data.begin(), data.end(), root);
    }
    const auto count = static_cast<int64_t>(data.size());
    const Status status = communicator.Run(
        {.kind = CollectiveKind::kBroadcast,
         .tensors = {Tensor(data.data(), DataType::kInt64, {count})},
         .root = root});
    if (!status.ok()) return false;
    for (int64_t i = 0; i < count; ++i) {
      if (data[i] != root + i) return false;
    }
  }
  return true;
}

// The outcomes of ranks that form an shm group. Each calls `before` first, and
// has no limit of address space afterwards.
std::vector<testing::RankOutcome> FormAfter(
    const std::string& name, const std::function<void(int rank)>& before) {
  EXPECT_TRUE(RegisterBackend(name, {DeviceType::kCpu},
                              [before](const BackendOptions& options) {
                                LoggedTexts::Get();
                                before(options.rank);
                                auto backend = CreateShmBackend(options);
                                LimitTo(RLIMIT_AS, RLIM_INFINITY);
                                return backend;
                              })
                  .ok());
  testing::ProcessWorld world(name, kRanks, [](Communicator& communicator) {
    return absl::StrCat(communicator.backend_name(),
                        Works(communicator) ? " works: " : " fails: ",
                        LoggedTexts::Get().text());
  });
  return world.Join();
}

TEST(ShmReasonTest, ARankThatDoesNotWantToIsNamedOnAll) {
  const auto outcomes = FormAfter("shm-unwilling", [](int rank) {
    if (rank == 1) setenv("MUSTER_SHM", "0", 1);
  });
  for (const auto& outcome : outcomes) {
    EXPECT_THAT(outcome.report,
                AllOf(StartsWith("gloo works: "),
                      HasSubstr("the ranks of group \"world\" share no memory, "
                                "their collectives take connections: rank 1: "
                                "MUSTER_SHM=0")));
  }
}

TEST(ShmReasonTest, ALimitOfFilesIsNamedOnAll) {
  const auto outcomes = FormAfter("shm-limited", [](int rank) {
    if (rank == 0) LimitTo(RLIMIT_FSIZE, 4096);
  });
  for (const auto& outcome : outcomes) {
    EXPECT_THAT(outcome.report,
                AllOf(StartsWith("gloo works: "),
                      HasSubstr("rank 0: shared memory of "),
                      HasSubstr(": RLIMIT_FSIZE (ulimit -f) is 4096 bytes")));
  }
}

// The limit leaves room for threads only.
TEST(ShmReasonTest, ALimitOfAddressSpaceIsNamedOnAll) {
  const auto outcomes = FormAfter("shm-unmappable", [](int rank) {
    if (rank != 1) return;
    pthread_attr_t attributes;
    pthread_attr_init(&attributes);
    pthread_attr_setstacksize(&attributes, 64 << 10);
    pthread_setattr_default_np(&attributes);
    mallopt(M_ARENA_MAX, 1);
    uint64_t pages = 0;
    std::ifstream("/proc/self/statm") >> pages;
    LimitTo(RLIMIT_AS, pages * getpagesize() + (size_t{3} << 19));
  });
  for (const auto& outcome : outcomes) {
    EXPECT_THAT(outcome.report,
                AllOf(StartsWith("gloo works: "),
                      HasSubstr("rank 1: shared memory of "),
                      HasSubstr(" bytes: mmap: Cannot allocate memory; "
                                "RLIMIT_AS (ulimit -v) is ")));
  }
}

TEST(ShmReasonTest, AnAlgorithmThatRanksCannotGoByIsSaid) {
  const auto outcomes = FormAfter("shm-unread", [](int rank) {
    setenv("MUSTER_SHM_ALGORITHM", "single_copy", 1);
    if (rank == 2) setenv("MUSTER_GLOO_PEER_MEMORY", "0", 1);
  });
  for (const auto& outcome : outcomes) {
    EXPECT_THAT(outcome.report,
                AllOf(StartsWith("shm works: "),
                      HasSubstr("environment variable "
                                "MUSTER_SHM_ALGORITHM=\"single_copy\" has no "
                                "effect in group \"world\": its ranks do not "
                                "all read each other's memory")));
  }
}

// A limit that the usual rings exceed and smaller ones do not.
TEST(ShmReasonTest, WithLittleMemoryRingsAreSmaller) {
  const auto outcomes = FormAfter("shm-tight", [](int rank) {
    if (rank == 0) LimitTo(RLIMIT_FSIZE, 2 * kRanks * (size_t{512} << 10));
  });
  for (const auto& outcome : outcomes) {
    EXPECT_THAT(outcome.report, StartsWith("shm works: "));
    EXPECT_THAT(outcome.report, Not(HasSubstr("share no memory")));
    EXPECT_THAT(
        outcome.report,
        AllOf(HasSubstr("the ranks of group \"world\" have rings of 524288 "
                        "bytes, not of 2097152, and are slower: rank 0: shared "
                        "memory of "),
              HasSubstr(": RLIMIT_FSIZE (ulimit -f) is 3145728 bytes")));
  }
}

TEST(ShmReasonTest, ARankOfAnotherBackendIsNamedWithIt) {
  ASSERT_TRUE(RegisterBackend("shm-or-gloo", {DeviceType::kCpu},
                              [](const BackendOptions& options) {
                                return options.rank == 1
                                           ? CreateBackend("gloo", options)
                                           : CreateShmBackend(options);
                              })
                  .ok());
  testing::ProcessWorld world("shm-or-gloo", kRanks,
                              [](Communicator&) { return "formed"; });
  const auto outcomes = world.Join();
  for (int rank = 0; rank < kRanks; ++rank) {
    EXPECT_THAT(
        outcomes[rank].report,
        HasSubstr(rank == 1 ? "rank 0 has backend \"shm\", rank 1 \"gloo\""
                            : "rank 1 has backend \"gloo\", rank "));
  }
}

}  // namespace
}  // namespace muster::dataplane
