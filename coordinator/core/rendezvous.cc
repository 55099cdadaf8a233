#include "coordinator/core/rendezvous.h"

#include <algorithm>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"

namespace muster::coordinator::core {
namespace {

// A world that is not complete after this is spoken of in the log, and then
// this often.
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

// `member "b" (host-b, pid 7)`.
std::string Rendezvous::Claimant(const MemberId& id) const {
  const Member* member = membership_.Find(id);
  if (member == nullptr) return absl::StrCat("member \"", id.value(), "\"");
  return absl::StrCat("member \"", id.value(), "\" (",
                      member->registration.host, ", pid ",
                      member->registration.pid, ")");
}

// Who holds `rank` in the running generation.
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

absl::Status Rendezvous::CheckRequest(const Call& call,
                                      const JoinRequest& request) const {
  if (request.world_size < 1) {
    return absl::InvalidArgumentError(absl::StrCat(
        "rendezvous: ", Claimant(call.member), " asks for world size ",
        request.world_size, ", which is not positive"));
  }
  const Offer offer{"member", call.member.value()};
  absl::Status status =
      CheckLimit("world_size", limits_.world_size, request.world_size, offer);
  if (status.ok()) status = CheckParkedTime(limits_, request.timeout);
  if (status.ok()) {
    status = CheckLimit("value_bytes", limits_.value_bytes,
                        static_cast<int64_t>(request.address.size()),
                        {"address of", call.member.value()});
  }
  if (!status.ok()) return status;
  if (request.rank.has_value() &&
      (request.rank->value() < 0 ||
       request.rank->value() >= request.world_size)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "rendezvous: ", Claimant(call.member), " asks for rank ",
        request.rank->value(), " of world size ", request.world_size,
        " (ranks 0 to ", request.world_size - 1, ")"));
  }
  if (world_size_ != 0 && request.world_size != world_size_) {
    return absl::InvalidArgumentError(
        absl::StrCat("rendezvous: ", Claimant(call.member),
                     " asks for world size ", request.world_size, ", ",
                     Claimant(world_size_claimant_), " for ", world_size_));
  }
  return absl::OkStatus();
}

absl::Status Rendezvous::CheckSeat(const Call& call,
                                   const JoinRequest& request) const {
  if (!request.rank.has_value()) {
    for (int32_t rank = 0; rank < request.world_size; ++rank) {
      const Seat* holder = LiveHolder(Rank(rank));
      if (holder == nullptr || holder->member == call.member) {
        return absl::OkStatus();
      }
    }
    return absl::AlreadyExistsError(absl::StrCat(
        "rendezvous: all ", request.world_size, " ranks of running generation ",
        formation_->generation.value(), " are held by live members; ",
        Claimant(call.member), " cannot join"));
  }
  if (const auto claim = claims_.find(*request.rank); claim != claims_.end()) {
    return absl::AlreadyExistsError(absl::StrCat(
        "rendezvous: rank ", request.rank->value(), " is claimed twice: by ",
        Claimant(claim->second), " and by ", Claimant(call.member)));
  }
  const Seat* holder = LiveHolder(*request.rank);
  if (holder != nullptr && holder->member != call.member) {
    return absl::AlreadyExistsError(
        absl::StrCat("rendezvous: rank ", request.rank->value(),
                     " of running generation ", formation_->generation.value(),
                     " is held by live ", Claimant(holder->member), "; ",
                     Claimant(call.member), " cannot take it"));
  }
  return absl::OkStatus();
}

FormationReply Rendezvous::Join(const Call& call, JoinRequest request,
                                Instant now, Outbox& out) {
  if (const auto it = joins_.find(call.member); it != joins_.end()) {
    out.Fail(it->second.waiter, absl::CancelledError(absl::StrCat(
                                    "superseded by a newer join of member \"",
                                    call.member.value(), "\"")));
    Remove(it->second);
  }
  absl::Status status = CheckRequest(call, request);
  if (status.ok()) status = CheckSeat(call, request);
  if (status.ok()) status = quota_.Take({"member", call.member.value()});
  if (!status.ok()) {
    out.Fail(call.waiter, std::move(status));
    return nullptr;
  }
  if (joins_.empty()) {
    world_size_ = request.world_size;
    world_size_claimant_ = call.member;
    first_join_at_ = now;
    report_at_ = DeadlineAfter(now, kFirstReport);
  }
  PendingJoin join;
  join.waiter = call.waiter;
  join.member = call.member;
  join.request = std::move(request);
  join.order = next_order_++;
  join.deadline = DeadlineAfter(now, join.request.timeout);
  if (join.request.rank.has_value()) {
    claims_.emplace(*join.request.rank, join.member);
    gave_up_.erase(*join.request.rank);
  }
  members_by_waiter_.emplace(join.waiter, join.member);
  deadlines_.emplace(join.deadline, join.member);
  joins_.emplace(call.member, std::move(join));
  if (static_cast<int32_t>(joins_.size()) == world_size_) return Form(now, out);
  return nullptr;
}

