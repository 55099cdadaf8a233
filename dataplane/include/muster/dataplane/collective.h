#ifndef MUSTER_DATAPLANE_COLLECTIVE_H_
#define MUSTER_DATAPLANE_COLLECTIVE_H_

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "muster/base/clock.h"
#include "muster/base/export.h"
#include "muster/base/inlined_vector.h"
#include "muster/base/status.h"
#include "muster/dataplane/collective_kind.h"
#include "muster/dataplane/reduce_function.h"
#include "muster/dataplane/tensor.h"

namespace MUSTER_EXPORT muster {
namespace dataplane {

// `peer` of a kRecv that takes the first message from any rank.
inline constexpr int kAnyPeer = -1;

// The numbers of operations and steps never change (ArgumentsHash).
enum class ReduceOp : uint8_t {
  kSum,
  // The sum divided by the world size. Integers truncate toward zero.
  kAvg,
  // Floating point: NaN if any rank has NaN at that element.
  kMin,
  kMax,
  kProduct,
  // Bitwise, on integers and bool. (On bool, kSum and kMax are OR, kProduct and
  // kMin are AND.)
  kBand,
  kBor,
  kBxor,
  // The sum of every rank's tensor times that rank's `factor`. Floating point
  // and complex.
  kPremulSum,
  // On pairs of a value and an index (ValueIndex): the pair with the smallest,
  // or the largest, value; of equal values, the one with the smallest index. A
  // NaN counts as smaller, or larger, than every number, so that it is the
  // result; -0 and +0 are equal.
  kMinloc,
  kMaxloc,
  // Collective::function, on elements of any type. Not for AVG's division or
  // PREMUL_SUM's factor.
  kUser,
};

inline constexpr int kReduceOpCount = 12;

// The operation of a reduction: a ReduceOp, or a function of the user. Implicit
// conversions, so that either can be given as the option `op`.
class ReduceOperator {
 public:
  ReduceOperator(ReduceOp op = ReduceOp::kSum)  // NOLINT
      : op_(op) {}
  ReduceOperator(ReduceFunction function)  // NOLINT
      : op_(ReduceOp::kUser), function_(std::move(function)) {}

  // kUser if it is a function.
  ReduceOp op() const { return op_; }
  const ReduceFunction& function() const { return function_; }

 private:
  ReduceOp op_;
  ReduceFunction function_;
};

// A collective that the library runs by itself, between those that callers
// start. It has no sequence number; texts call it by its step's name.
enum class Step : uint8_t {
  kNone,
  // Setup of a new group.
  kFormGroup,
  kAllocateSymmetric,
};

// "form_group", "allocate_symmetric"; "" for kNone.
const std::string& StepName(Step step);

// "sum", "avg", "min", "max", "product", "band", "bor", "bxor", "premul_sum",
// "minloc", "maxloc", "user".
const std::string& ReduceOpName(ReduceOp op);

// One rank's call of a collective, as a value, so that decorators can inspect
// it, record it and compare it with the calls of other ranks. It does not own
// the tensors' memory, which must live until the Work is complete.
struct Collective {
  CollectiveKind kind = CollectiveKind::kBarrier;

  // The library's step that this belongs to; kNone for a caller's collective.
  Step step = Step::kNone;

  using Tensors = base::InlinedVector<Tensor, 1>;

  // Tensors to work on in place, tensors to read, tensors to write.
  // CollectiveTraits says which lists a kind has; the others are empty.
  Tensors tensors = {};
  Tensors inputs = {};
  Tensors outputs = {};

  // Rows of dimension 0 to send to, and to receive from, each rank. Used only
  // by kinds for which HasSplits is true. Empty: equal parts.
  std::vector<int64_t> input_splits = {};
  std::vector<int64_t> output_splits = {};

  // If several collectives were coalesced into this one: the element count of
  // each.
  std::vector<int64_t> parts = {};

  // Used only by reductions.
  ReduceOp reduce_op = ReduceOp::kSum;

  // Used only by kPremulSum. May differ between ranks.
  double factor = 1;

  // Used only by kUser.
  ReduceFunction function = {};

  // The reduction by kUser that a backend makes of several collectives, of
  // which this, which moves data, is one. Null: it is none.
  const Collective* step_of = nullptr;

  // A rank of the group. Used only by kinds for which IsRooted is true.
  int root = 0;

