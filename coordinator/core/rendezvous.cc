#include "coordinator/core/rendezvous.h"

#include <algorithm>
#include <cstddef>
#include <iterator>
#include <limits>
#include <memory>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "base/text.h"

namespace muster::coordinator::core {
namespace {

// An incomplete world is logged after kFirstReport, then every kReportInterval.
constexpr Duration kFirstReport = std::chrono::seconds(10);
constexpr Duration kReportInterval = std::chrono::seconds(30);

}  // namespace

Rendezvous::Rendezvous(const Limits* limits, WaiterQuota* quota,
                       const Membership* membership, Journal* journal)
    : limits_(*limits),
      quota_(*quota),
      membership_(*membership),
      journal_(*journal) {}

Rendezvous::~Rendezvous() = default;

Generation Rendezvous::generation() const {
  return formation_ == nullptr ? Generation() : formation_->generation;
}

Rendezvous::Terms Rendezvous::ToTerms(const JoinRequest& request) {
  Terms terms;
  if (request.world_size != 0) {
    terms.min = request.world_size;
    terms.max = request.world_size;
    return terms;
  }
  terms.elastic = true;
  terms.min = request.min_world_size;
  terms.max = request.max_world_size;
  terms.last_call = request.last_call.value_or(kDefaultLastCall);
  return terms;
}

Status Rendezvous::ClosedError() const {
  return OutOfRangeError(absl::StrCat("rendezvous: closed by ", closed_));
}

// Checks that the request has exactly one of the two forms, and its fields.
Status Rendezvous::CheckForm(const Call& call,
                             const JoinRequest& request) const {
  const bool elastic =
      request.min_world_size != 0 || request.max_world_size != 0;
  const std::string range =
      absl::StrCat(request.min_world_size, " to ", request.max_world_size);
  std::string wrong;
  if (elastic && request.world_size != 0) {
    wrong = absl::StrCat("world size ", request.world_size, " and for ", range,
                         "; set world_size, or min_world_size and "
                         "max_world_size");
  } else if (!elastic && request.world_size == 0) {
    wrong =
        "no world size; set world_size, or min_world_size and max_world_size";
  } else if (!elastic && request.world_size < 0) {
    wrong = absl::StrCat("world size ", request.world_size,
                         ", which is not positive");
  } else if (!elastic && request.last_call.has_value()) {
    wrong =
        absl::StrCat("world size ", request.world_size, " with a last call of ",
                     FormatDuration(*request.last_call),
                     "; only min_world_size and max_world_size have one");
  } else if (elastic && request.min_world_size < 1) {
    wrong = absl::StrCat("world size ", range, "; min_world_size ",
                         request.min_world_size, " is not positive");
  } else if (elastic && request.min_world_size > request.max_world_size) {
    wrong = absl::StrCat(
        "world size ", range, "; min_world_size ", request.min_world_size,
        " is greater than max_world_size ", request.max_world_size);
  } else if (elastic && request.rank.has_value()) {
    wrong = absl::StrCat("rank ", request.rank->value(), " of world size ",
                         range, "; ranks are claimed with world_size only");
  } else {
    return OkStatus();
  }
  return InvalidArgumentError(
      absl::StrCat("rendezvous: ", Claimant(call.member), " asks for ", wrong));
}

Status Rendezvous::CheckSizes(const Call& call,
                              const JoinRequest& request) const {
  const Terms terms = ToTerms(request);
  Status status = CheckLimit("world_size", limits_.world_size, terms.max,
                             {"member", call.member.value()});
  if (status.ok()) status = CheckParkedTime(limits_, request.timeout);
  if (status.ok()) status = CheckParkedTime(limits_, terms.last_call);
  if (!status.ok()) return status;
  return CheckLimit("value_bytes", limits_.value_bytes,
                    static_cast<int64_t>(request.address.size()),
                    {"address of", call.member.value()});
}

Status Rendezvous::CheckRequest(const Call& call, const JoinRequest& request) {
  if (!closed_.empty()) return ClosedError();
  Status status = CheckForm(call, request);
  if (status.ok()) status = CheckSizes(call, request);
  if (!status.ok()) return status;
  if (request.rank.has_value() &&
      (request.rank->value() < 0 ||
       request.rank->value() >= request.world_size)) {
    return InvalidArgumentError(absl::StrCat(
        "rendezvous: ", Claimant(call.member), " asks for rank ",
        request.rank->value(), " of world size ", request.world_size,
        " (ranks 0 to ", request.world_size - 1, ")"));
  }
  const Terms terms = ToTerms(request);
  if (!joins_.empty() && terms != terms_) {
    return InvalidArgumentError(absl::StrCat(
        "rendezvous: ", Claimant(call.member), " asks for world size ",
        Text(terms), ", ", Claimant(terms_claimant_), " for ", Text(terms_)));
  }
  // In the elastic form a member without a seat waits.
  return terms.elastic ? OkStatus() : CheckSeat(call, request);
}

Status Rendezvous::CheckSeat(const Call& call, const JoinRequest& request) {
  if (!request.rank.has_value()) {
    if (!AllSeatsHeld(call, request.world_size)) return OkStatus();
    return AlreadyExistsError(absl::StrCat(
        "rendezvous: all ", request.world_size, " ranks of running generation ",
        formation_->generation.value(), " are held by live members; ",
        Claimant(call.member), " cannot join"));
  }
  if (const auto claim = claims_.find(*request.rank); claim != claims_.end()) {
    return AlreadyExistsError(absl::StrCat(
        "rendezvous: rank ", request.rank->value(), " is claimed twice: by ",
        Claimant(claim->second), " and by ", Claimant(call.member)));
  }
  const Seat* holder = OtherHolder(*request.rank, call.member);
  // The holder, whose connection is down, may be gone, and the claimant may be
  // the same process, restarted. The claimant waits until that is known.
  if (holder == nullptr ||
      membership_.Find(holder->member)->state == MemberState::kDisconnected) {
    return OkStatus();
  }
  return HeldError(*holder, *request.rank, call.member);
}

// The holder of `rank` in the running generation; null: nobody but `member`.
const Seat* Rendezvous::OtherHolder(Rank rank, const MemberId& member) const {
  const Seat* const holder = LiveHolder(rank);
  return holder == nullptr || holder->member == member ? nullptr : holder;
}

Status Rendezvous::HeldError(const Seat& holder, Rank rank,
                             const MemberId& claimant) const {
  return AlreadyExistsError(absl::StrCat(
      "rendezvous: rank ", rank.value(), " of running generation ",
      formation_->generation.value(), " is held by live ",
      Claimant(holder.member), "; ", Claimant(claimant), " cannot take it"));
}

// Whether a join waits for the loss of a member whose connection is down.
bool Rendezvous::AwaitsLoss() const {
  return contests_ > 0 &&
         std::any_of(joins_.begin(), joins_.end(), [&](const auto& entry) {
           const PendingJoin& join = entry.second;
           return join.contests &&
                  OtherHolder(*join.request.rank, join.member) != nullptr;
         });
}

void Rendezvous::MemberReturned(const MemberId& id, Outbox& out) {
  if (contests_ == 0 || formation_ == nullptr) return;
  const auto seat = formation_->ranks.find(id);
  if (seat == formation_->ranks.end()) return;
  const auto claim = claims_.find(seat->second);
  if (claim == claims_.end()) return;
  const Seat* const holder = OtherHolder(seat->second, claim->second);
  const PendingJoin& join = joins_.at(claim->second);
  if (holder == nullptr || holder->member != id || !join.contests) return;
  out.Fail(join.waiter, HeldError(*holder, seat->second, join.member));
  Remove(join);
}

// Whether live members of the running generation other than the caller hold all
// ranks below `world_size`.
bool Rendezvous::AllSeatsHeld(const Call& call, int32_t world_size) {
  if (!running_) return false;
  const int32_t size = static_cast<int32_t>(formation_->world.size());
  if (world_size > size) return false;
  const auto own = formation_->ranks.find(call.member);
  if (own != formation_->ranks.end() && own->second.value() < world_size) {
    return false;
  }
  if (seated_ == size) return true;
  for (int32_t i = 0; i < world_size; ++i) {
    vacant_ %= static_cast<size_t>(world_size);
    if (LiveHolder(Rank(static_cast<int32_t>(vacant_))) == nullptr) {
      return false;
    }
    ++vacant_;
  }
  return true;
}

bool Rendezvous::Join(const Call& call, JoinRequest request, Instant now,
                      Outbox& out) {
  const Terms agreed = terms_;
  const std::optional<Instant> open_since = open_since_;
  const std::optional<Instant> last_call_end = last_call_end_;
  if (const auto it = joins_.find(call.member); it != joins_.end()) {
    out.Fail(it->second.waiter, CancelledError(absl::StrCat(
                                    "superseded by a newer join of member ",
                                    base::Quote(call.member.value()))));
    Remove(it->second);
  }
  Status status = CheckRequest(call, request);
  if (status.ok()) {
    status = quota_.Take(static_cast<int64_t>(request.address.size()),
                         {"member", call.member.value()});
  }
  if (!status.ok()) {
    out.Fail(call.waiter, std::move(status));
    return false;
  }
  if (joins_.empty()) {
    terms_ = ToTerms(request);
    terms_claimant_ = call.member;
  }
  PendingJoin join;
  join.waiter = call.waiter;
  join.member = call.member;
  join.request = std::move(request);
  join.order = next_order_++;
  join.joined_at = now;
  join.deadline = DeadlineAfter(now, join.request.timeout);
  if (join.request.rank.has_value()) {
    join.contests = OtherHolder(*join.request.rank, join.member) != nullptr;
    contests_ += join.contests ? 1 : 0;
    claims_.emplace(*join.request.rank, join.member);
    gave_up_.erase(*join.request.rank);
  }
  members_by_waiter_.emplace(join.waiter, join.member);
  deadlines_.emplace(join.deadline, join.member);
  queue_.emplace(join.order, join.member);
  if (IsReturn(join)) ++returned_;
  joins_.emplace(call.member, std::move(join));
  // If the caller has only replaced its own join, nobody has come or gone.
  if (terms_ == agreed) {
    open_since_ = open_since;
    last_call_end_ = last_call_end;
  }
  return true;
}

FormationReply Rendezvous::TryForm(Instant now, Outbox& out) {
  if (joins_.empty() || Held()) {
    open_since_.reset();
    last_call_end_.reset();
    return nullptr;
  }
  if (!open_since_.has_value()) {
    open_since_ = now;
    report_at_ = DeadlineAfter(now, kFirstReport);
  }
  const int32_t waiting = static_cast<int32_t>(joins_.size());
  if (waiting < terms_.min) {
    last_call_end_.reset();
    return nullptr;
  }
  if (AwaitsLoss()) return nullptr;
  const bool begins = !last_call_end_.has_value();
  if (begins) last_call_end_ = DeadlineAfter(now, terms_.last_call);
  if (*last_call_end_ <= now || (waiting >= terms_.max && !AwaitsReturn())) {
    return Form(now, out);
  }
  if (begins) {
    out.Note(NoticeKind::kRendezvousLastCall,
             absl::StrCat("members=", waiting, " min=", terms_.min,
                          " max=", terms_.max,
                          " ends_in=", FormatDuration(terms_.last_call)));
  }
  return nullptr;
}

// Whether a live member of the previous generation has not joined yet, and a
// newcomer would get its seat.
bool Rendezvous::AwaitsReturn() {
  if (formation_ == nullptr || returned_ >= terms_.max) return false;
  const std::vector<Seat>& world = formation_->world;
  for (size_t i = 0; i < world.size(); ++i) {
    away_ %= world.size();
    if (IsAway(world[away_])) return true;
    ++away_;
  }
  return false;
}

// Whether the seat's member is alive and has not joined again.
bool Rendezvous::IsAway(const Seat& seat) const {
  if (joins_.contains(seat.member)) return false;
  const Member* member = membership_.Find(seat.member);
  return member != nullptr && member->live();
}

bool Rendezvous::IsReturn(const PendingJoin& join) const {
  return formation_ != nullptr && formation_->ranks.contains(join.member);
}

// The previous ranks of waiting members that were in the previous generation.
absl::flat_hash_map<MemberId, Rank> Rendezvous::RanksBefore() const {
  absl::flat_hash_map<MemberId, Rank> ranks;
  if (formation_ == nullptr) return ranks;
  for (size_t i = 0; i < formation_->world.size(); ++i) {
    const MemberId& member = formation_->world[i].member;
    if (joins_.contains(member)) {
      ranks.emplace(member, Rank(static_cast<int32_t>(i)));
    }
  }
  return ranks;
}

// Assigns the ranks. This happens only now, so that a later claim never meets a
// rank that was given away.
absl::btree_map<Rank, MemberId> Rendezvous::SeatJoins() const {
  const absl::flat_hash_map<MemberId, Rank> before = RanksBefore();
  // Returning members are seated before newcomers.
  absl::btree_map<std::pair<Rank, uint64_t>, const PendingJoin*> queue;
  const Rank kNone(std::numeric_limits<int32_t>::max());
  for (const auto& [member, join] : joins_) {
    const auto held = before.find(member);
    queue.emplace(
        std::pair(held == before.end() ? kNone : held->second, join.order),
        &join);
  }
  const size_t world_size =
      std::min(queue.size(), static_cast<size_t>(terms_.max));
  absl::btree_map<Rank, MemberId> seats;
  absl::btree_map<uint64_t, MemberId> others;
  for (const auto& [rank, member] : claims_) seats.emplace(rank, member);
  size_t seated = 0;
  for (const auto& [place, join] : queue) {
    if (seated++ == world_size) break;
    if (join->request.rank.has_value()) continue;
    if (place.first.value() >= static_cast<int32_t>(world_size) ||
        !seats.emplace(place.first, join->member).second) {
      others.emplace(join->order, join->member);
    }
  }
  int32_t next = 0;
  for (const auto& [order, member] : others) {
    while (seats.contains(Rank(next))) ++next;
    seats.emplace(Rank(next), member);
  }
  return seats;
}

FormationReply Rendezvous::Form(Instant now, Outbox& out) {
  auto formation = std::make_shared<Formation>();
  formation->generation = Generation(generation().value() + 1);
  const absl::btree_map<Rank, MemberId> seats = SeatJoins();
  std::vector<WaiterId> waiters;
  for (const auto& [rank, id] : seats) {
    const PendingJoin& join = joins_.at(id);
    const Member* member = membership_.Find(id);
    Seat seat;
    seat.member = id;
    if (member != nullptr) {
      seat.incarnation = member->incarnation;
      seat.host = member->registration.host;
      seat.pid = member->registration.pid;
    }
    seat.address = join.request.address;
    formation->world.push_back(std::move(seat));
    waiters.push_back(join.waiter);
  }
  RankAll(*formation);
  if (running_) {
    out.Note(NoticeKind::kGenerationEnded,
             absl::StrCat("generation=", generation().value(),
                          " cause=\"superseded by generation ",
                          formation->generation.value(), "\""));
  }
  const Duration took = now - *open_since_;
  for (const auto& [rank, member] : seats) Remove(joins_.at(member));
  open_since_.reset();
  last_call_end_.reset();
  gave_up_.clear();
  std::string text = absl::StrCat("generation=", formation->generation.value(),
                                  " world_size=", formation->world.size());
  if (!joins_.empty()) absl::StrAppend(&text, " waiting=", joins_.size());
  out.Note(NoticeKind::kGenerationFormed, std::move(text), took);
  seated_ = static_cast<int64_t>(formation->world.size());
  running_ = true;
  formation_ = std::move(formation);
  returned_ = static_cast<int32_t>(
      std::count_if(joins_.begin(), joins_.end(),
                    [&](const auto& join) { return IsReturn(join.second); }));
  journal_.Generation();
  for (WaiterId waiter : waiters) out.Answer(waiter, formation_);
  return formation_;
}

void Rendezvous::Remove(const PendingJoin& join) {
  if (join.request.rank.has_value()) claims_.erase(*join.request.rank);
  members_by_waiter_.erase(join.waiter);
  deadlines_.erase({join.deadline, join.member});
  queue_.erase(join.order);
  if (IsReturn(join)) --returned_;
  if (join.contests) --contests_;
  quota_.Release(static_cast<int64_t>(join.request.address.size()));
  const MemberId member = join.member;
  joins_.erase(member);
  if (static_cast<int32_t>(joins_.size()) < terms_.min) last_call_end_.reset();
  if (joins_.empty()) {
    terms_ = Terms();
    open_since_.reset();
    gave_up_.clear();
  } else if (terms_claimant_ == member) {
    // The others have the same terms; an error text must name a present member.
    terms_claimant_ = joins_.begin()->first;
  }
}

void Rendezvous::Close(const Call& call, absl::string_view reason,
                       Outbox& out) {
  if (!closed_.empty()) return;
  const std::string why =
      reason.empty() ? "no reason given" : CutText(reason, limits_.text_bytes);
  // A client without a member id is an operator.
  closed_ = absl::StrCat(
      call.member == MemberId() ? "an operator" : Claimant(call.member), ": ",
      base::Printable(why));
  journal_.Generation();
  out.Note(NoticeKind::kRendezvousClosed,
           absl::StrCat("member=", base::LogValue(call.member.value()),
                        " cause=", TextInNotice(why)));
  while (!joins_.empty()) {
    const PendingJoin& join = joins_.begin()->second;
    out.Fail(join.waiter, ClosedError());
    Remove(join);
  }
}

const MemberId* Rendezvous::first_waiter() const {
  return queue_.empty() ? nullptr : &queue_.begin()->second;
}

bool Rendezvous::Abandon(const MemberId& id) {
  const Member* member = membership_.Find(id);
  if (!running_ || member == nullptr || !member->rank.has_value() ||
      member->generation != generation() || !joins_.contains(id)) {
    return false;
  }
  running_ = false;
  journal_.Generation();
  return true;
}

bool Rendezvous::MemberDeparted(const Event& event, Outbox& out) {
  if (const auto it = joins_.find(event.member); it != joins_.end()) {
    out.Fail(it->second.waiter, DepartedError(event));
    Remove(it->second);
  }
  if (!event.rank.has_value() || event.generation != generation()) return false;
  --seated_;
  if (!running_) return false;
  if (event.kind == EventKind::kLeft && seated_ > 0) return false;
  running_ = false;
  journal_.Generation();
  return true;
}

void Rendezvous::Restore(FormationReply formation, bool running,
                         std::string closed) {
  closed_ = std::move(closed);
  formation_ = std::move(formation);
  running_ = running;
  seated_ = 0;
  if (formation_ == nullptr) return;
  for (const Seat& seat : formation_->world) {
    const Member* member = membership_.Find(seat.member);
    if (member != nullptr && member->incarnation == seat.incarnation &&
        member->live()) {
      ++seated_;
    }
  }
}

bool Rendezvous::Cancel(WaiterId waiter, const Status& status, Outbox& out) {
  const auto it = members_by_waiter_.find(waiter);
  if (it == members_by_waiter_.end()) return false;
  out.Fail(waiter, status);
  Remove(joins_.at(it->second));
  return true;
}

bool Rendezvous::Retarget(WaiterId older, WaiterId newer) {
  const auto it = members_by_waiter_.find(older);
  if (it == members_by_waiter_.end()) return false;
  const MemberId member = it->second;
  members_by_waiter_.erase(it);
  members_by_waiter_.emplace(newer, member);
  joins_.at(member).waiter = newer;
  return true;
}

void Rendezvous::Expire(Instant now, Outbox& out) {
  // Makes all texts before it frees a seat, because members that time out
  // together did join. Members with the same wait share one text, because
  // making it looks at every rank.
  std::vector<MemberId> expired;
  absl::btree_map<Duration, std::string> texts;
  AbsenceReply absent;
  for (const auto& [deadline, member] : deadlines_) {
    if (deadline > now) break;
    expired.push_back(member);
    if (absent == nullptr) absent = Absent();
    std::string& text = texts[joins_.at(member).request.timeout];
    if (text.empty()) {
      text = WaitingText(joins_.at(member).request.timeout, now);
    }
  }
  for (const MemberId& member : expired) {
    const PendingJoin& join = joins_.at(member);
    const std::string& text = texts.at(join.request.timeout);
    out.Note(NoticeKind::kRendezvousTimedOut,
             absl::StrCat("member=", base::LogValue(member.value()),
                          " cause=", TextInNotice(text)),
             join.request.timeout);
    out.replies.push_back({join.waiter, DeadlineExceededError(text), absent});
    if (join.request.rank.has_value()) {
      gave_up_.insert_or_assign(*join.request.rank, member);
    }
    Remove(join);
  }
  if (!open_since_.has_value() || report_at_ > now) return;
  report_at_ = DeadlineAfter(now, kReportInterval);
  out.Note(NoticeKind::kRendezvousWaiting,
           absl::StrCat("cause=",
                        TextInNotice(WaitingText(now - *open_since_, now))));
}

std::optional<Instant> Rendezvous::NextDeadline() const {
  if (deadlines_.empty()) return std::nullopt;
  Instant next = deadlines_.begin()->first;
  if (open_since_.has_value()) next = std::min(next, report_at_);
  if (last_call_end_.has_value()) next = std::min(next, *last_call_end_);
  return next;
}

Status Rendezvous::CheckInvariants() const {
  size_t claims = 0;
  int32_t returns = 0;
  for (const auto& [member, join] : joins_) {
    if (IsReturn(join)) ++returns;
    if (join.request.rank.has_value()) ++claims;
    if (ToTerms(join.request) != terms_ || join.member != member) {
      return InternalError("rendezvous: a join of another world size");
    }
    const Member* record = membership_.Find(member);
    if (record == nullptr || !record->live()) {
      return InternalError(
          absl::StrCat("rendezvous: ", base::Quote(member.value()),
                       " waits and is not live"));
    }
  }
  const int32_t waiting = static_cast<int32_t>(joins_.size());
  if (claims != claims_.size() || joins_.size() != deadlines_.size() ||
      joins_.size() != members_by_waiter_.size() ||
      joins_.size() != queue_.size() || returns != returned_ ||
      joins_.empty() != (terms_.max == 0) ||
      (!closed_.empty() && !joins_.empty())) {
    return InternalError(
        absl::StrCat("rendezvous: ", waiting, " joins, ", claims_.size(),
                     " claims, ", deadlines_.size(), " deadlines, ", returned_,
                     " of ", returns, " returns, world size ", Text(terms_),
                     closed_.empty() ? "" : ", closed"));
  }
  const bool open = waiting > 0 && !Held();
  const bool awaits_return =
      formation_ != nullptr && returns < terms_.max &&
      std::any_of(formation_->world.begin(), formation_->world.end(),
                  [&](const Seat& seat) { return IsAway(seat); });
  if (open != open_since_.has_value() ||
      (open && waiting >= terms_.min) != last_call_end_.has_value() ||
      (open && waiting >= terms_.max && !awaits_return)) {
    return InternalError(absl::StrCat(
        "rendezvous: ", waiting, " joins for world size ", Text(terms_),
        last_call_end_.has_value() ? " in" : " without", " a last call"));
  }
  return OkStatus();
}

// Texts for people.

namespace {

const std::vector<Seat> kNobody;

}  // namespace

// `member "b" (host-b, pid 7)`.
std::string Rendezvous::Claimant(const MemberId& id) const {
  const Member* member = membership_.Find(id);
  if (member == nullptr)
    return absl::StrCat("member ", base::Quote(id.value()));
  return absl::StrCat("member ", base::Quote(id.value()), " (",
                      member->registration.host, ", pid ",
                      member->registration.pid, ")");
}

// Returns the seat that holds `rank` in the running generation.
const Seat* Rendezvous::LiveHolder(Rank rank) const {
  if (!running_ ||
      rank.value() >= static_cast<int32_t>(formation_->world.size())) {
    return nullptr;
  }
  const Seat& seat = formation_->world[rank.value()];
  const Member* member = membership_.Find(seat.member);
  if (member == nullptr || member->incarnation != seat.incarnation ||
      !member->live()) {
    return nullptr;
  }
  return &seat;
}

// `4`, or `2 to 4 (last call 30s)`.
std::string Rendezvous::Text(const Terms& terms) {
  if (!terms.elastic) return absl::StrCat(terms.max);
  return absl::StrCat(terms.min, " to ", terms.max, " (last call ",
                      FormatDuration(terms.last_call), ")");
}

// `2 (last held by "c" on host-c, lost: no heartbeat for 11s (lease 10s))`.
std::string Rendezvous::DescribeMissing(Rank rank, Instant now) const {
  std::string text = absl::StrCat(rank.value());
  if (formation_ == nullptr ||
      rank.value() >= static_cast<int32_t>(formation_->world.size())) {
    return text;
  }
  const Seat& seat = formation_->world[rank.value()];
  absl::StrAppend(&text, " (last held by ", base::Quote(seat.member.value()),
                  " on ", seat.host);
  const Member* member = membership_.Find(seat.member);
  if (member != nullptr && member->incarnation == seat.incarnation) {
    absl::StrAppend(&text, ", ", MemberStateName(member->state));
    if (member->live()) {
      absl::StrAppend(&text, ", last heard ",
                      FormatDuration(now - member->heard_at), " ago");
    } else {
      absl::StrAppend(&text, ": ", base::Printable(member->cause));
    }
  }
  absl::StrAppend(&text, ")");
  return text;
}

std::string Rendezvous::Waiting(Instant now) const {
  if (joins_.empty()) return "";
  // If it was not open: the time of the first join.
  const Instant since =
      open_since_.value_or(joins_.at(queue_.begin()->second).joined_at);
  return WaitingText(now - since, now);
}

std::vector<MemberId> Rendezvous::FirstWaiters(size_t count_max) const {
  std::vector<MemberId> members;
  for (const auto& [member, join] : joins_) {
    if (members.size() == count_max) break;
    members.push_back(member);
  }
  return members;
}

std::vector<Rank> Rendezvous::FirstMissing(size_t count_max) const {
  if (terms_.elastic || joins_.empty()) return {};
  std::vector<Rank> missing = MissingRanks();
  if (missing.size() > count_max) missing.resize(count_max);
  return missing;
}

std::vector<Rank> Rendezvous::FindMissing(Rank first, int32_t count) const {
  if (terms_.elastic || claims_.empty() || claims_.size() < joins_.size()) {
    return {};
  }
  std::vector<Rank> missing;
  const int64_t end =
      std::min<int64_t>(int64_t{first.value()} + count, terms_.max);
  for (int64_t i = std::max(first.value(), 0); i < end; ++i) {
    const Rank rank(static_cast<int32_t>(i));
    if (!claims_.contains(rank) && !gave_up_.contains(rank)) {
      missing.push_back(rank);
    }
  }
  return missing;
}

// The missing ranks of a static rendezvous, ascending.
std::vector<Rank> Rendezvous::MissingRanks() const {
  // Members without a claim will get the lowest free ranks.
  size_t unassigned = joins_.size() - claims_.size();
  std::vector<Rank> missing;
  for (int32_t i = 0; i < terms_.max; ++i) {
    if (claims_.contains(Rank(i)) || gave_up_.contains(Rank(i))) continue;
    if (unassigned > 0) {
      --unassigned;
    } else {
      missing.push_back(Rank(i));
    }
  }
  return missing;
}

AbsenceReply Rendezvous::Absent() const {
  if (terms_.elastic) return nullptr;
  const std::vector<Rank> missing = MissingRanks();
  const auto& world = formation_ == nullptr ? kNobody : formation_->world;
  auto absence = std::make_shared<Absence>();
  const size_t described = std::min(missing.size(), kMissingInResultMax);
  for (size_t i = 0; i < described; ++i) {
    AbsentRank absent;
    absent.rank = missing[i];
    if (missing[i].value() < static_cast<int32_t>(world.size())) {
      const Seat& seat = world[missing[i].value()];
      absent.member = seat.member;
      absent.host = seat.host;
      absent.pid = seat.pid;
      const Member* member = membership_.Find(seat.member);
      if (member != nullptr && member->incarnation == seat.incarnation) {
        absent.cause = member->cause;
      }
    }
    absence->described.push_back(std::move(absent));
  }
  absence->others = ToRanges(std::vector<Rank>(
      std::next(missing.begin(), static_cast<ptrdiff_t>(described)),
      missing.end()));
  return absence;
}

// `rendezvous: 2 of 3 ranks joined in 8.9s; missing rank 2; gave up before:
// 1 (member "b" (host-b, pid 7))`.
std::string Rendezvous::WaitingText(Duration waited, Instant now) const {
  if (terms_.elastic) return ElasticWaitingText(waited, now);
  const int32_t world_size = terms_.max;
  const size_t came = std::min(joins_.size() + gave_up_.size(),
                               static_cast<size_t>(world_size));
  std::string text = absl::StrCat("rendezvous: ", came, " of ", world_size,
                                  " ranks joined in ", FormatDuration(waited));
  const std::vector<Rank> missing = MissingRanks();
  size_t named = 0;
  for (; named < std::min(missing.size(), kRanksInTextMax); ++named) {
    const absl::string_view label =
        missing.size() == 1 ? "; missing rank " : "; missing ranks ";
    absl::StrAppend(&text, named == 0 ? label : ", ",
                    DescribeMissing(missing[named], now));
  }
  if (missing.size() > named) {
    absl::StrAppend(&text, " and ", missing.size() - named, " more");
  }
  named = 0;
  for (const auto& [rank, member] : gave_up_) {
    if (named == kRanksInTextMax) break;
    absl::StrAppend(&text, named++ == 0 ? "; gave up before: " : ", ",
                    rank.value(), " (", Claimant(member), ")");
  }
  if (gave_up_.size() > named) {
    absl::StrAppend(&text, " and ", gave_up_.size() - named, " more");
  }
  return text;
}

// `rendezvous: 1 of at least 2 members joined in 30s; missing ranks of
// generation 3: 1 (last held by "b" on host-b, failed: SIGSEGV)`.
std::string Rendezvous::ElasticWaitingText(Duration waited, Instant now) const {
  const auto& world = formation_ == nullptr ? kNobody : formation_->world;
  if (Held()) {
    const std::string runs = absl::StrCat("rendezvous: no seat became free in ",
                                          FormatDuration(waited), ": ");
    if (static_cast<int32_t>(world.size()) >= terms_.max) {
      return absl::StrCat(runs, "the world of ", world.size(),
                          " is full (generation ", generation().value(),
                          " runs)");
    }
    return absl::StrCat(runs, "generation ", generation().value(),
                        " runs with a world of ", world.size(), " (at most ",
                        terms_.max, "), and none of its members joined again");
  }
  std::string text =
      absl::StrCat("rendezvous: ", joins_.size(), " of at least ", terms_.min,
                   " members joined in ", FormatDuration(waited));
  if (last_call_end_.has_value()) {
    absl::StrAppend(
        &text, "; the last call ends in ",
        FormatDuration(std::max(*last_call_end_ - now, Duration::zero())));
  }
  size_t missing = 0;
  for (size_t i = 0; i < world.size(); ++i) {
    if (joins_.contains(world[i].member) || missing++ >= kRanksInTextMax) {
      continue;
    }
    absl::StrAppend(&text,
                    missing == 1
                        ? absl::StrCat("; missing ranks of generation ",
                                       generation().value(), ": ")
                        : ", ",
                    DescribeMissing(Rank(static_cast<int32_t>(i)), now));
  }
  if (missing > kRanksInTextMax) {
    absl::StrAppend(&text, " and ", missing - kRanksInTextMax, " more");
  }
  return text;
}

}  // namespace muster::coordinator::core
