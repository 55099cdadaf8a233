#ifndef MUSTER_CLIENT_PROCESS_GROUP_H_
#define MUSTER_CLIENT_PROCESS_GROUP_H_

#include <chrono>
#include <cstdint>
#include <exception>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/inlined_vector.h"
#include "base/status.h"
#include "client/future.h"
#include "dataplane/backend.h"
#include "dataplane/collective.h"
#include "dataplane/float8.h"
#include "dataplane/tensor.h"
#include "dataplane/work.h"

namespace muster {

using dataplane::DataType;
using dataplane::Device;
using dataplane::DeviceType;
using dataplane::Element;
using dataplane::FromFloat8;
using dataplane::IsFloat8;
using dataplane::LastRun;
using dataplane::ReduceOp;
using dataplane::Tensor;
using dataplane::ToFloat8;

namespace internal {

class GroupState;

// A rank as a caller names it: the global one, or the rank in the group.
struct RankArgument {
  std::optional<int> global = std::nullopt;
  std::optional<int> in_group = std::nullopt;
};

}  // namespace internal

class ProcessGroup;

// How a collective ended, for those who choose what to do next by it.
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
// exception cannot free them earlier, destroying a Work waits for completion
// (without throwing); after a failure of the group that is at once.
//
// Several may be outstanding. Collectives of one group complete in the order in
// which they were started, on each rank; sends and receives when they are
// matched. Where a group spans hosts and GLOO_SOCKET_IFNAME names several
// interfaces, collectives run at the same time, and only a barrier completes
// after all that were started before it. They can be waited for in any order.
// There is no way to take one back, since the other ranks count on it:
// ProcessGroup::Abort ends all of them.
//
// Of tensors on a CUDA device (streams.h) a collective begins after what the
// calling thread's current stream had been given, and waiting for it, also by
// destroying the Work, holds up that stream and not the host: what is given to
// the stream afterwards finds the results. IsCompleted and WaitFor are about
// the collective itself. What fails after the wait is told by the next call on
// the group, and by Exception().
//
// A collective that failed is complete when its error is known: who is to blame
// may take a few seconds more to find out (client/README.md, Errors). Wait
// takes part in that; WaitFor, IsCompleted, IsSuccess and Exception do not wait
// for it.
//
// Movable; one that was moved from is to be assigned to or destroyed. One
// thread at a time.
class Work {
 public:
  Work() = default;
  Work(Work&&) noexcept = default;
  Work& operator=(Work&& other) noexcept;
  ~Work() { Finish(); }

  // Waits for completion; on a CUDA device, as said above, until the current
  // stream does (a barrier waits for completion there, too). Every Wait of a
  // failed collective throws the same.
  // Throws DistNetworkError (a peer is gone; culprits() says who),
  // DistBackendError (the collective failed or its timeout passed).
  void Wait();

  // As Wait.
  void Synchronize() { Wait(); }

  // Waits for completion itself, on the host, but returns false when `timeout`
  // passes first; the collective, or the search for its error, goes on. Throws
  // DistError (kInvalidArgument) if that is negative.
  bool WaitFor(std::chrono::milliseconds timeout);

  bool IsCompleted() const;

  // Completed, and without an error.
  bool IsSuccess() const;

  // What Wait() would throw; null while it runs, and when there is no error.
  std::exception_ptr Exception() const;

  // The tensors that it has written: the outputs, or what it worked on in
  // place. Throws DistError (kFailedPrecondition) before it was waited for or
  // is complete, and what Wait() throws after a failure.
  std::vector<Tensor> Result() const;

  // Of Result(), for continuations: future.h says where and in which order they
  // run. The future does not keep the tensors' memory: this Work does, and what
  // ends it waits for completion, though not for the continuations.
  // Always the same one.
  Future<std::vector<Tensor>> GetFuture();

  // How the collective ended, when it has: it throws nothing, whatever that
  // was.
  Future<WorkResult> GetFutureResult();

  // The global rank that a receive has come from; -1 of anything else, and
  // before completion; on a CUDA device of gloo's as soon as Wait returns.
  int SourceRank() const;

 private:
  friend class internal::GroupState;
  Work(std::shared_ptr<dataplane::Work> work,
       std::shared_ptr<internal::GroupState> group,
       std::span<const Tensor> result);
  // Of one that is complete, in the group whose continuations have the number.
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

  // Null: it is complete.
  std::shared_ptr<dataplane::Work> work_;
  // Null as well then, and a number by which the group's continuations are
  // found; 0: there is no group. (References are counted, also weak ones, which
  // takes a part of a small collective's time.)
  std::shared_ptr<internal::GroupState> group_;
  uint64_t continuations_number_ = 0;
  // What it has written: one tensor in little time, a few without an
  // allocation.
  std::optional<Tensor> first_result_;
  base::InlinedVector<Tensor, 3> more_results_;
  bool waited_ = false;
  std::optional<Future<std::vector<Tensor>>> future_;
};

// A bad argument throws DistError (kInvalidArgument, kUnimplemented) from the
// call, also from an asynchronous one. It starts nothing on this rank, and ends
// nothing; but the call has taken its number. So when it was bad on every rank,
// all can go on with the next one; on one rank alone, the others wait for the
// one that was refused, and another call in its place ends the group.
//
// Options of the collectives. `group`: null is the default group. `timeout`:
// zero is the group's. `async_op`: return at once; the caller waits on the
// Work. Otherwise the call returns when the collective is complete, or throws
// what Work::Wait throws.
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
  // One CUDA device, of a group with nccl: the barrier is nccl's, and comes
  // after what that device's current stream has been given. Empty: of the
  // host, where the group has a backend for CPU tensors.
  std::vector<int> device_ids = {};
};

