#include "dataplane/cuda/staging.h"

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/text.h"
#include "dataplane/cuda/chunks.h"
#include "dataplane/cuda/device_work.h"
#include "dataplane/cuda/pinned.h"
#include "dataplane/cuda/staged_messages.h"
#include "dataplane/cuda/stream.h"
#include "dataplane/culprit.h"
#include "dataplane/failed_call.h"
#include "muster/base/mutex.h"
#include "muster/base/status.h"
#include "muster/base/thread_annotations.h"

namespace muster::dataplane::cuda {
namespace {

// Three chunks are in the pipeline and one has left it. With three slots the
// next copy from the device starts late, and everything takes 1.5 times as long
// (an H100 on 16 lanes of PCIe 5).
constexpr size_t kSlots = 4;

// How long to wait for a copy without yielding the processor, and the polling
// interval after that.
constexpr std::chrono::microseconds kSpin(50);
constexpr std::chrono::microseconds kLook(20);
// How long to wait for copies of a group that has failed.
constexpr std::chrono::milliseconds kDrain(1000);

using Tensors = Collective::Tensors;

// The message that each rank sends to each other one before an all_to_all: the
// chunks that it needs and the elements that it sends to that rank. It is sent
// as elements of the collective's type, so that a rank that runs another
// collective gets an error that says so, though with other counts.
struct Announcement {
  uint64_t chunks = 0;
  int64_t count = 0;
};

// One copy between a device and the host.
struct Copy {
  void* device = nullptr;
  void* host = nullptr;
  size_t bytes = 0;
};

// Holds one chunk.
struct Slot {
  explicit Slot(const Api& api) : memory(api) {}

  Pinned memory;
  Event copied = nullptr;  // from the device
  Event freed = nullptr;   // copied back
  Collective collective;
  std::vector<Copy> in;
  std::vector<Copy> out;
  std::shared_ptr<Work> work;
};

// Leaks slots to which copies may still write after the group has ended.
void Leave(std::vector<std::unique_ptr<Slot>> slots) {
  static auto* const mutex = new Mutex;
  static auto* const left = new std::vector<std::unique_ptr<Slot>>;
  MutexLock lock(*mutex);
  for (auto& slot : slots) left->push_back(std::move(slot));
}

// The streams for copies from and to a device.
struct Streams {
  Stream in = nullptr;
  Stream out = nullptr;
};

struct Job {
  std::shared_ptr<DeviceWork> work;
  const Collective& collective() const { return work->collective(); }
  int device = -1;        // -1: no tensors
  Event ready = nullptr;  // begins after this event
};

class Staging : public Backend {
 public:
  Staging(const Api& api, std::unique_ptr<Backend> inner,
          const StagingOptions& options)
      : api_(api),
        options_(options),
        inner_(std::move(inner)),
        thread_([this] { Serve(); }),
        messages_(api, *inner_,
                  [this](const Status& status) { Abort(status); }) {}

  ~Staging() override {
    Abort(CancelledError(absl::StrCat(
        "group ", base::Quote(options_.group_name), " was destroyed")));
    {
      MutexLock lock(mutex_);
      stopping_ = true;
      changed_.NotifyAll();
    }
    thread_.join();
    for (auto& slot : slots_) {
      for (const Event event : {slot->copied, slot->freed}) {
        if (event != nullptr) api_.EventDestroy(event);
      }
    }
    for (const auto& [device, streams] : streams_) {
      for (const Stream stream : {streams.in, streams.out}) {
        if (stream != nullptr) api_.StreamDestroy(stream);
      }
    }
  }

  std::string name() const override { return inner_->name(); }

  std::span<const DeviceType> devices() const override {
    static constexpr DeviceType kDevices[] = {DeviceType::kCuda};
    return kDevices;
  }

  Status Supports(const Collective& collective) const override {
    Collective on_host = collective;
    for (Tensors* list : on_host.lists()) {
      for (Tensor& tensor : *list) {
        if (tensor.device().type != DeviceType::kCuda) {
          return UnimplementedError(absl::StrCat("the ", name(),
                                                 " backend of cuda takes CUDA "
                                                 "tensors, got ",
                                                 tensor.Describe()));
        }
        if (tensor.device().index != collective.cuda_device()) {
          return InvalidArgumentError(absl::StrCat(
              "tensors on cuda:", tensor.device().index,
              " and cuda:", collective.cuda_device(), " in one collective"));
        }
        tensor = Tensor(tensor.data(), tensor.data_type(), tensor.shape());
      }
    }
    if (const int device = collective.cuda_device(); device >= 0) {
      Status status = CheckIsNotCaptured(api_, device);
      if (!status.ok()) return status;
    }
    return inner_->Supports(on_host);
  }

