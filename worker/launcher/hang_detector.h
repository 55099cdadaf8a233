#ifndef MUSTER_WORKER_LAUNCHER_HANG_DETECTOR_H_
#define MUSTER_WORKER_LAUNCHER_HANG_DETECTOR_H_

#include <sys/types.h>

#include <chrono>
#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "client/control/host_members.h"

namespace muster::worker {

// HangDetector says which processes of this host hang, by what the coordinator
// tells of its members time and again: those that it has taken for lost, and
// that have not come back as another member.
//
// Whoever falls silent while this process hears from the coordinator hangs.
// While it does not, its host is cut off, or the coordinator gone: then all are
// silent. Who is lost after that has a lease and kReturnTime more to come back.
class HangDetector {
 public:
  using Instant = std::chrono::steady_clock::time_point;

  // The processes were started after `began`.
  explicit HangDetector(Instant began) : began_(began) {}

  // How long it may take to learn that one was lost, and to connect anew: as
  // long as an attempt to connect may take.
  static constexpr std::chrono::seconds kReturnTime{10};

  // It is asked every second at least, and that may take a while.
  static constexpr std::chrono::seconds kAskedWithin{2};

  struct Lost {
    pid_t pid = 0;
    std::string cause;
  };

  // The coordinator was asked at `asked_at`, and this is its answer of now.
  // Returns who hangs, each once. Who is gone at the first answer, and was
  // heard of before `began` only, is of an earlier time.
  std::vector<Lost> Decide(const internal::HostMembers& answer,
                           Instant asked_at, Instant now);

  // It was asked, and has not answered.
  void NoAnswer() { in_touch_since_.reset(); }

  // Whether it has answered once, and then not for longer than it is left alone
  // (LostRanks): what WasCutOff says is to be seen.
  bool IsOutOfTouch(Instant now) const {
    return answered_at_.has_value() && now - *answered_at_ > kAskedWithin;
  }

  // For how long it has not answered; none: it never has.
  std::optional<Instant::duration> Silence(Instant now) const {
    if (!answered_at_.has_value()) return std::nullopt;
    return now - *answered_at_;
  }

  // Whether nothing was heard from the coordinator for so long that it may have
  // taken all ranks of this host for lost, until now or until so shortly before
  // that they may have learnt of it just now.
  bool WasCutOff(Instant now) const;

 private:
  void NoteAnswer(Instant now, std::chrono::milliseconds lease);
  bool IsCut(Instant::duration silence) const;

  const Instant began_;
  // Without a pause as long as half a lease.
  std::optional<Instant> in_touch_since_;
  std::optional<Instant> answered_at_;
  // The last end of such a time as WasCutOff is about.
  std::optional<Instant> regained_at_;
  // As the last answer has it; 0: there is none, or no job yet.
  std::chrono::milliseconds lease_{0};
  bool first_ = true;
  // Departed members, by incarnation, that are dealt with.
  std::set<uint64_t> done_;
};

}  // namespace muster::worker

#endif  // MUSTER_WORKER_LAUNCHER_HANG_DETECTOR_H_
