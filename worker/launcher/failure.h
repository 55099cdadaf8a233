#ifndef MUSTER_WORKER_LAUNCHER_FAILURE_H_
#define MUSTER_WORKER_LAUNCHER_FAILURE_H_

#include <cstddef>
#include <string>
#include <vector>

#include "client/control/error_file.h"
#include "client/control/exit_status.h"
#include "client/launch.h"

namespace muster::worker {

// How one rank ended. Lists of these are in the order in which the ranks ended.
struct RankExit {
  int rank = 0;
  pid_t pid = 0;
  internal::ExitStatus status;
  // It ended after muster-run told it to.
  bool told_to_stop = false;
  // muster-run killed it because it hung, while the others went on.
  bool hung = false;
  // Why it was taken for one that hangs.
  std::string hang_cause = {};
  // Another process was started in its place.
  bool restarted = false;
  // Whom its error is because of; empty: it does not say.
  std::vector<internal::Culprit> blames = {};
  // What it left, and where its last lines are (OutputPump).
  std::string error_file = {};
  size_t error_stream = 0;
};

// It says that it ended only because it lost a peer.
bool IsWitness(const RankExit& exit);

// Whether one of `exits` that lost a peer, and was neither told to stop nor
// started again since, says that it was the `i`th of them; or one of another
// host, of those that `elsewhere` is what they say.
bool IsBlamed(const std::vector<RankExit>& exits, size_t i,
              const std::vector<internal::Culprit>& elsewhere = {});

// Whether the `i`th of `exits` ended with 0 by itself though others were not
// done: it is to blame for their end.
bool IsDeserter(const std::vector<RankExit>& exits, size_t i,
                const std::vector<internal::Culprit>& elsewhere = {});

// Which of `exits` is the failure that caused the others, as an index; its
// size when none failed. `exits` are in the order in which they happened.
//
// Not simply the first: a rank that only lost its peer says so by exiting with
// kExitPeerFailed, and may be quicker than the one that failed. SIGKILL is
// never a consequence of a peer's failure. If all that failed lost a peer, it
// is the one that they blame: it deserted them, hung until muster-run told it
// to stop, or had failed and was started again. If they blame none of them, it
// is one that hung until muster-run killed it.
size_t FirstFailure(const std::vector<RankExit>& exits,
                    const std::vector<internal::Culprit>& elsewhere = {});

// Whom those of `exits` blame that lost a peer, as for IsBlamed, beside the
// ranks from `first_rank` to first_rank + ranks - 1, by rank.
std::vector<internal::Culprit> BlamedBeside(const std::vector<RankExit>& exits,
                                            int first_rank, int ranks);

// The first of `exits` that says that it lost a peer, as an index; their size
// when none does.
size_t FirstWitness(const std::vector<RankExit>& exits);

// The sentences about the other failures, at most eight; empty when there are
// none.
std::string DescribeOthers(const std::vector<RankExit>& exits, size_t first);

}  // namespace muster::worker

#endif  // MUSTER_WORKER_LAUNCHER_FAILURE_H_
