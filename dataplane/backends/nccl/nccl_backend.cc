#include "dataplane/backends/nccl/nccl_backend.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <deque>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "dataplane/backends/nccl/communicator_maker.h"
#include "dataplane/backends/nccl/issue.h"
#include "dataplane/cuda/device_work.h"
#include "dataplane/cuda/stream.h"
#include "dataplane/mutex.h"

namespace muster::dataplane::nccl {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;

// How often the ends of collectives are looked for: while somebody waits for
// one on the host, and while nobody does.
constexpr microseconds kLook(50);
constexpr milliseconds kLazyLook(1);
// The same of NCCL's errors.
constexpr milliseconds kErrorLook(100);
// How long an aborted communicator may take to leave the tensors alone, and
// one that is destroyed in peace to part from its peers.
constexpr milliseconds kDrain(1000);

// Leaves the function with the error, if it is one.
#define MUSTER_RETURN_IF_ERROR(expression)                  \
  do {                                                      \
    if (absl::Status failed = (expression); !failed.ok()) { \
      return failed;                                        \
    }                                                       \
  } while (false)

// A collective on its way.
struct Entry {
  Collective collective;
  std::shared_ptr<cuda::DeviceWork> work;
};

// What begins together: one collective, or several as one group of NCCL.
struct Batch {
  std::vector<Entry> entries;
  // What it is to begin after, and its end.
  cuda::Event ready = nullptr;
  cuda::Event end = nullptr;
  // More comes to it.
  bool open = false;
};

// A communicator with its stream, in which things happen in the order in which
// they were started.
struct Lane {
  std::string key;
  int rank = 0;
  int size = 1;
  int device = 0;
  cuda::Stream stream = nullptr;
  Comm comm = nullptr;  // null until it is made
  std::deque<Batch> waiting;
  std::deque<Batch> running;
  // NCCL has yet to put the last one of `running` into the stream: nothing else
  // may be done with the communicator until it has.
  bool in_progress = false;
  std::thread maker;
};

class NcclBackend : public Backend {
 public:
  NcclBackend(const Platform& platform, const BackendOptions& options)
      : platform_(platform),
        options_(options),
        watchdog_([this] { Watch(); }) {}

  ~NcclBackend() override {
    Part();
    Abort(absl::CancelledError(
        absl::StrCat("group \"", options_.group_name, "\" was destroyed")));
    {
      MutexLock lock(mutex_);
      stopping_ = true;
      waiters_->came.NotifyAll();
    }
    watchdog_.join();
    for (auto& [key, lane] : lanes_) {
      if (lane->maker.joinable()) lane->maker.join();
    }
    Free();
  }

  // Makes the communicator of all ranks.
  absl::Status Bind(int device) {
    MutexLock lock(mutex_);
    device_ = device;
    const cuda::DeviceGuard guard(platform_.cuda, device_);
    return LaneOf("nccl", options_.rank, options_.world_size, options_.deadline)
        .status();
  }

  absl::string_view name() const override { return "nccl"; }

  absl::Span<const DeviceType> devices() const override {
    static constexpr DeviceType kDevices[] = {DeviceType::kCuda};
    return kDevices;
  }

  absl::Status Supports(const Collective& collective) const override {
    int device = -1;
    {
      MutexLock lock(mutex_);
      device = device_;
    }
    for (const auto* list :
         {&collective.tensors, &collective.inputs, &collective.outputs}) {
      for (const Tensor& tensor : *list) {
        if (tensor.device().type != DeviceType::kCuda) {
          return absl::UnimplementedError(absl::StrCat(
              "the nccl backend takes CUDA tensors, got ", tensor.Describe()));
        }
        if (device < 0) device = tensor.device().index;
        if (tensor.device().index != device) {
          return absl::InvalidArgumentError(
              absl::StrCat("tensors on cuda:", tensor.device().index,
                           " in a group whose device is cuda:", device));
        }
      }
    }
    return CheckSupported(collective);
  }

  std::shared_ptr<Work> Start(const Collective& collective) override {
    std::shared_ptr<cuda::DeviceWork> work;
    absl::Status status;
    {
      MutexLock lock(mutex_);
      status = status_;
      if (status.ok()) status = ChooseDevice(collective.cuda_device());
      work = std::make_shared<cuda::DeviceWork>(
          collective.Describe(), platform_.cuda, device_,
          options_.nccl.blocking_wait ||
              collective.kind == CollectiveKind::kBarrier,
          waiters_);
      if (status.ok()) status = Add(collective, work);
    }
    if (!status.ok()) {
      Abort(status);
      work->Over();
      work->Complete(status);
    }
    return work;
  }

