#include "client/c/reduction.h"

#include <string>

#include "client/c/error.h"
#include "muster/muster.h"
#include "muster/process_group.h"

namespace muster::c {

static_assert(MUSTER_SUM == static_cast<int>(ReduceOp::kSum));
static_assert(MUSTER_AVG == static_cast<int>(ReduceOp::kAvg));
static_assert(MUSTER_MIN == static_cast<int>(ReduceOp::kMin));
static_assert(MUSTER_MAX == static_cast<int>(ReduceOp::kMax));
static_assert(MUSTER_PRODUCT == static_cast<int>(ReduceOp::kProduct));
static_assert(MUSTER_BAND == static_cast<int>(ReduceOp::kBand));
static_assert(MUSTER_BOR == static_cast<int>(ReduceOp::kBor));
static_assert(MUSTER_BXOR == static_cast<int>(ReduceOp::kBxor));
static_assert(MUSTER_PREMUL_SUM == static_cast<int>(ReduceOp::kPremulSum));

ReduceOp ToReduceOp(muster_reduce_op op) {
  if (op < 0 || op >= dataplane::kReduceOpCount) [[unlikely]] {
    ThrowArgument("op", std::to_string(op) + " does not exist");
  }
  return static_cast<ReduceOp>(op);
}

}  // namespace muster::c