  std::shared_ptr<Work> Start(const Collective& collective) override {
    Job job = {.work = nullptr, .device = collective.cuda_device()};
    job.work = std::make_shared<DeviceWork>(collective, api_, job.device,
                                            /*blocks=*/job.device < 0,
                                            /*waiters=*/nullptr);
    Status status = RecordReady(job);
    {
      MutexLock lock(mutex_);
      if (status.ok()) status = status_;
      if (status.ok() && !IsPointToPoint(collective.kind)) {
        jobs_.push_back(job);
        changed_.NotifyAll();
      }
    }
    if (!status.ok()) {
      End(job, status);
    } else if (IsPointToPoint(collective.kind)) {
      messages_.Start(collective, job.work, job.ready);
    }
    return job.work;
  }

  void Refused(const Collective& collective, const Status& why) override {
    inner_->Refused(collective, why);
  }

  LastRun last_run(DeviceType) const override {
    return inner_->last_run(DeviceType::kCpu);
  }

  void Abort(Status cause) override {
    {
      MutexLock lock(mutex_);
      if (!status_.ok()) return;
      status_ = cause;
      changed_.NotifyAll();
    }
    inner_->Abort(cause);
    messages_.Abort(cause);
  }

 private:
  Status Check(Error error, absl::string_view what) const {
    return ToStatus(api_, error, what);
  }

  Status aborted() const {
    MutexLock lock(mutex_);
    return status_;
  }

  // Records the event that the job begins after in the caller's current stream.
  Status RecordReady(Job& job) const {
    if (job.device < 0) return OkStatus();
    const DeviceGuard guard(api_, job.device);
    Status status =
        Check(api_.EventCreateWithFlags(&job.ready, kEventDisableTiming),
              "cudaEventCreateWithFlags");
    if (!status.ok()) return status;
    return Check(api_.EventRecord(job.ready, CurrentStream(job.device)),
                 "cudaEventRecord");
  }

  void End(const Job& job, const Status& status) {
    job.work->Over();
    if (job.ready != nullptr) api_.EventDestroy(job.ready);
    job.work->Complete(status);
  }

  void Serve() {
    BeginOwnThread(api_);
    for (;;) {
      Job job;
      Status status;
      {
        MutexLock lock(mutex_);
        while (jobs_.empty() && !stopping_) changed_.Wait(mutex_);
        if (jobs_.empty()) return;
        job = std::move(jobs_.front());
        jobs_.pop_front();
        status = status_;
      }
      if (status.ok() && job.device < 0) {
        status = inner_->Start(job.collective())->Wait();
      } else if (status.ok()) {
        const DeviceGuard guard(api_, job.device);
        status = RunJob(job);
        if (!status.ok()) {
          Abort(status);
          Drain(job.device);
        }
      }
      End(job, status);
    }
  }

  Status RunJob(const Job& job) {
    Status status = PrepareStreams(job.device);
    if (!status.ok()) return status;
    const Collective alike = CutAlike(job.collective(), options_.world_size);
    Cut cut = MakeCut(alike, options_.world_size, options_.chunk_bytes);
    // First, because nothing is in a stream yet that a failure would have to
    // wait for.
    if (IsAllToAll(alike.kind)) {
      const auto chunks = Announce(job, alike, cut.chunks);
      if (!chunks.ok()) return chunks.status();
      cut.chunks = *chunks;
    }
    const Streams streams = streams_[job.device];
    status = Check(api_.StreamWaitEvent(streams.in, job.ready, 0),
                   "cudaStreamWaitEvent");
    if (!status.ok()) return status;
    const Collective& whole = cut.chunks == 1 ? job.collective() : alike;
    const size_t chunks = cut.chunks;
    const auto slot = [&](size_t chunk) -> Slot& {
      return *slots_[chunk % kSlots];
    };
    // In turn k, chunk k is copied from the device, chunk k - 1 starts on the
    // inner backend, and chunk k - 2 is copied back.
    for (size_t turn = 0; status.ok() && turn < chunks + 2; ++turn) {
      if (turn < chunks) {
        status = CopyIn(job, whole, cut, turn, streams.in);
      }
      if (status.ok() && turn >= 1 && turn <= chunks) {
        Slot& next = slot(turn - 1);
        status = Await(job, next.copied);
        if (status.ok()) next.work = inner_->Start(next.collective);
      }
      if (status.ok() && turn >= 2) {
        Slot& last = slot(turn - 2);
        status = last.work->Wait();
        last.work = nullptr;
        if (status.ok()) status = CopyOut(last, streams.out);
      }
    }
    if (!status.ok()) return status;
    const Event end = slot(chunks - 1).freed;
    job.work->Given(end);
    return Await(job, end);
  }