  void BeginTogether() override {
    MutexLock lock(mutex_);
    gathers_ = true;
  }

  void EndTogether() override {
    absl::Status status;
    {
      MutexLock lock(mutex_);
      gathers_ = false;
      for (auto& [key, lane] : lanes_) {
        const cuda::DeviceGuard guard(platform_.cuda, lane->device);
        if (!lane->waiting.empty()) lane->waiting.back().open = false;
        if (status.ok()) status = GiveWaiting(*lane);
      }
    }
    if (!status.ok()) Abort(status);
  }

  void Abort(absl::Status cause) override {
    MutexLock lock(mutex_);
    if (!status_.ok()) return;
    status_ = std::move(cause);
    waiters_->came.NotifyAll();
  }

 private:
  using Ended =
      std::vector<std::pair<std::shared_ptr<cuda::DeviceWork>, absl::Status>>;

  absl::Status Cuda(cuda::Error error, absl::string_view what) const {
    return cuda::ToStatus(platform_.cuda, error, what);
  }

  absl::Status Add(const Collective& collective,
                   const std::shared_ptr<cuda::DeviceWork>& work)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    const cuda::DeviceGuard guard(platform_.cuda, device_);
    const absl::StatusOr<Lane*> lane = LaneOf(collective);
    if (!lane.ok()) return lane.status();
    std::deque<Batch>& waiting = (*lane)->waiting;
    if (waiting.empty() || !waiting.back().open) {
      Batch batch;
      batch.open = gathers_;
      MUSTER_RETURN_IF_ERROR(TakeEvent(batch.ready));
      MUSTER_RETURN_IF_ERROR(TakeEvent(batch.end));
      waiting.push_back(std::move(batch));
    }
    waiting.back().entries.push_back({collective, work});
    MUSTER_RETURN_IF_ERROR(
        Cuda(platform_.cuda.EventRecord(waiting.back().ready,
                                        cuda::CurrentStream(device_)),
             "cudaEventRecord"));
    if (gathers_) return absl::OkStatus();
    return GiveWaiting(**lane);
  }