// Gives the members that do not ask for a rank the lowest free ones, in the
// order in which they joined. Only now, so that a later claim of a rank never
// meets one that was given away.
absl::btree_map<Rank, const Rendezvous::PendingJoin*> Rendezvous::SeatJoins()
    const {
  absl::btree_map<Rank, const PendingJoin*> seats;
  absl::btree_map<uint64_t, const PendingJoin*> unassigned;
  for (const auto& [member, join] : joins_) {
    if (join.request.rank.has_value()) {
      seats.emplace(*join.request.rank, &join);
    } else {
      unassigned.emplace(join.order, &join);
    }
  }
  int32_t next = 0;
  for (const auto& [order, join] : unassigned) {
    while (seats.contains(Rank(next))) ++next;
    seats.emplace(Rank(next), join);
  }
  return seats;
}

FormationReply Rendezvous::Form(Instant now, Outbox& out) {
  auto formation = std::make_shared<Formation>();
  formation->generation = Generation(generation().value() + 1);
  std::vector<WaiterId> waiters;
  for (const auto& [rank, join] : SeatJoins()) {
    const Member* member = membership_.Find(join->member);
    Seat seat;
    seat.member = join->member;
    if (member != nullptr) {
      seat.incarnation = member->incarnation;
      seat.host = member->registration.host;
      seat.pid = member->registration.pid;
    }
    seat.address = join->request.address;
    formation->world.push_back(std::move(seat));
    waiters.push_back(join->waiter);
  }
  if (running_) {
    out.Note(NoticeKind::kGenerationEnded,
             absl::StrCat("generation=", generation().value(),
                          " cause=\"superseded by generation ",
                          formation->generation.value(), "\""));
  }
  out.Note(NoticeKind::kGenerationFormed,
           absl::StrCat("generation=", formation->generation.value(),
                        " world_size=", formation->world.size()),
           now - first_join_at_);
  for (size_t i = 0; i < waiters.size(); ++i) quota_.Release();
  joins_.clear();
  gave_up_.clear();
  claims_.clear();
  members_by_waiter_.clear();
  deadlines_.clear();
  world_size_ = 0;
  seated_ = static_cast<int64_t>(formation->world.size());
  running_ = true;
  formation_ = std::move(formation);
  journal_.Generation();
  for (WaiterId waiter : waiters) out.Answer(waiter, formation_);
  return formation_;
}