  // Makes the streams, the slots and their events.
  Status PrepareStreams(int device) {
    Streams& streams = streams_[device];
    for (Stream* const stream : {&streams.in, &streams.out}) {
      if (*stream != nullptr) continue;
      Status status =
          Check(api_.StreamCreateWithPriority(stream, kStreamNonBlocking, 0),
                "cudaStreamCreateWithPriority");
      if (!status.ok()) return status;
    }
    if (device_ == device) return OkStatus();
    // New events, because an event belongs to a device.
    if (slots_.empty()) {
      for (size_t i = 0; i < kSlots; ++i) {
        slots_.push_back(std::make_unique<Slot>(api_));
      }
    }
    for (auto& slot : slots_) {
      for (Event* const event : {&slot->copied, &slot->freed}) {
        if (*event != nullptr) api_.EventDestroy(std::exchange(*event, {}));
        Status status =
            Check(api_.EventCreateWithFlags(event, kEventDisableTiming),
                  "cudaEventCreateWithFlags");
        if (!status.ok()) return status;
      }
    }
    device_ = device;
    return OkStatus();
  }

  // Announces an all_to_all that needs `chunks` on this rank and returns the
  // largest number that any rank needs. Always called, since no rank knows what
  // the others need. kInvalidArgument: a rank sends another count than this
  // rank expects. `alike`: the result of CutAlike.
  StatusOr<size_t> Announce(const Job& job, const Collective& alike,
                            size_t chunks) {
    const int world_size = options_.world_size;
    const auto ranks = static_cast<size_t>(world_size);
    std::vector<Announcement> own(ranks);
    std::vector<Announcement> others(ranks);
    for (size_t i = 0; i < ranks; ++i) {
      own[i] = {chunks, alike.inputs[i].element_count()};
    }
    const DataType type = alike.data_type();
    const auto elements = static_cast<int64_t>(ranks * sizeof(Announcement) /
                                               DataTypeBytes(type));
    const Tensor give(own.data(), type, {elements});
    const Tensor take(others.data(), type, {elements});
    Collective asked = job.collective();
    asked.input_splits.clear();
    asked.output_splits.clear();
    const bool single = HasSplits(asked.kind);
    asked.inputs = single ? Tensors{give} : Rows(give, world_size);
    asked.outputs = single ? Tensors{take} : Rows(take, world_size);
    Status status = inner_->Start(asked)->Wait();
    if (!status.ok()) return status;
    for (size_t i = 0; i < ranks; ++i) {
      chunks = std::max(chunks, others[i].chunks);
      const int64_t wanted = alike.outputs[i].element_count();
      if (others[i].count == wanted) continue;
      status = InvalidArgumentError(absl::StrCat(
          "rank ", i, " gives rank ", options_.rank, " ", others[i].count, " ",
          DataTypeName(type), " in ", job.collective().Label(), ", rank ",
          options_.rank, " takes ", wanted));
      SetCulpritRank(status, static_cast<int>(i));
      return Labelled(FailedCall::Of(job.collective()), options_.group_name,
                      status);
    }
    return chunks;
  }

  // Copies chunk `number` of `whole` to its slot, after the chunk before it in
  // that slot has been copied back.
  Status CopyIn(const Job& job, const Collective& whole, const Cut& cut,
                size_t number, Stream stream) {
    Slot& slot = *slots_[number % kSlots];
    if (number >= kSlots) {
      Status status = Await(job, slot.freed);
      if (!status.ok()) return status;
    }
    slot.collective = whole;
    size_t bytes = 0;
    for (Tensors* list : slot.collective.lists()) {
      for (Tensor& tensor : *list) {
        if (cut.chunks > 1) {
          tensor = cut.GetPart(tensor, number);
        }
        bytes += tensor.bytes();
      }
    }
    Status status = slot.memory.Reserve(std::max<size_t>(bytes, 1));
    if (!status.ok()) return status;
    ToHost(slot);
    for (const Copy& copy : slot.in) {
      if (!status.ok()) break;
      status = Check(api_.MemcpyAsync(copy.host, copy.device, copy.bytes,
                                      kMemcpyDefault, stream),
                     "cudaMemcpyAsync");
    }
    if (!status.ok()) return status;
    return Check(api_.EventRecord(slot.copied, stream), "cudaEventRecord");
  }