  // Of the first collective, and then always the same.
  absl::Status ChooseDevice(int wanted) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (device_ >= 0) return absl::OkStatus();
    if (wanted < 0) {
      return Cuda(platform_.cuda.GetDevice(&device_), "cudaGetDevice");
    }
    device_ = wanted;
    return absl::OkStatus();
  }

  absl::StatusOr<Lane*> LaneOf(const Collective& collective)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (!IsPointToPoint(collective.kind)) {
      return LaneOf("nccl", options_.rank, options_.world_size,
                    collective.deadline);
    }
    const bool sends = collective.kind == CollectiveKind::kSend;
    return LaneOf(absl::StrCat("nccl/", sends ? options_.rank : collective.peer,
                               "-", sends ? collective.peer : options_.rank),
                  sends ? 0 : 1, 2, collective.deadline);
  }

  absl::StatusOr<Lane*> LaneOf(const std::string& key, int rank, int size,
                               Instant deadline)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    std::unique_ptr<Lane>& lane = lanes_[key];
    if (lane != nullptr) return lane.get();
    lane = std::make_unique<Lane>();
    lane->key = key;
    lane->rank = rank;
    lane->size = size;
    lane->device = device_;
    int least = 0;
    int greatest = 0;
    MUSTER_RETURN_IF_ERROR(
        Cuda(platform_.cuda.DeviceGetStreamPriorityRange(&least, &greatest),
             "cudaDeviceGetStreamPriorityRange"));
    MUSTER_RETURN_IF_ERROR(
        Cuda(platform_.cuda.StreamCreateWithPriority(
                 &lane->stream, cuda::kStreamNonBlocking,
                 options_.nccl.is_high_priority_stream ? greatest : least),
             "cudaStreamCreateWithPriority"));
    if (scratch_ == nullptr) {
      MUSTER_RETURN_IF_ERROR(
          Cuda(platform_.cuda.Malloc(&scratch_, 4), "cudaMalloc"));
    }
    Lane* const made = lane.get();
    made->maker =
        std::thread([this, made, deadline] { Make(*made, deadline); });
    return made;
  }

  // On the lane's own thread: its communicator, and what waits for it.
  void Make(Lane& lane, Instant deadline) {
    const cuda::DeviceGuard guard(platform_.cuda, lane.device);
    absl::StatusOr<Comm> comm =
        MakeCommunicator({.nccl = &platform_.nccl,
                          .version = platform_.nccl_version,
                          .store = options_.store,
                          .key = lane.key,
                          .rank = lane.rank,
                          .size = lane.size,
                          .group_name = options_.group_name,
                          .config = options_.nccl,
                          .deadline = deadline,
                          .over = [this] {
                            MutexLock lock(mutex_);
                            return status_;
                          }});
    absl::Status status = comm.status();
    {
      MutexLock lock(mutex_);
      if (comm.ok() && !status_.ok()) {
        platform_.nccl.CommAbort(*comm);
        return;
      }
      if (comm.ok()) {
        lane.comm = *comm;
        status = GiveWaiting(lane);
      }
    }
    if (!status.ok()) Abort(status);
  }

  // As much as can be given now.
  absl::Status GiveWaiting(Lane& lane) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    while (lane.comm != nullptr && !lane.in_progress && !lane.waiting.empty() &&
           !lane.waiting.front().open) {
      lane.running.push_back(std::move(lane.waiting.front()));
      lane.waiting.pop_front();
      MUSTER_RETURN_IF_ERROR(Give(lane));
    }
    // It looks by itself while something is under way: to wake it each time
    // would take longer than all the rest.
    if (sleeps_) waiters_->came.NotifyAll();
    return absl::OkStatus();
  }

  // The last one of `running` into the stream, behind what it is to begin
  // after.
  absl::Status Give(Lane& lane) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    const Batch& batch = lane.running.back();
    MUSTER_RETURN_IF_ERROR(
        Cuda(platform_.cuda.StreamWaitEvent(lane.stream, batch.ready, 0),
             "cudaStreamWaitEvent"));
    const bool several = batch.entries.size() > 1;
    absl::Status status;
    if (several) status = Nccl(platform_.nccl.GroupStart(), "ncclGroupStart");
    for (const Entry& entry : batch.entries) {
      status.Update(Issue(entry.collective, {.cuda = platform_.cuda,
                                             .nccl = platform_.nccl,
                                             .comm = lane.comm,
                                             .rank = lane.rank,
                                             .size = lane.size,
                                             .stream = lane.stream,
                                             .scratch = scratch_}));
    }
    // Also after an error, so that the thread is in no group.
    if (several) {
      status.Update(Nccl(platform_.nccl.GroupEnd(), "ncclGroupEnd"));
    }
    MUSTER_RETURN_IF_ERROR(status);
    return LookAfter(lane);
  }

  // Whether NCCL has put the last one of `running` into the stream.
  absl::Status LookAfter(Lane& lane) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    Result state = kSuccess;
    MUSTER_RETURN_IF_ERROR(StateOf(lane, state));
    lane.in_progress = state == kInProgress;
    if (lane.in_progress) return absl::OkStatus();
    const Batch& batch = lane.running.back();
    MUSTER_RETURN_IF_ERROR(Cuda(
        platform_.cuda.EventRecord(batch.end, lane.stream), "cudaEventRecord"));
    for (const Entry& entry : batch.entries) entry.work->Given(batch.end);
    return absl::OkStatus();
  }

  // What NCCL says of the communicator.
  absl::Status StateOf(const Lane& lane, Result& state) const {
    MUSTER_RETURN_IF_ERROR(ToStatus(
        platform_.nccl, platform_.nccl.CommGetAsyncError(lane.comm, &state),
        "ncclCommGetAsyncError", lane.comm));
    return ToStatus(platform_.nccl, state, "NCCL", lane.comm);
  }

  absl::Status TakeEvent(cuda::Event& event)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (!events_.empty()) {
      event = events_.back();
      events_.pop_back();
      return absl::OkStatus();
    }
    return Cuda(
        platform_.cuda.EventCreateWithFlags(&event, cuda::kEventDisableTiming),
        "cudaEventCreateWithFlags");
  }

  // The first of `batches` has ended.
  void Take(std::deque<Batch>& batches, Ended& ended)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    Batch& batch = batches.front();
    for (Entry& entry : batch.entries) {
      if (entry.collective.kind == CollectiveKind::kRecv) {
        entry.work->SetSourceRank(entry.collective.peer);
      }
      entry.work->Over();
      ended.emplace_back(std::move(entry.work), status_);
    }
    for (const cuda::Event event : {batch.ready, batch.end}) {
      if (event != nullptr) events_.push_back(event);
    }
    batches.pop_front();
  }

  // Takes what has ended. After the end of the group that is also what has not
  // begun, and in the end what is stuck: its stream waits for somebody else's.
  Ended TakeEnded() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    Ended ended;
    const bool over = !status_.ok();
    const bool gives_up = over && Clock::now() >= give_up_at_;
    for (auto& [key, lane] : lanes_) {
      while (!lane->running.empty()) {
        const bool given = !lane->in_progress || lane->running.size() > 1;
        if (!given && !over) break;
        const cuda::Error error =
            given ? platform_.cuda.EventQuery(lane->running.front().end)
                  : cuda::kSuccess;
        if (error == cuda::kNotReady && !gives_up) break;
        if (error != cuda::kSuccess && status_.ok()) {
          status_ = Cuda(error, "cudaEventQuery");
        }
        Take(lane->running, ended);
      }
      while (over && !lane->waiting.empty()) Take(lane->waiting, ended);
    }
    return ended;
  }

  // The deadlines of all that is on its way, and what NCCL says.
  void LookForErrors(Instant now) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    const bool asks = now >= next_error_look_;
    if (asks) next_error_look_ = now + kErrorLook;
    for (auto& [key, lane] : lanes_) {
      for (const auto* batches : {&lane->running, &lane->waiting}) {
        for (const Batch& batch : *batches) LookAtDeadlines(batch, now);
      }
      if (lane->comm == nullptr || !status_.ok()) continue;
      const cuda::DeviceGuard guard(platform_.cuda, lane->device);
      if (lane->in_progress) {
        status_ = LookAfter(*lane);
        if (status_.ok()) status_ = GiveWaiting(*lane);
      } else if (asks) {
        Result state = kSuccess;
        status_ = StateOf(*lane, state);
      }
    }
  }

  void LookAtDeadlines(const Batch& batch, Instant now)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    for (const Entry& entry : batch.entries) {
      if (!status_.ok() || now < entry.collective.deadline) continue;
      status_ = absl::DeadlineExceededError(
          absl::StrCat("timed out after ", entry.collective.timeout.count(),
                       " ms waiting for the other ranks"));
    }
  }

  // Nobody writes to the tensors any more, soon.
  void AbortCommunicators() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (give_up_at_ == Instant::max()) give_up_at_ = Clock::now() + kDrain;
    for (auto& [key, lane] : lanes_) {
      if (lane->comm == nullptr) continue;
      platform_.nccl.CommAbort(lane->comm);
      lane->comm = nullptr;
    }
  }

  bool IsIdle() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return std::all_of(lanes_.begin(), lanes_.end(), [](const auto& entry) {
      return entry.second->running.empty() && entry.second->waiting.empty();
    });
  }

  void Watch() {
    MutexLock lock(mutex_);
    for (;;) {
      LookForErrors(Clock::now());
      if (!status_.ok()) AbortCommunicators();
      Ended ended = TakeEnded();
      if (!ended.empty()) {
        mutex_.Unlock();
        for (auto& [work, status] : ended) work->Complete(status);
        ended.clear();
        mutex_.Lock();
        continue;
      }
      if (stopping_ && IsIdle()) return;
      if (IsIdle()) {
        sleeps_ = true;
        waiters_->came.WaitUntil(mutex_, Clock::now() + kErrorLook);
        sleeps_ = false;
      } else if (waiters_->count > 0 || !status_.ok()) {
        waiters_->came.WaitUntil(mutex_, Clock::now() + kLook);
      } else {
        waiters_->came.WaitUntil(mutex_, Clock::now() + kLazyLook);
      }
    }
  }

  // The communicators of a group that is idle and well, given back in peace:
  // what they hold at their peers goes, too. All are begun before one is waited
  // for, so that the ranks need no order among them; one that is not done soon
  // is aborted with the rest.
  void Part() {
    MutexLock lock(mutex_);
    if (device_ < 0 || !status_.ok() || !IsIdle()) return;
    const cuda::DeviceGuard guard(platform_.cuda, device_);
    std::vector<Lane*> parting;
    for (auto& [key, lane] : lanes_) {
      if (lane->comm == nullptr) continue;
      if (Nccl(platform_.nccl.CommFinalize(lane->comm), "").ok()) {
        parting.push_back(lane.get());
      }
    }
    const Instant until = Clock::now() + kDrain;
    for (Lane* const lane : parting) {
      Result state = kInProgress;
      while (StateOf(*lane, state).ok() && state == kInProgress &&
             Clock::now() < until) {
        waiters_->came.WaitUntil(mutex_, Clock::now() + kLook);
      }
      if (state != kSuccess || lane->comm == nullptr) continue;
      platform_.nccl.CommDestroy(lane->comm);
      lane->comm = nullptr;
    }
  }

  absl::Status Nccl(Result result, absl::string_view what) const {
    return ToStatus(platform_.nccl, result, what);
  }

  // After all threads.
  void Free() {
    MutexLock lock(mutex_);
    if (device_ < 0) return;
    const cuda::DeviceGuard guard(platform_.cuda, device_);
    for (auto& [key, lane] : lanes_) {
      if (lane->comm != nullptr) platform_.nccl.CommAbort(lane->comm);
      if (lane->stream != nullptr) {
        platform_.cuda.StreamDestroy(lane->stream);
      }
    }
    for (const cuda::Event event : events_) platform_.cuda.EventDestroy(event);
    if (scratch_ != nullptr) platform_.cuda.Free(scratch_);
  }

  const Platform platform_;
  const BackendOptions options_;

  // Its condition is that of the watchdog: also that something else is to do.
  const std::shared_ptr<cuda::HostWaiters> waiters_ =
      std::make_shared<cuda::HostWaiters>();

  mutable Mutex mutex_;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  // The watchdog has nothing to look at until it is told.
  bool sleeps_ ABSL_GUARDED_BY(mutex_) = false;
  // Between BeginTogether and EndTogether.
  bool gathers_ ABSL_GUARDED_BY(mutex_) = false;
  // Why the group is at its end; OK while it is not.
  absl::Status status_ ABSL_GUARDED_BY(mutex_);
  int device_ ABSL_GUARDED_BY(mutex_) = -1;
  void* scratch_ ABSL_GUARDED_BY(mutex_) = nullptr;
  Instant give_up_at_ ABSL_GUARDED_BY(mutex_) = Instant::max();
  Instant next_error_look_ ABSL_GUARDED_BY(mutex_) = Instant::min();
  std::map<std::string, std::unique_ptr<Lane>> lanes_ ABSL_GUARDED_BY(mutex_);
  std::vector<cuda::Event> events_ ABSL_GUARDED_BY(mutex_);

  std::thread watchdog_;
};

