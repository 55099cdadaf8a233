#include "dataplane/backends/nccl/nccl_backend.h"

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <deque>
#include <functional>
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
#include "dataplane/cuda/stream.h"
#include "dataplane/mutex.h"

namespace muster::dataplane::nccl {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;

// How often the ends of collectives are looked for, and NCCL's errors.
constexpr microseconds kLook(50);
constexpr milliseconds kErrorLook(100);
// How long an aborted communicator may take to leave the tensors alone.
constexpr milliseconds kDrain(1000);

// Leaves the function with the error, if it is one.
#define MUSTER_RETURN_IF_ERROR(expression)                  \
  do {                                                      \
    if (absl::Status status = (expression); !status.ok()) { \
      return status;                                        \
    }                                                       \
  } while (false)

// A collective on its way: given to a stream, or to be given.
struct Entry {
  Collective collective;
  std::shared_ptr<PromisedWork> work;
  // What it is to begin after, until it is given to the stream; and its end.
  cuda::Event ready = nullptr;
  cuda::Event end = nullptr;
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
  std::deque<Entry> waiting;
  std::deque<Entry> running;
  std::thread maker;
};

class NcclBackend : public Backend {
 public:
  NcclBackend(const Platform& platform, const BackendOptions& options)
      : platform_(platform),
        options_(options),
        watchdog_([this] { Watch(); }) {}

  ~NcclBackend() override {
    Abort(absl::CancelledError(
        absl::StrCat("group \"", options_.group_name, "\" was destroyed")));
    {
      MutexLock lock(mutex_);
      stopping_ = true;
      changed_.NotifyAll();
    }
    watchdog_.join();
    for (auto& [key, lane] : lanes_) {
      if (lane->maker.joinable()) lane->maker.join();
    }
    Free();
  }

  absl::string_view name() const override { return "nccl"; }

  absl::Span<const DeviceType> devices() const override {
    static constexpr DeviceType kDevices[] = {DeviceType::kCuda};
    return kDevices;
  }

  absl::Status Supports(const Collective& collective) const override {
    for (const auto* list :
         {&collective.tensors, &collective.inputs, &collective.outputs}) {
      if (!list->empty() && list->front().device().type != DeviceType::kCuda) {
        return absl::UnimplementedError(
            absl::StrCat("the nccl backend takes CUDA tensors, got ",
                         list->front().Describe()));
      }
    }
    return CheckSupported(collective);
  }

  std::shared_ptr<Work> Start(const Collective& collective) override {
    auto work = std::make_shared<PromisedWork>(collective.Describe());
    absl::Status status;
    {
      MutexLock lock(mutex_);
      status = status_;
      if (status.ok()) status = Add(collective, work);
      changed_.NotifyAll();
    }
    if (!status.ok()) {
      Abort(status);
      work->Complete(status);
    }
    return work;
  }

  void Abort(absl::Status cause) override {
    MutexLock lock(mutex_);
    if (!status_.ok()) return;
    status_ = std::move(cause);
    changed_.NotifyAll();
  }

 private:
  using Ended =
      std::vector<std::pair<std::shared_ptr<PromisedWork>, absl::Status>>;

  absl::Status Cuda(cuda::Error error, absl::string_view what) const {
    return cuda::ToStatus(platform_.cuda, error, what);
  }

  int DeviceOf(const Collective& collective) const {
    for (const auto* list :
         {&collective.tensors, &collective.inputs, &collective.outputs}) {
      if (!list->empty()) return list->front().device().index;
    }
    return -1;
  }

  absl::Status Add(const Collective& collective,
                   const std::shared_ptr<PromisedWork>& work)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    MUSTER_RETURN_IF_ERROR(ChooseDevice(DeviceOf(collective)));
    const cuda::DeviceGuard guard(platform_.cuda, device_);
    const absl::StatusOr<Lane*> lane = LaneOf(collective);
    if (!lane.ok()) return lane.status();
    Entry entry = {.collective = collective, .work = work};
    MUSTER_RETURN_IF_ERROR(TakeEvent(entry.ready));
    MUSTER_RETURN_IF_ERROR(TakeEvent(entry.end));
    MUSTER_RETURN_IF_ERROR(Cuda(
        platform_.cuda.EventRecord(entry.ready, cuda::CurrentStream(device_)),
        "cudaEventRecord"));
    if ((*lane)->comm == nullptr) {
      (*lane)->waiting.push_back(std::move(entry));
      return absl::OkStatus();
    }
    return Give(**lane, std::move(entry));
  }

