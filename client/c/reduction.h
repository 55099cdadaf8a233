// The reduction of a collective, from the arguments of a C function.

#ifndef MUSTER_CLIENT_C_REDUCTION_H_
#define MUSTER_CLIENT_C_REDUCTION_H_

#include "client/c/convert.h"
#include "muster/muster.h"
#include "muster/process_group.h"

struct muster_op {
  muster::ReduceFunction function;
};

namespace muster::c {

// Throws ArgumentError if there is no such reduction.
ReduceOperator ToReduceOperator(muster_reduce_op op,
                                const muster_reduction_options& options);
// The factor of kPremulSum; 1 if none is given.
inline double ToFactor(const muster_reduction_options& options) {
  return options.has_factor != 0 ? options.factor : 1;
}

// Makes the options of a collective that reduces.
template <typename Options>
Options ToReduction(muster_reduce_op op,
                    const muster_reduction_options& given) {
  Options options;
  options.op = ToReduceOperator(op, given);
  options.factor = ToFactor(given);
  options.timeout = ToMilliseconds(given.timeout_ms);
  return options;
}

}  // namespace muster::c

#endif  // MUSTER_CLIENT_C_REDUCTION_H_
