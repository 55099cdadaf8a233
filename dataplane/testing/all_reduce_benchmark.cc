// Times collectives of the data plane alone, without coordinator and client:
// ranks are processes on loopback. One line per size:
//   op, ranks, bytes, microseconds per call on the slowest rank, GB/s, bus GB/s
//
//   all_reduce_benchmark --ranks=4 --op=all_reduce --bytes_max=1048576

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <string>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/flags/parse.h"
#include "absl/flags/usage.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "dataplane/communicator.h"
#include "dataplane/testing/process_world.h"

ABSL_FLAG(std::string, backend, "gloo", "which backend");
ABSL_FLAG(int, ranks, 2, "number of processes");
ABSL_FLAG(std::string, op, "all_reduce", "all_reduce, broadcast or barrier");
ABSL_FLAG(int64_t, bytes_min, 4, "smallest tensor, in bytes");
ABSL_FLAG(int64_t, bytes_max, 64 << 20, "largest tensor, in bytes");
ABSL_FLAG(int64_t, factor, 16, "from one size to the next");
ABSL_FLAG(bool, caller_waits, true, "run collectives inside Wait");
ABSL_FLAG(double, effort, 1.0, "multiplies the number of calls");

namespace muster::dataplane::testing {
namespace {

int CallsFor(int64_t bytes, int ranks) {
  int calls = bytes <= 1024         ? 2000
              : bytes <= 65536      ? 800
              : bytes <= (1 << 20)  ? 100
              : bytes <= (16 << 20) ? 10
                                    : 4;
  if (ranks > 2) calls /= 2;
  return std::max(3, static_cast<int>(calls * absl::GetFlag(FLAGS_effort)));
}

void MustSucceed(const absl::Status& status) {
  if (status.ok()) return;
  std::fprintf(stderr, "%s\n", std::string(status.message()).c_str());
  _exit(1);
}

void Call(Communicator& communicator, const std::string& op,
          std::vector<float>& values) {
  Collective collective;
  if (op != "barrier") collective.tensors = {Tensor(values)};
  collective.kind = op == "barrier"     ? CollectiveKind::kBarrier
                    : op == "broadcast" ? CollectiveKind::kBroadcast
                                        : CollectiveKind::kAllReduce;
  collective.caller_waits = absl::GetFlag(FLAGS_caller_waits);
  MustSucceed(communicator.Start(collective)->Wait());
}

// Seconds per call on the slowest rank.
double Measure(Communicator& communicator, const std::string& op,
               int64_t bytes) {
  std::vector<float> values(bytes / sizeof(float), 1);
  const int calls = CallsFor(bytes, communicator.world_size());
  Call(communicator, op, values);
  if (op == "all_reduce" &&
      values[0] != static_cast<float>(communicator.world_size())) {
    MustSucceed(absl::DataLossError(absl::StrCat("wrong sum ", values[0])));
  }
  std::fill(values.begin(), values.end(), 0.0f);
  for (int i = 0; i < std::max(2, calls / 5); ++i) {
    Call(communicator, op, values);
  }
  std::vector<float> none;
  Call(communicator, "barrier", none);
  const Instant start = Clock::now();
  for (int i = 0; i < calls; ++i) Call(communicator, op, values);
  const std::chrono::duration<double> elapsed = Clock::now() - start;
  std::vector<double> slowest = {elapsed.count() / calls};
  MustSucceed(communicator
                  .Start({.kind = CollectiveKind::kAllReduce,
                          .tensors = {Tensor(slowest)},
                          .reduce_op = ReduceOp::kMax})
                  ->Wait());
  return slowest[0];
}

std::string RunRank(Communicator& communicator) {
  const std::string op = absl::GetFlag(FLAGS_op);
  const int ranks = communicator.world_size();
  const double factor = op == "all_reduce"  ? 2.0 * (ranks - 1) / ranks
                        : op == "broadcast" ? 1
                                            : 0;
  const int64_t first = op == "barrier" ? 0 : absl::GetFlag(FLAGS_bytes_min);
  const int64_t last = op == "barrier" ? 0 : absl::GetFlag(FLAGS_bytes_max);
  for (int64_t bytes = first; bytes <= last;
       bytes *= absl::GetFlag(FLAGS_factor)) {
    const double seconds = Measure(communicator, op, bytes);
    if (communicator.rank() == 0) {
      const double gb_per_s = static_cast<double>(bytes) / seconds / 1e9;
      std::printf("%s\t%d\t%lld\t%.2f\t%.4f\t%.4f\n", op.c_str(), ranks,
                  static_cast<long long>(bytes), seconds * 1e6,  // NOLINT
                  gb_per_s, gb_per_s * factor);
      std::fflush(stdout);
    }
    if (bytes == 0) break;
  }
  return "";
}

}  // namespace
}  // namespace muster::dataplane::testing

int main(int argc, char** argv) {
  absl::SetProgramUsageMessage("Times collectives of the data plane.");
  absl::ParseCommandLine(argc, argv);
  muster::dataplane::testing::ProcessWorld world(
      absl::GetFlag(FLAGS_backend), absl::GetFlag(FLAGS_ranks),
      muster::dataplane::testing::RunRank);
  for (const auto& outcome : world.Join()) {
    if (outcome.wait_status != 0 || !outcome.report.empty()) {
      std::fprintf(stderr, "a rank failed: status %d %s\n", outcome.wait_status,
                   outcome.report.c_str());
      return 1;
    }
  }
  return 0;
}
