#include "dataplane/backends/shm/rehearsal.h"

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <new>
#include <vector>

#include "absl/status/status.h"
#include "dataplane/backends/shm/selection.h"
#include "dataplane/backends/shm/single_copy.h"
#include "dataplane/backends/shm/staged.h"
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
constexpr int kCalls = 2;

// By how much it is much faster. Where reading won at these sizes staging took
// 1.6 times as long, or 6 times.
constexpr int kMuch = 3;

// What a turn takes.
struct Times {
  Clock::duration staged = Clock::duration::max();
  Clock::duration single_copy = Clock::duration::max();
};

absl::Status RunStaged(Workshop& shop, const Collective& collective) {
  shop.Say(collective);
  return RunStaged(shop, collective, Algorithm::kStaged,
                   [](size_t) { return true; })
      .status();
}

// What each of them says, by rank: bytes alone.
template <typename Words>
absl::StatusOr<std::vector<Words>> Hear(Workshop& shop, Words own) {
  constexpr auto kOne = static_cast<int64_t>(sizeof(Words));
  std::vector<Words> all(shop.board.world_size());
  absl::Status status =
      RunStaged(shop, {.kind = CollectiveKind::kAllGatherIntoTensor,
                       .inputs = {Tensor(&own, DataType::kUint8, {kOne})},
                       .outputs = {Tensor(all.data(), DataType::kUint8,
                                          {kOne * shop.board.world_size()})}});
  if (!status.ok()) return status;
  return all;
}

// The scratch, which a broadcast does not need; null: there is no memory.
std::byte* MemoryOf(Workshop& shop) {
  try {
    if (shop.scratch.size() < kBytes) shop.scratch.resize(kBytes);
    return shop.scratch.data();
  } catch (const std::bad_alloc&) {
    return nullptr;
  }
}

// The least that a turn of each way takes here.
absl::StatusOr<Times> TakeTurns(Workshop& shop, const Collective& broadcast) {
  Times least;
  for (int turn = 0; turn < kTurns; ++turn) {
    const Instant began = Clock::now();
    for (int call = 0; call < kCalls; ++call) {
      absl::Status status = RunStaged(shop, broadcast);
      if (!status.ok()) return status;
    }
    const Instant staged = Clock::now();
    bool has_read = true;
    for (int call = 0; call < kCalls && has_read; ++call) {
      const auto done = RunSingleCopy(shop, broadcast, Where::kAnywhere);
      if (!done.ok()) return done.status();
      // Alike on all ranks.
      has_read = *done;
    }
    least.staged = std::min(least.staged, staged - began);
    if (has_read) {
      least.single_copy = std::min(least.single_copy, Clock::now() - staged);
    }
  }
  return least;
}

Reading ReadingOf(const Times& times) {
  if (times.single_copy >= times.staged) return Reading::kSlower;
  return times.staged / kMuch > times.single_copy ? Reading::kMuchFaster
                                                  : Reading::kFaster;
}

const char* ReadingName(Reading reading) {
  switch (reading) {
    case Reading::kSlower:
      return "slower";
    case Reading::kFaster:
      return "faster";
    case Reading::kMuchFaster:
      return "much_faster";
  }
  return "unknown";
}

}  // namespace

absl::StatusOr<Reading> TryReading(Workshop& shop) {
  std::byte* const memory = MemoryOf(shop);
  const auto have_memory = Hear(shop, uint8_t{memory != nullptr});
  if (!have_memory.ok()) return have_memory.status();
  // A group needs none of this.
  if (std::ranges::count(*have_memory, 0) > 0) return Reading::kSlower;
  const Collective broadcast = {
      .kind = CollectiveKind::kBroadcast,
      .tensors = {Tensor(memory, DataType::kUint8, {kBytes})}};
  const auto own = TakeTurns(shop, broadcast);
  if (!own.ok()) return own.status();
  const auto all = Hear(shop, *own);
  if (!all.ok()) return all.status();
  Times slowest = {.staged = {}, .single_copy = {}};
  for (const Times& times : *all) {
    slowest.staged = std::max(slowest.staged, times.staged);
    slowest.single_copy = std::max(slowest.single_copy, times.single_copy);
  }
  const Reading reading = ReadingOf(slowest);
  VLOG(1) << "backend shm rehearsed: reading=" << ReadingName(reading)
          << " staged_us=" << slowest.staged / std::chrono::microseconds(kCalls)
          << " single_copy_us="
          << slowest.single_copy / std::chrono::microseconds(kCalls);
  return reading;
}

}  // namespace muster::dataplane::shm_internal
