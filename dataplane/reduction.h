#ifndef MUSTER_DATAPLANE_REDUCTION_H_
#define MUSTER_DATAPLANE_REDUCTION_H_

#include <cstddef>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "dataplane/collective.h"
#include "dataplane/tensor.h"

namespace muster::dataplane {

// How two tensors of one type become one: elementwise, so that the result of
// an element depends on nothing but the order of its operands.
//
// Integers wrap on overflow. MIN and MAX of floating-point numbers give NaN if
// either is NaN; of -0 and +0 they give the first.
class Reduction {
 public:
  // The loops of the widest instruction set of this CPU. kUnimplemented, with
  // the type's name, for a type that has none.
  static absl::Status Supports(DataType type, ReduceOp op);

  // Both supported.
  Reduction(DataType type, ReduceOp op);

  // The same with the loops of one of InstructionSets(), for tests.
  Reduction(DataType type, ReduceOp op, absl::string_view instruction_set);

  // out[i] = a[i] op b[i]. `out` may be `a` or `b`; no other overlap.
  void Combine(void* out, const void* a, const void* b, size_t count) const {
    combine_(out, a, b, count);
  }

  // What makes the final value from the combination of `world_size` ranks: the
  // division of kAvg (integers truncate toward zero), otherwise nothing.
  void Finish(void* data, size_t count, int world_size) const {
    if (divide_ != nullptr) divide_(data, count, world_size);
  }

 private:
  void (*combine_)(void* out, const void* a, const void* b, size_t count);
  void (*divide_)(void* data, size_t count, int divisor);
};

// Those that this CPU has, narrowest first: "baseline", "avx2", "avx512".
std::vector<absl::string_view> InstructionSets();

}  // namespace muster::dataplane

#endif  // MUSTER_DATAPLANE_REDUCTION_H_
