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

// HangDetector decides which processes of this host hang, from the
// coordinator's repeated reports on its members: those that the coordinator has
// declared lost and that have not come back as another member.
//
// A process that falls silent while this one hears from the coordinator hangs.
// While this process does not hear from it, its host is cut off or the
// coordinator is gone, and all are silent. A member that is lost after that has
// a lease and kReturnTime more to come back.
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
