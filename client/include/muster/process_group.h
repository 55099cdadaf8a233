#ifndef MUSTER_PROCESS_GROUP_H_
#define MUSTER_PROCESS_GROUP_H_

#include <chrono>
#include <cstdint>
#include <exception>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "muster/base/export.h"
#include "muster/base/inlined_vector.h"
#include "muster/base/status.h"
#include "muster/dataplane/backend.h"
#include "muster/dataplane/collective.h"
#include "muster/dataplane/float8.h"
#include "muster/dataplane/reduce_function.h"
#include "muster/dataplane/tensor.h"
#include "muster/dataplane/work.h"
#include "muster/future.h"

namespace muster::internal {
class GroupState;
}  // namespace muster::internal

namespace MUSTER_EXPORT muster {

using dataplane::DataType;
using dataplane::Device;
using dataplane::DeviceType;
using dataplane::Element;
using dataplane::FromFloat8;
using dataplane::IsFloat8;
using dataplane::LastRun;
using dataplane::ReduceFunction;
using dataplane::ReduceFunctionOptions;
using dataplane::ReduceOp;
using dataplane::ReduceOperator;
using dataplane::Tensor;
using dataplane::ToFloat8;
using dataplane::ValueIndex;

namespace internal {

// A rank as a caller names it: by the global rank, or by the rank in the group.
struct RankArgument {
  std::optional<int> global = std::nullopt;
  std::optional<int> in_group = std::nullopt;
};

}  // namespace internal

class PreparedCollective;
class ProcessGroup;

// The outcome of a collective, for code that chooses what to do next.
enum class WorkResult {
  kSuccess,
  // Its timeout passed.
  kTimeout,
  // A peer, a connection or the backend failed.
  kCommError,
  // Anything else, such as arguments that ranks disagree about.
  kUnknown,
};

// Work is the handle of one started collective.
//
// The tensors of the collective must live until it is complete. So that an
// exception cannot free them earlier, the destructor waits for completion
// (without throwing); after a failure of the group it returns at once.
//
// Several Works may be outstanding, and a program may wait for them in any
// order. On each rank the collectives of a group complete in the order in which
// they were started; sends and receives complete when they are matched. If a
// group spans hosts and GLOO_SOCKET_IFNAME names several interfaces,
// collectives run at the same time, and only a barrier completes after
// everything that was started before it. A started collective cannot be
// cancelled, since the other ranks count on it; ProcessGroup::Abort ends all
// collectives of the group.
//
// With tensors on a CUDA device (streams.h), a collective begins after the work
// that was submitted to the calling thread's current stream before it. Waiting
// for it, also by destroying the Work, makes that stream wait and not the host:
// work that is submitted to the stream afterwards finds the results.
// IsCompleted and WaitFor are about the collective itself. If it fails after
// the wait, Exception() and the next call on the group report that.
//
// A failed collective is complete when its error is known. It may take a few
// seconds more to find out which rank is to blame (client/README.md, Errors).
// Wait takes part in that; WaitFor, IsCompleted, IsSuccess and Exception do not
// wait for it.
//
// Movable; a moved-from Work may only be assigned to or destroyed. One thread
// at a time.
class Work {
 public:
  Work() = default;
  Work(Work&&) noexcept = default;
  Work& operator=(Work&& other) noexcept;
  ~Work() { Finish(); }

  // Waits for completion; with CUDA tensors it makes the current stream wait,
  // as said above (but waits for the completion of a barrier). Every Wait of a
  // failed collective throws the same error.
  // Throws DistNetworkError (a peer is gone; culprits() names it),
  // DistBackendError (the collective failed, or its timeout passed).
  void Wait();

  // Does the same as Wait.
  void Synchronize() { Wait(); }

  // Makes the host wait for completion, but returns false if `timeout` passes
  // first; the collective, or the search for its error, goes on. Throws
  // DistError (kInvalidArgument) if `timeout` is negative.
  bool WaitFor(std::chrono::milliseconds timeout);

  bool IsCompleted() const;

  // True if it has completed without an error.
  bool IsSuccess() const;

  // The exception that Wait() would throw; null while the collective runs, and
  // if there is no error.
  std::exception_ptr Exception() const;

  // The tensors that the collective has written: the outputs, or the tensors
  // that it changed in place. Throws DistError (kFailedPrecondition) unless it
  // is complete or was waited for, and after a failure what Wait() throws.
  std::vector<Tensor> Result() const;

  // A future of Result(), for continuations; future.h says where and in which
  // order they run. The future does not keep the tensors' memory alive.
  // Destroying this Work still waits for the collective, but not for the
  // continuations. Every call returns the same future.
  Future<std::vector<Tensor>> GetFuture();

