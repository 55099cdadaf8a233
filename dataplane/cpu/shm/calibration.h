#ifndef MUSTER_DATAPLANE_CPU_SHM_CALIBRATION_H_
#define MUSTER_DATAPLANE_CPU_SHM_CALIBRATION_H_

#include <chrono>
#include <cstddef>
#include <cstdint>

#include "dataplane/cpu/transport/process_memory.h"

namespace muster::dataplane::shm {

// The answers that the ranks of a host find once per process, when its first
// group forms.
struct Calibration {
  // False: the rest says nothing yet.
  bool is_known = false;
  // Both comparisons below were made in time. Not for ranks that were told the
  // answer.
  bool is_measured = false;
  // Ranks write long data into their rings past the caches (non-temporal
  // stores). If processors share a cache, copying through it takes about half
  // the time, the reader's included. If they do not, each line must first be
  // taken from its last reader's cache, which takes ten times as long.
  bool writes_past_caches = false;
  // Reading another process's memory takes less time than two copies through a
  // ring.
  bool reads_are_fast = false;
};

// The first answer that this process got, from its own calibration or from the
// first rank of its host; later ones are ignored. From any thread.
Calibration KnownCalibration();
void SetKnownCalibration(const Calibration& known);

// The memory that a calibration needs: zeros, aligned to a cache line. Others
// may use it when both ranks have returned.
inline constexpr size_t kCalibrationBytes = (256 << 10) + 128;
// The most that a calibration takes, by default.
inline constexpr std::chrono::milliseconds kCalibrationTime{5};

// Measures in shared `memory`. The first two ranks of a host call it at about
// the same time, `rank` 0 or 1; rank 0 gets the answer, rank 1 none. `peer` is
// the other rank's memory, null if it cannot be read: then reads are slow. What
// was not measured in `time` is false.
Calibration Calibrate(void* memory, int rank, const cpu::PeerMemory* peer,
                      std::chrono::milliseconds time = kCalibrationTime);

// The answers for copies that took so long. Data that went past the caches must
// be read from memory, so writing it must take less than half of the time. A
// read must take a tenth less than staging.
bool ShouldWritePastCaches(std::chrono::nanoseconds through_caches,
                           std::chrono::nanoseconds past_caches);
bool AreReadsFast(std::chrono::nanoseconds staged,
                  std::chrono::nanoseconds read);

}  // namespace muster::dataplane::shm

#endif  // MUSTER_DATAPLANE_CPU_SHM_CALIBRATION_H_