  // Of the first collective, and then always the same.
  absl::Status ChooseDevice(int wanted) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (device_ < 0) {
      device_ = wanted;
      if (wanted < 0) {
        return Cuda(platform_.cuda.GetDevice(&device_), "cudaGetDevice");
      }
    }
    if (wanted < 0 || wanted == device_) return absl::OkStatus();
    return absl::InvalidArgumentError(
        absl::StrCat("tensors on cuda:", wanted,
                     " in a group whose device is "
                     "cuda:",
                     device_));
  }

  absl::StatusOr<Lane*> LaneOf(const Collective& collective)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    std::string key = "nccl";
    int rank = options_.rank;
    int size = options_.world_size;
    if (IsPointToPoint(collective.kind)) {
      const bool sends = collective.kind == CollectiveKind::kSend;
      rank = sends ? 0 : 1;
      size = 2;
      key = absl::StrCat("nccl/", sends ? options_.rank : collective.peer, "-",
                         sends ? collective.peer : options_.rank);
    }
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
                 &lane->stream, cuda::kStreamNonBlocking, least),
             "cudaStreamCreateWithPriority"));
    if (scratch_ == nullptr) {
      MUSTER_RETURN_IF_ERROR(
          Cuda(platform_.cuda.Malloc(&scratch_, 4), "cudaMalloc"));
    }
    Lane* const made = lane.get();
    made->maker = std::thread([this, made, deadline = collective.deadline] {
      Make(*made, deadline);
    });
    return made;
  }

  // On the lane's own thread: its communicator, and what waits for it.
  void Make(Lane& lane, Instant deadline) {
    const cuda::DeviceGuard guard(platform_.cuda, lane.device);
    absl::StatusOr<Comm> comm = MakeCommunicator(
        {.nccl = &platform_.nccl,
         .version = platform_.nccl_version,
         .store = options_.store,
         .key = lane.key,
         .rank = lane.rank,
         .size = lane.size,
         .what = absl::StrCat("group \"", options_.group_name, "\""),
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
      if (comm.ok()) lane.comm = *comm;
      while (status.ok() && !lane.waiting.empty()) {
        Entry entry = std::move(lane.waiting.front());
        lane.waiting.pop_front();
        status = Give(lane, std::move(entry));
      }
      changed_.NotifyAll();
    }
    if (!status.ok()) Abort(status);
  }

  // Into the lane's stream, behind what it is to begin after.
  absl::Status Give(Lane& lane, Entry entry)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    lane.running.push_back(std::move(entry));
    const Entry& given = lane.running.back();
    MUSTER_RETURN_IF_ERROR(
        Cuda(platform_.cuda.StreamWaitEvent(lane.stream, given.ready, 0),
             "cudaStreamWaitEvent"));
    MUSTER_RETURN_IF_ERROR(Issue(given.collective, {.cuda = platform_.cuda,
                                                    .nccl = platform_.nccl,
                                                    .comm = lane.comm,
                                                    .rank = lane.rank,
                                                    .size = lane.size,
                                                    .stream = lane.stream,
                                                    .scratch = scratch_}));
    return Cuda(platform_.cuda.EventRecord(given.end, lane.stream),
                "cudaEventRecord");
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

  void GiveBack(const Entry& entry) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    for (const cuda::Event event : {entry.ready, entry.end}) {
      if (event != nullptr) events_.push_back(event);
    }
  }

  // Takes what has ended. After the end of the group that is also what has not
  // begun, and in the end what is stuck: its stream waits for somebody else's.
  Ended TakeEnded() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    Ended ended;
    const auto take = [&](std::deque<Entry>& entries) {
      ended.emplace_back(entries.front().work, status_);
      GiveBack(entries.front());
      entries.pop_front();
    };
    const bool over = !status_.ok();
    const bool gives_up = over && Clock::now() >= give_up_at_;
    for (auto& [key, lane] : lanes_) {
      while (over && !lane->waiting.empty()) take(lane->waiting);
      while (!lane->running.empty()) {
        Entry& first = lane->running.front();
        const cuda::Error error = platform_.cuda.EventQuery(first.end);
        if (error == cuda::kNotReady && !gives_up) break;
        if (error != cuda::kSuccess && status_.ok()) {
          status_ = Cuda(error, "cudaEventQuery");
        }
        if (first.collective.kind == CollectiveKind::kRecv) {
          first.work->SetSourceRank(first.collective.peer);
        }
        take(lane->running);
      }
    }
    return ended;
  }

  // The deadlines of all that is on its way, and what NCCL says.
  void LookForErrors(Instant now) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    const bool asks = now >= next_error_look_;
    if (asks) next_error_look_ = now + kErrorLook;
    for (auto& [key, lane] : lanes_) {
      for (const auto* entries : {&lane->running, &lane->waiting}) {
        for (const Entry& entry : *entries) {
          if (status_.ok() && now >= entry.collective.deadline) {
            status_ = absl::DeadlineExceededError(absl::StrCat(
                "timed out after ", entry.collective.timeout.count(),
                " ms waiting for the other ranks"));
          }
        }
      }
      if (!asks || lane->comm == nullptr || !status_.ok()) continue;
      Result error = kSuccess;
      status_ = ToStatus(platform_.nccl,
                         platform_.nccl.CommGetAsyncError(lane->comm, &error),
                         "ncclCommGetAsyncError", lane->comm);
      if (status_.ok()) {
        status_ = ToStatus(platform_.nccl, error, "NCCL", lane->comm);
      }
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
        mutex_.Lock();
        continue;
      }
      if (stopping_ && IsIdle()) return;
      if (IsIdle()) {
        changed_.WaitUntil(mutex_, Clock::now() + kErrorLook);
      } else {
        changed_.WaitUntil(mutex_, Clock::now() + kLook);
      }
    }
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

  Mutex mutex_;
  CondVar changed_;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
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

}  // namespace

std::unique_ptr<Backend> CreateNcclBackend(const Platform& platform,
                                           const BackendOptions& options) {
  return std::make_unique<NcclBackend>(platform, options);
}

}  // namespace muster::dataplane::nccl
