// Times collectives of the data plane alone, without coordinator and client:
// ranks are processes on loopback. One line per size:
//   op, ranks, bytes, microseconds per call on the slowest rank, GB/s, bus GB/s
//
//   all_reduce_benchmark --ranks=4 --op=all_reduce --bytes_max=1048576

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/flags/parse.h"
#include "absl/flags/usage.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "dataplane/communicator.h"
#include "dataplane/testing/process_world.h"
#include "dataplane/testing/sample.h"

ABSL_FLAG(std::string, backend, "gloo", "which backend");
ABSL_FLAG(int, ranks, 2, "number of processes");
ABSL_FLAG(std::string, op, "all_reduce", "c10d's name of the collective");
ABSL_FLAG(std::string, datatype, "float32", "type of its elements");
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

CollectiveKind KindOf(const std::string& op) {
  for (int i = 0; i < kCollectiveKindCount; ++i) {
    const auto kind = static_cast<CollectiveKind>(i);
    if (CollectiveKindName(kind) == op) return kind;
  }
  MustSucceed(absl::InvalidArgumentError(absl::StrCat("unknown op ", op)));
  return CollectiveKind::kBarrier;
}

DataType TypeOf(const std::string& name) {
  for (int i = 0; i < kDataTypeCount; ++i) {
    const auto type = static_cast<DataType>(i);
    if (DataTypeName(type) == name) return type;
  }
  MustSucceed(absl::InvalidArgumentError(absl::StrCat("unknown type ", name)));
  return DataType::kFloat32;
}

// Whether a tensor of `bytes` is cut into parts for the ranks, as nccl-tests
// counts.
bool IsCut(CollectiveKind kind) {
  using enum CollectiveKind;
  return kind != kAllReduce && kind != kBroadcast && kind != kReduce &&
         !IsPointToPoint(kind);
}

void Call(Communicator& communicator, Collective collective) {
  collective.caller_waits = absl::GetFlag(FLAGS_caller_waits);
  MustSucceed(communicator.Start(std::move(collective))->Wait());
}

void CheckAllReduce(Communicator& communicator) {
  std::vector<float> values(1000, 1);
  Call(communicator,
       {.kind = CollectiveKind::kAllReduce, .tensors = {Tensor(values)}});
  if (values[0] == static_cast<float>(communicator.world_size())) return;
  MustSucceed(absl::DataLossError(absl::StrCat("wrong sum ", values[0])));
}

// Seconds per call on the slowest rank.
double Measure(Communicator& communicator, CollectiveKind kind, int64_t bytes) {
  const int ranks = communicator.world_size();
  const DataType type = TypeOf(absl::GetFlag(FLAGS_datatype));
  const size_t count = bytes / static_cast<int64_t>(DataTypeBytes(type));
  const SampleOptions options = {.rank = communicator.rank(),
                                 .world_size = ranks,
                                 .count = IsCut(kind) ? count / ranks : count,
                                 .data_type = type};
  const Sample sample(kind, options);
  // A send goes round the ring of ranks, so that each receives one, too.
  const Sample receive(CollectiveKind::kRecv, options);
  const auto call = [&] {
    std::shared_ptr<Work> received;
    if (kind == CollectiveKind::kSend) {
      received = communicator.Start(receive.collective);
    }
    Call(communicator, sample.collective);
    if (received != nullptr) MustSucceed(received->Wait());
  };
  const int calls = CallsFor(bytes, ranks);
  CheckAllReduce(communicator);
  for (int i = 0; i < std::max(2, calls / 5); ++i) {
    call();
  }
  Call(communicator, {.kind = CollectiveKind::kBarrier});
  const Instant start = Clock::now();
  for (int i = 0; i < calls; ++i) call();
  const std::chrono::duration<double> elapsed = Clock::now() - start;
  std::vector<double> slowest = {elapsed.count() / calls};
  Call(communicator, {.kind = CollectiveKind::kAllReduce,
                      .tensors = {Tensor(slowest)},
                      .reduce_op = ReduceOp::kMax});
  return slowest[0];
}

// Of nccl-tests: what the busiest link carries of each byte.
double BusFactor(CollectiveKind kind, int ranks) {
  using enum CollectiveKind;
  const double others = ranks - 1;
  if (kind == kAllReduce) return 2 * others / ranks;
  return IsCut(kind) ? others / ranks : 1;
}

std::string RunRank(Communicator& communicator) {
  const std::string op = absl::GetFlag(FLAGS_op);
  const CollectiveKind kind = KindOf(op);
  const int ranks = communicator.world_size();
  const int64_t first = op == "barrier" ? 0 : absl::GetFlag(FLAGS_bytes_min);
  const int64_t last = op == "barrier" ? 0 : absl::GetFlag(FLAGS_bytes_max);
  for (int64_t bytes = first; bytes <= last;
       bytes *= absl::GetFlag(FLAGS_factor)) {
    const double seconds = Measure(communicator, kind, bytes);
    if (communicator.rank() == 0) {
      const double gb_per_s = static_cast<double>(bytes) / seconds / 1e9;
      std::printf("%s\t%d\t%lld\t%.2f\t%.4f\t%.4f\n", op.c_str(), ranks,
                  static_cast<long long>(bytes), seconds * 1e6,  // NOLINT
                  gb_per_s, gb_per_s * BusFactor(kind, ranks));
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