// Of those that one rank gives to all: its rank in the group, instead of the
// argument `src`.
struct SourceOptions {
  std::shared_ptr<ProcessGroup> group = nullptr;
  std::chrono::milliseconds timeout{0};
  bool async_op = false;
  std::optional<int> group_src = std::nullopt;
};

using BroadcastOptions = SourceOptions;
using ScatterOptions = SourceOptions;

// Of those that one rank gets from all: its rank in the group, instead of the
// argument `dst`.
struct GatherOptions {
  std::shared_ptr<ProcessGroup> group = nullptr;
  std::chrono::milliseconds timeout{0};
  bool async_op = false;
  std::optional<int> group_dst = std::nullopt;
};

// Of those that reduce.
struct ReductionOptions {
  ReduceOp op = ReduceOp::kSum;
  // Of kPremulSum alone: what this rank's tensor is multiplied with before the
  // sum.
  double factor = 1;
  std::shared_ptr<ProcessGroup> group = nullptr;
  std::chrono::milliseconds timeout{0};
  bool async_op = false;
};

using AllReduceOptions = ReductionOptions;
using ReduceScatterOptions = ReductionOptions;

struct ReduceOptions {
  ReduceOp op = ReduceOp::kSum;
  double factor = 1;
  std::shared_ptr<ProcessGroup> group = nullptr;
  std::chrono::milliseconds timeout{0};
  bool async_op = false;
  // The rank in the group that gets the result, instead of the argument `dst`.
  std::optional<int> group_dst = std::nullopt;
};

struct AllToAllSingleOptions {
  // How much of dimension 0 comes from, and goes to, each rank. Empty: equal
  // parts.
  std::vector<int64_t> output_split_sizes = {};
  std::vector<int64_t> input_split_sizes = {};
  std::shared_ptr<ProcessGroup> group = nullptr;
  std::chrono::milliseconds timeout{0};
  bool async_op = false;
};

// A send meets a receive of the same tag, which is not negative. `group_dst`
// and `group_src` are ranks in the group, instead of the argument.
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
  // Where to, or where from: a global rank, or `group_peer`.
  std::optional<int> peer = std::nullopt;
  std::shared_ptr<ProcessGroup> group = nullptr;
  int tag = 0;
  // A rank in the group.
  std::optional<int> group_peer = std::nullopt;
};

struct MonitoredBarrierOptions {
  std::shared_ptr<ProcessGroup> group = nullptr;
  std::chrono::milliseconds timeout{0};
  // False: fails as soon as a rank is known to be gone. True: waits for the
  // whole timeout and names every missing rank.
  bool wait_all_ranks = false;
};

// ProcessGroup is this process's end of a group of ranks. All ranks must start
// the same collectives in the same order; several threads may use it if they
// keep that order between them.
//
// The first failure of a collective ends the group on every rank, within
// moments when a peer dies: what runs fails, and every later call throws the
// same error, which names the rank, its host, the cause and what it was last
// seen doing. Groups that the peer is not in go on.
//
// Ranks that are arguments or results are global: of the default group. Where
// one is wanted, the rank in the group may be given instead, as `group_src`,
// `group_dst` or `group_peer` of the options, with none (`{}`) for the
// argument. Both of them, or none where one is needed, throw DistError
// (kInvalidArgument), as does a rank that is not in the group.
// In lists of tensors, number r belongs to the group's rank r.
//
// What a collective writes must not overlap what else it writes or reads:
// kInvalidArgument. A rank's own part alone may be in place: the input where
// this rank's output is, or the output where this rank's input is.
//
// In the methods `group` of the options is ignored.
class ProcessGroup {
 public:
  explicit ProcessGroup(std::shared_ptr<internal::GroupState> state);

  // Of this process in the group, and of how many; both -1 in what stands for
  // the groups that it is not in (NewGroup).
  int rank() const;
  int size() const;
  // The global ranks, by the ranks in the group.
  std::vector<int> ranks() const;
  const std::string& name() const;
  // For people: what its maker said of it.
  const std::string& description() const;
  std::string backend() const;

  // How the last collective of tensors on `device` went that this rank has run:
  // by which backend (shm, where ranks share no memory, is gloo), and by which
  // of its algorithms. Sends and receives do not count. Both empty where this
  // process is not in the group, or that was destroyed.
  LastRun last_run(DeviceType device = DeviceType::kCpu) const;

  // Of collectives that name none.
  std::chrono::milliseconds timeout() const;

