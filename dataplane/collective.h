#ifndef MUSTER_DATAPLANE_COLLECTIVE_H_
#define MUSTER_DATAPLANE_COLLECTIVE_H_

#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/clock.h"
#include "base/inlined_vector.h"
#include "base/status.h"
#include "dataplane/collective_kind.h"
#include "dataplane/tensor.h"

namespace muster::dataplane {

// As `peer` of a kRecv: whoever sends first.
inline constexpr int kAnyPeer = -1;

enum class ReduceOp : uint8_t {
  kSum,
  // The sum divided by the world size. Integers truncate toward zero.
  kAvg,
  // Floating point: NaN if any rank has NaN at that element.
  kMin,
  kMax,
  kProduct,
  // Bits of integers. All of these of bool, too, where SUM and MAX are or,
  // PRODUCT and MIN are and.
  kBand,
  kBor,
  kBxor,
  // The sum of what each rank brings times its `factor`. Floating point and
  // complex.
  kPremulSum,
};

inline constexpr int kReduceOpCount = 9;

// A collective of the library's own, between those that are started by callers.
// It has no number, and texts call it by this name.
enum class Step : uint8_t {
  kNone,
  // The ranks of a new group find out about each other.
  kFormGroup,
  kAllocateSymmetric,
};

// "form_group", "allocate_symmetric"; of kNone nothing.
const std::string& StepName(Step step);

// "sum", "avg", "min", "max", "product", "band", "bor", "bxor", "premul_sum".
const std::string& ReduceOpName(ReduceOp op);

// Of a Collective or of a CollectiveView, which have them.
template <typename Call>
const Tensor* FirstTensorOf(const Call& call) {
  if (!call.tensors.empty()) return &call.tensors.front();
  if (!call.inputs.empty()) return &call.inputs.front();
  return call.outputs.empty() ? nullptr : &call.outputs.front();
}
// `without` is the answer where there is no tensor.
inline int CudaDeviceOf(const Tensor* tensor, int without) {
  if (tensor == nullptr) return without;
  return tensor->device().type == DeviceType::kCuda ? tensor->device().index
                                                    : -1;
}

// What is found out once about collectives that differ in nothing but where
// their tensors are, their numbers and times. One of them runs at a time.
struct Plan {
  // What somebody through whose hands it goes keeps with it.
  class Memo {
   public:
    virtual ~Memo() = default;
  };

  // Under the lock of its group: its tensors go together where they are, as far
  // as anybody has looked since they are there; and it has not ended.
  bool is_valid = true;
  bool is_running = false;
  // The backend's, which is there while one may run.
  const std::atomic<bool>* looks_where_tensors_are = nullptr;

  // Of the one that runs, without a lock. Collective::bytes().
  size_t bytes = 0;
  // Of those that wait for nobody: how long the one took that was timed last,
  // and for how many that follow it that stands.
  Instant::duration unwaited_time = {};
  int unwaited_untimed = 0;
  std::unique_ptr<Memo> of_recording = nullptr;
  std::unique_ptr<Memo> of_backend = nullptr;
};

// What one rank wants done, as a value: a decorator can look at it, record it
// and compare it with what the other ranks want. It does not own the tensors'
// memory, which must live until the Work is complete.
struct Collective {
  CollectiveKind kind = CollectiveKind::kBarrier;

  // What it is a part of; of callers' own kNone.
  Step step = Step::kNone;

  using Tensors = base::InlinedVector<Tensor, 1>;

  // What it works on, in place; what it reads; what it writes. Which of them a
  // kind has stands there; others are empty.
  Tensors tensors = {};
  Tensors inputs = {};
  Tensors outputs = {};

  // Of kinds that HasSplits: how many of dimension 0 go to, and come from, each
  // rank. Empty: equal parts.
  std::vector<int64_t> input_splits = {};
  std::vector<int64_t> output_splits = {};

  // Of several that were coalesced into this one: how many elements each has.
  std::vector<int64_t> parts = {};

  // Of reductions.
  ReduceOp reduce_op = ReduceOp::kSum;

  // Of kPremulSum, this rank's: the others may have another one.
  double factor = 1;

  // Of kinds that have one: a rank of the group.
  int root = 0;

  // Of kSend and kRecv. A tag is not negative.
  int peer = 0;
  int tag = 0;
  // It is one of several that begin together: Communicator::StartTogether.
  bool begins_together = false;

  // A barrier's CUDA device, whose current stream it takes part in; -1: none.
  int device = -1;

