#include "muster/join.h"

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/text.h"
#include "client/control/throw.h"
#include "client/groups/group_state.h"
#include "client/parallel/agreement/agreement.h"
#include "muster/base/status.h"
#include "muster/distributed.h"

namespace muster {
namespace {

using internal::Invalid;

// Ranks exchange it at the beginning of a step.
struct Notice {
  // The join's description as a number, and the step.
  int64_t hash = 0;
  int64_t step = 0;
  // 0: this rank has no input. Otherwise kHasInput, and bit i if joinable i
  // runs collectives in this step.
  int64_t input = 0;
};
constexpr int64_t kNoticeFields = sizeof(Notice) / sizeof(int64_t);
constexpr size_t kJoinablesMax = 63;
constexpr int64_t kHasInput = std::numeric_limits<int64_t>::min();

std::shared_ptr<ProcessGroup> GetGroup(const Joinable& joinable) {
  auto group = joinable.join_group();
  return group == nullptr ? WorldGroup() : group;
}

std::vector<Joinable*> Checked(std::vector<Joinable*> joinables) {
  if (joinables.empty()) {
    Invalid("Join: argument joinables: there are none");
  }
  if (joinables.size() > kJoinablesMax) {
    Invalid(absl::StrCat("Join: argument joinables: there are ",
                         joinables.size(), ", only ", kJoinablesMax,
                         " are possible"));
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
    for (Joinable* joinable : joinables) {
      auto* const inner = dynamic_cast<Join*>(joinable);
      if (inner != nullptr) inner->impl_->outer = this;
    }
  }
  ~Impl() {
    for (Joinable* joinable : joinables) {
      auto* const inner = dynamic_cast<Join*>(joinable);
      if (inner != nullptr) inner->impl_->outer = nullptr;
    }
  }

  // Makes it ready for the first step.
  void Reset() {
    step = 0;
    active = all_ranks;
  }

  internal::Agreement Describe() const;
  Notice MakeNotice(bool has_input);
  // Throws on all ranks unless they run the same join and step.
  void CheckSame(const std::vector<Notice>& notices) const;
  // Throws on all ranks if ranks with inputs run different joinables.
  void CheckInputs(const std::vector<Notice>& notices) const;
  // Tells the ranks whether this one has an input, and finds those that have
  // one. `active` keeps the ranks of the last step if there are none.
  // Returns what the ranks with inputs run, or 0 if there are none.
  int64_t ExchangeInputs(bool has_input);
  [[noreturn]] void ThrowEarlyTermination(
      const std::vector<int>& without_inputs);

  const std::vector<Joinable*> joinables;
  const JoinContextOptions options;
  const std::shared_ptr<ProcessGroup> group;
  // Global ranks, ascending.
  std::vector<int> all_ranks;
  std::vector<int> active;
  // The hash of Describe(), after the first step.
  std::optional<int64_t> hash;
  // The number of steps since the beginning or the last Finish.
  int64_t step = 0;
  // The Join that contains this one, or null.
  Impl* outer = nullptr;
};

internal::Agreement Join::Impl::Describe() const {
  internal::Agreement all("Join");
  all.Add("option throw_on_early_termination",
          absl::StrCat(options.throw_on_early_termination));
  for (size_t i = 0; i < joinables.size(); ++i) {
    all.Add(absl::StrCat("argument joinables, number ", i),
            joinables[i]->DescribeJoin());
  }
  return all;
}

Notice Join::Impl::MakeNotice(bool has_input) {
  if (!hash.has_value()) {
    hash = static_cast<int64_t>(Describe().ComputeHash());
  }
  Notice notice = {.hash = *hash, .step = step};
  if (!has_input) return notice;
  notice.input = kHasInput;
  for (size_t i = 0; i < joinables.size(); ++i) {
    if (joinables[i]->RunsInStep()) notice.input |= int64_t{1} << i;
  }
  return notice;
}

void Join::Impl::CheckSame(const std::vector<Notice>& notices) const {
  for (const Notice& other : notices) {
    if (other.hash == notices[0].hash && other.step == notices[0].step) {
      continue;
    }
    internal::Agreement all = Describe();
    all.Add("steps before this one", absl::StrCat(step));
    all.Check({group});
  }
}

void Join::Impl::CheckInputs(const std::vector<Notice>& notices) const {
  const std::vector<int> ranks = group->ranks();
  std::optional<size_t> first;
  for (size_t i = 0; i < notices.size(); ++i) {
    if (notices[i].input == 0) continue;
    if (!first.has_value()) first = i;
    const int64_t differ = notices[i].input ^ notices[*first].input;
    if (differ == 0) continue;
    const auto joinable =
        static_cast<size_t>(std::countr_zero(static_cast<uint64_t>(differ)));
    const bool runs = (notices[i].input >> joinable & 1) != 0;
    internal::Throw(
        internal::ErrorSource::kControl,
        internal::WithCulprits(
            InvalidArgumentError(absl::StrCat(
                "Join: argument joinables, number ", joinable, ": ",
                joinables[joinable]->DescribeJoin(), " runs in step ", step + 1,
                " on rank ", ranks[runs ? i : *first], ", but not on rank ",
                ranks[runs ? *first : i])),
            {{group->state()->GetMember(static_cast<int>(i))}}));
  }
}

int64_t Join::Impl::ExchangeInputs(bool has_input) {
  Notice mine = MakeNotice(has_input);
  const std::vector<int> ranks = group->ranks();
  std::vector<Notice> all(ranks.size());
  group->AllGatherIntoTensor(
      Tensor(&all[0].hash, {static_cast<int64_t>(all.size()) * kNoticeFields}),
      Tensor(&mine.hash, {kNoticeFields}));
  CheckSame(all);
  std::vector<int> with;
  std::vector<int> without;
  int64_t input = 0;
  for (size_t i = 0; i < ranks.size(); ++i) {
    (all[i].input != 0 ? with : without).push_back(ranks[i]);
    input |= all[i].input;
  }
  if (with.empty()) return 0;
  CheckInputs(all);
  ++step;
  active = std::move(with);
  std::sort(active.begin(), active.end());
  if (options.throw_on_early_termination && !without.empty()) {
    ThrowEarlyTermination(without);
  }
  return input;
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
  // All ranks leave the steps that contain this one, too.
  for (Impl* join = this; join != nullptr; join = join->outer) join->Reset();
  internal::Throw(internal::ErrorSource::kControl,
                  internal::WithCulprits(std::move(status), culprits));
}

Join::Join(std::vector<Joinable*> joinables, const JoinContextOptions& options)
    : impl_(std::make_unique<Impl>(std::move(joinables), options)) {}

Join::~Join() = default;

void Join::BeginStep() {
  if (impl_->group->state()->IsForOthers("join")) return;
  impl_->ExchangeInputs(true);
}

const std::vector<int>& Join::active_ranks() const { return impl_->active; }

JoinResult Join::Finish() {
  if (impl_->group->state()->IsForOthers("join")) return {};
  while (const int64_t input = impl_->ExchangeInputs(false)) {
    for (size_t i = 0; i < impl_->joinables.size(); ++i) {
      if ((input >> i & 1) != 0) impl_->joinables[i]->ShadowStep();
    }
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