  // A future of the outcome. It does not fail, whatever the outcome is.
  Future<WorkResult> GetFutureResult();

  // The global rank that sent the message of a receive, once it is complete
  // (with a CUDA tensor on gloo, as soon as Wait returns). Otherwise -1.
  int SourceRank() const;

 private:
  friend class internal::GroupState;
  Work(std::shared_ptr<dataplane::Work> work,
       std::shared_ptr<internal::GroupState> group,
       std::span<const Tensor> result);
  // Makes a complete Work of the group whose continuations have this number.
  [[gnu::always_inline]] Work(uint64_t continuations_number,
                              std::span<const Tensor> result)
      : continuations_number_(continuations_number) {
    SetResult(result);
  }

  void SetResult(std::span<const Tensor> result) {
    if (!result.empty()) first_result_.emplace(result.front());
    if (result.size() > 1) AddResults(result.subspan(1));
  }
  void AddResults(std::span<const Tensor> results);
  std::vector<Tensor> ResultTensors() const;
  void Finish() noexcept {
    if (work_ != nullptr) FinishStarted();
  }
  void FinishStarted() noexcept;

  // Null if the Work is complete.
  std::shared_ptr<dataplane::Work> work_;
  // Null if the Work is complete: then the number finds the group's
  // continuations (0: there is no group). Counting references, even weak ones,
  // would take a part of a small collective's time.
  std::shared_ptr<internal::GroupState> group_;
  uint64_t continuations_number_ = 0;
  // The tensors that the collective has written. The first is stored fast, and
  // a few more without an allocation.
  std::optional<Tensor> first_result_;
  base::InlinedVector<Tensor, 3> more_results_;
  bool waited_ = false;
  std::optional<Future<std::vector<Tensor>>> future_;
};

// A bad argument throws DistError (kInvalidArgument, kUnimplemented) from the
// call, also from an asynchronous one. The call starts nothing on this rank and
// ends nothing, but it uses up a sequence number of the group. If the argument
// is bad on every rank, all ranks can go on with the next call. If it is bad on
// one rank only, the others wait for the refused call, and another call in its
// place ends the group. Refused sends, receives, object functions and Coalesce
// use up no number.
//
// Options of the collectives. `group`: null is the default group. `timeout`:
// zero is the group's. `async_op`: if true, the call returns at once, and the
// caller waits on the Work; otherwise the call returns when the collective is
// complete, or throws what Work::Wait throws.
struct CollectiveOptions {
  std::shared_ptr<ProcessGroup> group = nullptr;
  std::chrono::milliseconds timeout{0};
  bool async_op = false;
};

using AllGatherOptions = CollectiveOptions;
using AllToAllOptions = CollectiveOptions;

struct BarrierOptions {
  std::shared_ptr<ProcessGroup> group = nullptr;
  std::chrono::milliseconds timeout{0};
  bool async_op = false;
  // One CUDA device, for a group with nccl: the barrier runs on nccl and comes
  // after the work submitted to that device's current stream. Empty: the
  // barrier is the host's, if the group has a backend for CPU tensors.
  std::vector<int> device_ids = {};
};

// Options of collectives in which one rank gives data to all. `group_src` is
// that rank in the group, instead of the argument `src`.
struct SourceOptions {
  std::shared_ptr<ProcessGroup> group = nullptr;
  std::chrono::milliseconds timeout{0};
  bool async_op = false;
  std::optional<int> group_src = std::nullopt;
};

using BroadcastOptions = SourceOptions;
using ScatterOptions = SourceOptions;

// Options of collectives in which one rank gets data from all. `group_dst` is
// that rank in the group, instead of the argument `dst`.
struct GatherOptions {
  std::shared_ptr<ProcessGroup> group = nullptr;
  std::chrono::milliseconds timeout{0};
  bool async_op = false;
  std::optional<int> group_dst = std::nullopt;
};

// Options of collectives that reduce.
struct ReductionOptions {
  // A ReduceOp, or a ReduceFunction of the user.
  ReduceOperator op = ReduceOp::kSum;
  // For kPremulSum only: the factor by which this rank's tensor is multiplied
  // before the sum.
  double factor = 1;
  std::shared_ptr<ProcessGroup> group = nullptr;
  std::chrono::milliseconds timeout{0};
  bool async_op = false;
};

using AllReduceOptions = ReductionOptions;
using ReduceScatterOptions = ReductionOptions;

struct ReduceOptions {
  ReduceOperator op = ReduceOp::kSum;
  double factor = 1;
  std::shared_ptr<ProcessGroup> group = nullptr;
  std::chrono::milliseconds timeout{0};
  bool async_op = false;
  // The rank in the group that gets the result, instead of the argument `dst`.
  std::optional<int> group_dst = std::nullopt;
};

// Options of AllGatherV.
struct AllGatherVOptions {
  // Where each rank's part begins in the output, in elements from its
  // beginning. Need not be in order, and may differ between ranks. Those of
  // parts without elements are checked, too. Empty: one part after the other.
  std::vector<int64_t> displacements = {};
  std::shared_ptr<ProcessGroup> group = nullptr;
  std::chrono::milliseconds timeout{0};
  bool async_op = false;
};

// Options of ReduceScatterV.
struct ReduceScatterVOptions {
  // A ReduceOp, or a ReduceFunction of the user; `factor` as above.
  ReduceOperator op = ReduceOp::kSum;
  double factor = 1;
  // As above, in the input, where parts may overlap.
  std::vector<int64_t> displacements = {};
  std::shared_ptr<ProcessGroup> group = nullptr;
  std::chrono::milliseconds timeout{0};
  bool async_op = false;
};

struct AllToAllSingleOptions {
  // How many elements of dimension 0 come from each rank (output) and go to
  // each rank (input). Empty: equal parts.
  std::vector<int64_t> output_split_sizes = {};
  std::vector<int64_t> input_split_sizes = {};
  std::shared_ptr<ProcessGroup> group = nullptr;
  std::chrono::milliseconds timeout{0};
  bool async_op = false;
};

// A send matches a receive with the same tag, which must not be negative.
// `group_dst` and `group_src` are ranks in the group, instead of the argument.
struct SendOptions {
  int tag = 0;
  std::shared_ptr<ProcessGroup> group = nullptr;
  std::chrono::milliseconds timeout{0};
  std::optional<int> group_dst = std::nullopt;
};

struct RecvOptions {
  int tag = 0;
  std::shared_ptr<ProcessGroup> group = nullptr;
  std::chrono::milliseconds timeout{0};
  std::optional<int> group_src = std::nullopt;
};

// One send or receive of BatchIsendIrecv.
struct P2POp {
  enum class Kind { kIsend, kIrecv };

