// The mpi backend: CPU tensors over the MPI library with which the processes
// were started (mpirun). A separate shared library, so that the rest of muster
// does not need MPI: see README.md.
//
// One thread per group starts its collectives as non-blocking MPI calls, in
// their order, and polls MPI for their ends. MPI cannot cancel a collective, so
// it works on copies: after a failure MPI may still write to the copies, but
// not to the user's tensors.

#include <mpi.h>

#include <algorithm>
#include <chrono>
#include <climits>
#include <condition_variable>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <list>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "base/text.h"
#include "dataplane/mpi/meeting.h"
#include "dataplane/mpi/mpi_reduction.h"
#include "dataplane/mpi/operation.h"
#include "dataplane/reduction.h"
#include "muster/base/clock.h"
#include "muster/base/status.h"
#include "muster/dataplane/backend.h"
#include "muster/dataplane/collective.h"
#include "muster/dataplane/plugin.h"
#include "muster/dataplane/work.h"

namespace muster::dataplane::mpi_internal {
namespace {

// The polling interval while nothing moves.
constexpr std::chrono::microseconds kPause(50);

// True if a rank or an operation was abandoned: MPI_Finalize would hang.
bool g_broken = false;

void FinalizeAtExit() {
  int finalized = 0;
  MPI_Finalized(&finalized);
  if (finalized == 0 && !g_broken) MPI_Finalize();
}

Status InitializeMpi() {
  static const Status status = [] {
    int initialized = 0;
    MPI_Initialized(&initialized);
    int level = MPI_THREAD_SINGLE;
    if (initialized != 0) {
      MPI_Query_thread(&level);
    } else {
      const int code =
          MPI_Init_thread(nullptr, nullptr, MPI_THREAD_MULTIPLE, &level);
      if (code != MPI_SUCCESS) return ToStatus(code, "MPI_Init_thread");
      std::atexit(FinalizeAtExit);
    }
    if (level != MPI_THREAD_MULTIPLE) {
      return FailedPreconditionError(
          "the mpi backend needs an MPI with MPI_THREAD_MULTIPLE");
    }
    return OkStatus();
  }();
  return status;
}

// The bytes of the largest result that a rank of the reduction gets.
size_t LargestResultBytes(const Collective& collective) {
  if (!collective.tensors.empty()) return collective.tensors[0].bytes();
  size_t bytes = collective.outputs[0].bytes();
  // Unless it is one tensor for all.
  if (KnowsAllSizes(collective.kind)) {
    for (const Tensor& input : collective.inputs) {
      bytes = std::max(bytes, input.bytes());
    }
  }
  return bytes;
}

class MpiBackend : public Backend {
 public:
  // `comms`: one communicator for collectives and one for sends and receives,
  // which use the user's tags.
  MpiBackend(const BackendOptions& options, Comms comms)
      : options_(options), comms_(comms), thread_([this] { RunThread(); }) {}

  ~MpiBackend() override {
    Abort(CancelledError(absl::StrCat(
        "group ", base::Quote(options_.group_name), " was destroyed")));
    thread_.join();
    if (abandoned_) return;
    MPI_Comm_free(&comms_.collectives);
    MPI_Comm_free(&comms_.messages);
  }

  std::string name() const override { return "mpi"; }

  std::span<const DeviceType> devices() const override {
    static constexpr DeviceType kDevices[] = {DeviceType::kCpu};
    return kDevices;
  }

  Status Supports(const Collective& collective) const override {
    if (!Operation::Has(collective.kind)) {
      return NoSuchKind("mpi", collective.kind);
    }
    for (const auto* list : collective.lists()) {
      if (!list->empty() && list->front().device().type != DeviceType::kCpu) {
        return UnimplementedError(
            absl::StrCat("the mpi backend takes CPU tensors, got ",
                         list->front().Describe()));
      }
    }
    const bool is_by_user =
        IsReduction(collective.kind) && collective.reduce_op == ReduceOp::kUser;
    Status status = is_by_user ? OkStatus() : CheckReducible("mpi", collective);
    if (!status.ok()) return status;
    // MPI counts in int, and accumulators may be twice as large as elements.
    const size_t most_bytes = is_by_user ? INT_MAX : INT_MAX / 2;
    if (collective.bytes() > most_bytes) {
      return UnimplementedError(
          absl::StrCat("the mpi backend takes tensors of at most ", most_bytes,
                       " bytes together, got ", collective.bytes()));
    }
    if (is_by_user) {
      // A rank that combines gets the operands of all ranks.
      const size_t most_result_bytes =
          INT_MAX / static_cast<size_t>(options_.world_size);
      const size_t result_bytes = LargestResultBytes(collective);
      if (result_bytes > most_result_bytes) {
        return UnimplementedError(absl::StrCat(
            "the mpi backend reduces by a function at most ", most_result_bytes,
            " bytes for a rank, got ", result_bytes));
      }
    }
    if (IsPointToPoint(collective.kind) && collective.tag > TagMax()) {
      return UnimplementedError(
          absl::StrCat("the mpi backend takes tags up to ", TagMax(), ", got ",
                       collective.tag));
    }
    return OkStatus();
  }

