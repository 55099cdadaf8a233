#ifndef MUSTER_WORKER_FAILURE_H_
#define MUSTER_WORKER_FAILURE_H_

#include <cstddef>
#include <string>
#include <vector>

#include "client/internal/exit_status.h"
#include "client/launch.h"

namespace muster::worker {

// One rank's end, in the order in which the ranks ended.
struct RankExit {
  int rank = 0;
  pid_t pid = 0;
  internal::ExitStatus status;
  // It ended after muster-run told it to.
  bool told_to_stop = false;
  // The ranks that its error is because of; empty: it does not say.
  std::vector<int> blames = {};
};

// Whether the `i`th of `exits` ended with 0 though others were not done: one
// that lost a peer says that it was this one.
bool IsDeserter(const std::vector<RankExit>& exits, size_t i);

// Which of `exits` is the failure that caused the others, as an index; its
// size when none failed. `exits` are in the order in which they happened.
//
// Not simply the first: a rank that only lost its peer says so by exiting with
// kExitPeerFailed, and may be quicker than the one that failed. SIGKILL is
// never a consequence of a peer's failure. If all that failed lost a peer, it
// is the deserter, or the rank that hung until muster-run killed it.
size_t FirstFailure(const std::vector<RankExit>& exits);

// The first of `exits` that says that it lost a peer, as an index; their size
// when none does.
size_t FirstWitness(const std::vector<RankExit>& exits);

// The sentences about the other failures, at most eight; empty when there are
// none.
std::string DescribeOthers(const std::vector<RankExit>& exits, size_t first);

}  // namespace muster::worker

#endif  // MUSTER_WORKER_FAILURE_H_
