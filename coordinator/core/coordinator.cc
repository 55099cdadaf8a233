#include "coordinator/core/coordinator.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/text.h"

namespace muster::coordinator::core {
namespace {

// Marks the waiter of an arrival whose connection has gone. It stands in the
// barrier in place of the real one, which has its answer; the decision goes to
// the reply cache only.
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
      barriers_(&limits_, &quota_, &membership_, &groups_, &journal_) {}

// Lets pass whoever may use the store; `*member` is null for a plain client.
// Answers the call otherwise.
bool Coordinator::Admit(const Call& call, Instant now, Outbox& out,
                        Member** member) {
  *member = nullptr;
  if (call.member.value().empty()) return true;
  return AdmitMember(call, now, out, member);
}

// Lets pass live members only.
bool Coordinator::AdmitMember(const Call& call, Instant now, Outbox& out,
                              Member** member) {
  absl::StatusOr<Member*> admitted = membership_.Admit(call, now, out);
  if (!admitted.ok()) {
    out.Fail(call.waiter, admitted.status());
    return false;
  }
  *member = *admitted;
  if ((*member)->dismissed) {
    Membership::Return(**member, now);
    rendezvous_.MemberReturned(call.member, out);
  }
  return true;
}

// Answers the call, now or when the first one is answered, if it is a retry.
bool Coordinator::Replay(const Call& call, absl::string_view method,
                         Member& member, Outbox& out) {
  if (call.message == 0 || call.message != member.acknowledged_by) {
    const absl::Status acknowledged = member.replies.Acknowledge(
        call.acknowledged_through, call.unanswered, limits_,
        [&](SequenceNumber sequence) { journal_.Reply(member.id, sequence); });
    if (!acknowledged.ok()) {
      out.Fail(call.waiter, acknowledged);
      return true;
    }
    member.acknowledged_by = call.message;
  }
  absl::StatusOr<ReplyCache::Entry*> entry =
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

// The newer waiter awaits the answer of the parked call.
void Coordinator::TakeOver(const Call& call, ReplyCache::Entry& entry,
                           Outbox& out) {
  const WaiterId older = entry.waiter;
  if (!IsDetached(older)) {
    out.Fail(older,
             absl::CancelledError(absl::StrCat(
                 "superseded by a retry of sequence ", call.sequence.value())));
  }
  if (!store_.Retarget(older, call.waiter) &&
      !rendezvous_.Retarget(older, call.waiter)) {
    barriers_.Retarget(older, call.waiter);
  }
  origins_.erase(older);
  origins_.emplace(call.waiter, Origin{call.member, call.sequence});
  entry.waiter = call.waiter;
}

// Runs a verb that answers its caller at once, first of all waiters.
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
  // It may have answered a pop.
  Remember(first_reply, out);
}

void Coordinator::SetDone(Member& member, SequenceNumber sequence,
                          const Reply& reply) {
  member.replies.SetDone(sequence, reply);
  journal_.Reply(member.id, sequence);
}

// Runs a verb of a member that may park its caller.
void Coordinator::MutateAndPark(const Call& call, absl::string_view method,
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
    origins_.emplace(call.waiter, Origin{call.member, call.sequence});
  }
  verb();
  Remember(first_reply, out);
}

// Keeps the answers to numbered calls that were parked, and takes out those
// that have no waiter any more.
void Coordinator::Remember(size_t first_reply, Outbox& out) {
  if (origins_.empty()) return;
  size_t kept = first_reply;
  for (size_t i = first_reply; i < out.replies.size(); ++i) {
    Reply& reply = out.replies[i];
    const bool detached = IsDetached(reply.waiter);
    if (const auto it = origins_.find(reply.waiter); it != origins_.end()) {
      Member* member = membership_.Find(it->second.member);
      if (member != nullptr) SetDone(*member, it->second.sequence, reply);
      origins_.erase(it);
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
  absl::StatusOr<Member*> registered =
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
  TellAgain(call, farewells_.All(), out);
  if (!reply.generation_running) {
    TellAgain(call, generation_end_, out);
  } else if (reply.waiting > 0) {
    TellAgain(call, WaitingEvent(), out);
  }
}

// Tells the caller alone, if there is something to tell.
void Coordinator::TellAgain(const Call& call, std::optional<Event> event,
                            Outbox& out) {
  if (!event.has_value()) return;
  out.events.push_back(
      Publication{std::make_shared<const std::vector<MemberId>>(
                      std::vector<MemberId>{call.member}),
                  *std::move(event), /*again=*/true});
}

void Coordinator::Heartbeat(const Call& call,
                            std::vector<GroupProgress> progress, Instant now,
                            Outbox& out) {
  if (!membership_.HasReported(call)) {
    Member* member = nullptr;
    if (!AdmitMember(call, now, out, &member)) return;
    absl::Status status =
        membership_.Heartbeat(*member, std::move(progress), now);
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

void Coordinator::Disconnected(const MemberId& member, Incarnation incarnation,
                               Instant now, Outbox& out, bool dismissed) {
  membership_.Disconnected(member, incarnation, now, out, dismissed);
}

void Coordinator::Join(const Call& call, JoinRequest request, Instant now,
                       Outbox& out) {
  MutateAndPark(call, "Join", now, out, [&] {
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
  const FormationReply formation = rendezvous_.Settle(now, out);
  if (formation == nullptr) return;
  // To those that hold on to the one before.
  Tell(farewells_.TakeUntold(now), out);
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
  farewells_.Reset();
  groups_.Reset(formation);
  barriers_.Reset(formation, now, out);
}

// `member` has waited for longest.
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
// one, and would not hear of it from anybody else.
void Coordinator::HandleAbandonment(const Member& member, Instant now,
                                    Outbox& out) {
  Event event = membership_.Abandoned(member, now);
  event.generation_over = true;
  generation_end_ = event;
  out.Note(NoticeKind::kGenerationEnded,
           absl::StrCat("generation=", event.generation.value(),
                        " member=", base::LogValue(event.member.value()),
                        " joins the next"));
  barriers_.MemberDeparted(event,
                           absl::AbortedError(absl::StrCat(
                               "member ", base::Quote(event.member.value()),
                               " ", base::Printable(event.cause))),
                           now, out);
  Tell(farewells_.TakeUntold(now), out);
  Publish({std::move(event)}, out);
}

void Coordinator::RegisterGroups(const Call& call, Generation generation,
                                 const std::vector<std::string>& left,
                                 std::vector<GroupDefinition> groups,
                                 Instant now, Outbox& out) {
  MutateAndPark(call, "RegisterGroups", now, out, [&] {
    groups_.Register(call, generation, left, std::move(groups), now, out);
  });
}

void Coordinator::Arrive(const Call& call, const BarrierRequest& request,
                         Instant now, Outbox& out) {
  MutateAndPark(call, "AwaitBarrier", now, out,
                [&] { barriers_.Arrive(call, request, now, out); });
}

// What follows from departures: their calls fail, their seats and arrivals are
// free, and the others are told.
void Coordinator::HandleDepartures(std::vector<Event>& departed, Instant now,
                                   Outbox& out) {
  if (departed.empty()) return;
  const size_t first_reply = out.replies.size();
  std::vector<Event> published;
  for (Event& event : departed) {
    const absl::Status status = DepartedError(event);
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
    if (!event.rank.has_value()) continue;
    if (event.kind == EventKind::kLeft && !ended) {
      farewells_.Add(
          std::move(event),
          membership_.live() * membership_.options().farewell_pause_per_member,
          now);
    } else {
      published.push_back(std::move(event));
    }
  }
  // In the order in which they went: before what is told at once. Where only
  // members that failed listen, there is nothing to gather.
  const bool gather = published.empty() && membership_.live() > 0;
  Tell(gather ? farewells_.TakeDue(now) : farewells_.TakeUntold(now), out);
  if (membership_.live() == 0) {
    barriers_.Clear(now, out);
    groups_.Clear();
    farewells_.Reset();
  }
  Publish(std::move(published), out);
  SettleRendezvous(now, out);
  Remember(first_reply, out);
}

void Coordinator::Tell(std::optional<Event> event, Outbox& out) {
  if (event.has_value()) Publish(std::vector<Event>{*std::move(event)}, out);
}

// To all who listen. Not to the one that it is about when it was replaced, gave
// up its rank or has come back: it is alive, and knows. Who reported a failure
// is told of that too, because another's report may have come first; and who
// left with others and has come back is told of all of them, itself too.
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
  Withdraw(waiter, absl::CancelledError("cancelled by the caller"), out);
}

void Coordinator::DetachWaiter(WaiterId waiter, Outbox& out) {
  const absl::Status status = absl::CancelledError("connection closed");
  const auto origin = origins_.find(waiter);
  if (origin == origins_.end() ||
      !barriers_.Retarget(waiter, DetachedFrom(waiter))) {
    return Withdraw(waiter, status, out);
  }
  const Origin moved = origin->second;
  origins_.erase(origin);
  origins_.emplace(DetachedFrom(waiter), moved);
  if (Member* member = membership_.Find(moved.member); member != nullptr) {
    member->replies.SetParked(moved.sequence, DetachedFrom(waiter));
  }
  out.Fail(waiter, status);
}

void Coordinator::Withdraw(WaiterId waiter, const absl::Status& status,
                           Outbox& out) {
  if (const auto it = origins_.find(waiter); it != origins_.end()) {
    Member* member = membership_.Find(it->second.member);
    if (member != nullptr) member->replies.Forget(it->second.sequence);
    origins_.erase(it);
  }
  if (store_.Cancel(waiter, status, out)) return;
  if (rendezvous_.Cancel(waiter, status, out)) return;
  barriers_.Cancel(waiter, status, out);
}

void Coordinator::Tick(Instant now, Outbox& out) {
  Tell(farewells_.TakeDue(now), out);
  // Departures first, so that a barrier whose deadline is due as well names
  // the lost as lost.
  std::vector<Event> departed;
  membership_.Expire(now, departed, out);
  HandleDepartures(departed, now, out);
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
        farewells_.NextDeadline()}) {
    if (!deadline.has_value()) continue;
    next = next.has_value() ? std::min(*next, *deadline) : *deadline;
  }
  return next;
}

}  // namespace muster::coordinator::core
