// Whether the arguments of a caller can be meant.

#include <algorithm>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/text.h"
#include "coordinator/core/barriers.h"
#include "coordinator/core/barrier_text.h"
#include "coordinator/core/names.h"

namespace muster::coordinator::core {

absl::Status BarrierTable::CheckCaller(const Call& call,
                                       const BarrierRequest& request) const {
  absl::Status status;
  for (const Offer& offer :
       {Offer{"group", request.group}, Offer{"barrier", request.barrier}}) {
    if (!status.ok()) return status;
    status = CheckName(limits_, "barrier", offer);
  }
  if (status.ok()) status = CheckParkedTime(limits_, request.timeout);
  if (!status.ok()) return status;
  const std::string title = BarrierTitle(request.group, request.barrier, 0);
  if (formation_ == nullptr) {
    return absl::AbortedError(
        absl::StrCat(title, ": no generation has formed; rendezvous first"));
  }
  const Generation current = formation_->generation;
  if (request.generation < Generation() || request.generation > current) {
    return absl::InvalidArgumentError(
        absl::StrCat(title, ": generation ", request.generation.value(),
                     " has not begun, current is ", current.value(),
                     "; take the number that the rendezvous returned"));
  }
  if (request.generation != Generation() && request.generation != current) {
    return absl::AbortedError(absl::StrCat(
        title, ": generation ", request.generation.value(),
        " is over, current is ", current.value(), "; rendezvous again"));
  }
  const int32_t size = static_cast<int32_t>(formation_->world.size());
  const int32_t rank = request.rank.value();
  if (rank < 0 || rank >= size) {
    return absl::InvalidArgumentError(
        absl::StrCat(title, ": rank ", rank, " is outside of world size ", size,
                     " (ranks 0 to ", size - 1, ")"));
  }
  const Seat& seat = formation_->world[rank];
  if (seat.member != call.member) {
    return absl::InvalidArgumentError(
        absl::StrCat(title, ": rank ", rank, " of generation ", current.value(),
                     " is held by member ", base::Quote(seat.member.value()),
                     ", not by ", base::Quote(call.member.value())));
  }
  if (seat.incarnation != call.incarnation) {
    return absl::AbortedError(absl::StrCat(
        title, ": rank ", rank, " of generation ", current.value(),
        " is held by incarnation ", seat.incarnation.value(), " of member ",
        base::Quote(call.member.value()), ", not by ", call.incarnation.value(),
        "; rendezvous again"));
  }
  // It lives, so it has joined the next generation: an arrival that is late.
  if (const auto gone = gone_.find(request.rank); gone != gone_.end()) {
    return absl::AbortedError(absl::StrCat(
        title, ": rank ", rank, " ", gone->second.text, "; rendezvous again"));
  }
  return absl::OkStatus();
}

// The participants in ascending order; empty when they are all ranks.
absl::StatusOr<std::vector<Rank>> BarrierTable::Participants(
    const BarrierRequest& request) const {
  const std::vector<Rank>* const group = groups_.RanksOf(request.group);
  if (request.ranks.empty() && group == nullptr) return std::vector<Rank>();
  const int32_t size = static_cast<int32_t>(formation_->world.size());
  // A group's ranks stand in order, and were looked at when it was registered.
  if (request.ranks.empty() &&
      std::binary_search(group->begin(), group->end(), request.rank)) {
    return static_cast<int32_t>(group->size()) == size ? std::vector<Rank>()
                                                       : *group;
  }
  const std::string title = BarrierTitle(request.group, request.barrier, 0);
  std::vector<Rank> ranks = request.ranks.empty() ? *group : request.ranks;
  std::sort(ranks.begin(), ranks.end());
  for (size_t i = 0; i < ranks.size(); ++i) {
    if (ranks[i].value() < 0 || ranks[i].value() >= size) {
      return absl::InvalidArgumentError(absl::StrCat(
          title, ": participant ", ranks[i].value(),
          " is outside of world size ", size, " (ranks 0 to ", size - 1, ")"));
    }
    if (i > 0 && ranks[i] == ranks[i - 1]) {
      return absl::InvalidArgumentError(absl::StrCat(
          title, ": participant ", ranks[i].value(), " is listed twice"));
    }
  }
  if (!std::binary_search(ranks.begin(), ranks.end(), request.rank)) {
    return absl::InvalidArgumentError(absl::StrCat(
        title, ": rank ", request.rank.value(),
        " is not among the participants ", ParticipantsText(ranks)));
  }
  if (group != nullptr && ranks != *group) {
    return absl::InvalidArgumentError(absl::StrCat(
        title, ": ", RankText(request.rank), " expects ",
        ParticipantsText(ranks), ", the group was registered with ",
        ParticipantsText(*group)));
  }
  if (static_cast<int32_t>(ranks.size()) == size) ranks.clear();
  return ranks;
}

}  // namespace muster::coordinator::core
