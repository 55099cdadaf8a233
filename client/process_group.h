#ifndef MUSTER_CLIENT_PROCESS_GROUP_H_
#define MUSTER_CLIENT_PROCESS_GROUP_H_

#include <chrono>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "dataplane/collective.h"
#include "dataplane/tensor.h"
#include "dataplane/work.h"

namespace muster {

using dataplane::DataType;
using dataplane::Device;
using dataplane::DeviceType;
using dataplane::Element;
using dataplane::ReduceOp;
using dataplane::Tensor;

namespace internal {
class GroupState;
}  // namespace internal

class ProcessGroup;

// Work is the handle of one started collective.
//
// The tensors of the collective must live until it is complete. So that an
// exception cannot free them earlier, destroying a Work waits for completion
// (without throwing); after a failure of the group that is at once.
//
// Movable. One thread at a time.
class Work {
 public:
  Work() = default;
  Work(Work&&) noexcept = default;
  Work& operator=(Work&& other) noexcept;
  ~Work();

  // Waits for completion. Every Wait of a failed collective throws the same.
  // Throws DistNetworkError (a peer is gone; culprits() says who),
  // DistBackendError (the collective failed or its timeout passed), DistError
  // (kInvalidArgument: nothing was started, the group is as before).
  void Wait();

  // As Wait(), but returns false when `timeout` passes first; the collective
  // goes on.
  bool WaitFor(std::chrono::milliseconds timeout);

  bool IsCompleted() const;

  // Completed, and without an error.
  bool IsSuccess() const;

 private:
  friend class internal::GroupState;
  Work(std::shared_ptr<dataplane::Work> work,
       std::shared_ptr<internal::GroupState> group);

  void Finish() noexcept;

  std::shared_ptr<dataplane::Work> work_;
  std::shared_ptr<internal::GroupState> group_;
};

// Options of the collectives. `group`: null is the default group. `timeout`:
// zero is the group's. `async_op`: return at once; the caller waits on the
// Work. Otherwise the call returns when the collective is complete, or throws
// what Work::Wait throws.
struct AllReduceOptions {
  ReduceOp op = ReduceOp::kSum;
  std::shared_ptr<ProcessGroup> group = nullptr;
  std::chrono::milliseconds timeout{0};
  bool async_op = false;
};

struct BroadcastOptions {
  std::shared_ptr<ProcessGroup> group = nullptr;
  std::chrono::milliseconds timeout{0};
  bool async_op = false;
};

struct BarrierOptions {
  std::shared_ptr<ProcessGroup> group = nullptr;
  std::chrono::milliseconds timeout{0};
  bool async_op = false;
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
// seen doing.
//
// In the methods `group` of the options is ignored.
class ProcessGroup {
 public:
  explicit ProcessGroup(std::shared_ptr<internal::GroupState> state);

  int rank() const;
  int size() const;
  const std::string& name() const;
  std::string backend() const;
  // Of collectives that name none.
  std::chrono::milliseconds timeout() const;

  // `tensor` becomes the reduction of all ranks' tensors, bit for bit the same
  // everywhere.
  Work AllReduce(Tensor tensor, const AllReduceOptions& options = {});

  // `tensor` becomes that of rank `src`.
  Work Broadcast(Tensor tensor, int src, const BroadcastOptions& options = {});

  // Waits until every rank has come here.
  Work Barrier(const BarrierOptions& options = {});

  // A barrier that the coordinator decides: when ranks are missing, every rank
  // gets an error that names all of them. Always synchronous. A rank that is
  // late does not end the group.
  // Throws DistError: kDeadlineExceeded (ranks are missing: culprits()),
  // kAborted (a rank is gone), kInvalidArgument (arguments that conflict with
  // another rank's).
  // Throws DistNetworkError (the coordinator does not answer).
  void MonitoredBarrier(const MonitoredBarrierOptions& options = {});

  // OK, or the error that ended the group. Does not block.
  absl::Status status() const;

  // For the rest of the SDK.
  const std::shared_ptr<internal::GroupState>& state() const { return state_; }

 private:
  const std::shared_ptr<internal::GroupState> state_;
};

}  // namespace muster

#endif  // MUSTER_CLIENT_PROCESS_GROUP_H_
