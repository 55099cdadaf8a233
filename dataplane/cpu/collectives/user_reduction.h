#ifndef MUSTER_DATAPLANE_CPU_COLLECTIVES_USER_REDUCTION_H_
#define MUSTER_DATAPLANE_CPU_COLLECTIVES_USER_REDUCTION_H_

#include <cstddef>

#include "absl/functional/function_ref.h"
#include "dataplane/cpu/collectives/schedules.h"
#include "dataplane/rank_order.h"
#include "muster/base/status.h"
#include "muster/dataplane/collective.h"

namespace muster::dataplane::cpu {

inline bool IsUserReduction(const Collective& collective) {
  return collective.reduce_op == ReduceOp::kUser &&
         IsReduction(collective.kind);
}

// Runs reductions by functions of the user. Collectives that move data, its
// steps, bring the operands to the ranks that combine them, in rank order. So
// they run on everything that moves data, and the results are bitwise equal on
// all ranks. One object per group, for one thread at a time.
class UserReduction {
 public:
  // Runs a step on this rank; all ranks run the same ones. The step's `step_of`
  // is the reduction.
  using RunStep = absl::FunctionRef<Status(const Collective& step)>;

  // Returns the name of the algorithm that has run in `algorithm`.
  // `meets_first`: the first step is an all_gather. Needed where steps of other
  // kinds go another way than reductions: ranks that disagree would wait for
  // each other there. The same on all ranks.
  Status Run(const Collective& collective, int rank, int world_size,
             bool meets_first, RunStep run_step, const char*& algorithm);

 private:
  RankOrderOperands operands_;
};

}  // namespace muster::dataplane::cpu

#endif  // MUSTER_DATAPLANE_CPU_COLLECTIVES_USER_REDUCTION_H_