  // Of CUDA tensors: whoever starts it calls Work::Synchronize before he gives
  // his current stream anything else, so that it may run in that stream itself.
  bool in_current_stream = false;

  // How long it may take; zero is the group's default.
  std::chrono::milliseconds timeout{0};

  // The fields below are filled in by Communicator.

  Instant started = {};

  // When `timeout` is over.
  Instant deadline = Instant::max();

  // Number in its group, from 1. Sends and receives have numbers of their own.
  uint64_t sequence = 0;

  // Of one that is run again; null: it is not known to be. Who makes another
  // collective of this one sets it to null there.
  Plan* plan = nullptr;

  // Bytes of this rank's tensors together: of the inputs or of the outputs,
  // whichever are more.
  size_t bytes() const { return plan != nullptr ? plan->bytes : SumOfBytes(); }

  // All three lists.
  std::array<Tensors*, 3> lists() { return {&tensors, &inputs, &outputs}; }
  std::array<const Tensors*, 3> lists() const {
    return {&tensors, &inputs, &outputs};
  }

  // The lists that it reads from and writes to.
  const Tensors& read() const { return tensors.empty() ? inputs : tensors; }
  const Tensors& written() const { return tensors.empty() ? outputs : tensors; }

  // The list whose sizes are the same on all ranks; null: there is none.
  const Tensors* common() const;

  // Whether rank `rank` reads and writes `tensors`, which it works on in place:
  // a broadcast is read on the root and written elsewhere, the result of a
  // reduce is written on the root.
  bool ReadsInPlace(int rank) const {
    return IsReduction(kind) || !IsRooted(kind) || rank == root;
  }
  bool WritesInPlace(int rank) const {
    return !IsRooted(kind) || IsReduction(kind) == (rank == root);
  }

  // One of its tensors; null if it has none.
  const Tensor* first_tensor() const { return FirstTensorOf(*this); }

  // The index of the CUDA device that its tensors are on, or that a barrier
  // names; -1: none.
  int cuda_device() const { return CudaDeviceOf(first_tensor(), device); }

  // Of all its tensors; kFloat32 if it has none.
  DataType data_type() const {
    const Tensor* const tensor = first_tensor();
    return tensor == nullptr ? DataType::kFloat32 : tensor->data_type();
  }

  // "all_reduce #418 float32[1024] sum", "broadcast #3 int64[1] root 2",
  // "barrier #4", "gather #5 float32[8] to 4 tensors of 32 float32 root 0".
  std::string Describe() const;

  // The head of Describe(), with which error texts begin: "all_reduce #418".
  // Of a step both are its name.
  std::string Label() const;

 private:
  size_t SumOfBytes() const;
};

// What a caller says of a Collective, whose lists stay his.
struct CollectiveView {
  CollectiveKind kind = CollectiveKind::kBarrier;
  std::span<const Tensor> tensors = {};
  std::span<const Tensor> inputs = {};
  std::span<const Tensor> outputs = {};
  std::span<const int64_t> input_splits = {};
  std::span<const int64_t> output_splits = {};
  ReduceOp reduce_op = ReduceOp::kSum;
  double factor = 1;
  int root = 0;
  int peer = 0;
  int tag = 0;
  int device = -1;
  std::chrono::milliseconds timeout{0};

  // As one is by default. To copy it takes a quarter of the time that GCC takes
  // to make one ("rep stos"), which is a twentieth of a small collective's.
  static const CollectiveView kDefault;

  Collective Copy() const;
  static CollectiveView Of(const Collective& collective);

  // What it writes.
  std::span<const Tensor> written() const {
    return outputs.empty() ? tensors : outputs;
  }

  // As Collective's.
  const Tensor* first_tensor() const { return FirstTensorOf(*this); }
  int cuda_device() const { return CudaDeviceOf(first_tensor(), device); }
};

// How many elements each rank's part of `list` has: a list of one tensor for
// each rank, or one tensor that is cut along dimension 0 by `splits`; without
// splits into equal parts. Of what Validate refuses, the counts mean nothing.
std::vector<int64_t> PartCounts(const Collective::Tensors& list,
                                const std::vector<int64_t>& splits,
                                int world_size);

// What Backend::Supports says of a kind that the backend called `backend` has
// nothing for: kUnimplemented.
Status NoSuchKind(std::string_view backend, CollectiveKind kind);

// OK if rank `rank` of `world_size` may start `collective`. Otherwise
// kInvalidArgument, naming the argument and its value.
Status Validate(const Collective& collective, int rank, int world_size);

}  // namespace muster::dataplane

#endif  // MUSTER_DATAPLANE_COLLECTIVE_H_
