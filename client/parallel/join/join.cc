#include "muster/join.h"

#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/text.h"
#include "client/control/throw.h"
#include "client/groups/group_state.h"
#include "muster/base/status.h"
#include "muster/distributed.h"
#include "muster/objects.h"

namespace muster {
namespace {

using internal::Invalid;

std::shared_ptr<ProcessGroup> GetGroup(const Joinable& joinable) {
  auto group = joinable.join_group();
  return group == nullptr ? WorldGroup() : group;
}

std::vector<Joinable*> Checked(std::vector<Joinable*> joinables) {
  if (joinables.empty()) {
    Invalid("Join: argument joinables: there are none");
  }
  for (size_t i = 0; i < joinables.size(); ++i) {
    if (joinables[i] != nullptr) continue;
    Invalid(absl::StrCat("Join: argument joinables: number ", i, " is null"));
  }
  const auto first = GetGroup(*joinables[0]);
  for (size_t i = 1; i < joinables.size(); ++i) {
    const auto group = GetGroup(*joinables[i]);
    if (group->state() == first->state()) continue;
    Invalid(absl::StrCat("Join: argument joinables: number ", i,
                         " has the group ", base::Quote(group->name()),
                         ", number 0 has ", base::Quote(first->name())));
  }
  return joinables;
}

}  // namespace

struct Join::Impl {
  Impl(std::vector<Joinable*> the_joinables,
       const JoinContextOptions& the_options)
      : joinables(Checked(std::move(the_joinables))),
        options(the_options),
        group(GetGroup(*joinables[0])),
        all_ranks(group->ranks()) {
    std::sort(all_ranks.begin(), all_ranks.end());
    Reset();
  }

  // Makes it ready for the first step.
  void Reset() {
    step = 0;
    active = all_ranks;
  }

  // Throws on all ranks unless they have the same joinables and options.
  void Agree();
  // Tells the ranks whether this one has an input, and finds those that have
  // one. `active` keeps the ranks of the last step if there are none.
  // Returns false if there are none.
  bool ExchangeActive(bool has_input);
  [[noreturn]] void ThrowEarlyTermination(
      const std::vector<int>& without_inputs);

  const std::vector<Joinable*> joinables;
  const JoinContextOptions options;
  const std::shared_ptr<ProcessGroup> group;
  // Global ranks, ascending.
  std::vector<int> all_ranks;
  std::vector<int> active;
  bool agreed = false;
  // The number of steps since the beginning or the last Finish.
  int64_t step = 0;
};

void Join::Impl::Agree() {
  if (agreed) return;
  std::string mine = absl::StrCat("throw_on_early_termination=",
                                  options.throw_on_early_termination);
  for (const Joinable* joinable : joinables) {
    absl::StrAppend(&mine, ", ", joinable->DescribeJoin());
  }
  std::vector<std::string> all;
  AllGatherObject(all, mine, {.group = group});
  const std::vector<int> ranks = group->ranks();
  for (size_t i = 1; i < all.size(); ++i) {
    if (all[i] == all[0]) continue;
    Invalid(absl::StrCat("Join: arguments joinables, options: rank ", ranks[i],
                         " has ", all[i], "; rank ", ranks[0], " has ",
                         all[0]));
  }
  agreed = true;
}

bool Join::Impl::ExchangeActive(bool has_input) {
  Agree();
  uint8_t mine = has_input ? 1 : 0;
  const std::vector<int> ranks = group->ranks();
  std::vector<uint8_t> all(ranks.size());
  group->AllGatherIntoTensor(all, Tensor(&mine, {1}));
  std::vector<int> with;
  std::vector<int> without;
  for (size_t i = 0; i < ranks.size(); ++i) {
    (all[i] != 0 ? with : without).push_back(ranks[i]);
  }
  if (with.empty()) return false;
  ++step;
  active = std::move(with);
  std::sort(active.begin(), active.end());
  if (options.throw_on_early_termination && !without.empty()) {
    ThrowEarlyTermination(without);
  }
  return true;
}

void Join::Impl::ThrowEarlyTermination(const std::vector<int>& without_inputs) {
  std::vector<int> ranks = without_inputs;
  std::sort(ranks.begin(), ranks.end());
  internal::Culprits culprits;
  for (const int rank : ranks) culprits.members.push_back({.rank = rank});
  Status status = OutOfRangeError(absl::StrCat(
      "Join: detected at least one rank that exhausted inputs, throwing across "
      "all ranks: ",
      base::RanksText(ranks), ranks.size() == 1 ? " has" : " have",
      " no input for step ", step));
  Reset();
  internal::Throw(internal::ErrorSource::kControl,
                  internal::WithCulprits(std::move(status), culprits));
}

Join::Join(std::vector<Joinable*> joinables, const JoinContextOptions& options)
    : impl_(std::make_unique<Impl>(std::move(joinables), options)) {}

Join::~Join() = default;

void Join::BeginStep() {
  if (impl_->group->state()->IsForOthers("join")) return;
  impl_->ExchangeActive(true);
}

const std::vector<int>& Join::active_ranks() const { return impl_->active; }

JoinResult Join::Finish() {
  if (impl_->group->state()->IsForOthers("join")) return {};
  while (impl_->ExchangeActive(false)) {
    for (Joinable* joinable : impl_->joinables) joinable->ShadowStep();
  }
  JoinResult result;
  result.last_ranks = impl_->active;
  result.is_last = std::binary_search(
      result.last_ranks.begin(), result.last_ranks.end(),
      impl_->group->ranks()[static_cast<size_t>(impl_->group->rank())]);
  impl_->Reset();
  for (Joinable* joinable : impl_->joinables) joinable->FinishJoin(result);
  return result;
}

std::shared_ptr<ProcessGroup> Join::join_group() const { return impl_->group; }

void Join::ShadowStep() { Finish(); }

std::string Join::DescribeJoin() const {
  return absl::StrCat("join of [",
                      absl::StrJoin(impl_->joinables, ", ",
                                    [](std::string* out, const Joinable* one) {
                                      out->append(one->DescribeJoin());
                                    }),
                      "]");
}

}  // namespace muster
