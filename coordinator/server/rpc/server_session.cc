#include "coordinator/server/rpc/server_session.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <utility>

#include "absl/container/inlined_vector.h"
#include "absl/strings/str_cat.h"
#include "base/text.h"
#include "coordinator/core/limits.h"
#include "coordinator/core/reply_cache.h"
#include "coordinator/server/jobs/fair_queue.h"
#include "coordinator/server/jobs/limit_log.h"
#include "coordinator/server/rpc/apply.h"
#include "coordinator/server/rpc/request.h"
#include "glog/logging.h"
#include "muster/base/status.h"

namespace muster::coordinator {
namespace {

// The most work in one turn: the time for which a session may keep other
// sessions from its job's lock, and other jobs from the processor.
constexpr size_t kItemsPerTurnMax = 1024;
constexpr int64_t kCostPerTurnMax = 4096;

// The bytes of an answer that count as much as one key of a request.
constexpr int64_t kAnswerBytesOfACost = 64;

// The size at which a message is full; a single answer may be larger.
constexpr int64_t kMessageBytes = 1 << 20;

// A session with more unsent bytes than this stops reading.
constexpr int64_t kPauseBytes = 4 << 20;

// Answers to parked calls and events come even without reading. A client that
// lets this many pile up is cut off.
constexpr int64_t kUnsentAnswersMax = 1 << 18;
constexpr size_t kUnsentEventsMax = 1 << 16;
constexpr int64_t kUnsentEventBytesMax = 64 << 20;

// The time for a client to read the trailers before its stream is reset.
constexpr core::Duration kTrailersTimeout = std::chrono::seconds(2);

core::Instant Now() { return std::chrono::steady_clock::now(); }

// Without a block of its own, so that an idle session is small.
google::protobuf::ArenaOptions Options() {
  google::protobuf::ArenaOptions options;
  options.start_block_size = 1 << 10;
  options.max_block_size = 64 << 10;
  return options;
}

// A number that is unique among the messages of the process.
uint64_t NextMessage() {
  static std::atomic<uint64_t> next{0};
  return ++next;
}

bool OperationMayTakeLong(const v1::Operation& operation) {
  return MayTakeLong(GetMethod(operation));
}

// The number of keys, entries or groups in the request.
template <typename Request>
int64_t CountEntries(const Request& request) {
  if constexpr (requires { request.keys_size(); }) {
    return request.keys_size();
  } else if constexpr (requires { request.entries_size(); }) {
    return request.entries_size();
  } else if constexpr (requires { request.groups_size(); }) {
    return request.groups_size();
  } else {
    return 0;
  }
}

int64_t RequestCost(const v1::Operation& operation) {
  switch (operation.request_case()) {
#define MUSTER_OPERATION(service, name, field, ...) \
  case v1::Operation::k##name:                      \
    return 1 + CountEntries(operation.field());
#include "proto/muster/v1/verbs.inc"
    default:
      return 1;
  }
}

// An idle session does not keep the memory of a burst. Small vectors are kept
// for the next answers.
template <typename T>
void ReleaseCapacity(std::vector<T>& empty) {
  constexpr size_t kKept = 4;
  if (empty.capacity() > kKept) std::vector<T>().swap(empty);
}

Status UnreadError(absl::string_view what) {
  return ResourceExhaustedError(
      absl::StrCat("the client does not read its stream: ", what));
}

}  // namespace

ServerSession::ServerSession(SessionTable& table, const ServiceContext& context,
                             SessionStream& stream)
    : table_(table),
      context_(context),
      stream_(stream),
      started_(Now()),
      read_arena_(Options()),
      write_arena_(Options()) {}

void ServerSession::Start() {
  context_.open_calls->Begin();
  self_ = shared_from_this();
  // Checked before the stream counts towards the limit of streams.
  Status status = context_.auth == nullptr
                      ? OkStatus()
                      : context_.auth->Know(stream_.call());
  if (status.ok()) status = table_.Add(self_);
  MutexLock lock(mu_);
  if (status.ok()) {
    ReadNext();
  } else {
    FinishLocked(status);
  }
}

void ServerSession::ReadNext() {
  if (finished_) return;
  read_arena_.Reset();
  switch (stream_.StartRead(&bytes_)) {
    case SessionStream::Read::kLater:
      return;
    case SessionStream::Read::kNow:
      return PostTask(&ServerSession::AcceptRead);
    case SessionStream::Read::kEnded:
      return EndReading();
  }
}

// The client has half-closed.
void ServerSession::EndReading() {
  half_closed_ = true;
  if (job_ == nullptr) {
    return FinishLocked(
        InvalidArgumentError("the stream ended without a hello"));
  }
  FinishIfThroughLocked();
}

void ServerSession::OnReadDone(bool ok) {
  if (ok) return AcceptRead();
  MutexLock lock(mu_);
  if (!finished_ && draining_.ok()) EndReading();
}

void ServerSession::AcceptRead() {
  {
    MutexLock lock(mu_);
    if (finished_ || held_ || !draining_.ok()) return;
  }
  request_bytes_ = bytes_.Length();
  next_item_ = 0;
  if (request_bytes_ <= FairQueue::kBytesWithoutTurn &&
      (job_ == nullptr || job_->AtOnce(Now()))) {
    const Status status = Accept();
    return status.ok() ? Continue() : Close(status);
  }
  MutexLock lock(mu_);
  PostTask(&ServerSession::AcceptInTask);
}

void ServerSession::AcceptInTask() {
  const Status status = Accept();
  if (!status.ok()) return Close(status);
  if (!TakesLong()) return ProcessLong();
  MutexLock lock(mu_);
  PostTask(&ServerSession::ProcessLong);
}

// Parses the message, and handles the parts that belong to no operation.
Status ServerSession::Accept() {
  request_ =
      google::protobuf::Arena::CreateMessage<v1::StreamRequest>(&read_arena_);
  Status status = ParseRequest(&bytes_, request_);
  if (!status.ok()) return status;
  if (job_ == nullptr) {
    status = FindJob();
  } else if (request_->has_hello()) {
    status = InvalidArgumentError("a second hello");
  }
  if (!status.ok()) return status;
  if (request_->operations_size() > 0) {
    context_.metrics->CountBatch(request_->operations_size());
  }
  const core::SequenceNumber through(request_->acknowledged_through());
  if (through >= call_.acknowledged_through) {
    call_.acknowledged_through = through;
    call_.unanswered =
        ToSequenceNumbers(request_->unanswered(), context_.driver->limits());
  }
  call_.message = NextMessage();
  return core::CheckAcknowledged(call_.acknowledged_through);
}

Status ServerSession::FindJob() {
  if (!request_->has_hello()) {
    return InvalidArgumentError(
        "the first message of a stream must carry a hello");
  }
  const v1::Caller& caller = request_->hello().caller();
  std::optional<Auth::Pass> pass;
  if (context_.auth != nullptr) {
    const StatusOr<Auth::Pass> admitted = context_.auth->Admit(
        stream_.call(), Method::kStream, caller.job(), /*as_member=*/true);
    if (!admitted.ok()) return admitted.status();
    pass = *admitted;
  }
  StatusOr<std::shared_ptr<Job>> job = context_.driver->GetJob(
      caller.job(), pass.has_value() ? &pass->digest : nullptr);
  if (!job.ok()) return job.status();
  call_ = ToCall(caller, context_.driver->limits());
  MutexLock lock(mu_);
  job_ = *std::move(job);
  pass_ = pass;
  return OkStatus();
}

Status ServerSession::Greet() {
  const v1::Hello& hello = request_->hello();
  v1::Welcome welcome;
  welcome.set_coordinator_epoch(context_.driver->epoch().value());
  welcome.set_job_epoch(job_->epoch().value());
  welcome.set_message_bytes_max(context_.message_bytes_max);
  welcome.set_judges_groups(true);
  if (hello.has_registration()) {
    const StatusOr<core::RegisterReply> reply =
        job_->Attach(self_, call_, ToRegistration(hello.registration()));
    if (!reply.ok()) return reply.status();
    Fill(*reply, welcome.mutable_registration());
  }
  {
    MutexLock lock(mu_);
    greeted_ = true;
    welcome_ = std::move(welcome);
    send_welcome_ = true;
  }
  // Waits until the registration is durable, so that it survives a restart.
  job_->WhenTold([self = self_] {
    {
      MutexLock lock(self->mu_);
      self->ready_ = true;
    }
    self->Flush();
  });
  return OkStatus();
}

// The operation of an item of the message; null: the item is the heartbeat.
v1::Operation* ServerSession::FindOperation(size_t item) const {
  if (!request_->has_heartbeat()) {
    return request_->mutable_operations(static_cast<int>(item));
  }
  if (item == 0) return nullptr;
  return request_->mutable_operations(static_cast<int>(item - 1));
}

// The number of items of the message that are not applied yet.
size_t ServerSession::ItemsLeft() const {
  return static_cast<size_t>(request_->operations_size()) +
         (request_->has_heartbeat() ? 1 : 0) - next_item_;
}

bool ServerSession::TakesLong() const {
  if (ItemsLeft() > FairQueue::kItemsWithoutTask ||
      request_bytes_ > FairQueue::kBytesWithoutTurn) {
    return true;
  }
  const auto& operations = request_->operations();
  return std::any_of(operations.begin(), operations.end(),
                     OperationMayTakeLong);
}

// Applies the rest of the message: a little at once, more in turns.
void ServerSession::Continue() {
  if (!TakesLong() && !job_->busy()) return Process();
  MutexLock lock(mu_);
  PostTask(&ServerSession::ProcessLong);
}

void ServerSession::ProcessLong() {
  const Job::LongStep step(*job_);
  Process();
}

void ServerSession::PostTask(void (ServerSession::*work)()) {
  ++posted_tasks_;
  context_.fair_queue->Post(
      job_.get(), this,
      [self = shared_from_this(), work] { self->RunTask(work); });
}

void ServerSession::RunTask(void (ServerSession::*work)()) {
  bool finished = false;
  {
    MutexLock lock(mu_);
    finished = finished_;
  }
  if (!finished) (this->*work)();
  {
    MutexLock lock(mu_);
    if (--posted_tasks_ > 0 || !done_) return;
  }
  Retire();
}

// Applies the next slice of the message. After the last slice reads the next
// message, unless answers or steps pile up.
void ServerSession::Process() {
  if (!std::exchange(welcomed_, true)) {
    const Status status = Greet();
    if (!status.ok()) return Close(status);
  }
  if (ItemsLeft() > 0) {
    Status status;
    next_item_ +=
        ProcessSlice(std::min(ItemsLeft(), kItemsPerTurnMax), &status);
    if (!status.ok()) return Close(status);
  }
  {
    MutexLock lock(mu_);
    if (finished_) return;
    if (!job_->Behind() || !no_space_.ok()) return ContinueReading();
  }
  job_->WhenTold([self = shared_from_this()] {
    MutexLock lock(self->mu_);
    self->ContinueReading();
  });
}

// Called after a slice or, if many steps are untold, after their answers.
void ServerSession::ContinueReading() {
  if (finished_ || held_) return;
  if (unsent_bytes_ > kPauseBytes) {
    paused_ = true;  // OnWriteDone continues
    return;
  }
  if (ItemsLeft() > 0) return PostTask(&ServerSession::ProcessLong);
  ReadNext();
}

// Applies up to `count` items from next_item_ under one lock. Returns the
// number of applied items.
size_t ServerSession::ProcessSlice(size_t count, Status* status) {
  const size_t first = next_item_;
  int64_t unanswered = 0;
  slice_cost_ = 0;
  no_space_ = job_->health();
  if (!IsResourceExhausted(no_space_)) no_space_ = OkStatus();
  const size_t done = job_->Run(
      self_, count,
      [&](size_t i, core::WaiterId waiter, JobContext& context) {
        const Job::Applied applied =
            ApplyItem(first + i, waiter, context, status);
        if (applied == Job::Applied::kNoAnswer) ++unanswered;
        return applied;
      },
      [&](size_t i) {
        const v1::Operation* operation = FindOperation(first + i);
        if (operation == nullptr) return CallName{0, Method::kHeartbeat};
        return CallName{operation->id(), GetMethod(*operation),
                        operation->join().without_seats()};
      });
  {
    MutexLock lock(mu_);
    outstanding_ += static_cast<int64_t>(done + refused_.size()) - unanswered;
  }
  if (!refused_.empty()) {
    Deliver(absl::MakeSpan(refused_));
    refused_.clear();
    Flush();
  }
  return done;
}

Job::Applied ServerSession::ApplyItem(size_t item, core::WaiterId waiter,
                                      JobContext& context, Status* status) {
  if (slice_cost_ > kCostPerTurnMax) return Job::Applied::kStop;
  call_.waiter = waiter;
  v1::Operation* operation = FindOperation(item);
  if (operation == nullptr) {
    call_.sequence = core::SequenceNumber();
    Apply(*request_->mutable_heartbeat(), call_, context);
    return Job::Applied::kCalled;
  }
  switch (operation->request_case()) {
    case v1::Operation::REQUEST_NOT_SET:
      *status = InvalidArgumentError(
          absl::StrCat("operation ", operation->id(), " has no request"));
      return Job::Applied::kStop;
    case v1::Operation::kCancel:
      Job::Cancel(*this, operation->cancel().id(), context);
      return Job::Applied::kNoAnswer;
    default:
      break;
  }
  slice_cost_ += RequestCost(*operation);
  if (!no_space_.ok() &&
      OperationNeedsSpace(*operation, call_, job_->Behind(), context.core)) {
    refused_.push_back({{operation->id(), GetMethod(*operation)},
                        context.now,
                        no_space_,
                        std::monostate()});
    return Job::Applied::kNoAnswer;
  }
  const size_t replies = context.out.replies.size();
  ApplyOperation(*operation, call_, context);
  for (size_t i = replies; i < context.out.replies.size(); ++i) {
    const core::Reply& reply = context.out.replies[i];
    if (reply.waiter != waiter) continue;
    slice_cost_ += PayloadBytes(reply.payload) / kAnswerBytesOfACost;
  }
  return Job::Applied::kCalled;
}

void ServerSession::Deliver(absl::Span<Answer> answers) {
  MutexLock lock(mu_);
  outstanding_ -= static_cast<int64_t>(answers.size());
  if (finished_) return;
  for (Answer& answer : answers) {
    if (answer.method == Method::kHeartbeat) {
      // A heartbeat has no result, but a member that counts as gone must know.
      if (!answer.status.ok()) return FinishLocked(answer.status);
      continue;
    }
    // Refused by a job that is elsewhere now. Its client repeats the call when
    // the stream has ended.
    if (IsUnavailable(answer.status)) {
      if (held_ || !draining_.ok()) continue;
      return FinishLocked(answer.status);
    }
    if (answer.status.ok()) {
      answer.status = CheckAnswerBytes(answer, context_.message_bytes_max);
      if (!answer.status.ok()) answer.payload = std::monostate();
    }
    if (!answer.status.ok()) LogIfLimited(job_->name(), answer.status);
    unsent_bytes_ += AnswerBytes(answer);
    ++unsent_answers_;
    queue_.push_back(std::move(answer));
  }
  if (unsent_answers_ > kUnsentAnswersMax) {
    FinishLocked(
        UnreadError(absl::StrCat(unsent_answers_, " answers are unsent")));
  }
}

void ServerSession::Publish(const SharedEvent& event) {
  MutexLock lock(mu_);
  if (finished_) return;
  const int64_t bytes = EventBytes(*event);
  unsent_bytes_ += bytes;
  unsent_event_bytes_ += bytes;
  events_.push_back(event);
  if (events_.size() > kUnsentEventsMax ||
      unsent_event_bytes_ > kUnsentEventBytesMax) {
    FinishLocked(UnreadError(
        absl::StrCat("events of ", unsent_event_bytes_, " bytes are unsent")));
  }
}

void ServerSession::Flush() {
  {
    MutexLock lock(mu_);
    if (!ready_ || writing_ || finished_) return;
    if (sent_ == sending_.size()) {
      sending_.clear();
      sent_ = 0;
      std::swap(sending_, queue_);
    }
    if (sent_events_ == sending_events_.size()) {
      sending_events_.clear();
      sent_events_ = 0;
      std::swap(sending_events_, events_);
    }
    if (sending_.empty() && sending_events_.empty() && !send_welcome_) {
      ReleaseCapacity(sending_);
      ReleaseCapacity(queue_);
      ReleaseCapacity(sending_events_);
      ReleaseCapacity(events_);
      return FinishIfThroughLocked();
    }
    writing_ = true;
    // The client is not late before a message is written.
    write_started_at_ = core::Instant::max();
    if (unsent_bytes_ > int64_t{FairQueue::kBytesWithoutTurn} ||
        unsent_answers_ > int64_t{FairQueue::kItemsWithoutTask}) {
      return PostTask(&ServerSession::Write);
    }
  }
  Write();
}

// Writes the next message; `writing_` is set. Builds it without the lock,
// because others deliver meanwhile.
void ServerSession::Write() {
  const size_t first = sent_;
  Build();
  CountAnswers(absl::MakeConstSpan(sending_).subspan(first, sent_ - first));
  MutexLock lock(mu_);
  unsent_bytes_ -= built_.bytes;
  unsent_event_bytes_ -= built_.event_bytes;
  unsent_answers_ -= static_cast<int64_t>(sent_ - first);
  if (finished_) return;
  write_started_at_ = Now();
  stream_.StartWrite(response_);
}

// Fills the next message. `welcome_` no longer changes when there is something
// to send.
void ServerSession::Build() {
  response_ =
      google::protobuf::Arena::CreateMessage<v1::StreamResponse>(&write_arena_);
  if (std::exchange(send_welcome_, false)) {
    *response_->mutable_welcome() = welcome_;
    v1::Welcome().Swap(&welcome_);
  }
  built_ = {};
  const auto fits = [&](int64_t bytes) {
    if (built_.bytes > 0 && built_.bytes + bytes > kMessageBytes) return false;
    built_.bytes += bytes;
    return true;
  };
  for (; sent_events_ < sending_events_.size(); ++sent_events_) {
    const core::Event& event = *sending_events_[sent_events_];
    const int64_t bytes = EventBytes(event);
    // Answers come after the events before them.
    if (!fits(bytes)) return;
    built_.event_bytes += bytes;
    FillEvent(event, response_->add_events());
  }
  while (sent_ < sending_.size()) {
    const Answer& answer = sending_[sent_];
    if (!fits(AnswerBytes(answer))) return;
    FillResult(answer, call_.member, response_->add_results());
    ++sent_;
  }
}

void ServerSession::CountAnswers(absl::Span<const Answer> answers) {
  struct Tally {
    Method method;
    StatusCode code;
    core::Instant started;
    int64_t count;
  };
  // A batch has few kinds of answers; those of parked calls differ by time.
  constexpr size_t kLookBack = 4;
  absl::InlinedVector<Tally, 8> tallies;
  for (const Answer& answer : answers) {
    const StatusCode code = answer.status.code();
    const size_t back = std::min(tallies.size(), kLookBack);
    const auto same =
        std::find_if(tallies.end() - back, tallies.end(), [&](const Tally& t) {
          return t.method == answer.method && t.code == code &&
                 t.started == answer.started;
        });
    if (same == tallies.end()) {
      tallies.push_back({answer.method, code, answer.started, 1});
    } else {
      ++same->count;
    }
  }
  const core::Instant now = Now();
  for (const Tally& t : tallies) {
    context_.metrics->CountCalls(t.method, t.code, now - t.started, t.count);
  }
}

void ServerSession::OnWriteDone(bool ok) {
  bool resume = false;
  // An idle session keeps no memory of a large message.
  write_arena_.Reset();
  {
    MutexLock lock(mu_);
    writing_ = false;
    if (!ok) FinishLocked(UnavailableError("the stream broke"));
    if (finished_) return;
    resume = paused_ && unsent_bytes_ <= kPauseBytes;
    if (resume) paused_ = false;
  }
  Flush();
  if (resume) Continue();
}

void ServerSession::OnCancel() { Close(CancelledError("the stream ended")); }

void ServerSession::OnRelayGone() {
  MutexLock lock(mu_);
  if (finished_) return;
  disconnection_ = core::Disconnection::kRelayGone;
  FinishLocked(UnavailableError("the relay of the member's host is gone"));
}

void ServerSession::OnDone() {
  {
    MutexLock lock(mu_);
    done_ = true;
    if (posted_tasks_ > 0) return;  // the last turn retires it
    // Retires in a turn, which finds nothing else to do.
    if (job_ != nullptr && job_->busy())
      return PostTask(&ServerSession::Process);
  }
  Retire();
}

void ServerSession::Retire() {
  table_.Remove(self_);
  core::Disconnection disconnection = core::Disconnection::kClosed;
  {
    MutexLock lock(mu_);
    disconnection = disconnection_;
  }
  if (job_ != nullptr) job_->Detach(*this, disconnection);
  context_.open_calls->End();
  // This may be the last reference.
  const std::shared_ptr<ServerSession> self = std::move(self_);
}

void ServerSession::Close(const Status& status) {
  MutexLock lock(mu_);
  FinishLocked(status);
}

void ServerSession::Hold() {
  MutexLock lock(mu_);
  held_ = true;
}

bool ServerSession::IsOfOne(const JobSet& jobs) {
  MutexLock lock(mu_);
  return jobs.contains(job_.get());
}

void ServerSession::Drain(const Status& status) {
  MutexLock lock(mu_);
  draining_ = status;
  FinishIfThroughLocked();
}

void ServerSession::CutOffIfStalled(core::Instant now, core::Duration timeout) {
  MutexLock lock(mu_);
  if (done_) return;
  if (finished_) {
    // The client does not read, so the trailers wait.
    if (now - finished_at_ > kTrailersTimeout) stream_.Reset();
    return;
  }
  if (!greeted_ && now - started_ > timeout) {
    return FinishLocked(DeadlineExceededError(
        absl::StrCat("no hello came for ", core::FormatDuration(timeout))));
  }
  if (writing_ && now - write_started_at_ > timeout) {
    FinishLocked(UnreadError(
        absl::StrCat("it took no message for ", core::FormatDuration(timeout),
                     ", ", unsent_answers_, " answers are unsent")));
  }
}

void ServerSession::EndIfNotAllowed() {
  MutexLock lock(mu_);
  if (finished_ || !pass_.has_value()) return;
  const Status status =
      context_.auth->Renew(Method::kStream, job_->name(), *pass_);
  if (status.ok()) return;
  disconnection_ = core::Disconnection::kDismissed;
  FinishLocked(status);
}

void ServerSession::FinishLocked(const Status& status) {
  if (finished_) return;
  finished_ = true;
  finished_at_ = Now();
  if (greeted_ && !IsCancelled(status) && !IsUnavailable(status) &&
      !status.ok()) {
    LOG(WARNING) << "stream_ended: job=" << job_->name()
                 << " member=" << base::LogValue(call_.member.value())
                 << " cause=" << core::TextInNotice(status.message());
  } else if (!greeted_) {
    LogIfLimited("", status);
  }
  context_.metrics->CountCalls(Method::kStream, status.code(),
                               finished_at_ - started_);
  stream_.Finish(status);
}

// A client that has half-closed gets all its answers. So does every client in a
// drain: otherwise it would repeat a finished mutation on a server that may
// never come.
void ServerSession::FinishIfThroughLocked() {
  if (outstanding_ > 0 || unsent_answers_ > 0 || writing_ || send_welcome_) {
    return;
  }
  if (!draining_.ok()) return FinishLocked(draining_);
  if (half_closed_ && unsent_event_bytes_ == 0) FinishLocked(OkStatus());
}

}  // namespace muster::coordinator
