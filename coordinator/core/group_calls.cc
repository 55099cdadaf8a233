#include "coordinator/core/group_calls.h"

#include <algorithm>
#include <chrono>
#include <iterator>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "base/text.h"
#include "coordinator/core/names.h"

namespace muster::coordinator::core {
namespace {

// How long kStillWaits counts. A rank repeats it every second or more often.
constexpr Duration kStillWaitsTime = std::chrono::seconds(3);

// The memory of a caller, and of a call or a variant without its texts.
constexpr int64_t kCallerBytes = 64;
constexpr int64_t kCallBytes = 256;

bool Includes(const std::vector<Rank>& ranks, Rank rank) {
  return !ranks.empty() && ranks.front() <= rank && rank <= ranks.back() &&
         std::binary_search(ranks.begin(), ranks.end(), rank);
}

}  // namespace

GroupCallTable::GroupCallTable(const Limits* limits,
                               const Membership* membership)
    : limits_(*limits), membership_(*membership) {}

GroupCallTable::~GroupCallTable() = default;

void GroupCallTable::Reset(FormationReply formation, bool is_new) {
  knows_all_ = is_new;
  calls_.clear();
  oldest_.clear();
  bytes_ = 0;
  formation_ = std::move(formation);
}

Status GroupCallTable::Check(const GroupCall& call) const {
  Status status = CheckName(limits_, "groups", {"call", call.series});
  if (!status.ok()) return status;
  if (call.number < 0 || call.instance < 0 || call.callers < 0) {
    return InvalidArgumentError(absl::StrCat(
        "groups: a number of call ", base::Quote(call.series), " is negative"));
  }
  const int32_t size = static_cast<int32_t>(formation_->world.size());
  for (size_t i = 0; i < call.ranks.size(); ++i) {
    const Rank rank = call.ranks[i];
    if (rank < Rank(0) || rank >= Rank(size) ||
        (i > 0 && rank <= call.ranks[i - 1])) {
      return InvalidArgumentError(absl::StrCat(
          "groups: call ", base::Quote(call.series), ": rank ", rank.value(),
          " is outside of world size ", size, " or does not ascend"));
    }
  }
  return OkStatus();
}

bool GroupCallTable::IsLive(Rank rank) const {
  const Seat& seat = formation_->world[static_cast<size_t>(rank.value())];
  const Member* const member = membership_.Find(seat.member);
  return member != nullptr && member->live() &&
         member->incarnation == seat.incarnation;
}

bool GroupCallTable::Differ(const Variant& one, const Variant& other) const {
  std::vector<Rank> difference;
  std::set_symmetric_difference(one.ranks.begin(), one.ranks.end(),
                                other.ranks.begin(), other.ranks.end(),
                                std::back_inserter(difference));
  return difference.empty() ||
         std::any_of(difference.begin(), difference.end(),
                     [&](Rank rank) { return IsLive(rank); });
}

std::string GroupCallTable::RankText(Rank rank) const {
  const Seat& seat = formation_->world[static_cast<size_t>(rank.value())];
  return absl::StrCat("rank ", rank.value(), " (", seat.host, ", pid ",
                      seat.pid, ")");
}

void GroupCallTable::Count(NotedCall& noted, int64_t bytes) {
  noted.bytes += bytes;
  bytes_ += bytes;
}

void GroupCallTable::Use(const CallKey& key, NotedCall& noted) {
  oldest_.erase(noted.used_at);
  noted.used_at = ++used_;
  oldest_.emplace(noted.used_at, key);
}

void GroupCallTable::Forget(const CallKey& key) {
  const auto found = calls_.find(key);
  if (found == calls_.end()) return;
  bytes_ -= found->second->bytes;
  oldest_.erase(found->second->used_at);
  calls_.erase(found);
}

void GroupCallTable::Remove(NotedCall& noted, Rank rank) {
  const auto found = noted.callers.find(rank);
  if (found == noted.callers.end()) return;
  const Caller& caller = found->second;
  if (--caller.variant->callers == 0) {
    Count(noted,
          -kCallBytes - static_cast<int64_t>(caller.variant->text.size() +
                                             caller.variant->ranks.size() *
                                                 sizeof(Rank)));
    noted.variants.erase(caller.key);
  }
  noted.callers.erase(found);
  Count(noted, -kCallerBytes);
}

// Makes the rank a caller of the call with its arguments.
void GroupCallTable::Come(NotedCall& noted, Rank rank, GroupCall call) {
  const bool refused = call.state == GroupCallState::kRefused;
  Caller caller;
  caller.key = refused ? VariantKey(rank.value(), 0)
                       : VariantKey(-1, call.arguments_hash);
  // A rank that repeats the call keeps its variant, and what was told of it.
  const auto before = noted.callers.find(rank);
  if (before == noted.callers.end() || before->second.key != caller.key ||
      refused) {
    Remove(noted, rank);
  }
  std::unique_ptr<Variant>& variant = noted.variants[caller.key];
  if (variant == nullptr) {
    variant = std::make_unique<Variant>();
    variant->text =
        base::Printable(CutText(call.arguments, limits_.text_bytes));
    if (refused) {
      variant->text.insert(0, "was refused: ");
    } else if (call.ranks.empty()) {
      const int32_t size = static_cast<int32_t>(formation_->world.size());
      for (int32_t i = 0; i < size; ++i) variant->ranks.emplace_back(i);
    } else {
      variant->ranks = std::move(call.ranks);
    }
    Count(noted, kCallBytes + static_cast<int64_t>(variant->text.size() +
                                                   variant->ranks.size() *
                                                       sizeof(Rank)));
  }
  noted.callers_max =
      std::max(noted.callers_max,
               call.callers > 0 ? call.callers
                                : static_cast<int32_t>(variant->ranks.size()));
  caller.variant = variant.get();
  caller.stage = refused                                 ? Stage::kEnded
                 : call.state == GroupCallState::kPasses ? Stage::kPasses
                                                         : Stage::kWaits;
  if (noted.callers.insert_or_assign(rank, caller).second) {
    ++variant->callers;
    Count(noted, kCallerBytes);
  }
}

// All ranks that wait with `rank`, whose variant is `own`, get a disagreement,
// and so do those of `theirs`, the variant of `other`, if they wait for `rank`.
void GroupCallTable::Disagree(Rank rank, Variant& own, Rank other,
                              Variant& theirs, Outbox& out) {
  own.disagreement = std::make_shared<Disagreement>();
  own.disagreement->text =
      absl::StrCat("ranks do not mean the same by one call: ", RankText(other),
                   " ", theirs.text, ", ", RankText(rank), " ", own.text);
  out.Note(NoticeKind::kGroupCallConflict,
           absl::StrCat("cause=", TextInNotice(own.disagreement->text)));
  if (theirs.ranks.empty() || Includes(theirs.ranks, rank)) {
    theirs.disagreement = own.disagreement;
  }
}

// Looks for a rank that came to the same call with other arguments, and for
// which the caller `rank` waits.
void GroupCallTable::Compare(NotedCall& noted, Rank rank, Outbox& out) {
  const Caller& caller = noted.callers.at(rank);
  if (noted.variants.size() < 2 || caller.stage != Stage::kWaits) return;
  Variant& own = *caller.variant;
  for (const Rank other : own.ranks) {
    const auto found = noted.callers.find(other);
    if (found == noted.callers.end() || found->second.variant == &own) continue;
    Variant& theirs = *found->second.variant;
    const bool heard = theirs.disagreement != nullptr &&
                       theirs.disagreement->told.contains(rank);
    if ((heard && found->second.stage == Stage::kEnded) || !IsLive(other) ||
        !Differ(own, theirs) || HasCome(other, caller.key)) {
      continue;
    }
    if (theirs.disagreement != nullptr && !heard) {
      own.disagreement = theirs.disagreement;
    } else {
      Disagree(rank, own, other, theirs, out);
    }
    return;
  }
}

// Whether the rank has come to a call with these arguments. It has another
// number if an earlier call failed only on some ranks.
bool GroupCallTable::HasCome(Rank rank, const VariantKey& arguments) const {
  return std::any_of(calls_.begin(), calls_.end(), [&](const auto& entry) {
    const auto found = entry.second->callers.find(rank);
    return found != entry.second->callers.end() &&
           found->second.key == arguments &&
           found->second.stage != Stage::kEnded;
  });
}

// Looks for a rank that waits in another call for the caller `rank`, which
// waits for it here.
void GroupCallTable::CompareWithOtherCalls(NotedCall& noted, Rank rank,
                                           Instant now, Outbox& out) {
  const Caller& waiting = noted.callers.at(rank);
  if (waiting.stage != Stage::kWaits) return;
  Variant& own = *waiting.variant;
  for (const auto& [key, call] : calls_) {
    if (call.get() == &noted) continue;
    for (const auto& [other, caller] : call->callers) {
      if (caller.stage != Stage::kWaits || caller.key == waiting.key ||
          !caller.still_waits_at.has_value() ||
          now - *caller.still_waits_at > kStillWaitsTime ||
          !Includes(caller.variant->ranks, rank) ||
          !Includes(own.ranks, other) || noted.callers.contains(other) ||
          call->callers.contains(rank) || HasCome(other, waiting.key) ||
          HasCome(rank, caller.key) || !IsLive(other) ||
          !Differ(own, *caller.variant)) {
        continue;
      }
      return Disagree(rank, own, other, *caller.variant, out);
    }
  }
}

// Returns the error of a rank that waits in vain, once.
Status GroupCallTable::Tell(NotedCall& noted, Rank rank) {
  Caller& caller = noted.callers.at(rank);
  Disagreement* const disagreement = caller.variant->disagreement.get();
  if (caller.stage != Stage::kWaits || disagreement == nullptr ||
      !disagreement->told.insert(rank).second) {
    return OkStatus();
  }
  caller.stage = Stage::kEnded;
  return InvalidArgumentError(disagreement->text);
}

// Whether all callers have come, and none of them waits in vain.
bool GroupCallTable::IsOver(const NotedCall& noted) const {
  if (static_cast<int32_t>(noted.callers.size()) < noted.callers_max) {
    return noted.callers.empty();
  }
  absl::flat_hash_map<const Variant*, size_t> present;
  for (const auto& [rank, caller] : noted.callers) {
    if (caller.stage != Stage::kEnded &&
        Includes(caller.variant->ranks, rank)) {
      ++present[caller.variant];
    }
  }
  return std::all_of(noted.callers.begin(), noted.callers.end(),
                     [&](const auto& entry) {
                       const Variant* const variant = entry.second.variant;
                       return entry.second.stage != Stage::kWaits ||
                              present[variant] == variant->ranks.size();
                     });
}

Status GroupCallTable::Note(Rank rank, GroupCall call, Instant now,
                            Outbox& out) {
  Status status = Check(call);
  if (!status.ok()) return status;
  const CallKey key(call.series, call.number, call.instance);
  const auto found = calls_.find(key);
  NotedCall* noted = found == calls_.end() ? nullptr : found->second.get();
  if (call.state == GroupCallState::kStillWaits ||
      call.state == GroupCallState::kGaveUp) {
    if (noted == nullptr || !noted->callers.contains(rank)) return OkStatus();
    Caller& caller = noted->callers.at(rank);
    if (call.state == GroupCallState::kGaveUp) {
      // Ranks that come later must learn what ended it.
      if (caller.stage != Stage::kEnded) Remove(*noted, rank);
    } else {
      caller.still_waits_at = now;
      status = Tell(*noted, rank);
      if (status.ok()) {
        Compare(*noted, rank, out);
        status = Tell(*noted, rank);
      }
      if (status.ok() && knows_all_) {
        CompareWithOtherCalls(*noted, rank, now, out);
        status = Tell(*noted, rank);
      }
    }
  } else {
    if (noted == nullptr) {
      noted = (calls_[key] = std::make_unique<NotedCall>()).get();
      Count(*noted, kCallBytes + static_cast<int64_t>(call.series.size()));
    }
    Come(*noted, rank, std::move(call));
    status = Tell(*noted, rank);
  }
  Use(key, *noted);
  if (IsOver(*noted)) Forget(key);
  while (size() > limits_.group_calls || bytes_ > limits_.group_call_bytes) {
    knows_all_ = false;
    Forget(CallKey(oldest_.begin()->second));
  }
  return status;
}

Status GroupCallTable::NoteFailure(Rank rank, GroupCall call, const Status& why,
                                   Instant now, Outbox& out) {
  const auto found =
      calls_.find(CallKey(call.series, call.number, call.instance));
  if (found != calls_.end() && found->second->callers.contains(rank)) {
    Compare(*found->second, rank, out);
    Status differ = Tell(*found->second, rank);
    if (!differ.ok()) return differ;
  }
  call.state = GroupCallState::kRefused;
  call.arguments = std::string(why.message());
  Note(rank, std::move(call), now, out).IgnoreError();
  return why;
}

Status GroupCallTable::CheckInvariants() const {
  int64_t bytes = 0;
  for (const auto& [key, noted] : calls_) {
    bytes += noted->bytes;
    size_t callers = 0;
    for (const auto& [variant_key, variant] : noted->variants) {
      callers += static_cast<size_t>(variant->callers);
    }
    const auto used = oldest_.find(noted->used_at);
    if (callers != noted->callers.size() || used == oldest_.end() ||
        used->second != key || IsOver(*noted)) {
      return InternalError(absl::StrCat(
          "group call ", base::Quote(std::get<0>(key)), " #", std::get<1>(key),
          ": has ", noted->callers.size(), " callers, counts ", callers));
    }
  }
  if (bytes != bytes_ || oldest_.size() != calls_.size()) {
    return InternalError(
        absl::StrCat("group calls: count ", bytes_, " bytes, have ", bytes));
  }
  return OkStatus();
}

}  // namespace muster::coordinator::core
