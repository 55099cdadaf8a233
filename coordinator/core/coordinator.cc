#include "coordinator/core/coordinator.h"

#include <algorithm>
#include <memory>
#include <tuple>
#include <utility>
#include <variant>

#include "absl/container/btree_map.h"
#include "absl/strings/str_cat.h"
#include "base/text.h"
#include "coordinator/core/total_memory.h"

namespace muster::coordinator::core {
namespace {

// Marks the waiter of an arrival whose connection has closed. It replaces the
// real waiter, which has its answer, in the barrier; the decision goes only to
// the reply cache.
constexpr uint64_t kDetachedBit = uint64_t{1} << 63;

bool IsDetached(WaiterId waiter) {
  return (waiter.value() & kDetachedBit) != 0;
}

WaiterId DetachedFrom(WaiterId waiter) {
  return WaiterId(waiter.value() | kDetachedBit);
}

}  // namespace

Coordinator::Coordinator(CoordinatorEpoch epoch,
                         const CoordinatorOptions& options)
    : epoch_(epoch),
      limits_(options.limits),
      journal_(options.durable),
      quota_(limits_.waiters, limits_.waiter_bytes, limits_.memory),
      membership_(options.membership, &limits_, &journal_),
      store_(&limits_, &quota_, &journal_),
      rendezvous_(&limits_, &quota_, &membership_, &journal_),
      groups_(&limits_, &membership_, &journal_),
      failures_(&limits_, &membership_, &groups_, &journal_),
      barriers_(&limits_, &quota_, &membership_, &groups_, &journal_) {}

// Returns whether the caller may use the store, else answers the call.
// `*member` is null for a plain client.
bool Coordinator::Admit(const Call& call, Instant now, Outbox& out,
                        Member** member) {
  *member = nullptr;
  if (call.member.value().empty()) return true;
  return AdmitMember(call, now, out, member);
}

// Returns whether the caller is a live member, else answers the call.
bool Coordinator::AdmitMember(const Call& call, Instant now, Outbox& out,
                              Member** member) {
  StatusOr<Member*> admitted = membership_.Admit(call, now, out);
  if (!admitted.ok()) {
    out.Fail(call.waiter, admitted.status());
    return false;
  }
  *member = *admitted;
  if ((*member)->dismissed()) {
    Membership::Return(**member, now);
    rendezvous_.MemberReturned(call.member, out);
  }
  return true;
}

// If the call is a retry, answers it, now or together with the first one.
bool Coordinator::Replay(const Call& call, absl::string_view method,
                         Member& member, Outbox& out) {
  if (call.message == 0 || call.message != member.acknowledged_by) {
    const Status acknowledged = member.replies.Acknowledge(
        call.acknowledged_through, call.unanswered, limits_,
        [&](SequenceNumber sequence) { journal_.Reply(member.id, sequence); });
    if (!acknowledged.ok()) {
      out.Fail(call.waiter, acknowledged);
      return true;
    }
    member.acknowledged_by = call.message;
  }
  StatusOr<ReplyCache::Entry*> entry =
      member.replies.Find(call.sequence, method, limits_);
  if (!entry.ok()) {
    out.Fail(call.waiter, entry.status());
    return true;
  }
  switch ((*entry)->state) {
    case ReplyCache::State::kNew:
      return false;
    case ReplyCache::State::kParked:
      TakeOver(call, **entry, out);
      return true;
    case ReplyCache::State::kDone:
      out.replies.push_back((*entry)->reply);
      out.replies.back().waiter = call.waiter;
      return true;
  }
  return false;
}

// Lets the newer waiter wait for the answer of the parked call.
void Coordinator::TakeOver(const Call& call, ReplyCache::Entry& entry,
                           Outbox& out) {
  const WaiterId older = entry.waiter;
  if (!IsDetached(older)) {
    out.Fail(older,
             CancelledError(absl::StrCat("superseded by a retry of sequence ",
                                         call.sequence.value())));
  }
  if (!store_.Retarget(older, call.waiter) &&
      !rendezvous_.Retarget(older, call.waiter)) {
    barriers_.Retarget(older, call.waiter);
  }
  numbered_calls_.erase(older);
  numbered_calls_.emplace(call.waiter,
                          NumberedCall{call.member, call.sequence});
  entry.waiter = call.waiter;
}

bool Coordinator::WasApplied(const MemberId& member, Incarnation incarnation,
                             SequenceNumber sequence) const {
  const Member* found = membership_.Find(member);
  if (found == nullptr || found->incarnation != incarnation) return false;
  const ReplyCache::Entry* entry = found->replies.Lookup(sequence);
  return entry != nullptr && entry->state != ReplyCache::State::kNew;
}

// Runs a verb that answers its caller at once, before all other waiters.
void Coordinator::Mutate(const Call& call, absl::string_view method,
                         Instant now, Outbox& out,
                         absl::FunctionRef<void()> verb) {
  Member* member = nullptr;
  if (!Admit(call, now, out, &member)) return;
  const bool once = member != nullptr && call.sequence != SequenceNumber();
  if (once && Replay(call, method, *member, out)) return;
  const size_t first_reply = out.replies.size();
  verb();
  if (once) SetDone(*member, call.sequence, out.replies[first_reply]);
  // The verb may have answered a pop.
  Remember(first_reply, out);
}

void Coordinator::SetDone(Member& member, SequenceNumber sequence,
                          const Reply& reply) {
  member.replies.SetDone(sequence, reply);
  journal_.Reply(member.id, sequence);
}

// Runs a verb of a member. The verb may park its caller.
void Coordinator::MutateAsMember(const Call& call, absl::string_view method,
                                 Instant now, Outbox& out,
                                 absl::FunctionRef<void()> verb) {
  Member* member = nullptr;
  if (AdmitMember(call, now, out, &member)) {
    ApplyAndPark(call, method, *member, out, verb);
  }
}

void Coordinator::ApplyAndPark(const Call& call, absl::string_view method,
                               Member& member, Outbox& out,
                               absl::FunctionRef<void()> verb) {
  const size_t first_reply = out.replies.size();
  if (call.sequence != SequenceNumber()) {
    if (Replay(call, method, member, out)) return;
    member.replies.SetParked(call.sequence, call.waiter);
    numbered_calls_.emplace(call.waiter,
                            NumberedCall{call.member, call.sequence});
  }
  verb();
  Remember(first_reply, out);
}

// Keeps the answers to numbered calls that were parked, and removes those
// without a waiter.
void Coordinator::Remember(size_t first_reply, Outbox& out) {
  if (numbered_calls_.empty()) return;
  size_t kept = first_reply;
  for (size_t i = first_reply; i < out.replies.size(); ++i) {
    Reply& reply = out.replies[i];
    const bool detached = IsDetached(reply.waiter);
    if (const auto it = numbered_calls_.find(reply.waiter);
        it != numbered_calls_.end()) {
      Member* member = membership_.Find(it->second.member);
      if (member != nullptr) SetDone(*member, it->second.sequence, reply);
      numbered_calls_.erase(it);
    }
    if (detached) continue;
    if (kept != i) out.replies[kept] = std::move(reply);
    ++kept;
  }
  out.replies.resize(kept);
}

void Coordinator::Register(const Call& call, Registration registration,
                           Instant now, Outbox& out) {
  std::vector<Event> departed;
  StatusOr<Member*> registered =
      membership_.Register(call, std::move(registration), now, departed, out);
  if (!registered.ok()) return out.Fail(call.waiter, registered.status());
  HandleDepartures(departed, now, out);
  rendezvous_.MemberReturned(call.member, out);
  RegisterReply reply;
  reply.epoch = epoch_;
  reply.lease = membership_.options().lease;
  reply.generation = rendezvous_.generation();
  reply.generation_running = rendezvous_.running();
  reply.rank = (*registered)->rank;
  reply.waiting = static_cast<int32_t>(rendezvous_.waiters());
  out.Answer(call.waiter, reply);
  if (!reply.rank.has_value()) return;
  if (auto left = departures_.All()) {
    out.TellAgain(call.member, *std::move(left));
  }
  failures_.TellAgain(call, *reply.rank, out);
  if (!reply.generation_running) {
    if (generation_end_) out.TellAgain(call.member, *generation_end_);
  } else if (reply.waiting > 0) {
    out.TellAgain(call.member, WaitingEvent());
  }
}

void Coordinator::Heartbeat(const Call& call,
                            std::vector<GroupProgress> progress, Instant now,
                            Outbox& out) {
  if (!membership_.HasReported(call)) {
    Member* member = nullptr;
    if (!AdmitMember(call, now, out, &member)) return;
    Status status = membership_.Heartbeat(*member, std::move(progress), now);
    if (!status.ok()) return out.Fail(call.waiter, std::move(status));
  }
  out.Answer(call.waiter,
             HeartbeatReply{rendezvous_.generation(), rendezvous_.running(),
                            static_cast<int32_t>(rendezvous_.waiters())});
}

void Coordinator::Leave(const Call& call, absl::string_view reason, Instant now,
                        Outbox& out) {
  Member* member = nullptr;
  if (!AdmitMember(call, now, out, &member)) return;
  std::vector<Event> departed;
  membership_.Leave(*member, reason, now, departed, out);
  out.Answer(call.waiter, std::monostate());
  HandleDepartures(departed, now, out);
}

void Coordinator::ReportFailure(const Call& call, FailureReport report,
                                Instant now, Outbox& out) {
  Member* member = nullptr;
  if (!AdmitMember(call, now, out, &member)) return;
  std::vector<Event> departed;
  membership_.Fail(*member, std::move(report), now, departed, out);
  out.Answer(call.waiter, std::monostate());
  HandleDepartures(departed, now, out);
}

void Coordinator::ReportGroupFailure(const Call& call,
                                     GroupFailureReport report, Instant now,
                                     Outbox& out) {
  Member* member = nullptr;
  // The groups of a member that has failed with the default group's verdict may
  // live on.
  if (!membership_.HasReported(call) && !AdmitMember(call, now, out, &member)) {
    return;
  }
  if (report.group.empty() && !rendezvous_.running()) {
    // The event that ended the generation is the verdict.
    return out.Answer(call.waiter, GroupFailureReply());
  }
  failures_.Report(call, std::move(report), now, out);
  EndWorld(now, out);
}

// If the default group's failure was decided, lets the reporter fail with that
// and returns true.
bool Coordinator::EndWorld(Instant now, Outbox& out) {
  auto verdict = failures_.TakeWorldVerdict();
  if (!verdict.has_value()) return false;
  std::vector<Event> departed;
  membership_.Fail(*membership_.Find(verdict->member),
                   std::move(verdict->error), now, departed, out);
  HandleDepartures(departed, now, out);
  return true;
}

void Coordinator::Disconnected(const MemberId& member, Incarnation incarnation,
                               Instant now, Outbox& out,
                               Disconnection disconnection) {
  membership_.Disconnected(member, incarnation, now, out, disconnection);
}

void Coordinator::Join(const Call& call, JoinRequest request, Instant now,
                       Outbox& out) {
  MutateAsMember(call, "Join", now, out, [&] {
    const bool first = rendezvous_.waiters() == 0;
    if (!rendezvous_.Join(call, std::move(request), now, out)) return;
    if (rendezvous_.Abandon(call.member)) {
      HandleAbandonment(*membership_.Find(call.member), now, out);
    }
    SettleRendezvous(now, out);
    if (first) AnnounceWaiting(out);
  });
}

void Coordinator::CloseRendezvous(const Call& call, absl::string_view reason,
                                  Instant now, Outbox& out) {
  Mutate(call, "CloseRendezvous", now, out, [&] {
    out.Answer(call.waiter, std::monostate());
    rendezvous_.Close(call, reason, out);
  });
}

// Forms the next generation if it is time.
void Coordinator::SettleRendezvous(Instant now, Outbox& out) {
  const FormationReply before = rendezvous_.formation();
  const FormationReply formation = rendezvous_.TryForm(now, out);
  if (formation == nullptr) return;
  // Sent to members that are still in the previous generation.
  Tell(departures_.TakeUntold(now), out);
  BeginGeneration(before, formation, now, out);
  AnnounceWaiting(out);
}

void Coordinator::BeginGeneration(const FormationReply& before,
                                  const FormationReply& formation, Instant now,
                                  Outbox& out) {
  if (before != nullptr) {
    for (const Seat& seat : before->world) membership_.ClearRank(seat.member);
  }
  for (size_t i = 0; i < formation->world.size(); ++i) {
    membership_.AssignRank(formation->world[i].member,
                           Rank(static_cast<int32_t>(i)),
                           formation->generation);
  }
  generation_end_.reset();
  departures_.Reset();
  groups_.Reset(formation);
  failures_.Reset(formation);
  barriers_.Reset(formation, now, out);
}

// `member` of the event is the one that has waited for longest.
Event Coordinator::WaitingEvent() const {
  Event event;
  event.kind = EventKind::kWaiting;
  event.generation = rendezvous_.generation();
  event.waiting = static_cast<int32_t>(rendezvous_.waiters());
  event.cause = "waits for a seat in the next generation";
  const MemberId* const id = rendezvous_.first_waiter();
  const Member* const member = id == nullptr ? nullptr : membership_.Find(*id);
  if (member == nullptr) return event;
  event.member = member->id;
  event.incarnation = member->incarnation;
  event.host = member->registration.host;
  event.pid = member->registration.pid;
  return event;
}

// Tells the members of the running generation that others wait, if any do.
void Coordinator::AnnounceWaiting(Outbox& out) {
  if (!rendezvous_.running() || rendezvous_.waiters() == 0) return;
  std::vector<MemberId> audience;
  for (const auto& [id, member] : membership_.members()) {
    if (member.live() && member.rank.has_value() &&
        member.generation == rendezvous_.generation()) {
      audience.push_back(id);
    }
  }
  if (audience.empty()) return;
  out.events.push_back(Publication{
      std::make_shared<const std::vector<MemberId>>(std::move(audience)),
      WaitingEvent()});
}

// A live member waits for the next generation: the others cannot go on in this
// one, and nobody else would tell them.
void Coordinator::HandleAbandonment(const Member& member, Instant now,
                                    Outbox& out) {
  Event event = membership_.Abandoned(member, now);
  event.generation_over = true;
  generation_end_ = event;
  out.Note(NoticeKind::kGenerationEnded,
           absl::StrCat("generation=", event.generation.value(),
                        " member=", base::LogValue(event.member.value()),
                        " joins the next"));
  barriers_.MemberDeparted(
      event,
      AbortedError(absl::StrCat("member ", base::Quote(event.member.value()),
                                " ", base::Printable(event.cause))),
      now, out);
  failures_.MemberDeparted(event, now, out);
  Tell(departures_.TakeUntold(now), out);
  Publish({std::move(event)}, out);
}

void Coordinator::RegisterGroups(const Call& call, GroupsRequest request,
                                 Instant now, Outbox& out) {
  MutateAsMember(call, "RegisterGroups", now, out,
                 [&] { groups_.Register(call, std::move(request), now, out); });
}

void Coordinator::Arrive(const Call& call, const BarrierRequest& request,
                         Instant now, Outbox& out) {
  MutateAsMember(call, "AwaitBarrier", now, out,
                 [&] { barriers_.Arrive(call, request, now, out); });
}

// Handles the consequences of departures: fails the members' calls, frees their
// seats and arrivals, and tells the others.
void Coordinator::HandleDepartures(std::vector<Event>& departed, Instant now,
                                   Outbox& out) {
  if (departed.empty()) return;
  const size_t first_reply = out.replies.size();
  std::vector<Event> published;
  for (Event& event : departed) {
    const Status status = DepartedError(event);
    store_.MemberDeparted(event.member, status, out);
    const bool ended = rendezvous_.MemberDeparted(event, out);
    barriers_.MemberDeparted(event, status, now, out);
    event.generation_over = ended;
    if (ended) {
      generation_end_ = event;
      out.Note(NoticeKind::kGenerationEnded,
               absl::StrCat("generation=", event.generation.value(),
                            " member=", base::LogValue(event.member.value()),
                            " ", EventKindName(event.kind)));
    }
    failures_.MemberDeparted(event, now, out);
    if (!event.rank.has_value()) continue;
    if (event.kind == EventKind::kLeft && !ended) {
      departures_.Add(
          std::move(event),
          membership_.live() * membership_.options().departure_pause_per_member,
          now);
    } else {
      published.push_back(std::move(event));
    }
  }
  // Earlier leaves come before the events that follow. If only failed members
  // listen, there is nothing to gather.
  const bool gather = published.empty() && membership_.live() > 0;
  Tell(gather ? departures_.TakeDue(now) : departures_.TakeUntold(now), out);
  if (membership_.live() == 0) {
    barriers_.Clear(now, out);
    groups_.Clear();
    failures_.Clear();
    departures_.Reset();
  }
  Publish(std::move(published), out);
  EndWorld(now, out);
  SettleRendezvous(now, out);
  Remember(first_reply, out);
}

void Coordinator::Tell(std::optional<Event> event, Outbox& out) {
  if (event.has_value()) Publish(std::vector<Event>{*std::move(event)}, out);
}

// Sends the events to all listeners. A member that was replaced, gave up its
// rank or came back is alive and knows, so it is not told of itself. A member
// that reported a failure is told of that, because another report may have come
// first. A member that left with others and has come back is told of all of
// them.
void Coordinator::Publish(std::vector<Event> events, Outbox& out) {
  if (events.empty()) return;
  const auto everybody =
      std::make_shared<const std::vector<MemberId>>(membership_.Listeners());
  for (Event& event : events) {
    auto audience = everybody;
    if (event.kind != EventKind::kFailed && event.together == nullptr &&
        std::binary_search(everybody->begin(), everybody->end(),
                           event.member)) {
      std::vector<MemberId> others = *everybody;
      others.erase(std::remove(others.begin(), others.end(), event.member),
                   others.end());
      audience =
          std::make_shared<const std::vector<MemberId>>(std::move(others));
    }
    if (audience->empty()) continue;
    out.events.push_back(Publication{std::move(audience), std::move(event)});
  }
}

void Coordinator::CancelWaiter(WaiterId waiter, Outbox& out) {
  Withdraw(waiter, CancelledError("cancelled by the caller"), out);
}

void Coordinator::DetachWaiter(WaiterId waiter, Outbox& out) {
  const Status status = CancelledError("connection closed");
  const auto numbered = numbered_calls_.find(waiter);
  if (numbered == numbered_calls_.end() ||
      !barriers_.Retarget(waiter, DetachedFrom(waiter))) {
    return Withdraw(waiter, status, out);
  }
  const NumberedCall moved = numbered->second;
  numbered_calls_.erase(numbered);
  numbered_calls_.emplace(DetachedFrom(waiter), moved);
  if (Member* member = membership_.Find(moved.member); member != nullptr) {
    member->replies.SetParked(moved.sequence, DetachedFrom(waiter));
  }
  out.Fail(waiter, status);
}

void Coordinator::Withdraw(WaiterId waiter, const Status& status, Outbox& out) {
  if (const auto it = numbered_calls_.find(waiter);
      it != numbered_calls_.end()) {
    Member* member = membership_.Find(it->second.member);
    if (member != nullptr) member->replies.Forget(it->second.sequence);
    numbered_calls_.erase(it);
  }
  if (store_.Cancel(waiter, status, out)) return;
  if (rendezvous_.Cancel(waiter, status, out)) return;
  barriers_.Cancel(waiter, status, out);
}

void Coordinator::Tick(Instant now, Outbox& out) {
  Tell(departures_.TakeDue(now), out);
  // Departures first: a barrier that is due too must name lost members as lost.
  std::vector<Event> departed;
  membership_.Expire(now, departed, out);
  HandleDepartures(departed, now, out);
  do {
    failures_.Expire(now, out);
  } while (EndWorld(now, out));
  const size_t first_reply = out.replies.size();
  barriers_.Expire(now, out);
  SettleRendezvous(now, out);
  rendezvous_.Expire(now, out);
  store_.Expire(now, out);
  Remember(first_reply, out);
}

std::optional<Instant> Coordinator::NextDeadline() const {
  std::optional<Instant> next;
  for (const std::optional<Instant>& deadline :
       {membership_.NextDeadline(), store_.NextDeadline(),
        rendezvous_.NextDeadline(), barriers_.NextDeadline(),
        failures_.NextDeadline(), departures_.NextDeadline()}) {
    if (!deadline.has_value()) continue;
    next = next.has_value() ? std::min(*next, *deadline) : *deadline;
  }
  return next;
}

void Coordinator::Read(const Call& call, Instant now, Outbox& out,
                       StoreVerb verb) {
  Member* member = nullptr;
  if (Admit(call, now, out, &member)) verb(store_);
}

void Coordinator::Mutate(const Call& call, absl::string_view method,
                         Instant now, Outbox& out, StoreVerb verb) {
  Mutate(call, method, now, out, [&] { verb(store_); });
}

void Coordinator::MutateAndPark(const Call& call, absl::string_view method,
                                Instant now, Outbox& out, StoreVerb verb) {
  Member* member = nullptr;
  if (!Admit(call, now, out, &member)) return;
  if (member == nullptr) return verb(store_);
  ApplyAndPark(call, method, *member, out, [&] { verb(store_); });
}

// Snapshots, counts and invariants.

MemberSnapshot Coordinator::MakeSnapshot(const Member& member,
                                         Instant now) const {
  MemberSnapshot snapshot;
  snapshot.id = member.id;
  snapshot.incarnation = member.incarnation;
  snapshot.state = member.state;
  if (member.generation == rendezvous_.generation()) {
    snapshot.rank = member.rank;
  }
  snapshot.registration = member.registration;
  snapshot.heard_ago = now - member.heard_at;
  snapshot.cause = member.cause;
  // The progress of a departed member ends with its departure.
  const Instant until = member.live() ? now : member.state_since;
  snapshot.last_progress =
      DescribeProgress(member.progress, until - member.progress_at);
  snapshot.progress = member.progress;
  snapshot.progress_age = until - member.progress_at;
  return snapshot;
}

JobSnapshot Coordinator::Snapshot(absl::string_view host, Rank first_rank,
                                  int32_t rank_count, Instant now) const {
  JobSnapshot job;
  job.epoch = epoch_;
  job.lease = membership_.options().lease;
  for (const auto& [id, member] : membership_.members()) {
    if (member.registration.host == host) {
      job.members.push_back(MakeSnapshot(member, now));
    }
  }
  job.forming_world_size = rendezvous_.forming_world_size();
  job.joined = static_cast<int32_t>(rendezvous_.waiters());
  job.missing_ranks = rendezvous_.FindMissing(first_rank, rank_count);
  return job;
}

JobSnapshot Coordinator::Snapshot(Instant now) const {
  JobSnapshot job;
  job.epoch = epoch_;
  job.lease = membership_.options().lease;
  for (const auto& [id, member] : membership_.members()) {
    job.members.push_back(MakeSnapshot(member, now));
    job.retained_replies += member.replies.size();
  }
  job.generation = rendezvous_.generation();
  job.generation_running = rendezvous_.running();
  if (rendezvous_.formation() != nullptr) {
    job.world_size =
        static_cast<int32_t>(rendezvous_.formation()->world.size());
  }
  job.forming_min_world_size = rendezvous_.forming_min_world_size();
  job.forming_world_size = rendezvous_.forming_world_size();
  if (rendezvous_.last_call_end().has_value()) {
    job.last_call_remaining =
        std::max(*rendezvous_.last_call_end() - now, Duration::zero());
  }
  job.rendezvous_closed = rendezvous_.closed();
  job.rendezvous_waiting = rendezvous_.Waiting(now);
  if (!rendezvous_.running() && generation_end_.has_value()) {
    const Event& end = *generation_end_;
    job.generation_end =
        absl::StrCat("rank ", end.rank.value_or(Rank(-1)).value(), " (",
                     end.host, ", pid ", end.pid, ") ", EventKindName(end.kind),
                     ": ", base::Printable(end.cause));
  }
  job.joined = static_cast<int32_t>(rendezvous_.waiters());
  job.joined_members = rendezvous_.FirstWaiters(kMissingInSnapshotMax);
  job.missing_ranks = rendezvous_.FirstMissing(kMissingInSnapshotMax);
  job.groups = groups_.Snapshot(now);
  job.open_barriers = barriers_.open();
  job.barriers = barriers_.Snapshot(now);
  job.key_waits = store_.KeyWaits(now, job.more_key_waits);
  job.keys = store_.keys();
  job.queue_items = store_.queue_items();
  job.store_bytes = store_.bytes();
  job.revision = store_.revision();
  job.waiters = quota_.parked();
  return job;
}

JobCounts Coordinator::Counts() const {
  JobCounts counts;
  counts.live_members = membership_.live();
  for (const auto& [id, member] : membership_.members()) {
    ++counts.members[static_cast<int>(member.state)];
  }
  if (rendezvous_.formation() != nullptr) {
    counts.world_size =
        static_cast<int32_t>(rendezvous_.formation()->world.size());
  }
  counts.keys = store_.keys();
  counts.store_bytes = store_.bytes();
  counts.waiters = quota_.parked();
  counts.open_barriers = barriers_.open();
  counts.groups = groups_.size();
  counts.queue_items = store_.queue_items();
  counts.generation = rendezvous_.generation();
  counts.generation_running = rendezvous_.running();
  return counts;
}

bool Coordinator::Idle() const {
  return membership_.live() == 0 && quota_.parked() == 0;
}

bool Coordinator::Blank() const {
  return store_.revision() == 0 && membership_.members().empty() &&
         rendezvous_.generation() == Generation() &&
         rendezvous_.closed().empty();
}

Status Coordinator::CheckInvariants() const {
  for (const Status& status :
       {membership_.CheckInvariants(), store_.CheckInvariants(),
        rendezvous_.CheckInvariants(), groups_.CheckInvariants(),
        failures_.CheckInvariants(), barriers_.CheckInvariants(),
        departures_.CheckInvariants(rendezvous_.generation())}) {
    if (!status.ok()) return status;
  }
  const int64_t parked =
      store_.waiters() + rendezvous_.waiters() + barriers_.waiters();
  if (parked != quota_.parked()) {
    return InternalError(absl::StrCat("coordinator: counts ", quota_.parked(),
                                      " waiters, has ", parked));
  }
  const int64_t mutations =
      store_.pops() + rendezvous_.waiters() + barriers_.waiters();
  if (static_cast<int64_t>(numbered_calls_.size()) > mutations) {
    return InternalError(absl::StrCat("coordinator: ", numbered_calls_.size(),
                                      " origins for ", mutations,
                                      " parked mutations"));
  }
  const int64_t memory = membership_.CountMemory() + store_.CountMemory() +
                         quota_.bytes() + kWaiterMemory * quota_.parked();
  if (limits_.memory != nullptr && memory != limits_.memory->held()) {
    return InternalError(absl::StrCat("coordinator: counts ",
                                      limits_.memory->held(), " bytes, has ",
                                      memory));
  }
  return OkStatus();
}

// Conversion of the state to records and back.

namespace {

// Takes the records of one type, so that members are restored before records
// that refer to them, and the generation before its barriers.
template <typename T>
void TakeOut(std::vector<Record>& records, std::vector<T>& out) {
  for (Record& record : records) {
    if (T* const found = std::get_if<T>(&record)) {
      out.push_back(std::move(*found));
    }
  }
}

// Replaces a join's recorded answer, which has only the generation's number.
void ResolveFormation(const FormationReply& newest, ReplyRecord& record) {
  auto* const answer = std::get_if<FormationReply>(&record.payload);
  if (answer == nullptr || *answer == nullptr) return;
  if (newest != nullptr && newest->generation == (*answer)->generation) {
    *answer = newest;
    return;
  }
  record.status = AbortedError(absl::StrCat("rendezvous: generation ",
                                            (*answer)->generation.value(),
                                            " is over; rendezvous again"));
  record.payload = std::monostate();
}

// The leave of a member of which only the seat is known.
Event LeftEarlier(Generation generation, Rank rank, const Seat& seat) {
  Event event;
  event.kind = EventKind::kLeft;
  event.member = seat.member;
  event.incarnation = seat.incarnation;
  event.rank = rank;
  event.host = seat.host;
  event.pid = seat.pid;
  event.cause = "left before the coordinator was restarted";
  event.generation = generation;
  return event;
}

}  // namespace

std::vector<Record> Coordinator::TakeChanges() {
  std::vector<Record> changes;
  for (const MemberId& id : journal_.members) {
    changes.push_back(membership_.MakeRecord(id));
  }
  for (const auto& [id, sequence] : journal_.replies) {
    ReplyRecord record;
    record.member = id;
    record.sequence = sequence;
    record.erased = true;
    const Member* member = membership_.Find(id);
    if (member != nullptr) member->replies.Record(record);
    changes.push_back(std::move(record));
  }
  if (journal_.generation) {
    changes.push_back(GenerationRecord{rendezvous_.formation(),
                                       rendezvous_.running(), generation_end_,
                                       rendezvous_.closed()});
  }
  for (const std::string& group : journal_.groups) {
    changes.push_back(groups_.MakeRecord(group));
  }
  for (const auto& [group, rank] : journal_.group_ranks) {
    changes.push_back(groups_.MakeRecord(group, rank));
  }
  for (const auto& [group, instance] : journal_.group_failures) {
    changes.push_back(failures_.MakeRecord(group, instance));
  }
  for (const auto& [group, barrier] : journal_.series) {
    changes.push_back(barriers_.MakeRecord(group, barrier));
  }
  for (const auto& [group, barrier, instance] : journal_.decisions) {
    changes.push_back(barriers_.MakeRecord(group, barrier, instance));
  }
  for (const auto& [group, barrier, rank] : journal_.taken) {
    changes.push_back(barriers_.MakeRecord(group, barrier, rank));
  }
  for (const std::string& key : journal_.keys) {
    changes.push_back(store_.MakeRecord(key));
  }
  for (const auto& [key, number] : journal_.items) {
    changes.push_back(store_.MakeRecord(key, number));
  }
  for (const auto& [name, fresh] : journal_.changes) {
    changes.push_back(store_.MakeChangeRecord(name.first, name.second));
  }
  if (!journal_.keys.empty() || !journal_.items.empty() || journal_.history) {
    changes.push_back(store_.MakeStoreRecord());
  }
  journal_.Clear();
  return changes;
}

// Finds the departures from the newest generation by its seats, because a
// member may have come back with a new incarnation, or be forgotten.
void Coordinator::RestoreDepartures(Instant now) {
  const FormationReply formation = rendezvous_.formation();
  if (formation == nullptr) return;
  if (generation_end_ && generation_end_->rank) {
    failures_.Restore(*generation_end_);
  }
  for (size_t i = 0; i < formation->world.size(); ++i) {
    const Seat& seat = formation->world[i];
    const Member* const member = membership_.Find(seat.member);
    std::optional<Event> departed;
    if (member != nullptr && member->incarnation == seat.incarnation) {
      if ((member->state == MemberState::kLeft ||
           member->state == MemberState::kLost) &&
          member->rank.has_value()) {
        departed = membership_.DepartedEvent(*member, now);
      }
    } else if (rendezvous_.running()) {
      // The member has left: other departures would have ended the generation.
      departed = LeftEarlier(formation->generation,
                             Rank(static_cast<int32_t>(i)), seat);
    }
    if (!departed.has_value()) continue;
    if (departed->kind == EventKind::kLeft) departures_.Restore(*departed);
    failures_.Restore(*departed);
  }
}

void Coordinator::Restore(std::vector<Record> records, Instant now) {
  std::vector<MemberRecord> members;
  TakeOut(records, members);
  for (MemberRecord& record : members) {
    membership_.Restore(std::move(record), now);
  }

  std::vector<GenerationRecord> generations;
  TakeOut(records, generations);
  for (GenerationRecord& record : generations) {
    barriers_.RestoreFormation(record.formation);
    groups_.RestoreFormation(record.formation);
    failures_.RestoreFormation(record.formation);
    rendezvous_.Restore(std::move(record.formation), record.running,
                        std::move(record.closed));
    generation_end_ = std::move(record.end);
  }
  RestoreDepartures(now);

  std::vector<GroupRecord> groups;
  TakeOut(records, groups);
  for (GroupRecord& record : groups) groups_.Restore(std::move(record), now);
  std::vector<GroupRankRecord> group_ranks;
  TakeOut(records, group_ranks);
  for (const GroupRankRecord& record : group_ranks) groups_.Restore(record);

  std::vector<GroupFailureRecord> failures;
  TakeOut(records, failures);
  for (GroupFailureRecord& record : failures) {
    failures_.Restore(std::move(record));
  }

  std::vector<SeriesRecord> series;
  TakeOut(records, series);
  for (SeriesRecord& record : series) barriers_.Restore(std::move(record));
  std::vector<DecisionRecord> decisions;
  TakeOut(records, decisions);
  for (DecisionRecord& record : decisions) barriers_.Restore(std::move(record));
  std::vector<TakenRecord> taken;
  TakeOut(records, taken);
  for (const TakenRecord& record : taken) barriers_.Restore(record);

  std::vector<ReplyRecord> replies;
  TakeOut(records, replies);
  absl::btree_map<MemberId, std::vector<ReplyRecord>> replies_of;
  for (ReplyRecord& record : replies) {
    ResolveFormation(rendezvous_.formation(), record);
    replies_of[record.member].push_back(std::move(record));
  }
  for (auto& [id, kept] : replies_of) {
    Member* const member = membership_.Find(id);
    if (member != nullptr) member->replies.Restore(std::move(kept));
  }

  std::vector<EntryRecord> entries;
  TakeOut(records, entries);
  for (EntryRecord& record : entries) store_.Restore(std::move(record), now);
  std::vector<ItemRecord> items;
  TakeOut(records, items);
  for (ItemRecord& record : items) store_.Restore(std::move(record));
  std::vector<ChangeRecord> changes;
  TakeOut(records, changes);
  std::sort(changes.begin(), changes.end(),
            [](const ChangeRecord& one, const ChangeRecord& other) {
              return std::tie(one.revision, one.key) <
                     std::tie(other.revision, other.key);
            });
  for (ChangeRecord& record : changes) store_.Restore(std::move(record));
  std::vector<StoreRecord> store;
  TakeOut(records, store);
  for (const StoreRecord& record : store) store_.Restore(record, now);
}

}  // namespace muster::coordinator::core