  // Used only by kSend and kRecv. A tag is not negative.
  int peer = 0;
  int tag = 0;
  // True if it belongs to a batch: Communicator::StartTogether.
  bool begins_together = false;

  // The CUDA device of a barrier, which takes part in that device's current
  // stream; -1: none.
  int device = -1;

  // CUDA tensors only: the caller promises to call Work::Synchronize before it
  // enqueues anything else in its current stream. The collective may therefore
  // run in that stream.
  bool in_current_stream = false;

  // Zero: the group's default.
  std::chrono::milliseconds timeout{0};

  // Communicator fills in the fields below.

  // The size of an element of opaque tensors, which Communicator passes on as
  // tensors of bytes, with one more dimension of this size (OpaqueToBytes).
  // Zero if there are none.
  uint32_t opaque_bytes = 0;

  Instant started = {};

  // `started` plus `timeout`.
  Instant deadline = Instant::max();

  // Number in its group, from 1. Sends and receives are numbered apart.
  uint64_t sequence = 0;

  // Size of this rank's tensors: `tensors` plus the larger of `inputs` and
  // `outputs`.
  size_t bytes() const;

  std::array<Tensors*, 3> lists() { return {&tensors, &inputs, &outputs}; }
  std::array<const Tensors*, 3> lists() const {
    return {&tensors, &inputs, &outputs};
  }

  // The list that is read, and the list that is written.
  const Tensors& read() const { return tensors.empty() ? inputs : tensors; }
  const Tensors& written() const { return tensors.empty() ? outputs : tensors; }

  // The list whose sizes are equal on all ranks; null if there is none.
  const Tensors* common() const;

  // Whether rank `rank` reads, and whether it writes, the in-place list
  // `tensors`. A broadcast is read on the root and written on the others; a
  // reduce is read on all ranks and written on the root.
  bool ReadsInPlace(int rank) const {
    return IsReduction(kind) || !IsRooted(kind) || rank == root;
  }
  bool WritesInPlace(int rank) const {
    return !IsRooted(kind) || IsReduction(kind) == (rank == root);
  }

  // Null if there are no tensors.
  const Tensor* first_tensor() const {
    if (!tensors.empty()) return &tensors.front();
    if (!inputs.empty()) return &inputs.front();
    return outputs.empty() ? nullptr : &outputs.front();
  }

  // The index of the CUDA device of the tensors, or of a barrier; -1: none.
  int cuda_device() const {
    const Tensor* const tensor = first_tensor();
    if (tensor == nullptr) return device;
    return tensor->device().type == DeviceType::kCuda ? tensor->device().index
                                                      : -1;
  }

  // The type of all tensors; kFloat32 if there are none.
  DataType data_type() const {
    const Tensor* const tensor = first_tensor();
    return tensor == nullptr ? DataType::kFloat32 : tensor->data_type();
  }

  // The size of an element that `function` gets.
  size_t function_element_bytes() const {
    if (opaque_bytes > 0) return opaque_bytes;
    const Tensor* const tensor = first_tensor();
    return tensor == nullptr ? 1 : tensor->element_bytes();
  }

  // "all_reduce #418 float32[1024] sum", "broadcast #3 int64[1] root 2",
  // "barrier #4", "gather #5 float32[8] to 4 tensors of 32 float32 root 0".
  std::string Describe() const;

  // The beginning of Describe() and of error texts: "all_reduce #418". If
  // `step` is set, both are the step's name.
  std::string Label() const;
};

// Element count of each rank's part of `list`. The list is one tensor per rank,
// or one tensor that is cut along dimension 0 by `splits` (into equal parts if
// `splits` is empty). If Validate refuses the lists, the counts mean nothing.
std::vector<int64_t> PartCounts(const Collective::Tensors& list,
                                const std::vector<int64_t>& splits,
                                int world_size);

// Changes opaque tensors to tensors of bytes, for backends: see `opaque_bytes`.
// Does nothing if there are none, or if that was done.
void OpaqueToBytes(Collective& collective);

// kUnimplemented: the backend `backend` has no collective of this kind.
Status NoSuchKind(std::string_view backend, CollectiveKind kind);

// OK if rank `rank` of `world_size` may start `collective`. Otherwise
// kInvalidArgument, naming the argument and its value.
Status Validate(const Collective& collective, int rank, int world_size);

}  // namespace dataplane
}  // namespace muster

#endif  // MUSTER_DATAPLANE_COLLECTIVE_H_