  Kind op = Kind::kIsend;
  Tensor tensor = {};
  // The destination or the source: a global rank here, or `group_peer`.
  std::optional<int> peer = std::nullopt;
  std::shared_ptr<ProcessGroup> group = nullptr;
  int tag = 0;
  // The peer's rank in the group, instead of `peer`.
  std::optional<int> group_peer = std::nullopt;
};

struct MonitoredBarrierOptions {
  std::shared_ptr<ProcessGroup> group = nullptr;
  std::chrono::milliseconds timeout{0};
  // False: fails as soon as a rank is known to be gone. True: waits for the
  // whole timeout and names every missing rank.
  bool wait_all_ranks = false;
};

// ProcessGroup is this process's handle of a group of ranks. All ranks must
// start the same collectives in the same order. Several threads may use it if
// they keep that order among themselves.
//
// The first failure of a collective ends the group on every rank, within
// moments if a peer dies: running calls fail, and every later call throws the
// same error, which names the culprit, its host, the cause and its last
// progress. Groups that do not contain the culprit go on.
//
// Ranks in arguments and results are global, that is, ranks of the default
// group. Instead of a global rank the options may give the rank in the group as
// `group_src`, `group_dst` or `group_peer`; then the argument is empty (`{}`).
// If both are given, if none is given where one is needed, or if the rank is
// not in the group, the call throws DistError (kInvalidArgument). In lists of
// tensors, tensor r belongs to the group's rank r.
//
// Memory that a collective writes must not overlap other memory that it writes
// or reads (kInvalidArgument). Only a rank's own part may be in place: its
// input may be its own part of the output, or its output its own part of the
// input.
//
// The methods ignore `group` of the options.
class ProcessGroup {
 public:
  explicit ProcessGroup(std::shared_ptr<internal::GroupState> state);

  // This process's rank in the group, and the number of ranks. Both are -1 in
  // the non-member group (NewGroup).
  int rank() const;
  int size() const;
  // The global ranks, by rank in the group.
  std::vector<int> ranks() const;
  const std::string& name() const;
  // A description for people, given when the group was made.
  const std::string& description() const;
  std::string backend() const;

  // Tells how this rank's last collective with tensors on `device` ran: the
  // backend (gloo for a group of shm whose ranks share no memory), and the
  // algorithm of that backend. Sends and receives do not count. Both are empty
  // if this process is not in the group, or if the group was destroyed.
  LastRun last_run(DeviceType device = DeviceType::kCpu) const;

