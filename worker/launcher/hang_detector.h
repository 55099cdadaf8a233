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
// coordinator's repeated reports on its members: members that the coordinator
// has declared lost and whose process has not registered again.
//
// A process that falls silent while the coordinator answers this one hangs. If
// the coordinator does not answer, this host is cut off or the coordinator is
// gone, and all members are silent. A member that is lost after that has a
// lease and kReturnTime more to come back.
class HangDetector {
 public:
  using Instant = std::chrono::steady_clock::time_point;

  // `began` is the time at which the first process was started.
  explicit HangDetector(Instant began) : began_(began) {}

  // How long a lost member may take to learn of that and to connect again: the
  // time limit of a connection attempt.
  static constexpr std::chrono::seconds kReturnTime{10};

  // The coordinator is asked at least every second; an answer takes a while.
  static constexpr std::chrono::seconds kAskedWithin{2};

  struct Lost {
    pid_t pid = 0;
    std::string cause;
  };

  // `answer` arrived at `now` for a question of `asked_at`. Returns the
  // processes that hang, each once. Ignores members that were gone in the first
  // answer and last heard from before `began`: they are of an earlier run.
  std::vector<Lost> Decide(const internal::HostMembers& answer,
                           Instant asked_at, Instant now);

  // Call it if the coordinator did not answer a question.
  void NoAnswer() { in_touch_since_.reset(); }

  // Whether the coordinator has answered before, but not within kAskedWithin.
  bool IsOutOfTouch(Instant now) const {
    return answered_at_.has_value() && now - *answered_at_ > kAskedWithin;
  }

  // Time since the last answer; nullopt: there was none yet.
  std::optional<Instant::duration> Silence(Instant now) const {
    if (!answered_at_.has_value()) return std::nullopt;
    return now - *answered_at_;
  }

  // Whether the coordinator may have declared all ranks of this host lost
  // because it was out of reach: until now, or until so recently that the ranks
  // may have learned it just now.
  bool WasCutOff(Instant now) const;

 private:
  void NoteAnswer(Instant now, std::chrono::milliseconds lease);
  bool IsCut(Instant::duration silence) const;

  const Instant began_;
  // Since then answers have come at most half a lease apart.
  std::optional<Instant> in_touch_since_;
  std::optional<Instant> answered_at_;
  // The last end of a time for which WasCutOff is true.
  std::optional<Instant> regained_at_;
  // The lease in the last answer; 0: no answer or no job yet.
  std::chrono::milliseconds lease_{0};
  bool first_ = true;
  // Incarnations of departed members that were handled.
  std::set<uint64_t> done_;
};

}  // namespace muster::worker

#endif  // MUSTER_WORKER_LAUNCHER_HANG_DETECTOR_H_