void Rendezvous::Remove(const PendingJoin& join) {
  if (join.request.rank.has_value()) claims_.erase(*join.request.rank);
  members_by_waiter_.erase(join.waiter);
  deadlines_.erase({join.deadline, join.member});
  quota_.Release();
  const MemberId member = join.member;
  joins_.erase(member);
  if (joins_.empty()) {
    world_size_ = 0;
    gave_up_.clear();
  } else if (world_size_claimant_ == member) {
    // The others agree with it; an error text must name one who is there.
    world_size_claimant_ = joins_.begin()->first;
  }
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

void Rendezvous::Restore(FormationReply formation, bool running) {
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

bool Rendezvous::Cancel(WaiterId waiter, const absl::Status& status,
                        Outbox& out) {
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

// `2 (last held by "c" on host-c, lost: no heartbeat for 11s (lease 10s))`.
std::string Rendezvous::DescribeMissing(Rank rank, Instant now) const {
  std::string text = absl::StrCat(rank.value());
  if (formation_ == nullptr ||
      rank.value() >= static_cast<int32_t>(formation_->world.size())) {
    return text;
  }
  const Seat& seat = formation_->world[rank.value()];
  absl::StrAppend(&text, " (last held by \"", seat.member.value(), "\" on ",
                  seat.host);
  const Member* member = membership_.Find(seat.member);
  if (member != nullptr && member->incarnation == seat.incarnation) {
    absl::StrAppend(&text, ", ", MemberStateName(member->state));
    if (member->live()) {
      absl::StrAppend(&text, ", last heard ",
                      FormatDuration(now - member->heard_at), " ago");
    } else {
      absl::StrAppend(&text, ": ", member->cause);
    }
  }
  absl::StrAppend(&text, ")");
  return text;
}

// `rendezvous: 2 of 3 ranks joined in 8.9s; missing ranks 2; gave up before:
// 1 (member "b" (host-b, pid 7))`.
std::string Rendezvous::WaitingText(Duration waited, Instant now) const {
  const size_t came = std::min(joins_.size() + gave_up_.size(),
                               static_cast<size_t>(world_size_));
  std::string text = absl::StrCat("rendezvous: ", came, " of ", world_size_,
                                  " ranks joined in ", FormatDuration(waited));
  // Members that do not ask for a rank would get the lowest free ones.
  size_t unassigned = joins_.size() - claims_.size();
  const size_t missing = static_cast<size_t>(world_size_) - came;
  size_t named = 0;
  for (int32_t i = 0; i < world_size_ && named < kRanksInTextMax; ++i) {
    if (claims_.contains(Rank(i)) || gave_up_.contains(Rank(i))) continue;
    if (unassigned > 0) {
      --unassigned;
      continue;
    }
    absl::StrAppend(&text, named++ == 0 ? "; missing ranks " : ", ",
                    DescribeMissing(Rank(i), now));
  }
  if (missing > named)
    absl::StrAppend(&text, " and ", missing - named, " more");
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

void Rendezvous::Expire(Instant now, Outbox& out) {
  // All texts before any seat is freed: who times out at the same time did
  // join.
  std::vector<std::pair<MemberId, std::string>> expired;
  for (const auto& [deadline, member] : deadlines_) {
    if (deadline > now) break;
    const PendingJoin& join = joins_.at(member);
    expired.emplace_back(member, WaitingText(join.request.timeout, now));
  }
  for (auto& [member, text] : expired) {
    const PendingJoin& join = joins_.at(member);
    out.Note(NoticeKind::kRendezvousTimedOut,
             absl::StrCat("member=", member.value(), " cause=\"",
                          absl::CEscape(text), "\""),
             join.request.timeout);
    out.Fail(join.waiter, absl::DeadlineExceededError(text));
    if (join.request.rank.has_value()) {
      gave_up_.insert_or_assign(*join.request.rank, member);
    }
    Remove(join);
  }
  if (joins_.empty() || report_at_ > now) return;
  report_at_ = DeadlineAfter(now, kReportInterval);
  out.Note(NoticeKind::kRendezvousWaiting,
           absl::StrCat("cause=\"",
                        absl::CEscape(WaitingText(now - first_join_at_, now)),
                        "\""));
}

std::optional<Instant> Rendezvous::NextDeadline() const {
  if (deadlines_.empty()) return std::nullopt;
  return std::min(deadlines_.begin()->first, report_at_);
}

absl::Status Rendezvous::CheckInvariants() const {
  size_t claims = 0;
  for (const auto& [member, join] : joins_) {
    if (join.request.rank.has_value()) ++claims;
    if (join.request.world_size != world_size_ || join.member != member) {
      return absl::InternalError("rendezvous: a join of another world size");
    }
    const Member* record = membership_.Find(member);
    if (record == nullptr || !record->live()) {
      return absl::InternalError(absl::StrCat("rendezvous: \"", member.value(),
                                              "\" waits and is not live"));
    }
  }
  if (claims != claims_.size() || joins_.size() != deadlines_.size() ||
      joins_.size() != members_by_waiter_.size() ||
      (joins_.empty() != (world_size_ == 0)) ||
      (world_size_ != 0 &&
       static_cast<int32_t>(joins_.size()) >= world_size_)) {
    return absl::InternalError(absl::StrCat(
        "rendezvous: ", joins_.size(), " joins, ", claims_.size(), " claims, ",
        deadlines_.size(), " deadlines, world size ", world_size_));
  }
  return absl::OkStatus();
}

}  // namespace muster::coordinator::core
