#ifndef MUSTER_DATAPLANE_CPU_SHM_CALIBRATION_H_
#define MUSTER_DATAPLANE_CPU_SHM_CALIBRATION_H_

#include <chrono>
#include <cstddef>
#include <cstdint>

namespace muster::dataplane::shm {

// How ranks copy long data into their rings. If processors share a cache,
// copying through it takes about half the time, the reader's included. If they
// do not, each line must first be taken from its last reader's cache, which
// takes ten times as long as writing past the caches (non-temporal stores).
enum class RingWrites : uint8_t { kUnknown, kThroughCaches, kPastCaches };

// The answer that this process knows from its first calibration, or from its
// first group; kUnknown before. From any thread.
RingWrites KnownRingWrites();
void SetKnownRingWrites(RingWrites known);

// The memory that a calibration needs: zeros, aligned to a cache line. Others
// may use it when both ranks have returned.
inline constexpr size_t kCalibrationBytes = 32 << 10;
// The most that a calibration takes.
inline constexpr std::chrono::milliseconds kCalibrationTime{5};

// Measures which copies into shared `memory` are faster. The first two ranks of
// a host call it at about the same time, `rank` 0 or 1; rank 0 gets the answer,
// rank 1 kUnknown. If the other rank does not come in time, the answer is
// kThroughCaches.
RingWrites CalibrateRingWrites(void* memory, int rank);

// The answer for copies that took so long. Data that went past the caches must
// be read from memory, so writing it must take less than half of the time.
RingWrites SelectRingWrites(std::chrono::nanoseconds through_caches,
                            std::chrono::nanoseconds past_caches);

}  // namespace muster::dataplane::shm

#endif  // MUSTER_DATAPLANE_CPU_SHM_CALIBRATION_H_
