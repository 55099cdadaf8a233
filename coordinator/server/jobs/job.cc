#include "coordinator/server/jobs/job.h"

#include <algorithm>
#include <chrono>
#include <optional>
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "base/text.h"
#include "coordinator/core/payload_bytes.h"
#include "coordinator/core/records.h"
#include "coordinator/server/jobs/job_elsewhere.h"
#include "glog/logging.h"
#include "muster/base/status.h"

namespace muster::coordinator {
namespace {

// A call of a job waits for earlier steps if more than this many are untold, if
// they hold more than kUntoldBytesMax, or if those of all jobs hold more than
// kUntoldBytesOfAllMax and this job has some.
constexpr int64_t kUntoldMax = 64;
constexpr int64_t kUntoldBytesMax = 16 << 20;
constexpr int64_t kUntoldBytesOfAllMax = 64 << 20;

// Estimates the memory of `record` until it is stored. The store may share the
// value, but perhaps not for long.
int64_t CountBytes(const core::Record& record) {
  int64_t bytes = sizeof(record);
  if (const auto* entry = std::get_if<core::EntryRecord>(&record)) {
    bytes += static_cast<int64_t>(entry->key.size());
    if (entry->value != nullptr) {
      bytes += static_cast<int64_t>(entry->value->size());
    }
  } else if (const auto* item = std::get_if<core::ItemRecord>(&record)) {
    bytes += static_cast<int64_t>(item->key.size());
    if (item->value != nullptr) {
      bytes += static_cast<int64_t>(item->value->size());
    }
  } else if (const auto* reply = std::get_if<core::ReplyRecord>(&record)) {
    bytes += core::HeldBytes(reply->payload);
  }
  return bytes;
}

// Another coordinator may have the job.
Status NotOwnedError() { return JobElsewhereError(""); }

// Whether the notice is about a misuse or a failure outside the coordinator.
bool IsWarning(core::NoticeKind kind) {
  switch (kind) {
    case core::NoticeKind::kMemberRegistered:
    case core::NoticeKind::kMemberReconnected:
    case core::NoticeKind::kMemberLeft:
    case core::NoticeKind::kGenerationFormed:
    case core::NoticeKind::kGenerationEnded:
    case core::NoticeKind::kRendezvousLastCall:
    case core::NoticeKind::kRendezvousClosed:
    case core::NoticeKind::kBarrierReleased:
      return false;
    default:
      return true;
  }
}

Status ReplacedError(const core::MemberId& member, core::Incarnation older,
                     core::Incarnation newer) {
  if (older == newer) {
    return AbortedError(absl::StrCat("another stream of member ",
                                     base::Quote(member.value()),
                                     " took over"));
  }
  return FailedPreconditionError(absl::StrCat(
      "stale incarnation ", older.value(), " of member ",
      base::Quote(member.value()), ", current is ", newer.value()));
}

core::CoordinatorOptions WithMemory(core::CoordinatorOptions options,
                                    core::MemoryShare* memory) {
  options.limits.memory = memory;
  return options;
}

}  // namespace

Job::Job(std::string name, Options options)
    : name_(std::move(name)),
      options_(std::move(options)),
      memory_(options_.memory),
      core_(options_.epoch, WithMemory(options_.core, &memory_)),
      latest_(std::chrono::steady_clock::now()),
      used_at_(latest_) {
  // The first sample, so that the first calls count.
  rate_.Sample(latest_, 0);
}

Job::~Job() = default;

core::Instant Job::Now() {
  latest_ = std::max(latest_, std::chrono::steady_clock::now());
  return latest_;
}

size_t Job::Run(
    const std::shared_ptr<Sink>& sink, size_t count,
    absl::FunctionRef<Applied(size_t, core::WaiterId, JobContext&)> apply,
    absl::FunctionRef<CallName(size_t)> name) {
  StepResult result;
  core::Outbox out;
  size_t done = 0;
  Next next = Next::kCaller;
  {
    MutexLock lock(mu_);
    JobContext context{core_, options_.core.limits, Now(), out};
    used_at_ = context.now;
    result.own.reserve(count);
    for (; !retired_.ok() && done < count; ++done) {
      result.own.push_back({name(done), context.now, retired_, {}});
    }
    for (; done < count; ++done) {
      const core::WaiterId waiter(next_waiter_);
      const Applied applied = apply(done, waiter, context);
      if (applied == Applied::kStop) break;
      ++next_waiter_;
      bool open = applied == Applied::kCalled;
      // Before the next call, which may cancel this one or take its tag.
      for (core::Reply& reply : out.replies) {
        if (reply.waiter != waiter) {
          CollectParked(reply, sink.get(), result);
          continue;
        }
        open = false;
        result.own.push_back({name(done), context.now, std::move(reply.status),
                              std::move(reply.payload)});
      }
      out.replies.clear();
      if (open) Park(waiter, {sink, name(done), context.now}, context);
    }
    operations_ += static_cast<int64_t>(done);
    Collect(out, sink.get(), result);
    next = Conclude(sink, result);
  }
  FinishOrPost(next, sink, result);
  return done;
}

void Job::Park(core::WaiterId waiter, Waiting&& waiting, JobContext& context) {
  const bool unique =
      waiting.sink->parked_.try_emplace(waiting.name.tag, waiter).second;
  waiting_.emplace(waiter, std::move(waiting));
  if (!unique) context.core.CancelWaiter(waiter, context.out);
}

void Job::Cancel(const Sink& sink, uint64_t tag, JobContext& context) {
  const auto parked = sink.parked_.find(tag);
  if (parked == sink.parked_.end()) return;
  context.core.CancelWaiter(parked->second, context.out);
}

StatusOr<core::RegisterReply> Job::Attach(const std::shared_ptr<Sink>& sink,
                                          const core::Call& call,
                                          core::Registration registration) {
  StepResult result;
  core::Outbox out;
  Next next = Next::kCaller;
  Status status = InternalError("the registration has no answer");
  core::RegisterReply reply;
  Online previous;
  {
    MutexLock lock(mu_);
    const core::Instant now = Now();
    used_at_ = now;
    if (!retired_.ok()) return retired_;
    core::Call numbered = call;
    numbered.waiter = core::WaiterId(next_waiter_++);
    core_.Register(numbered, std::move(registration), now, out);
    for (core::Reply& r : out.replies) {
      if (r.waiter != numbered.waiter) continue;
      status = std::move(r.status);
      if (status.ok()) reply = std::get<core::RegisterReply>(r.payload);
    }
    if (status.ok()) {
      // Before the events are collected, because one may be for this member.
      Online& online = online_[call.member];
      previous = std::exchange(online, Online{sink, call.incarnation});
      if (previous.sink != nullptr)
        previous.sink->online_as_ = core::MemberId();
      sink->online_as_ = call.member;
    }
    Collect(out, nullptr, result);
    next = Conclude(nullptr, result);
  }
  if (previous.sink != nullptr && previous.sink != sink) {
    previous.sink->Close(
        ReplacedError(call.member, previous.incarnation, call.incarnation));
  }
  FinishOrPost(next, nullptr, result);
  // Before a refusal, too: the present owner may know better.
  if (!owned()) return NotOwnedError();
  if (!status.ok()) return status;
  return reply;
}

void Job::Detach(Sink& sink, core::Disconnection disconnection) {
  StepResult result;
  core::Outbox out;
  Next next = Next::kCaller;
  // Destroyed after the lock is released, because that may destroy sinks.
  std::vector<std::shared_ptr<Sink>> released;
  {
    MutexLock lock(mu_);
    const core::Instant now = Now();
    used_at_ = now;
    for (const auto& [tag, waiter] : sink.parked_) {
      const auto waiting = waiting_.find(waiter);
      if (waiting == waiting_.end()) continue;
      released.push_back(std::move(waiting->second.sink));
      waiting_.erase(waiting);
      if (retired_.ok()) core_.DetachWaiter(waiter, out);
    }
    sink.parked_.clear();
    const auto online = online_.find(sink.online_as_);
    if (online != online_.end() && online->second.sink.get() == &sink) {
      if (retired_.ok()) {
        core_.Disconnected(online->first, online->second.incarnation, now, out,
                           disconnection);
      }
      released.push_back(std::move(online->second.sink));
      online_.erase(online);
    }
    Collect(out, nullptr, result);
    next = Conclude(nullptr, result);
  }
  FinishOrPost(next, nullptr, result);
}

void Job::CancelAll(const std::shared_ptr<Sink>& sink) {
  StepResult result;
  core::Outbox out;
  Next next = Next::kCaller;
  {
    MutexLock lock(mu_);
    if (!retired_.ok()) return;
    for (const auto& [tag, waiter] : sink->parked_) {
      core_.CancelWaiter(waiter, out);
    }
    Collect(out, nullptr, result);
    next = Conclude(nullptr, result);
  }
  FinishOrPost(next, nullptr, result);
}

std::vector<std::shared_ptr<Sink>> Job::ParkedSinks() {
  MutexLock lock(mu_);
  std::vector<std::shared_ptr<Sink>> sinks;
  sinks.reserve(waiting_.size());
  for (const auto& [waiter, waiting] : waiting_) {
    sinks.push_back(waiting.sink);
  }
  return sinks;
}

void Job::Tick() {
  StepResult result;
  core::Outbox out;
  Next next = Next::kCaller;
  {
    MutexLock lock(mu_);
    const core::Instant now = Now();
    // The ticker's deadline has been handled since.
    if (armed_ > now || !retired_.ok()) return;
    armed_ = core::Instant::max();
    core_.Tick(now, out);
    Collect(out, nullptr, result);
    next = Conclude(nullptr, result);
  }
  FinishOrPost(next, nullptr, result);
}

core::JobSnapshot Job::Snapshot() {
  MutexLock lock(mu_);
  return core_.Snapshot(Now());
}

core::JobSnapshot Job::Snapshot(absl::string_view host, core::Rank first_rank,
                                int32_t rank_count) {
  MutexLock lock(mu_);
  return core_.Snapshot(host, first_rank, rank_count, Now());
}

core::JobCounts Job::Counts() {
  MutexLock lock(mu_);
  return core_.Counts();
}

Job::Operations Job::operations() {
  MutexLock lock(mu_);
  return {operations_, rate_.per_second()};
}

void Job::SampleRate(core::Instant now) {
  MutexLock lock(mu_);
  rate_.Sample(now, operations_);
}

bool Job::Blank() {
  MutexLock lock(mu_);
  return core_.Blank();
}

bool Job::IdleSince(core::Instant since) {
  MutexLock lock(mu_);
  return used_at_ < since && waiting_.empty() && online_.empty() &&
         core_.Idle();
}

void Job::CollectParked(core::Reply& reply, const Sink* sink,
                        StepResult& result) {
  // Calls whose client has gone are not listed.
  const auto waiting = waiting_.find(reply.waiter);
  if (waiting == waiting_.end()) return;
  Waiting& to = waiting->second;
  const auto parked = to.sink->parked_.find(to.name.tag);
  if (parked != to.sink->parked_.end() && parked->second == reply.waiter) {
    to.sink->parked_.erase(parked);
  }
  Answer answer{to.name, to.started, std::move(reply.status),
                std::move(reply.payload)};
  if (to.sink.get() == sink) {
    result.own.push_back(std::move(answer));
  } else {
    result.deliveries.push_back({std::move(to.sink), std::move(answer)});
  }
  waiting_.erase(waiting);
}

void Job::Collect(core::Outbox& out, const Sink* sink, StepResult& result) {
  for (core::Reply& reply : out.replies) CollectParked(reply, sink, result);
  for (core::Publication& publication : out.events) {
    const auto& together = publication.event.together;
    if (!publication.again) {
      result.events.emplace_back(publication.event.kind,
                                 together == nullptr ? 1 : together->count);
    }
    const auto event =
        std::make_shared<const core::Event>(std::move(publication.event));
    for (const core::MemberId& member : *publication.audience) {
      const auto online = online_.find(member);
      if (online == online_.end()) continue;
      result.broadcasts.push_back({online->second.sink, event});
    }
  }
  result.notices = std::move(out.notices);
  const std::optional<core::Instant> deadline = core_.NextDeadline();
  if (deadline.has_value() && *deadline < armed_) {
    armed_ = *deadline;
    result.rearm = true;
    result.deadline = *deadline;
  }
}

// Decides who delivers the step's results. Called under the lock, so that steps
// are committed and delivered in their order.
Job::Next Job::Conclude(const std::shared_ptr<Sink>& sink, StepResult& result) {
  // It has only refused calls, and its queue may have ended.
  if (!retired_.ok()) return Next::kCaller;
  const bool durable = options_.commits != nullptr;
  std::vector<core::Record> changes;
  if (durable) changes = core_.TakeChanges();
  const bool commits =
      durable && (!changes.empty() || (untold_ > 0 && !result.empty()));
  if (!commits && !NeedsTasks(result)) return Next::kCaller;
  // Arms the ticker at once: that need not wait for the results.
  if (std::exchange(result.rearm, false)) {
    options_.arm(shared_from_this(), result.deadline);
  }
  Told told{sink, std::move(result), nullptr};
  told.bytes = CountBytes(told.result);
  for (const core::Record& change : changes) {
    told.bytes += muster::coordinator::CountBytes(change);
  }
  ++untold_;
  untold_bytes_ += told.bytes;
  if (options_.untold_bytes != nullptr) *options_.untold_bytes += told.bytes;
  if (!commits) return AwaitTask(std::move(told));
  Commit(std::move(changes), std::move(told));
  return Next::kElsewhere;
}

void Job::Commit(std::vector<core::Record> records, Told told) {
  if (!records.empty() && !std::exchange(stored_, true)) {
    records.push_back(core::JobRecord{options_.job_epoch});
  }
  auto shared = std::make_shared<Told>(std::move(told));
  options_.commits->Append(
      name_, std::move(records),
      [self = shared_from_this(), shared](const Status& status) {
        self->Committed(*shared, status);
      });
}

void Job::Committed(Told& told, const Status& status) {
  Next next = Next::kCaller;
  {
    MutexLock lock(mu_);
    if (NeedsTasks(told.result)) next = AwaitTask(std::exchange(told, {}));
  }
  if (next == Next::kTask) PostTask();
  if (next != Next::kCaller) return;
  if (told.done != nullptr) {
    told.done();
  } else if (!status.ok()) {
    CloseAll(told.sink, told.result, NotOwnedError());
  } else {
    Finish(told.sink, told.result, SIZE_MAX);
  }
  // After the delivery: a read with nothing to wait for must not overtake the
  // answers before it.
  MutexLock lock(mu_);
  CountTold(told.bytes);
}

void Job::CountTold(int64_t bytes) {
  --untold_;
  untold_bytes_ -= bytes;
  if (options_.untold_bytes != nullptr) *options_.untold_bytes -= bytes;
}

bool Job::Behind() const {
  if (untold_.load(std::memory_order_relaxed) > kUntoldMax) return true;
  const int64_t bytes = untold_bytes_.load(std::memory_order_relaxed);
  if (bytes > kUntoldBytesMax) return true;
  return bytes > 0 && options_.untold_bytes != nullptr &&
         options_.untold_bytes->load(std::memory_order_relaxed) >
             kUntoldBytesOfAllMax;
}

// The memory of the answers: only they have values that were taken out of the
// store or overwritten. A value with many waiters counts once.
int64_t Job::CountBytes(const StepResult& result) {
  int64_t bytes = 0;
  for (const Answer& answer : result.own) {
    bytes += core::HeldBytes(answer.payload);
  }
  const std::string* before = nullptr;
  for (const Delivery& delivery : result.deliveries) {
    const core::Payload& payload = delivery.answer.payload;
    const auto* value = std::get_if<core::ValueReply>(&payload);
    const std::string* same = value == nullptr ? nullptr : value->value.get();
    if (same == nullptr || same != before) bytes += core::HeldBytes(payload);
    before = same;
  }
  return bytes;
}

// True even for few deliveries if earlier ones wait.
bool Job::NeedsTasks(const StepResult& result) const {
  if (options_.fair_queue == nullptr) return false;
  return !for_tasks_.empty() ||
         result.deliveries.size() + result.broadcasts.size() >
             FairQueue::kOthersWithoutTurn;
}

Job::Next Job::AwaitTask(Told told) {
  for_tasks_.push_back(std::move(told));
  return for_tasks_.size() == 1 ? Next::kTask : Next::kElsewhere;
}

void Job::FinishOrPost(Next next, const std::shared_ptr<Sink>& sink,
                       StepResult& result) {
  if (next == Next::kTask) PostTask();
  if (next == Next::kCaller) Finish(sink, result, SIZE_MAX);
}

void Job::PostTask() {
  options_.fair_queue->Post(
      this, this, [self = shared_from_this()] { self->TellInTurn(); });
}

void Job::TellInTurn() {
  constexpr size_t kTellsPerTurn = 64;
  Told* told = nullptr;
  {
    MutexLock lock(mu_);
    told = &for_tasks_.front();  // remains valid when others are added
  }
  bool over = true;
  if (told->done != nullptr) {
    told->done();
  } else {
    over = Finish(told->sink, told->result, kTellsPerTurn);
  }
  // Destroyed after the lock is released, because that may destroy a sink.
  Told last;
  {
    MutexLock lock(mu_);
    if (over) {
      last = std::move(for_tasks_.front());
      for_tasks_.pop_front();
      CountTold(last.bytes);
    }
    if (for_tasks_.empty()) return;
  }
  PostTask();
}

void Job::WhenTold(std::function<void()> done) {
  Next next = Next::kCaller;
  {
    MutexLock lock(mu_);
    if (untold_ > 0) {
      ++untold_;
      Told told{nullptr, {}, std::exchange(done, nullptr)};
      if (options_.commits != nullptr) return Commit({}, std::move(told));
      next = AwaitTask(std::move(told));
    }
  }
  if (next == Next::kTask) PostTask();
  if (next == Next::kCaller) done();
}

void Job::Erase() {
  MutexLock lock(mu_);
  if (stored_) options_.commits->AppendErasure(name_);
}

void Job::Retire(const Status& status) {
  MutexLock lock(mu_);
  retired_ = status;
}

void Job::Restore(std::vector<core::Record> records) {
  StepResult result;
  core::Outbox out;
  {
    MutexLock lock(mu_);
    core_.Restore(std::move(records), Now());
    stored_ = true;
    Collect(out, nullptr, result);
  }
  Finish(nullptr, result, SIZE_MAX);
}

void Job::CloseAll(const std::shared_ptr<Sink>& sink, const StepResult& result,
                   const Status& status) {
  if (sink != nullptr) sink->Close(status);
  for (const Delivery& delivery : result.deliveries) {
    delivery.sink->Close(status);
  }
}

// Delivers to up to `count` other sinks. Returns whether these were all.
bool Job::Finish(const std::shared_ptr<Sink>& sink, StepResult& result,
                 size_t count) {
  if (!owned()) {
    CloseAll(sink, result, NotOwnedError());
    return true;
  }
  if (std::exchange(result.rearm, false)) {
    options_.arm(shared_from_this(), result.deadline);
  }
  // Events first: a client whose call failed because of a member can then
  // already know what happened to that member.
  const size_t events = result.broadcasts.size();
  for (size_t& i = result.published; i < events; ++i) {
    if (count-- == 0) return false;
    result.broadcasts[i].sink->Publish(result.broadcasts[i].event);
  }
  if (!result.own.empty()) sink->Deliver(absl::MakeSpan(result.own));
  result.own.clear();
  const size_t answers = result.deliveries.size();
  for (size_t& i = result.delivered; i < answers; ++i) {
    if (count-- == 0) return false;
    Delivery& delivery = result.deliveries[i];
    delivery.sink->Deliver(absl::MakeSpan(&delivery.answer, 1));
  }
  if (sink != nullptr && result.flushed == 0) sink->Flush();
  for (size_t& i = result.flushed; i < answers + events; ++i) {
    if (count-- == 0) return false;
    if (i >= answers) {
      result.broadcasts[i - answers].sink->Flush();
      continue;
    }
    Sink* const to = result.deliveries[i].sink.get();
    const Sink* const before =
        i == 0 ? sink.get() : result.deliveries[i - 1].sink.get();
    if (to != before) to->Flush();
  }
  for (const auto& [kind, number] : result.events) {
    options_.metrics->CountEvent(kind, number);
  }
  for (const core::Notice& notice : result.notices) {
    options_.metrics->CountNotice(notice);
    if (options_.log_notices) Log(notice);
  }
  return true;
}

void Job::Log(const core::Notice& notice) const {
  const absl::string_view name = core::NoticeKindName(notice.kind);
  if (IsWarning(notice.kind)) {
    LOG(WARNING) << name << ": job=" << name_ << " " << notice.text;
  } else {
    LOG(INFO) << name << ": job=" << name_ << " " << notice.text;
  }
}

}  // namespace muster::coordinator