  // The timeout of collectives whose options give none.
  std::chrono::milliseconds timeout() const;

  // `tensor` becomes the reduction of all ranks' tensors, bitwise equal on all
  // ranks.
  //
  // Reductions by a function of the user: backends on the CPU (shm, gloo, mpi)
  // combine the ranks' tensors in rank order; mpi takes at most 2 GiB, also for
  // one rank's result times the number of ranks. nccl refuses them
  // (kUnimplemented), as it does kMinloc and kMaxloc.
  Work AllReduce(const Tensor& tensor, const AllReduceOptions& options = {});

  // `tensor` becomes the tensor of rank `src`.
  Work Broadcast(const Tensor& tensor, std::optional<int> src,
                 const BroadcastOptions& options = {});

  // `tensor` of rank `dst` becomes the reduction of all ranks' tensors. The
  // other ranks' tensors do not change.
  Work Reduce(const Tensor& tensor, std::optional<int> dst,
              const ReduceOptions& options = {});

  // Every rank gets all ranks' `tensor`s in `tensor_list`. Sizes may differ
  // from rank to rank; all ranks must know them.
  Work AllGather(const std::vector<Tensor>& tensor_list, const Tensor& tensor,
                 const AllGatherOptions& options = {});

  // Every rank gets all ranks' `input`s, one after the other, in `output`,
  // which has as many elements as all of them: concatenated along dimension 0,
  // or stacked along a new one.
  Work AllGatherIntoTensor(const Tensor& output, const Tensor& input,
                           const AllGatherOptions& options = {});

  // Every rank gets all ranks' `input`s in `output`: `counts[r]` elements from
  // rank r, each at its displacement (AllGatherVOptions). Counts are numbers of
  // elements, whatever the shape, not negative, the same on all ranks, and
  // `input` has `counts[rank]`. Parts lie in `output` and do not overlap; what
  // is between them does not change.
  Work AllGatherV(const Tensor& output, const Tensor& input,
                  const std::vector<int64_t>& counts,
                  const AllGatherVOptions& options = {});

  // Rank `dst` (default 0) gets all ranks' `tensor`s in `gather_list`, which
  // the other ranks leave empty. All tensors have the same size.
  Work Gather(const Tensor& tensor, const std::vector<Tensor>& gather_list = {},
              std::optional<int> dst = std::nullopt,
              const GatherOptions& options = {});

  // Every rank's `tensor` becomes its element of the `scatter_list` of rank
  // `src` (default 0), which the other ranks leave empty. All tensors have the
  // same size.
  Work Scatter(const Tensor& tensor,
               const std::vector<Tensor>& scatter_list = {},
               std::optional<int> src = std::nullopt,
               const ScatterOptions& options = {});

  // `output` becomes the reduction of element r of all ranks' `input_list`,
  // where r is this rank in the group. Sizes may differ from element to
  // element.
  Work ReduceScatter(const Tensor& output,
                     const std::vector<Tensor>& input_list,
                     const ReduceScatterOptions& options = {});

  // Cuts `input` into equal parts, one for each rank. `output` becomes the
  // reduction of this rank's part of all ranks' `input`.
  Work ReduceScatterTensor(const Tensor& output, const Tensor& input,
                           const ReduceScatterOptions& options = {});

  // Does the same with parts of any size: `counts[r]` elements for rank r, each
  // at its displacement (ReduceScatterVOptions). Counts are as in AllGatherV,
  // and `output` has `counts[rank]`.
  Work ReduceScatterV(const Tensor& output, const Tensor& input,
                      const std::vector<int64_t>& counts,
                      const ReduceScatterVOptions& options = {});

  // Every rank sends element r of `input_tensor_list`, of any size, to rank r,
  // and receives element r of `output_tensor_list` from rank r.
  Work AllToAll(const std::vector<Tensor>& output_tensor_list,
                const std::vector<Tensor>& input_tensor_list,
                const AllToAllOptions& options = {});

  // Does the same with one input and one output tensor, cut along dimension 0.
  Work AllToAllSingle(const Tensor& output, const Tensor& input,
                      const AllToAllSingleOptions& options = {});