#undef MUSTER_RETURN_IF_ERROR

absl::Status CheckOptions(const Platform& platform,
                          const BackendOptions& options) {
  const NcclOptions& nccl = options.nccl;
  if (nccl.min_ctas.has_value() && nccl.max_ctas.has_value() &&
      *nccl.min_ctas > *nccl.max_ctas) {
    return absl::InvalidArgumentError(
        absl::StrCat("NcclOptions::min_ctas: ", *nccl.min_ctas,
                     " is above max_ctas, which is ", *nccl.max_ctas));
  }
  if (options.device < 0) return absl::OkStatus();
  int count = 0;
  absl::Status status =
      cuda::ToStatus(platform.cuda, platform.cuda.GetDeviceCount(&count),
                     "cudaGetDeviceCount");
  if (!status.ok() || options.device < count) return status;
  return absl::InvalidArgumentError(
      absl::StrCat("argument device_id: ", options.device, ", but there are ",
                   count, count == 1 ? " CUDA device" : " CUDA devices"));
}

}  // namespace

absl::StatusOr<std::unique_ptr<Backend>> CreateNcclBackend(
    const Platform& platform, const BackendOptions& options) {
  absl::Status status = CheckOptions(platform, options);
  if (!status.ok()) return status;
  auto backend = std::make_unique<NcclBackend>(platform, options);
  if (options.device >= 0) status = backend->Bind(options.device);
  if (!status.ok()) return status;
  return backend;
}

}  // namespace muster::dataplane::nccl