  // Changes the slot's collective from device memory to the slot's memory.
  // Lists the copies to make before and after it.
  void ToHost(Slot& slot) const {
    Collective& collective = slot.collective;
    slot.in.clear();
    slot.out.clear();
    char* next = slot.memory.data();
    for (Tensors* list : collective.lists()) {
      const bool in_place = list == &collective.tensors;
      const bool reads = in_place ? collective.ReadsInPlace(options_.rank)
                                  : list == &collective.inputs;
      const bool writes = in_place ? collective.WritesInPlace(options_.rank)
                                   : list == &collective.outputs;
      for (Tensor& tensor : *list) {
        const Copy copy = {tensor.data(), next, tensor.bytes()};
        tensor = Tensor(next, tensor.data_type(), tensor.shape());
        next += copy.bytes;
        if (copy.bytes == 0) continue;
        if (reads) slot.in.push_back(copy);
        if (writes) slot.out.push_back(copy);
      }
    }
  }

  Status CopyOut(const Slot& slot, Stream stream) {
    for (const Copy& copy : slot.out) {
      Status status = Check(api_.MemcpyAsync(copy.device, copy.host, copy.bytes,
                                             kMemcpyDefault, stream),
                            "cudaMemcpyAsync");
      if (!status.ok()) return status;
    }
    return Check(api_.EventRecord(slot.freed, stream), "cudaEventRecord");
  }

  // Waits until the copies before `event` are done or the group ends.
  Status Await(const Job& job, Event event) {
    const Instant began = Clock::now();
    for (;;) {
      const Error error = Query(api_, event);
      if (error != kNotReady) return Check(error, "cudaEventQuery");
      const Instant now = Clock::now();
      if (now >= job.collective().deadline) {
        return StreamIsLate(job.collective());
      }
      if (now - began < kSpin) continue;
      Status over = aborted();
      if (!over.ok()) return over;
      std::this_thread::sleep_for(kLook);
    }
  }

  // Called after a failure: waits until no copy uses the slots.
  void Drain(int device) {
    for (auto& slot : slots_) {
      if (slot->work != nullptr) slot->work->Wait().IgnoreError();
      slot->work = nullptr;
    }
    Streams& streams = streams_[device];
    if (streams.out != nullptr) api_.StreamSynchronize(streams.out);
    if (streams.in == nullptr || slots_.empty()) return;
    // These copies wait for the caller's stream, which may be stuck. In that
    // case leaks the slots' memory.
    const Event last = slots_.front()->copied;
    api_.EventRecord(last, streams.in);
    const Instant until = Clock::now() + kDrain;
    while (Query(api_, last) == kNotReady) {
      if (Clock::now() >= until) {
        Leave(std::exchange(slots_, {}));
        device_ = -1;
        streams.in = nullptr;
        return;
      }
      std::this_thread::sleep_for(kLook);
    }
  }

  const Api& api_;
  const StagingOptions options_;
  const std::unique_ptr<Backend> inner_;

  // Used only by the thread.
  std::map<int, Streams> streams_;
  std::vector<std::unique_ptr<Slot>> slots_;
  int device_ = -1;  // the device of the slots' events

  mutable Mutex mutex_;
  CondVar changed_;
  std::deque<Job> jobs_ MUSTER_GUARDED_BY(mutex_);
  Status status_ MUSTER_GUARDED_BY(mutex_);
  bool stopping_ MUSTER_GUARDED_BY(mutex_) = false;

  std::thread thread_;
  // Last member, so destroyed first: its thread calls Abort.
  StagedMessages messages_;
};

}  // namespace

std::unique_ptr<Backend> CreateStaging(const Api& api,
                                       std::unique_ptr<Backend> inner,
                                       const StagingOptions& options) {
  return std::make_unique<Staging>(api, std::move(inner), options);
}

}  // namespace muster::dataplane::cuda