  // `tensor` becomes the reduction of all ranks' tensors, bit for bit the same
  // everywhere.
  Work AllReduce(const Tensor& tensor, const AllReduceOptions& options = {});

  // `tensor` becomes that of rank `src`.
  Work Broadcast(const Tensor& tensor, std::optional<int> src,
                 const BroadcastOptions& options = {});

  // `tensor` of rank `dst` becomes the reduction of all ranks' tensors; those
  // of the others stay as they are.
  Work Reduce(const Tensor& tensor, std::optional<int> dst,
              const ReduceOptions& options = {});

  // Every rank gets all ranks' `tensor`s, in `tensor_list`. Sizes may differ
  // from rank to rank; all ranks must know them.
  Work AllGather(const std::vector<Tensor>& tensor_list, const Tensor& tensor,
                 const AllGatherOptions& options = {});

  // Every rank gets all ranks' `input`s, one after the other in `output`, which
  // has as many elements as all of them: concatenated along dimension 0, or
  // stacked along a new one.
  Work AllGatherIntoTensor(const Tensor& output, const Tensor& input,
                           const AllGatherOptions& options = {});

  // Rank `dst` (none: 0) gets all ranks' `tensor`s, of one size, in
  // `gather_list`, which the others leave empty.
  Work Gather(const Tensor& tensor, const std::vector<Tensor>& gather_list = {},
              std::optional<int> dst = std::nullopt,
              const GatherOptions& options = {});

  // Every rank's `tensor` becomes its part of `scatter_list` of rank `src`
  // (none: 0), which the others leave empty. All of one size.
  Work Scatter(const Tensor& tensor,
               const std::vector<Tensor>& scatter_list = {},
               std::optional<int> src = std::nullopt,
               const ScatterOptions& options = {});

  // `output` becomes the reduction of all ranks' `input_list` at this rank's
  // number. Sizes may differ from number to number.
  Work ReduceScatter(const Tensor& output,
                     const std::vector<Tensor>& input_list,
                     const ReduceScatterOptions& options = {});

  // `output` becomes the reduction of this rank's of the equal parts of all
  // ranks' `input`.
  Work ReduceScatterTensor(const Tensor& output, const Tensor& input,
                           const ReduceScatterOptions& options = {});

  // Every rank gives each other rank one of `input_tensor_list`, of any size,
  // and gets one of `output_tensor_list` from it.
  Work AllToAll(const std::vector<Tensor>& output_tensor_list,
                const std::vector<Tensor>& input_tensor_list,
                const AllToAllOptions& options = {});

  // The same with one tensor each, cut along dimension 0.
  Work AllToAllSingle(const Tensor& output, const Tensor& input,
                      const AllToAllSingleOptions& options = {});

  // Sends and receives. They have no order with the collectives; those of one
  // tag between two ranks keep theirs. Sizes and types must be equal.
  //
  // Send returns when the tensor may be used again. Recv returns the rank that
  // it has come from; without `src` and `group_src` that is whoever sends
  // first. Isend and Irecv return at once. A rank may Isend to itself, and
  // receives that with Irecv or Recv, also without `src`; Send to itself is an
  // error. On nccl both have to be in one BatchIsendIrecv.
  void Send(const Tensor& tensor, std::optional<int> dst,
            const SendOptions& options = {});
  int Recv(const Tensor& tensor, std::optional<int> src = std::nullopt,
           const RecvOptions& options = {});
  Work Isend(const Tensor& tensor, std::optional<int> dst,
             const SendOptions& options = {});
  Work Irecv(const Tensor& tensor, std::optional<int> src = std::nullopt,
             const RecvOptions& options = {});

  // Waits until every rank has come here. Throws DistError (kInvalidArgument)
  // for `device_ids` that are not one, or of a group without nccl.
  Work Barrier(const BarrierOptions& options = {});

  // A barrier that the coordinator decides: when ranks are missing, every rank
  // gets an error that counts all of them and names up to 32. Always
  // synchronous. A rank that is late does not end the group. Throws DistError:
  // kDeadlineExceeded (ranks are missing: culprits()), kAborted (a rank is
  // gone), kInvalidArgument (arguments that conflict with another rank's).
  // Throws DistNetworkError (the coordinator does not answer).
  void MonitoredBarrier(const MonitoredBarrierOptions& options = {});

  // Ends the group on every rank, of the default group all groups: what runs
  // fails, and every later call, with an error that says that this rank has
  // aborted it, and `reason`. The other ranks hear of it within 100 ms; those
  // of a group beside the default one over its backend (gloo), in what they run
  // there or at their next call. To blame is this rank. Without effect on a
  // group that has ended or was destroyed. DestroyProcessGroup does not throw
  // this error on this rank.
  void Abort(const std::string& reason = "");

  // OK, or the error that ended the group. Does not block.
  Status status() const;

  // For the rest of the SDK.
  const std::shared_ptr<internal::GroupState>& state() const { return state_; }

 private:
  const std::shared_ptr<internal::GroupState> state_;
};

}  // namespace muster

#endif  // MUSTER_CLIENT_PROCESS_GROUP_H_
