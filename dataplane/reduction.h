#ifndef MUSTER_DATAPLANE_REDUCTION_H_
#define MUSTER_DATAPLANE_REDUCTION_H_

#include <cstddef>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "dataplane/reduction_table.h"
#include "muster/base/status.h"
#include "muster/dataplane/collective.h"
#include "muster/dataplane/float8.h"
#include "muster/dataplane/tensor.h"

namespace muster::dataplane {

// Reduces tensors of one type elementwise. The result of an element depends
// only on the order of its operands.
//
// It works on accumulators. An accumulator is an element or, for SUM, AVG,
// PRODUCT and PREMUL_SUM of float16 and bfloat16, a float32, so that an element
// is rounded to 16 bits only once, at the end. The steps are Load, then any
// number of Combine and Add, then Finish, then Store.
//
// Integers wrap on overflow. MIN and MAX of floating-point numbers give NaN if
// either is NaN; of -0 and +0 they give the first. On bool, SUM, MAX and BOR
// are OR; PRODUCT, MIN and BAND are AND; BXOR is XOR. Functions of the user are
// not here: see rank_order.h.
// A `count` is always a number of elements.
class Reduction {
 public:
  // False for the float8 types and opaque elements, for which there are no
  // loops.
  static bool Has(DataType type) {
    return !IsFloat8(type) && type != DataType::kOpaque;
  }

  // Uses the widest instruction set of this CPU. Requires Has(type) and an
  // operation that is defined for the type (Validate in collective.h). The
  // object is made once, because a small collective takes little longer than
  // making it.
  static const Reduction& Of(DataType type, ReduceOp op);

  // As Of, with one of InstructionSets(). For tests.
  Reduction(DataType type, ReduceOp op, absl::string_view instruction_set);

  // Whether accumulators are elements, so that a tensor can hold them.
  bool in_place() const { return narrow_ == nullptr; }

  // Whether, besides, Load is a copy and Add is Combine, so that Combine takes
  // elements directly.
  bool combines_elements() const { return load_ == nullptr; }

  // Whether Load and Add use their `factor`.
  bool scales() const { return scales_; }

  // Bytes of the accumulator of one element.
  size_t accumulator_bytes() const { return accumulator_bytes_; }

  // Converts elements to accumulators. `factor` is the kPremulSum factor of the
  // rank that the elements come from; ignored for other operations. `out` may
  // be `elements` if in_place().
  void Load(void* out, const void* elements, size_t count, double factor) const;

  // out = a op b, all accumulators. `out` may be `a` or `b`; no other overlap.
  void Combine(void* out, const void* a, const void* b, size_t count) const {
    combine_(out, a, b, count * parts_);
  }

  // out = out op elements; `factor` as for Load.
  void Add(void* out, const void* elements, size_t count, double factor) const;

  // Makes the final value of the combination of `world_size` ranks: divides for
  // kAvg (integers truncate toward zero), otherwise does nothing.
  void Finish(void* accumulators, size_t count, int world_size) const {
    if (divide_ != nullptr) divide_(accumulators, count * parts_, world_size);
  }

  // All steps at once: combines one or more `operands` in their order into
  // `result`. If scales(), each operand has its factor in `factors`, which
  // otherwise may be empty. `result` may be one of the operands. Works on
  // pieces whose accumulators stay in the first-level cache.
  void CombineAll(void* result, absl::Span<const void* const> operands,
                  absl::Span<const double> factors, size_t count,
                  int world_size) const;

  // As CombineAll, without Finish and Store: the result is accumulators, which
  // may be one of the operands if in_place().
  void Accumulate(void* accumulators, absl::Span<const void* const> operands,
                  absl::Span<const double> factors, size_t count) const;

  // Converts accumulators to elements, rounded to nearest, ties to even.
  // `elements` may be `accumulators` if in_place().
  void Store(void* elements, const void* accumulators, size_t count) const;

 private:
  // combine_ is null if the operation is not defined for the type.
  Reduction(DataType type, ReduceOp op, const KernelTable& table);

  // CombineAll for a `world_size`, and Accumulate for zero.
  void CombinePieces(void* result, absl::Span<const void* const> operands,
                     absl::Span<const double> factors, size_t count,
                     int world_size) const;

  size_t element_bytes_;
  size_t accumulator_bytes_;
  size_t at_once_;  // Accumulators that fit into the first-level cache.
  size_t parts_;    // 2 if elements are complex, otherwise 1.
  KernelsOfType::Reduce combine_;
  KernelsOfType::Divide divide_;
  // Null if loading is copying and adding is combining.
  KernelsOfType::Scale load_;
  KernelsOfType::Scale add_;
  KernelsOfType::Narrow narrow_;  // Null if in_place().
  // CombineAll of two operands in one loop; null if there is no such loop.
  KernelsOfType::Reduce combine_two_;
  bool scales_;  // kPremulSum
};

Status NotReducible(absl::string_view backend, DataType type);

Status NoFunctions(absl::string_view backend);

// OK if Reduction has loops for the collective, or it does not reduce.
// Otherwise kUnimplemented, with the name `backend`.
inline Status CheckReducible(absl::string_view backend,
                             const Collective& collective) {
  if (!IsReduction(collective.kind)) return OkStatus();
  if (collective.reduce_op == ReduceOp::kUser) return NoFunctions(backend);
  if (Reduction::Has(collective.data_type())) return OkStatus();
  return NotReducible(backend, collective.data_type());
}

// The instruction sets of this CPU, narrowest first: "baseline", "avx2",
// "avx512".
std::vector<absl::string_view> InstructionSets();

}  // namespace muster::dataplane

#endif  // MUSTER_DATAPLANE_REDUCTION_H_