  std::shared_ptr<Work> Start(const Collective& collective) override {
    auto work = std::make_shared<PromisedWork>(collective.Describe());
    Status cause;
    {
      const std::lock_guard lock(mutex_);
      cause = cause_;
      if (cause.ok()) {
        queue_.push_back(std::make_unique<Operation>(
            collective, work, options_.rank, options_.world_size));
      }
    }
    if (!cause.ok()) work->Complete(cause);
    changed_.notify_one();
    return work;
  }

  void Abort(Status cause) override {
    {
      const std::lock_guard lock(mutex_);
      if (cause_.ok()) cause_ = std::move(cause);
    }
    changed_.notify_one();
  }

 private:
  int TagMax() const {
    int* value = nullptr;
    int found = 0;
    MPI_Comm_get_attr(comms_.messages, MPI_TAG_UB, &value, &found);
    return found != 0 ? *value : 32767;
  }

  // The thread's loop.
  void RunThread() {
    for (;;) {
      std::deque<std::unique_ptr<Operation>> started;
      Status cause;
      {
        std::unique_lock lock(mutex_);
        const auto wanted = [&] { return !cause_.ok() || !queue_.empty(); };
        if (running_.empty() && waiting_.empty()) {
          changed_.wait(lock, wanted);
        } else if (!moved_) {
          changed_.wait_for(lock, kPause, wanted);
        }
        started.swap(queue_);
        cause = cause_;
      }
      if (!cause.ok()) {
        for (auto& operation : started) operation->Fail(cause);
        return End(cause);
      }
      for (auto& operation : started) {
        operation->is_message() ? Begin(std::move(operation))
                                : waiting_.push_back(std::move(operation));
      }
      moved_ = BeginWaiting();
      moved_ = AskAll() || moved_;
    }
  }

  void Begin(std::unique_ptr<Operation> operation) {
    operation->Begin(comms_);
    running_.push_back(std::move(operation));
  }

  // Begins the collectives that may. Returns whether there were any.
  bool BeginWaiting() {
    const size_t before = waiting_.size();
    while (!waiting_.empty() &&
           std::ranges::none_of(running_, [](const auto& operation) {
             return operation->is_comparing();
           })) {
      Begin(std::move(waiting_.front()));
      waiting_.pop_front();
    }
    return waiting_.size() < before;
  }

  // Completes the operations that are done or late. Returns whether there were
  // any.
  bool AskAll() {
    const size_t before = running_.size();
    const Instant now = Clock::now();
    bool earlier = false;  // a collective before is not done
    running_.remove_if([&](std::unique_ptr<Operation>& operation) {
      // Collectives complete in their order; sends and receives in any order.
      const bool in_turn = operation->is_message() || !earlier;
      if (in_turn && operation->Ask()) return true;
      if (now < operation->deadline()) {
        earlier = earlier || !operation->is_message();
        return false;
      }
      operation->Fail(operation->TimeoutError());
      Abandon(std::move(operation));
      return true;
    });
    return running_.size() < before;
  }

  void End(const Status& cause) {
    for (auto& operation : running_) {
      operation->Fail(cause);
      Abandon(std::move(operation));
    }
    running_.clear();
    for (auto& operation : waiting_) operation->Fail(cause);
    waiting_.clear();
  }

  // Leaks an operation whose memory MPI may still use.
  void Abandon(std::unique_ptr<Operation> operation) {
    operation.release();  // NOLINT(bugprone-unused-return-value)
    abandoned_ = true;
    g_broken = true;
  }

  const BackendOptions options_;
  Comms comms_;

  std::mutex mutex_;
  std::condition_variable changed_;
  Status cause_;  // the error that ended the group
  std::deque<std::unique_ptr<Operation>> queue_;

  // Used only by the thread.
  // Collectives that have not begun, because one before compares.
  std::deque<std::unique_ptr<Operation>> waiting_;
  std::list<std::unique_ptr<Operation>> running_;
  bool moved_ = false;
  bool abandoned_ = false;

  std::thread thread_;
};

StatusOr<std::unique_ptr<Backend>> Create(const BackendOptions& options) {
  if (Status status = AwaitAll(options); !status.ok()) return status;
  if (Status status = InitializeMpi(); !status.ok()) return status;
  const StatusOr<MPI_Comm> comm = Meet(options);
  if (!comm.ok()) return comm.status();
  Comms comms;
  comms.collectives = *comm;
  const int code = MPI_Comm_dup(*comm, &comms.messages);
  if (code != MPI_SUCCESS) return ToStatus(code, "MPI_Comm_dup");
  MPI_Comm_set_errhandler(comms.messages, MPI_ERRORS_RETURN);
  return std::make_unique<MpiBackend>(options, comms);
}

}  // namespace
}  // namespace muster::dataplane::mpi_internal

MUSTER_BACKEND_PLUGIN("mpi", muster::dataplane::mpi_internal::Create,
                      muster::dataplane::DeviceType::kCpu)
