#include "dataplane/nccl/comm_stream.h"

#include <algorithm>
#include <chrono>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "dataplane/nccl/issue.h"
#include "dataplane/nccl/return_if_error.h"
#include "dataplane/cuda/stream.h"

namespace muster::dataplane::nccl {

// How long, and how often at least, a call that NCCL is in progress with is
// looked at before that is left to others. A communicator that does not block
// gives each call to a thread of NCCL's (from 2.19 on), which takes some 20 us;
// the first ones connect ranks, which takes longer.
constexpr std::chrono::microseconds kSpin(100);
constexpr int kSpinLooksMin = 8;

absl::Status LaneSupply::TakeEvent(cuda::Event& event) {
  if (!events_.empty()) {
    event = events_.back();
    events_.pop_back();
    return absl::OkStatus();
  }
  return cuda::ToStatus(
      platform_.cuda,
      platform_.cuda.EventCreateWithFlags(&event, cuda::kEventDisableTiming),
      "cudaEventCreateWithFlags");
}

void LaneSupply::GiveBack(cuda::Event event) {
  if (event != nullptr) events_.push_back(event);
}

void LaneSupply::GiveBack(Ended ended) {
  GiveBack(std::exchange(ended.ready, nullptr));
  GiveBack(std::exchange(ended.end, nullptr));
  spent_.push_back(std::move(ended));
}

LaneSupply::Spent LaneSupply::TakeSpent() {
  Spent taken;
  for (Ended& each : taken) {
    if (spent_.empty()) break;
    each = std::move(spent_.back());
    spent_.pop_back();
  }
  return taken;
}

absl::Status LaneSupply::MakeScratch() {
  if (scratch_ != nullptr) return absl::OkStatus();
  return cuda::ToStatus(platform_.cuda, platform_.cuda.Malloc(&scratch_, 4),
                        "cudaMalloc");
}

void LaneSupply::Free(bool is_stuck) {
  for (const cuda::Event event : events_) platform_.cuda.EventDestroy(event);
  events_.clear();
  if (scratch_ != nullptr && !is_stuck) platform_.cuda.Free(scratch_);
  scratch_ = nullptr;
}

absl::Status Lane::Cuda(cuda::Error error, absl::string_view what) const {
  return cuda::ToStatus(platform_.cuda, error, what);
}

absl::Status Lane::Nccl(Result result, absl::string_view what) const {
  return ToStatus(platform_.nccl, result, what);
}

absl::Status Lane::Open() {
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

bool Lane::CanRunInCallersStream(const Collective& collective) const {
  return collective.in_current_stream && !options_.is_high_priority &&
         !options_.is_pair && comm_ != nullptr && !in_progress_ &&
         waiting_.empty();
}

absl::Status Lane::Add(std::shared_ptr<cuda::DeviceWork> work, bool open) {
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
    absl::Status status = supply_.TakeEvent(batch.end);
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
  if (ready == nullptr) return absl::OkStatus();
  return Cuda(
      platform_.cuda.EventRecord(ready, cuda::CurrentStream(options_.device)),
      "cudaEventRecord");
}

void Lane::Close() {
  if (!waiting_.empty()) waiting_.back().open = false;
}

Comm Lane::TakeComm() {
  return IsIdle() ? std::exchange(comm_, nullptr) : nullptr;
}

void Lane::Add(std::shared_ptr<Errand> errand) {
  Batch batch;
  batch.errand = std::move(errand);
  // What gathers goes on to gather behind it.
  const bool gathers = !waiting_.empty() && waiting_.back().open;
  waiting_.insert(waiting_.end() - (gathers ? 1 : 0), std::move(batch));
}

bool Lane::OnlyErrands() const {
  const auto is_errand = [](const Batch& batch) {
    return batch.errand != nullptr;
  };
  return std::all_of(running_.begin(), running_.end(), is_errand) &&
         std::all_of(waiting_.begin(), waiting_.end(), is_errand);
}

bool Lane::CanGive() const {
  if (comm_ == nullptr || in_progress_ || waiting_.empty()) return false;
  const Batch& next = waiting_.front();
  return next.errand == nullptr ? !next.open : running_.empty();
}

absl::Status Lane::GiveWaiting() {
  // It may have been taken since somebody looked.
  if (in_progress_) MUSTER_RETURN_IF_ERROR(LookAfter());
  while (CanGive()) {
    running_.push_back(std::move(waiting_.front()));
    waiting_.pop_front();
    MUSTER_RETURN_IF_ERROR(Give());
  }
  return absl::OkStatus();
}

absl::Status Lane::IssueAll(const Entries& entries, const Target& target) {
  const bool several = entries.size() > 1;
  absl::Status status;
  if (several) {
    status = ToStatus(target.nccl, target.nccl.GroupStart(), "ncclGroupStart");
  }
  for (const Entry& entry : entries) {
    status.Update(Issue(entry.collective(), target));
  }
  // Also after an error, so that the thread is in no group.
  if (several) {
    status.Update(
        ToStatus(target.nccl, target.nccl.GroupEnd(), "ncclGroupEnd"));
  }
  return status;
}

Target Lane::TargetOn(const Platform& platform, cuda::Stream stream) const {
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

// The last one of `running_` into the stream, behind what it is to begin after.
absl::Status Lane::Give() {
  const Batch& batch = running_.back();
  if (batch.errand != nullptr) {
    MUSTER_RETURN_IF_ERROR(CallErrand(batch));
    // It waits for the other ranks.
    return LookAfter();
  }
  if (batch.ready != nullptr) {
    MUSTER_RETURN_IF_ERROR(
        Cuda(platform_.cuda.StreamWaitEvent(batch.stream, batch.ready, 0),
             "cudaStreamWaitEvent"));
  }
  // NCCL's kernels of one communicator must not run at once.
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

absl::Status Lane::CallErrand(const Batch& batch) {
  if (caller_ == nullptr) return Nccl(batch.errand->Begin(comm_), "NCCL");
  caller_->Begin([platform = platform_, errand = batch.errand, comm = comm_] {
    return ToStatus(platform.nccl, errand->Begin(comm), "NCCL");
  });
  return absl::OkStatus();
}

absl::Status Lane::CallEntries(const Batch& batch) {
  if (caller_ == nullptr) {
    return IssueAll(batch.entries, TargetOn(platform_, batch.stream));
  }
  const auto platform = std::make_shared<const Platform>(platform_);
  caller_->Begin([platform, entries = batch.entries,
                  target = TargetOn(*platform, batch.stream)] {
    return IssueAll(entries, target);
  });
  return absl::OkStatus();
}

absl::Status Lane::AwaitGiven() {
  MUSTER_RETURN_IF_ERROR(LookAfter());
  if (!in_progress_) return absl::OkStatus();
  const Instant until = Clock::now() + kSpin;
  for (int looks = 1;
       in_progress_ && (looks < kSpinLooksMin || Clock::now() < until);
       ++looks) {
    if (looks >= kSpinLooksMin) std::this_thread::yield();
    MUSTER_RETURN_IF_ERROR(LookAfter());
  }
  return absl::OkStatus();
}

// Whether NCCL has put the last one of `running_` into the stream, or is done
// with that errand.
absl::Status Lane::LookAfter() {
  in_progress_ = IsCalling();
  if (in_progress_) return absl::OkStatus();
  if (caller_ != nullptr) MUSTER_RETURN_IF_ERROR(*caller_->End());
  Result state = kSuccess;
  MUSTER_RETURN_IF_ERROR(StateOf(state));
  in_progress_ = state == kInProgress;
  if (in_progress_) return absl::OkStatus();
  const Batch& batch = running_.back();
  if (batch.errand != nullptr) {
    batch.errand->End(absl::OkStatus());
    running_.pop_back();
    return absl::OkStatus();
  }
  MUSTER_RETURN_IF_ERROR(Cuda(
      platform_.cuda.EventRecord(batch.end, batch.stream), "cudaEventRecord"));
  for (const Entry& entry : batch.entries) {
    entry.work->GivenTo(batch.stream, batch.end);
  }
  return absl::OkStatus();
}

// What NCCL says of the communicator.
absl::Status Lane::StateOf(Result& state) {
  MUSTER_RETURN_IF_ERROR(
      ToStatus(platform_.nccl, platform_.nccl.CommGetAsyncError(comm_, &state),
               "ncclCommGetAsyncError", comm_));
  last_state_ = state;
  return ToStatus(platform_.nccl, state, "NCCL", comm_);
}

absl::Status Lane::Look(bool asks) {
  if (comm_ == nullptr) return absl::OkStatus();
  const cuda::DeviceGuard guard(platform_.cuda, options_.device);
  Result state = kSuccess;
  if (in_progress_) {
    MUSTER_RETURN_IF_ERROR(LookAfter());
  } else if (asks) {
    MUSTER_RETURN_IF_ERROR(StateOf(state));
  }
  return GiveWaiting();
}

const Entry* Lane::Oldest() const {
  for (const Batch& batch : running_) {
    if (!batch.entries.empty()) return &batch.entries.front();
  }
  for (const Batch& batch : waiting_) {
    if (!batch.entries.empty()) return &batch.entries.front();
  }
  return nullptr;
}

const Entry* Lane::Overdue(Instant now) {
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

std::map<std::string, std::string> Lane::Texts() const {
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

// They end in their order, whichever streams they are in. Most often few have:
// so looks twice as far each time, and then in the middle.
size_t Lane::CountEnded() const {
  if (running_.empty() || running_.front().errand != nullptr) return 0;
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

void Lane::Take(Batch& batch, const absl::Status& why,
                std::vector<Ended>& ended) {
  if (batch.errand != nullptr) batch.errand->End(why);
  if (why.ok()) ended_ += batch.entries.size();
  ended.push_back({.entries = std::move(batch.entries),
                   .status = why,
                   .ready = batch.ready,
                   .end = batch.end});
}

void Lane::TakeEnded(End end, absl::Status& why, std::vector<Ended>& ended) {
  // Of a group that has failed, the last may not be in the stream.
  size_t count = end == End::kNo ? CountEnded() : 0;
  for (size_t i = 0; i < count; ++i) Take(running_[i], why, ended);
  // The next one has not, or says why it cannot.
  for (; count < running_.size(); ++count) {
    Batch& batch = running_[count];
    const bool given = batch.errand == nullptr &&
                       (!in_progress_ || count + 1 < running_.size());
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

bool Lane::BeginToPart() {
  if (comm_ == nullptr) return false;
  const auto finalize = [nccl = platform_.nccl, comm = comm_] {
    return ToStatus(nccl, nccl.CommFinalize(comm), "ncclCommFinalize");
  };
  if (caller_ == nullptr) return finalize().ok();
  caller_->Begin(finalize);
  return true;
}

bool Lane::HasParted() {
  if (comm_ == nullptr) return true;
  if (IsCalling()) return false;
  if (caller_ != nullptr && !caller_->End()->ok()) return true;
  return !StateOf(parting_).ok() || parting_ != kInProgress;
}

Comm Lane::EndParting() {
  if (parting_ != kSuccess) return nullptr;
  was_ended_ = true;
  return std::exchange(comm_, nullptr);
}

void Lane::GiveUp(Aborter::Comms& comms) {
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

void Lane::Free() {
  if (stream_ != nullptr && !stream_is_left_) {
    platform_.cuda.StreamDestroy(stream_);
  }
  stream_ = nullptr;
}

bool AreIdle(const Lanes& lanes) {
  return std::all_of(lanes.begin(), lanes.end(),
                     [](const auto& entry) { return entry.second->IsIdle(); });
}

bool AreOnErrands(const Lanes& lanes) {
  return !AreIdle(lanes) &&
         std::all_of(lanes.begin(), lanes.end(), [](const auto& entry) {
           return entry.second->OnlyErrands();
         });
}

}  // namespace muster::dataplane::nccl
