#ifndef MUSTER_WORKER_LAUNCHER_FAILURE_H_
#define MUSTER_WORKER_LAUNCHER_FAILURE_H_

#include <cstddef>
#include <string>
#include <vector>

#include "client/control/error_file.h"
#include "client/control/exit_status.h"
#include "muster/launch.h"

namespace muster::worker {

// How one rank ended. Lists of these are in the order of the ends.
struct RankExit {
  int rank = 0;
  pid_t pid = 0;
  internal::ExitStatus status;
  // Ended after muster-run told it to.
  bool told_to_stop = false;
  // muster-run killed it because it hung while the others went on.
  bool hung = false;
  // Why muster-run decided that it hangs.
  std::string hang_cause = {};
  // Another process has replaced it.
  bool restarted = false;
  // The ranks that its error blames; empty: none.
  std::vector<internal::Culprit> blames = {};
  // Its error file, and the index of its last lines (OutputPump).
  std::string error_file = {};
  size_t error_stream = 0;
};

// Whether its exit status says that it ended only because it lost a peer.
bool IsWitness(const RankExit& exit);

// Whether rank `exits[i]` is blamed: by one of `exits` that lost a peer, was
// not told to stop and was not restarted, or by another host, whose ranks blame
// `elsewhere`.
bool IsBlamed(const std::vector<RankExit>& exits, size_t i,
              const std::vector<internal::Culprit>& elsewhere = {});

// Whether `exits[i]` ended with 0 by itself and is blamed: the others were not
// done.
bool IsDeserter(const std::vector<RankExit>& exits, size_t i,
                const std::vector<internal::Culprit>& elsewhere = {});

// Returns the index in `exits` of the failure that caused the others; their
// size if none failed. `exits` are in the order of the ends.
//
// The first is not always the cause: a rank that only lost its peer exits with
// kExitPeerFailed, and may be quicker than the failed one. SIGKILL is never a
// consequence of a peer's failure. If all failed ranks lost a peer, the cause
// is the rank that they blame: it ended early, hung until muster-run told it to
// stop, or failed and was restarted. If they blame none, it is a rank that hung
// until muster-run killed it.
size_t FirstFailure(const std::vector<RankExit>& exits,
                    const std::vector<internal::Culprit>& elsewhere = {});

// Returns the ranks that those of `exits` blame that lost a peer (see
// IsBlamed), except the `ranks` ranks from `first_rank` on. By rank.
std::vector<internal::Culprit> BlamedBeside(const std::vector<RankExit>& exits,
                                            int first_rank, int ranks);

// Returns the index of the first of `exits` that lost a peer; their size if
// none did.
size_t FirstWitness(const std::vector<RankExit>& exits);

// Sentences about at most eight other failures; empty if there are none.
std::string DescribeOthers(const std::vector<RankExit>& exits, size_t first);

}  // namespace muster::worker

#endif  // MUSTER_WORKER_LAUNCHER_FAILURE_H_