  // Sends and receives. They have no order with the collectives. Sends from one
  // rank to another with the same tag are received in their order. Sizes and
  // types must be equal.
  //
  // Send returns when the tensor may be used again. The message may then be
  // under way: it is lost if the receiver leaves without receiving it. It is an
  // error if the receiver leaves before the message has left this rank. Recv
  // returns the rank that sent the message; without `src` and `group_src` it
  // receives from the rank that sends first. Isend and Irecv return at once. A
  // rank may Isend to itself and receive that with Irecv or Recv, also without
  // `src`; Send to itself is an error. On nccl, an Isend to itself and its
  // Irecv must be in one BatchIsendIrecv.
  void Send(const Tensor& tensor, std::optional<int> dst,
            const SendOptions& options = {});
  int Recv(const Tensor& tensor, std::optional<int> src = std::nullopt,
           const RecvOptions& options = {});
  Work Isend(const Tensor& tensor, std::optional<int> dst,
             const SendOptions& options = {});
  Work Irecv(const Tensor& tensor, std::optional<int> src = std::nullopt,
             const RecvOptions& options = {});

  // Waits until every rank has made the call. Throws DistError
  // (kInvalidArgument) if `device_ids` has more than one device or a negative
  // one, or if it is given and the group has no nccl.
  Work Barrier(const BarrierOptions& options = {});

  // Prepare the collectives above, to be run with these arguments again and
  // again (prepared.h). Each sends nothing, and ignores `async_op`. Bad
  // arguments throw as above, but use up no sequence number.
  PreparedCollective PrepareAllReduce(const Tensor& tensor,
                                      const AllReduceOptions& options = {});
  PreparedCollective PrepareBroadcast(const Tensor& tensor,
                                      std::optional<int> src,
                                      const BroadcastOptions& options = {});
  PreparedCollective PrepareReduce(const Tensor& tensor, std::optional<int> dst,
                                   const ReduceOptions& options = {});
  PreparedCollective PrepareAllGather(const std::vector<Tensor>& tensor_list,
                                      const Tensor& tensor,
                                      const AllGatherOptions& options = {});
  PreparedCollective PrepareAllGatherIntoTensor(
      const Tensor& output, const Tensor& input,
      const AllGatherOptions& options = {});
  PreparedCollective PrepareAllGatherV(const Tensor& output,
                                       const Tensor& input,
                                       const std::vector<int64_t>& counts,
                                       const AllGatherVOptions& options = {});
  PreparedCollective PrepareGather(const Tensor& tensor,
                                   const std::vector<Tensor>& gather_list = {},
                                   std::optional<int> dst = std::nullopt,
                                   const GatherOptions& options = {});
  PreparedCollective PrepareScatter(
      const Tensor& tensor, const std::vector<Tensor>& scatter_list = {},
      std::optional<int> src = std::nullopt,
      const ScatterOptions& options = {});
  PreparedCollective PrepareReduceScatter(
      const Tensor& output, const std::vector<Tensor>& input_list,
      const ReduceScatterOptions& options = {});
  PreparedCollective PrepareReduceScatterTensor(
      const Tensor& output, const Tensor& input,
      const ReduceScatterOptions& options = {});
  PreparedCollective PrepareReduceScatterV(
      const Tensor& output, const Tensor& input,
      const std::vector<int64_t>& counts,
      const ReduceScatterVOptions& options = {});
  PreparedCollective PrepareAllToAll(
      const std::vector<Tensor>& output_tensor_list,
      const std::vector<Tensor>& input_tensor_list,
      const AllToAllOptions& options = {});
  PreparedCollective PrepareAllToAllSingle(
      const Tensor& output, const Tensor& input,
      const AllToAllSingleOptions& options = {});
  PreparedCollective PrepareBarrier(const BarrierOptions& options = {});

  // A barrier that the coordinator decides. If ranks are missing, every rank
  // gets an error that counts all of them and names up to 32. Always
  // synchronous. A late rank does not end the group.
  // Throws DistError: kDeadlineExceeded (ranks are missing: culprits()),
  // kAborted (a rank is gone), kInvalidArgument (arguments that conflict with
  // another rank's). Throws DistNetworkError (the coordinator does not answer).
  void MonitoredBarrier(const MonitoredBarrierOptions& options = {});

  // Ends the group on every rank; on the default group, ends all groups.
  // Running calls and all later calls fail with an error that says that this
  // rank aborted the group, and `reason`; this rank is the culprit. The other
  // ranks learn of it within 100 ms. In a group other than the default one they
  // learn of it from the group's backend (gloo), in running calls or at their
  // next call. Has no effect on a group that has ended or was destroyed.
  // DestroyProcessGroup does not throw this error on this rank.
  void Abort(const std::string& reason = "");

  // Returns OK, or the error that ended the group. Does not block.
  Status status() const;

  // Used by the rest of the SDK only.
  const std::shared_ptr<internal::GroupState>& state() const { return state_; }

 private:
  const std::shared_ptr<internal::GroupState> state_;
};

}  // namespace muster

#endif  // MUSTER_PROCESS_GROUP_H_
