#include "dataplane/backends/shm/rehearsal.h"

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>

#include "absl/status/status.h"
#include "dataplane/backends/shm/selection.h"
#include "dataplane/collective.h"
#include "dataplane/instant.h"
#include "dataplane/tensor.h"
#include "glog/logging.h"

namespace muster::dataplane::shm_internal {
namespace {

// One of the sizes for which selection.cc asks.
constexpr int64_t kBytes = 512 << 10;

// The quickest turn counts: the first finds new pages, and other programs are
// in the way of some. It is of several calls, since a rank may be ahead of
// another one.
constexpr int kTurns = 3;
constexpr int kCalls = 4;

// What a turn takes.
struct Times {
  Clock::duration staged = Clock::duration::max();
  Clock::duration single_copy = Clock::duration::max();
};

// Runs a turn, and has `least` be what it takes if that is less.
absl::Status TakeTurn(Council& council, const Collective& collective,
                      Clock::duration& least) {
  const Instant began = Clock::now();
  for (int call = 0; call < kCalls; ++call) {
    absl::Status status = council.Run(collective);
    if (!status.ok()) return status;
  }
  least = std::min(least, Clock::now() - began);
  return absl::OkStatus();
}

}  // namespace

absl::Status Rehearse(Council& council, HostCollectives& collectives) {
  const std::unique_ptr<uint8_t[]> memory(new (std::nothrow) uint8_t[kBytes]());
  const auto refusal = council.FindRefusal(
      memory == nullptr ? absl::ResourceExhaustedError("no memory")
                        : absl::OkStatus());
  if (!refusal.ok()) return refusal.status();
  // A group needs none of this.
  if (refusal->has_value()) return absl::OkStatus();
  const Collective broadcast = {
      .kind = CollectiveKind::kBroadcast,
      .tensors = {Tensor(memory.get(), DataType::kUint8, {kBytes})}};
  Times own;
  for (int turn = 0; turn < kTurns; ++turn) {
    collectives.Force(Algorithm::kStaged);
    absl::Status status = TakeTurn(council, broadcast, own.staged);
    if (!status.ok()) return status;
    collectives.Force(Algorithm::kSingleCopy);
    status = TakeTurn(council, broadcast, own.single_copy);
    if (!status.ok()) return status;
  }
  const auto all = council.Hear(own);
  if (!all.ok()) return all.status();
  Times slowest = {.staged = {}, .single_copy = {}};
  for (const Times& times : *all) {
    slowest.staged = std::max(slowest.staged, times.staged);
    slowest.single_copy = std::max(slowest.single_copy, times.single_copy);
  }
  const bool reads_fast = slowest.single_copy < slowest.staged;
  VLOG(1) << "backend shm rehearsed: reads_fast=" << reads_fast
          << " staged_us=" << slowest.staged / std::chrono::microseconds(kCalls)
          << " single_copy_us="
          << slowest.single_copy / std::chrono::microseconds(kCalls);
  collectives.Force(Algorithm::kFastest);
  collectives.SetReadsFast(reads_fast);
  return absl::OkStatus();
}

}  // namespace muster::dataplane::shm_internal
