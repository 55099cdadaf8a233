#ifndef MUSTER_DATAPLANE_REDUCTION_H_
#define MUSTER_DATAPLANE_REDUCTION_H_

#include <cstddef>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "base/status.h"
#include "dataplane/collective.h"
#include "dataplane/float8.h"
#include "dataplane/reduction_table.h"
#include "dataplane/tensor.h"

namespace muster::dataplane {

// How two tensors of one type become one: elementwise, so that the result of
// an element depends on nothing but the order of its operands.
//
// It works on accumulators. Those are the elements themselves, but float32 for
// SUM, AVG, PRODUCT and PREMUL_SUM of float16 and bfloat16, so that an element
// is rounded to 16 bits once, at the end: Load, then any number of Combine and
// Add, then Finish, then Store.
//
// Integers wrap on overflow. MIN and MAX of floating-point numbers give NaN if
// either is NaN; of -0 and +0 they give the first. Of bool, SUM, MAX and BOR
// are or; PRODUCT, MIN and BAND are and; BXOR is xor.
//
// `count` is always a number of elements.
class Reduction {
 public:
  // Whether there are loops for `type`: there are none for the float8 types.
  static bool Has(DataType type) { return !IsFloat8(type); }

  // With the loops of the widest instruction set of this CPU, which Has(type).
  // The operation must have a meaning for the type: see Validate in
  // collective.h. Made once: a small collective takes little longer than that.
  static const Reduction& Of(DataType type, ReduceOp op);

  // The same with the loops of one of InstructionSets(), for tests.
  Reduction(DataType type, ReduceOp op, absl::string_view instruction_set);

  // Whether accumulators are elements, so that it can work in the tensor.
  bool in_place() const { return narrow_ == nullptr; }

  // Whether, besides, Load copies and Add combines: elements may be given to
  // Combine as they are.
  bool combines_elements() const { return load_ == nullptr; }

  // Whether factors count.
  bool scales() const { return scales_; }

  // Bytes of the accumulator of one element.
  size_t accumulator_bytes() const { return accumulator_bytes_; }

  // Accumulators from elements. `factor` is that of kPremulSum, of the rank
  // that the elements come from; ignored otherwise. `out` may be `elements` if
  // in_place().
  void Load(void* out, const void* elements, size_t count, double factor) const;

  // out = a op b, all accumulators. `out` may be `a` or `b`; no other overlap.
  void Combine(void* out, const void* a, const void* b, size_t count) const {
    combine_(out, a, b, count * parts_);
  }

  // out = out op elements; `factor` as for Load.
  void Add(void* out, const void* elements, size_t count, double factor) const;

  // What makes the final value from the combination of `world_size` ranks: the
  // division of kAvg (integers truncate toward zero), otherwise nothing.
  void Finish(void* accumulators, size_t count, int world_size) const {
    if (divide_ != nullptr) divide_(accumulators, count * parts_, world_size);
  }

  // The whole of it: elements from those of `operands`, one or more, combined
  // in their order, of which each has its factor if scales(); else `factors`
  // may be empty. `result` may be any of them. As many at a time as stay in the
  // nearest cache: the accumulators are no traffic.
  void CombineAll(void* result, absl::Span<const void* const> operands,
                  absl::Span<const double> factors, size_t count,
                  int world_size) const;

  // Elements from accumulators, rounded to the nearest, of two the even one.
  // May be the same memory if in_place().
  void Store(void* elements, const void* accumulators, size_t count) const;

 private:
  // Without loops where the operation has no meaning.
  Reduction(DataType type, ReduceOp op, const KernelTable& table);

  size_t element_bytes_;
  size_t accumulator_bytes_;
  size_t at_once_;  // So many accumulators stay in the nearest cache.
  size_t parts_;    // Numbers in an element: two in a complex one.
  KernelsOfType::Reduce combine_;
  KernelsOfType::Divide divide_;
  // Null if loading is copying, and adding is combining.
  KernelsOfType::Scale load_;
  KernelsOfType::Scale add_;
  KernelsOfType::Narrow narrow_;  // Null if in_place().
  // All of CombineAll of two operands, in one step; null if there is none.
  KernelsOfType::Reduce combine_two_;
  bool scales_;  // kPremulSum
};

Status NotReducible(absl::string_view backend, DataType type);

// Whether a backend of that name can reduce with Reduction: kUnimplemented for
// a reduction of a type that it has no loops for.
inline Status CheckReducible(absl::string_view backend,
                             const Collective& collective) {
  if (!IsReduction(collective.kind) || Reduction::Has(collective.data_type())) {
    return OkStatus();
  }
  return NotReducible(backend, collective.data_type());
}

// Those that this CPU has, narrowest first: "baseline", "avx2", "avx512".
std::vector<absl::string_view> InstructionSets();

}  // namespace muster::dataplane

#endif  // MUSTER_DATAPLANE_REDUCTION_H_
