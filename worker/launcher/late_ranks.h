#ifndef MUSTER_WORKER_LAUNCHER_LATE_RANKS_H_
#define MUSTER_WORKER_LAUNCHER_LATE_RANKS_H_

#include <chrono>
#include <map>
#include <optional>
#include <vector>

namespace muster::worker {

// LateRanks decides which ranks of this host have not joined the job although
// others wait for them in the rendezvous: when to report them, and which of
// them hang.
//
// It takes the time as an argument. Used by one thread.
class LateRanks {
 public:
  using Instant = std::chrono::steady_clock::time_point;
  using Duration = std::chrono::steady_clock::duration;

  // How long others have waited when a missing rank is first reported. The
  // pauses before further reports double from kPauseMin to kPauseMax.
  static constexpr std::chrono::seconds kTellAfter{5};
  static constexpr std::chrono::seconds kPauseMin{10};
  static constexpr std::chrono::minutes kPauseMax{10};

  // A rank for which others have waited for `hang_timeout` hangs; 0: no rank
  // hangs.
  explicit LateRanks(std::chrono::milliseconds hang_timeout)
      : hang_timeout_(hang_timeout) {}

  // The process of `rank` was started.
  void NoteStart(int rank, Instant now) { started_[rank] = now; }

  struct Late {
    int rank = 0;
    // How long others have waited for this process.
    Duration waited{0};
  };
  struct Decision {
    std::vector<Late> tell;  // both ascending
    std::vector<Late> kill;
  };

  // `missing` are the ranks of this host for which others wait now. Call it
  // with every answer of the coordinator, even if none is missing.
  Decision Decide(const std::vector<int>& missing, Instant now);

  // Call it if no rank of this host has come to the coordinator yet. Returns
  // true once, and only if there is a hang timeout: a program that does not use
  // muster never comes.
  bool TellThatNoneCame(Instant now);

 private:
  const std::chrono::milliseconds hang_timeout_;
  std::map<int, Instant> started_;
  // By rank; only ranks that were missing in all answers since then.
  std::map<int, Instant> missing_since_;
  // The next report; nullopt: none since all ranks last had joined.
  std::optional<Instant> tell_at_;
  Duration pause_{0};
  bool told_that_none_came_ = false;
};

}  // namespace muster::worker

#endif  // MUSTER_WORKER_LAUNCHER_LATE_RANKS_H_
