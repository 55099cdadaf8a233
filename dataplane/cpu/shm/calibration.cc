#include "dataplane/cpu/shm/calibration.h"

#include <sched.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <vector>

#include "dataplane/cpu/shm/streaming.h"
#include "dataplane/cpu/transport/spin_wait.h"

namespace muster::dataplane::shm {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::chrono::nanoseconds kNever = std::chrono::nanoseconds::max();

constexpr size_t kLineBytes = 64;
constexpr size_t kDataBytes = 256 << 10;
// Writes are timed with less: whether caches are shared shows at once.
constexpr size_t kWrittenBytes = 32 << 10;
// Each kind of copy is timed so often, and the least time counts: others
// include other threads' work.
constexpr int kWrites = 8;
constexpr int kReads = 4;

// The known answer's bits.
constexpr uint8_t kKnown = 1;
constexpr uint8_t kPastCaches = 2;
constexpr uint8_t kFastReads = 4;
std::atomic<uint8_t> known_calibration = 0;

// Requests of rank 0 to rank 1.
enum class Request : uint32_t {
  // Read what rank 0 has written.
  kTake,
  // Write new data to its own memory.
  kRenew,
  // Copy that to the shared memory.
  kStageThroughCaches,
  kStagePastCaches,
  kEnd,
};

// The memory of a calibration. `turn` counts the steps: it is even when rank 0
// may go on, and odd when rank 1 has a request.
struct Shared {
  std::atomic<uint32_t> turn;
  Request request;
  // Rank 1's own data, and how long its last request took it.
  uint64_t address;
  std::chrono::nanoseconds took;
  alignas(kLineBytes) std::byte data[kDataBytes];
};
static_assert(sizeof(Shared) <= kCalibrationBytes);

// Waits for a turn other than `turn`. False if it does not come before
// `deadline`.
bool AwaitChange(const Shared& shared, uint32_t turn,
                 Clock::time_point deadline) {
  for (int spin = 1; shared.turn.load(std::memory_order_acquire) == turn;
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

void Copy(void* to, const void* from, size_t bytes, bool goes_past) {
  if (goes_past) {
    CopyPastCaches(to, from, bytes);
  } else {
    std::memcpy(to, from, bytes);
  }
}

// The work of rank 0.
class Measurement {
 public:
  Measurement(Shared& shared, Clock::time_point deadline)
      : shared_(shared), deadline_(deadline) {}

  Calibration Run(const cpu::PeerMemory* peer) {
    Calibration found = {.is_known = true};
    const std::optional<bool> past_caches = CompareWrites();
    found.writes_past_caches = past_caches.value_or(false);
    std::optional<bool> fast_reads;
    if (past_caches.has_value() && peer != nullptr) {
      fast_reads = CompareReads(*peer, *past_caches);
    }
    found.reads_are_fast = fast_reads.value_or(false);
    found.is_measured = fast_reads.has_value();
    Ask(Request::kEnd);
    return found;
  }

 private:
  // False if rank 1 does not answer in time.
  bool Ask(Request request) {
    const uint32_t turn = shared_.turn.load(std::memory_order_relaxed) + 1;
    shared_.request = request;
    shared_.turn.store(turn, std::memory_order_release);
    return request == Request::kEnd || AwaitChange(shared_, turn, deadline_);
  }

  // nullopt if the time is not enough, here and below.
  std::optional<bool> CompareWrites() {
    std::chrono::nanoseconds least[] = {kNever, kNever};
    // The first copies find pages and caches as they were.
    for (int i = -1; i < kWrites; ++i) {
      for (const bool goes_past : {false, true}) {
        const Clock::time_point began = Clock::now();
        Copy(shared_.data, own_.data(), kWrittenBytes, goes_past);
        // The clock is not read before the stores are done.
        std::atomic_thread_fence(std::memory_order_seq_cst);
        const std::chrono::nanoseconds took = Clock::now() - began;
        if (i >= 0) least[goes_past] = std::min(least[goes_past], took);
        if (!Ask(Request::kTake)) return std::nullopt;
      }
    }
    return ShouldWritePastCaches(least[0], least[1]);
  }

  // Rank 1 renews its data each time: a collective's is mostly new.
  // False if the memory cannot be read.
  std::optional<bool> CompareReads(const cpu::PeerMemory& peer,
                                   bool goes_past) {
    std::chrono::nanoseconds staged = kNever;
    std::chrono::nanoseconds read = kNever;
    for (int i = -1; i < kReads; ++i) {
      if (!Ask(Request::kRenew)) return std::nullopt;
      if (!Ask(goes_past ? Request::kStagePastCaches
                         : Request::kStageThroughCaches)) {
        return std::nullopt;
      }
      // Without the time that rank 1 may have waited for a processor.
      Clock::time_point began = Clock::now();
      std::memcpy(own_.data(), shared_.data, kDataBytes);
      std::chrono::nanoseconds took = Clock::now() - began + shared_.took;
      if (i >= 0) staged = std::min(staged, took);
      if (!Ask(Request::kRenew)) return std::nullopt;
      began = Clock::now();
      if (!peer.Read(shared_.address, own_.data(), kDataBytes)) return false;
      took = Clock::now() - began;
      if (i >= 0) read = std::min(read, took);
    }
    return AreReadsFast(staged, read);
  }

  Shared& shared_;
  const Clock::time_point deadline_;
  std::vector<std::byte> own_ = std::vector<std::byte>(kDataBytes);
};

// The work of rank 1.
void Answer(Shared& shared, Clock::time_point deadline) {
  std::vector<std::byte> own(kDataBytes);
  shared.address = reinterpret_cast<uint64_t>(own.data());
  for (uint32_t turn = 0; AwaitChange(shared, turn, deadline); turn += 2) {
    const Clock::time_point began = Clock::now();
    switch (shared.request) {
      case Request::kTake:
        std::memcpy(own.data(), shared.data, kWrittenBytes);
        break;
      case Request::kRenew:
        std::memset(own.data(), static_cast<int>(turn), kDataBytes);
        break;
      case Request::kStageThroughCaches:
      case Request::kStagePastCaches:
        Copy(shared.data, own.data(), kDataBytes,
             shared.request == Request::kStagePastCaches);
        break;
      case Request::kEnd:
        return;
    }
    shared.took = Clock::now() - began;
    shared.turn.store(turn + 2, std::memory_order_release);
  }
}

}  // namespace

Calibration KnownCalibration() {
  const uint8_t known = known_calibration.load();
  return {.is_known = (known & kKnown) != 0,
          .writes_past_caches = (known & kPastCaches) != 0,
          .reads_are_fast = (known & kFastReads) != 0};
}

void SetKnownCalibration(const Calibration& known) {
  uint8_t unknown = 0;
  known_calibration.compare_exchange_strong(
      unknown, (known.is_known ? kKnown : 0) |
                   (known.writes_past_caches ? kPastCaches : 0) |
                   (known.reads_are_fast ? kFastReads : 0));
}

Calibration Calibrate(void* memory, int rank, const cpu::PeerMemory* peer,
                      std::chrono::milliseconds time) {
  auto& shared = *static_cast<Shared*>(memory);
  const Clock::time_point deadline = Clock::now() + time;
  if (rank == 0) return Measurement(shared, deadline).Run(peer);
  Answer(shared, deadline);
  return {};
}

bool ShouldWritePastCaches(std::chrono::nanoseconds through_caches,
                           std::chrono::nanoseconds past_caches) {
  return through_caches / 2 > past_caches;
}

bool AreReadsFast(std::chrono::nanoseconds staged,
                  std::chrono::nanoseconds read) {
  return read < staged / 10 * 9;
}

}  // namespace muster::dataplane::shm
