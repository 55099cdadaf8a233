#include "dataplane/nccl/comm_stream.h"

#include <algorithm>
#include <chrono>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "dataplane/cuda/stream.h"
#include "dataplane/nccl/issue.h"
#include "dataplane/nccl/return_if_error.h"

namespace muster::dataplane::nccl {

// How long, and at least how often, a thread polls for NCCL to enqueue its call
// before it leaves that to the watchdog. For a communicator that does not
// block, NCCL (from 2.19 on) passes each call to its own thread, which takes
// some 20 us; the first calls connect ranks and take longer.
constexpr std::chrono::microseconds kSpin(100);
constexpr int kSpinsMin = 8;

Status EventPool::TakeEvent(cuda::Event& event) {
  if (!events_.empty()) {
    event = events_.back();
    events_.pop_back();
    return OkStatus();
  }
  return cuda::ToStatus(
      platform_.cuda,
      platform_.cuda.EventCreateWithFlags(&event, cuda::kEventDisableTiming),
      "cudaEventCreateWithFlags");
}

void EventPool::GiveBack(cuda::Event event) {
  if (event != nullptr) events_.push_back(event);
}

void EventPool::GiveBack(Ended ended) {
  GiveBack(std::exchange(ended.ready, nullptr));
  GiveBack(std::exchange(ended.end, nullptr));
  spent_.push_back(std::move(ended));
}

EventPool::Spent EventPool::TakeSpent() {
  Spent taken;
  for (Ended& each : taken) {
    if (spent_.empty()) break;
    each = std::move(spent_.back());
    spent_.pop_back();
  }
  return taken;
}

Status EventPool::MakeScratch() {
  if (scratch_ != nullptr) return OkStatus();
  return cuda::ToStatus(platform_.cuda, platform_.cuda.Malloc(&scratch_, 4),
                        "cudaMalloc");
}

void EventPool::Free(bool is_stuck) {
  for (const cuda::Event event : events_) platform_.cuda.EventDestroy(event);
  events_.clear();
  if (scratch_ != nullptr && !is_stuck) platform_.cuda.Free(scratch_);
  scratch_ = nullptr;
}

Status CommStream::Cuda(cuda::Error error, absl::string_view what) const {
  return cuda::ToStatus(platform_.cuda, error, what);
}

Status CommStream::Nccl(Result result, absl::string_view what) const {
  return ToStatus(platform_.nccl, result, what);
}

Status CommStream::Open() {
  int least = 0;
  int greatest = 0;
  MUSTER_RETURN_IF_ERROR(
      Cuda(platform_.cuda.DeviceGetStreamPriorityRange(&least, &greatest),
           "cudaDeviceGetStreamPriorityRange"));
  MUSTER_RETURN_IF_ERROR(Cuda(platform_.cuda.StreamCreateWithPriority(
                                  &stream_, cuda::kStreamNonBlocking,
                                  options_.is_high_priority ? greatest : least),
                              "cudaStreamCreateWithPriority"));
  if (options_.is_blocking) {
    caller_ = std::make_shared<Caller>(platform_, options_.device);
  }
  return supply_.MakeScratch();
}

bool CommStream::CanRunInCallersStream(const Collective& collective) const {
  return collective.in_current_stream && !options_.is_high_priority &&
         !options_.is_pair && comm_ != nullptr && !in_progress_ &&
         waiting_.empty();
}

Status CommStream::Add(std::shared_ptr<cuda::DeviceWork> work, bool open) {
  const Collective& collective = work->collective();
  if (waiting_.empty() || !waiting_.back().open) {
    Batch batch;
    batch.open = open;
    batch.stream = stream_;
    if (!open && CanRunInCallersStream(collective)) {
      batch.stream = cuda::CurrentStream(options_.device);
    } else {
      MUSTER_RETURN_IF_ERROR(supply_.TakeEvent(batch.ready));
    }
    Status status = supply_.TakeEvent(batch.end);
    if (!status.ok()) {
      supply_.GiveBack(batch.ready);
      return status;
    }
    waiting_.push_back(std::move(batch));
  }
  ++added_;
  const uint64_t number = IsPointToPoint(collective.kind) ? 0 : ++numbered_;
  first_deadline_ = std::min(first_deadline_, collective.deadline);
  waiting_.back().entries.push_back(
      {.work = std::move(work), .number = number, .since = Clock::now()});
  const cuda::Event ready = waiting_.back().ready;
  if (ready == nullptr) return OkStatus();
  return Cuda(
      platform_.cuda.EventRecord(ready, cuda::CurrentStream(options_.device)),
      "cudaEventRecord");
}

void CommStream::Close() {
  if (!waiting_.empty()) waiting_.back().open = false;
}

Comm CommStream::TakeComm() {
  return IsIdle() ? std::exchange(comm_, nullptr) : nullptr;
}

void CommStream::Add(std::shared_ptr<CommTask> task) {
  Batch batch;
  batch.task = std::move(task);
  // Goes before the open batch.
  const bool gathers = !waiting_.empty() && waiting_.back().open;
  waiting_.insert(waiting_.end() - (gathers ? 1 : 0), std::move(batch));
}

bool CommStream::HasTasksAlone() const {
  const auto is_task = [](const Batch& batch) { return batch.task != nullptr; };
  return std::all_of(running_.begin(), running_.end(), is_task) &&
         std::all_of(waiting_.begin(), waiting_.end(), is_task);
}

bool CommStream::CanGive() const {
  if (comm_ == nullptr || in_progress_ || waiting_.empty()) return false;
  const Batch& next = waiting_.front();
  return next.task == nullptr ? !next.open : running_.empty();
}

Status CommStream::GiveWaiting() {
  // NCCL may have enqueued it since the last check.
  if (in_progress_) MUSTER_RETURN_IF_ERROR(LookAfter());
  while (CanGive()) {
    running_.push_back(std::move(waiting_.front()));
    waiting_.pop_front();
    MUSTER_RETURN_IF_ERROR(Give());
  }
  return OkStatus();
}

Status CommStream::IssueAll(const Entries& entries, const Target& target) {
  const bool several = entries.size() > 1;
  Status status;
  if (several) {
    status = ToStatus(target.nccl, target.nccl.GroupStart(), "ncclGroupStart");
  }
  for (const Entry& entry : entries) {
    status.Update(Issue(entry.collective(), target));
  }
  // Also after an error: the thread must leave the group.
  if (several) {
    status.Update(
        ToStatus(target.nccl, target.nccl.GroupEnd(), "ncclGroupEnd"));
  }
  return status;
}

Target CommStream::TargetOn(const Platform& platform,
                            cuda::Stream stream) const {
  return {.cuda = platform.cuda,
          .nccl = platform.nccl,
          .comm = comm_,
          .rank = options_.rank,
          .size = options_.size,
          .stream = stream,
          .scratch = supply_.scratch(),
          .is_pair = options_.is_pair,
          .wants_copy_engines = options_.wants_copy_engines};
}

// Enqueues the last batch of `running_`, after the event that it waits for.
Status CommStream::Give() {
  const Batch& batch = running_.back();
  if (batch.task != nullptr) {
    MUSTER_RETURN_IF_ERROR(CallTask(batch));
    // No spinning: a task waits for the other ranks.
    return LookAfter();
  }
  if (batch.ready != nullptr) {
    MUSTER_RETURN_IF_ERROR(
        Cuda(platform_.cuda.StreamWaitEvent(batch.stream, batch.ready, 0),
             "cudaStreamWaitEvent"));
  }
  // Kernels of one communicator must not run at the same time.
  if (running_.size() > 1) {
    const Batch& before = running_[running_.size() - 2];
    if (before.stream != batch.stream) {
      MUSTER_RETURN_IF_ERROR(
          Cuda(platform_.cuda.StreamWaitEvent(batch.stream, before.end, 0),
               "cudaStreamWaitEvent"));
    }
  }
  MUSTER_RETURN_IF_ERROR(CallEntries(batch));
  return AwaitGiven();
}

Status CommStream::CallTask(const Batch& batch) {
  if (caller_ == nullptr) return Nccl(batch.task->Begin(comm_), "NCCL");
  caller_->Begin([platform = platform_, task = batch.task, comm = comm_] {
    return ToStatus(platform.nccl, task->Begin(comm), "NCCL");
  });
  return OkStatus();
}

Status CommStream::CallEntries(const Batch& batch) {
  if (caller_ == nullptr) {
    return IssueAll(batch.entries, TargetOn(platform_, batch.stream));
  }
  const auto platform = std::make_shared<const Platform>(platform_);
  caller_->Begin([platform, entries = batch.entries,
                  target = TargetOn(*platform, batch.stream)] {
    return IssueAll(entries, target);
  });
  return OkStatus();
}

Status CommStream::AwaitGiven() {
  MUSTER_RETURN_IF_ERROR(LookAfter());
  if (!in_progress_) return OkStatus();
  const Instant until = Clock::now() + kSpin;
  for (int spins = 1;
       in_progress_ && (spins < kSpinsMin || Clock::now() < until); ++spins) {
    if (spins >= kSpinsMin) std::this_thread::yield();
    MUSTER_RETURN_IF_ERROR(LookAfter());
  }
  return OkStatus();
}

// Checks whether NCCL has enqueued the last batch of `running_`, or finished
// its task.
Status CommStream::LookAfter() {
  in_progress_ = IsCalling();
  if (in_progress_) return OkStatus();
  if (caller_ != nullptr) MUSTER_RETURN_IF_ERROR(*caller_->End());
  Result state = kSuccess;
  MUSTER_RETURN_IF_ERROR(GetState(state));
  in_progress_ = state == kInProgress;
  if (in_progress_) return OkStatus();
  const Batch& batch = running_.back();
  if (batch.task != nullptr) {
    batch.task->End(OkStatus());
    running_.pop_back();
    return OkStatus();
  }
  MUSTER_RETURN_IF_ERROR(Cuda(
      platform_.cuda.EventRecord(batch.end, batch.stream), "cudaEventRecord"));
  for (const Entry& entry : batch.entries) {
    entry.work->GivenTo(batch.stream, batch.end);
  }
  return OkStatus();
}

// Asks NCCL for the state of the communicator.
Status CommStream::GetState(Result& state) {
  MUSTER_RETURN_IF_ERROR(
      ToStatus(platform_.nccl, platform_.nccl.CommGetAsyncError(comm_, &state),
               "ncclCommGetAsyncError", comm_));
  last_state_ = state;
  return ToStatus(platform_.nccl, state, "NCCL", comm_);
}

Status CommStream::Look(bool asks) {
  if (comm_ == nullptr) return OkStatus();
  const cuda::DeviceGuard guard(platform_.cuda, options_.device);
  Result state = kSuccess;
  if (in_progress_) {
    MUSTER_RETURN_IF_ERROR(LookAfter());
  } else if (asks) {
    MUSTER_RETURN_IF_ERROR(GetState(state));
  }
  return GiveWaiting();
}

const Entry* CommStream::Oldest() const {
  for (const Batch& batch : running_) {
    if (!batch.entries.empty()) return &batch.entries.front();
  }
  for (const Batch& batch : waiting_) {
    if (!batch.entries.empty()) return &batch.entries.front();
  }
  return nullptr;
}

const Entry* CommStream::Overdue(Instant now) {
  if (now < first_deadline_) return nullptr;
  Instant first = Instant::max();
  const auto find = [&](const auto& batches) -> const Entry* {
    for (const Batch& batch : batches) {
      for (const Entry& entry : batch.entries) {
        const Instant deadline = entry.collective().deadline;
        if (now >= deadline) return &entry;
        first = std::min(first, deadline);
      }
    }
    return nullptr;
  };
  const Entry* overdue = find(running_);
  if (overdue == nullptr) overdue = find(waiting_);
  if (overdue != nullptr) return overdue;
  first_deadline_ = first;
  return nullptr;
}

std::map<std::string, std::string> CommStream::Texts() const {
  absl::string_view state = "being made";
  if (was_ended_) {
    state = "ended";
  } else if (comm_ != nullptr) {
    state = in_progress_ ? "in progress" : "ready";
  }
  return {{"state", std::string(state)},
          {"asyncError", platform_.nccl.GetErrorString(last_state_)},
          {"rank", absl::StrCat(options_.rank)},
          {"nRanks", absl::StrCat(options_.size)},
          {"cudaDev", absl::StrCat(options_.device)},
          {"startedCollectives", absl::StrCat(added_)},
          {"endedCollectives", absl::StrCat(ended_)}};
}

void Ended::Complete() {
  for (Entry& entry : entries) {
    const Collective& collective = entry.collective();
    if (collective.kind == CollectiveKind::kRecv) {
      entry.work->SetSourceRank(collective.peer);
    }
    entry.work->Over();
    entry.work->Complete(status);
  }
}

// Batches end in their order, also in different streams. Usually few have
// ended, so it doubles its steps and then bisects.
size_t CommStream::CountEnded() const {
  if (running_.empty() || running_.front().task != nullptr) return 0;
  const auto has_ended = [this](size_t place) {
    return cuda::Query(platform_.cuda, running_[place].end) == cuda::kSuccess;
  };
  size_t ended = 0;
  size_t others = running_.size() - (in_progress_ ? 1 : 0);
  for (size_t step = 1; ended < others; step *= 2) {
    const size_t count = std::min(ended + step, others);
    if (!has_ended(count - 1)) {
      others = count - 1;
      break;
    }
    ended = count;
  }
  while (ended < others) {
    const size_t middle = (ended + others) / 2;
    if (has_ended(middle)) {
      ended = middle + 1;
    } else {
      others = middle;
    }
  }
  return ended;
}

void CommStream::Take(Batch& batch, const Status& why,
                      std::vector<Ended>& ended) {
  if (batch.task != nullptr) batch.task->End(why);
  if (why.ok()) ended_ += batch.entries.size();
  ended.push_back({.entries = std::move(batch.entries),
                   .status = why,
                   .ready = batch.ready,
                   .end = batch.end});
}

void CommStream::TakeEnded(End end, Status& why, std::vector<Ended>& ended) {
  // After a failure the last batch may not be in the stream.
  size_t count = end == End::kNo ? CountEnded() : 0;
  for (size_t i = 0; i < count; ++i) Take(running_[i], why, ended);
  // The next batch is not complete, or has an error.
  for (; count < running_.size(); ++count) {
    Batch& batch = running_[count];
    const bool given =
        batch.task == nullptr && (!in_progress_ || count + 1 < running_.size());
    if (!given && end != End::kAborted && end != End::kGivesUp) break;
    const cuda::Error error =
        given ? cuda::Query(platform_.cuda, batch.end) : cuda::kSuccess;
    if (error == cuda::kNotReady && end != End::kGivesUp) break;
    if (error != cuda::kSuccess && why.ok()) {
      why = Cuda(error, "cudaEventQuery");
    }
    Take(batch, why, ended);
  }
  running_.erase(running_.begin(),
                 running_.begin() + static_cast<ptrdiff_t>(count));
  while (end != End::kNo && !waiting_.empty()) {
    Take(waiting_.front(), why, ended);
    waiting_.pop_front();
  }
}

bool CommStream::BeginToPart() {
  if (comm_ == nullptr) return false;
  const auto finalize = [nccl = platform_.nccl, comm = comm_] {
    return ToStatus(nccl, nccl.CommFinalize(comm), "ncclCommFinalize");
  };
  if (caller_ == nullptr) return finalize().ok();
  caller_->Begin(finalize);
  return true;
}

bool CommStream::HasParted() {
  if (comm_ == nullptr) return true;
  if (IsCalling()) return false;
  if (caller_ != nullptr && !caller_->End()->ok()) return true;
  return !GetState(parting_).ok() || parting_ != kInProgress;
}

Comm CommStream::EndParting() {
  if (parting_ != kSuccess) return nullptr;
  was_ended_ = true;
  return std::exchange(comm_, nullptr);
}

void CommStream::GiveUp(Aborter::Comms& comms) {
  was_ended_ = true;
  const bool calling = IsCalling();
  const Comm comm = std::exchange(comm_, nullptr);
  if (calling && comm != nullptr) {
    stream_is_left_ = true;
    comms.calling.emplace_back(caller_, comm);
  } else {
    comms.aborted.push_back(comm);
  }
}

void CommStream::Free() {
  if (stream_ != nullptr && !stream_is_left_) {
    platform_.cuda.StreamDestroy(stream_);
  }
  stream_ = nullptr;
}

bool AreIdle(const CommStreams& streams) {
  return std::all_of(streams.begin(), streams.end(),
                     [](const auto& entry) { return entry.second->IsIdle(); });
}

bool RunTasksAlone(const CommStreams& streams) {
  return !AreIdle(streams) &&
         std::all_of(streams.begin(), streams.end(), [](const auto& entry) {
           return entry.second->HasTasksAlone();
         });
}

}  // namespace muster::dataplane::nccl
