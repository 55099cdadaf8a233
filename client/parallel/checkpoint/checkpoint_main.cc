// Saves checkpoints of two ranks, for tests that kill it or read its files.
//
//   checkpoint_main FOLDER CALL
//
// Saves step 1; then steps 2, 2 again and 3, of which it keeps the newest, and
// kills itself before call number CALL of the storage during these (-1: never).

#include <csignal>
#include <cstdint>
#include <cstdlib>
#include <iostream>
#include <memory>
#include <string>

#include "client/parallel/checkpoint/test_parts.h"
#include "client/testing/local_groups.h"
#include "muster/base/mutex.h"
#include "muster/base/status.h"
#include "muster/checkpoint.h"
#include "muster/checkpoint_storage.h"

namespace muster::testing {
namespace {

// A matrix of which each rank has two rows, and two replicas.
Parts MakeState(int rank, int64_t step) {
  Parts parts;
  parts.Add("w", DataType::kFloat32, {4, 3}, {{2 * rank, 0}, {2, 3}})
      .Add("b", DataType::kBfloat16, {5})
      .Add("flags", DataType::kUint8, {3})
      .Fill(static_cast<uint64_t>(step));
  return parts;
}

// Counts calls of both ranks, and kills the process before one of them. Which
// rank's call has which number differs from run to run.
class CallCounter {
 public:
  explicit CallCounter(int64_t last) : last_(last) {}

  Status Count() {
    MutexLock lock(mutex_);
    if (calls_++ == last_) std::raise(SIGKILL);
    return OkStatus();
  }

 private:
  const int64_t last_;
  Mutex mutex_;
  int64_t calls_ = 0;
};

int Main(const std::string& folder, int64_t last_call) {
  const std::shared_ptr<CheckpointStorage> directory = DirectoryStorage(folder);
  CallCounter counter(last_call);
  WatchedStorage counted(directory,
                         [&](const StorageCall&) { return counter.Count(); });
  LocalGroups groups(2);
  bool failed = false;
  for (const int64_t step : {1, 2, 2, 3}) {
    const auto thrown = groups.OnEachRank([&](const auto& group, int rank) {
      SaveCheckpoint(step == 1 ? *directory : counted, step,
                     MakeState(rank, step).shards(),
                     {.group = group,
                      .values = {{"step", std::to_string(step)}},
                      .keep_newest = step == 3 ? 1 : 0});
    });
    for (const std::string& error : thrown) {
      if (error.empty()) continue;
      std::cerr << error << '\n';
      failed = true;
    }
  }
  return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}

}  // namespace
}  // namespace muster::testing

int main(int argc, char** argv) {
  if (argc != 3) return EXIT_FAILURE;
  return muster::testing::Main(argv[1], std::stoll(argv[2]));
}
