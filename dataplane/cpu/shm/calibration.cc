#include "dataplane/cpu/shm/calibration.h"

#include <sched.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

#include "dataplane/cpu/shm/streaming.h"
#include "dataplane/cpu/transport/spin_wait.h"

namespace muster::dataplane::shm {
namespace {

using Clock = std::chrono::steady_clock;

constexpr size_t kLineBytes = 64;
constexpr size_t kDataBytes = kCalibrationBytes - kLineBytes;
// Each kind of copy is timed so often, and the least time counts: others
// include other threads' work.
constexpr uint32_t kRepetitions = 10;

std::atomic<RingWrites> known_ring_writes = RingWrites::kUnknown;

// The memory of a calibration. `turn` counts the steps: the writer's are even,
// the reader's odd.
struct Shared {
  std::atomic<uint32_t> turn;
  alignas(kLineBytes) std::byte data[kDataBytes];
};
static_assert(sizeof(Shared) == kCalibrationBytes);

// Waits for `turn`. False if it does not come before `deadline`.
bool AwaitTurn(const Shared& shared, uint32_t turn,
               Clock::time_point deadline) {
  for (int spin = 1; shared.turn.load(std::memory_order_acquire) != turn;
       ++spin) {
    if (spin % cpu::kQuickSpins != 0) {
      cpu::Relax();
    } else if (Clock::now() < deadline) {
      sched_yield();
    } else {
      return false;
    }
  }
  return true;
}

RingWrites Write(Shared& shared, Clock::time_point deadline) {
  const std::vector<std::byte> from(kDataBytes, std::byte{1});
  constexpr std::chrono::nanoseconds kNever = std::chrono::nanoseconds::max();
  std::chrono::nanoseconds least[] = {kNever, kNever};
  uint32_t turn = 0;
  for (; turn < 4 * kRepetitions; turn += 2) {
    const bool goes_past = turn % 4 != 0;
    // The reader has read everything before.
    if (!AwaitTurn(shared, turn, deadline)) break;
    const Clock::time_point began = Clock::now();
    if (goes_past) {
      CopyPastCaches(shared.data, from.data(), kDataBytes);
    } else {
      std::memcpy(shared.data, from.data(), kDataBytes);
    }
    // The clock is not read before the stores are done.
    std::atomic_thread_fence(std::memory_order_seq_cst);
    const std::chrono::nanoseconds took = Clock::now() - began;
    // The first copies find pages and caches as they were.
    if (turn >= 4) least[goes_past] = std::min(least[goes_past], took);
    shared.turn.store(turn + 1, std::memory_order_release);
  }
  return SelectRingWrites(least[0], least[1]);
}

void Read(Shared& shared, Clock::time_point deadline) {
  std::vector<std::byte> to(kDataBytes);
  for (uint32_t turn = 1; turn < 4 * kRepetitions; turn += 2) {
    if (!AwaitTurn(shared, turn, deadline)) return;
    std::memcpy(to.data(), shared.data, kDataBytes);
    shared.turn.store(turn + 1, std::memory_order_release);
  }
}

}  // namespace

RingWrites KnownRingWrites() {
  if (!kWritesPastCaches) return RingWrites::kThroughCaches;
  return known_ring_writes.load();
}

void SetKnownRingWrites(RingWrites known) { known_ring_writes.store(known); }

RingWrites CalibrateRingWrites(void* memory, int rank) {
  auto& shared = *static_cast<Shared*>(memory);
  const Clock::time_point deadline = Clock::now() + kCalibrationTime;
  if (rank != 0) {
    Read(shared, deadline);
    return RingWrites::kUnknown;
  }
  return Write(shared, deadline);
}

RingWrites SelectRingWrites(std::chrono::nanoseconds through_caches,
                            std::chrono::nanoseconds past_caches) {
  return through_caches / 2 > past_caches ? RingWrites::kPastCaches
                                          : RingWrites::kThroughCaches;
}

}  // namespace muster::dataplane::shm
