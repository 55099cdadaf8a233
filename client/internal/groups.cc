#include "client/internal/groups.h"

#include <algorithm>
#include <cstddef>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "client/internal/deadline.h"
#include "client/internal/debugging.h"
#include "client/internal/throw.h"
#include "client/internal/verbs.h"
#include "dataplane/bootstrap_store.h"
#include "dataplane/culprit.h"
#include "dataplane/decorators/consistency_check.h"
#include "dataplane/decorators/metering.h"
#include "dataplane/decorators/point_to_point_check.h"
#include "dataplane/decorators/recording.h"
#include "dataplane/factory.h"
#include "dataplane/flight_recorder/flight_recorder.h"
#include "glog/logging.h"

namespace muster::internal {
namespace {

using dataplane::MutexLock;
using std::chrono::milliseconds;

[[noreturn]] void Invalid(absl::string_view text) {
  Throw(Origin::kControl, absl::InvalidArgumentError(text));
}

[[noreturn]] void UnknownGroup() { Invalid("Invalid process group specified"); }

// The same in every process: FNV-1a.
std::string HashOf(const std::vector<int>& ranks) {
  uint64_t hash = 0xcbf29ce484222325;
  for (const char byte : absl::StrJoin(ranks, "_")) {
    hash = (hash ^ static_cast<unsigned char>(byte)) * 0x100000001b3;
  }
  return absl::StrCat(absl::Hex(hash, absl::kZeroPad16));
}

// Throws when a rank is there twice; `ranks` ascend.
void CheckDistinct(const std::vector<int>& ranks, absl::string_view what) {
  const auto twice = std::adjacent_find(ranks.begin(), ranks.end());
  if (twice != ranks.end()) {
    Invalid(absl::StrCat(what, " cannot have duplicate ranks, but rank ",
                         *twice, " is in it twice"));
  }
}

// In names of shrunk groups; of more a hash.
constexpr size_t kExcludedInNameMax = 8;

// The same in every process that excludes the same ranks, whatever it has
// excluded before.
std::string NameOfShrunk(const std::string& group, std::vector<int> excluded) {
  std::sort(excluded.begin(), excluded.end());
  return absl::StrCat(group, ":shrink:",
                      excluded.size() > kExcludedInNameMax
                          ? HashOf(excluded)
                          : absl::StrJoin(excluded, "_"));
}

// Ends a group; its error, and whether anybody has seen that.
std::pair<absl::Status, bool> End(GroupState& state) {
  absl::Status error = state.status();
  const bool seen = state.failure_seen();
  if (!error.ok() && !seen) error = state.Explain(error);
  state.Shutdown();
  return {error, seen};
}

// What the backend says, which knows neither the ranks of the default group nor
// hosts, with both.
absl::Status NotFormed(const GroupStateOptions& group,
                       const absl::Status& why) {
  if (absl::IsInvalidArgument(why) || !CulpritsOf(why).empty()) return why;
  std::string text = absl::StrCat("group \"", group.name, "\" of ",
                                  group.seats.size(), " ranks did not form");
  if (absl::IsDeadlineExceeded(why)) {
    absl::StrAppend(&text, " within ", FormatDuration(group.timeout), " (",
                    group.timeout_name, ")");
  }
  absl::StrAppend(&text, ": ", why.message());
  std::vector<int> ranks;
  std::map<int, int> in_group;
  for (const int rank : dataplane::CulpritRanks(why)) {
    if (rank < 0 || rank >= static_cast<int>(group.seats.size())) continue;
    ranks.push_back(group.seats[static_cast<size_t>(rank)].rank);
    in_group[ranks.back()] = rank;
  }
  std::sort(ranks.begin(), ranks.end());
  const Culprits culprits =
      SeatedAt(group.seats, ranks, std::string(why.message()));
  for (const MemberInfo& member : culprits.members) {
    absl::StrAppend(
        &text, "; ",
        group.is_world
            ? ""
            : absl::StrCat("rank ", in_group[member.rank], " of it is "),
        DescribeMember(member, group.is_world));
  }
  return WithCulprits(absl::Status(why.code(), text), culprits);
}

// Takes what this rank has of a group from the coordinator, which forgets the
// group when all its ranks have left it. One that does not answer keeps it
// until the next generation.
void Tidy(Session& session, SessionBootstrap& bootstrap, int64_t generation,
          const std::string& group) {
  if (!bootstrap.DeleteOwnKeys()) return;
  LeaveGroup(session.stream(), generation, group,
             Deadline::After(std::chrono::seconds(2), "2s for tidying up"))
      .IgnoreError();
}

}  // namespace

milliseconds CheckTimeout(milliseconds timeout, milliseconds fallback,
                          absl::string_view name) {
  return CheckNotNegative(timeout, name).count() == 0 ? fallback : timeout;
}

std::vector<int> SurvivorsOf(const ProcessGroup& group,
                             const std::vector<int>& ranks_to_exclude) {
  if (ranks_to_exclude.empty()) Invalid("ranks_to_exclude cannot be empty");
  std::vector<int> excluded = ranks_to_exclude;
  std::sort(excluded.begin(), excluded.end());
  CheckDistinct(excluded, "ranks_to_exclude");
  std::vector<int> survivors;
  for (const int rank : excluded) {
    if (rank >= 0 && rank < group.size()) continue;
    Invalid(absl::StrCat("ranks_to_exclude: rank ", rank, " is not in group \"",
                         group.name(), "\", whose ranks are 0 to ",
                         group.size() - 1));
  }
  for (int rank = 0; rank < group.size(); ++rank) {
    if (!std::binary_search(excluded.begin(), excluded.end(), rank)) {
      survivors.push_back(rank);
    }
  }
  if (survivors.empty()) {
    Invalid(absl::StrCat("ranks_to_exclude: cannot exclude all ranks, got ",
                         excluded.size()));
  }
  if (!std::binary_search(survivors.begin(), survivors.end(), group.rank())) {
    Invalid(absl::StrCat("ranks_to_exclude: this rank, ", group.rank(),
                         ", is among them; only those that stay make the "
                         "call"));
  }
  return survivors;
}

void AbortToShrink(ProcessGroup& group,
                   const std::vector<int>& ranks_to_exclude) {
  std::vector<int> global;
  global.reserve(ranks_to_exclude.size());
  for (const int rank : ranks_to_exclude) {
    global.push_back(group.state()->GlobalRankOf(rank));
  }
  std::sort(global.begin(), global.end());
  group.state()->Abort(
      absl::StrCat(
          "shrunk without ", group.state()->options().is_world ? "" : "global ",
          global.size() == 1 ? "rank " : "ranks ", absl::StrJoin(global, ", ")),
      ranks_to_exclude);
}

void CheckBackend(const std::string& backend) {
  ThrowIfFailed(Origin::kControl, dataplane::CheckBackend(backend));
}

namespace {

// With what the debug level, and the flight recorder, want to see of it.
std::unique_ptr<dataplane::Backend> Watched(
    std::unique_ptr<dataplane::Backend> backend,
    const GroupStateOptions& options,
    std::shared_ptr<dataplane::BootstrapStore> store) {
  const DebugLevel level = CurrentDebugLevel();
  const int size = static_cast<int>(options.seats.size());
  std::vector<int> ranks;
  ranks.reserve(options.seats.size());
  for (const Seat& seat : options.seats) ranks.push_back(seat.rank);
  const int global_rank = ranks[static_cast<size_t>(options.rank)];
  if (level != DebugLevel::kOff) {
    LOG(INFO) << "group formed: group=" << options.name
              << " rank=" << options.rank << " global_rank=" << global_rank
              << " size=" << size << " ranks=" << absl::StrJoin(ranks, ",")
              << " backend=" << options.backend;
  }
  if (level == DebugLevel::kDetail && size > 1) {
    backend = std::make_unique<dataplane::PointToPointCheck>(
        std::move(backend),
        dataplane::PointToPointCheckOptions{
            .group_name = options.name, .rank = options.rank, .store = store});
    backend = std::make_unique<dataplane::ConsistencyCheck>(
        std::move(backend),
        dataplane::ConsistencyCheckOptions{.group_name = options.name,
                                           .rank = options.rank,
                                           .world_size = size,
                                           .store = std::move(store)});
  }
  const std::shared_ptr<dataplane::FlightRecorder> recorder = Recorder();
  if (recorder->capacity() == 0) return backend;
  return std::make_unique<dataplane::Recording>(
      std::move(backend), recorder,
      dataplane::FlightRecorder::Group{.name = options.name,
                                       .description = options.description,
                                       .backend = options.backend,
                                       .ranks = std::move(ranks)},
      [global_rank](const absl::Status&) { DumpAfterFailure(global_rank); });
}

}  // namespace

std::shared_ptr<SessionBootstrap> BootstrapOf(
    const std::shared_ptr<Session>& session, const std::string& key_prefix,
    const std::shared_ptr<FailureJudge>& judge, int64_t generation) {
  return std::make_shared<SessionBootstrap>(
      session, key_prefix,
      [judge, generation, session, key_prefix](bool asks) -> absl::Status {
        absl::Status known = judge->Known(generation);
        if (!known.ok() || !asks) return known;
        return EndInStore(*session, key_prefix);
      });
}

absl::StatusOr<std::shared_ptr<GroupState>> ConnectGroup(
    GroupStateOptions options, const dataplane::BackendOptions& peers,
    std::shared_ptr<dataplane::Metrics> metrics,
    std::shared_ptr<Session> session, std::shared_ptr<FailureJudge> judge,
    LiveGroups& live) {
  options.device = peers.device;
  auto backend = dataplane::CreateBackend(options.backend, peers);
  if (!backend.ok()) {
    // A peer that broke a connection may be gone.
    absl::Status known = absl::IsUnavailable(backend.status())
                             ? judge->AwaitKnown(options.generation)
                             : judge->Known(options.generation);
    return known.ok() ? NotFormed(options, backend.status()) : known;
  }
  if (metrics != nullptr) {
    backend = std::make_unique<dataplane::Metering>(*std::move(backend),
                                                    std::move(metrics));
  }
  backend = Watched(*std::move(backend), options, peers.store);
  auto state = GroupState::Create(std::move(options), *std::move(backend),
                                  std::move(session), std::move(judge));
  live.Add(state);
  return state;
}

Groups::Groups(GroupsOptions options)
    : options_(std::move(options)),
      non_member_(std::make_shared<ProcessGroup>(
          GroupState::NonMember(options_.formation.rank))) {}

Groups::~Groups() {
  MutexLock lock(mutex_);
  for (auto& [name, entry] : entries_) {
    if (entry.group != nullptr) entry.group->state()->Shutdown();
  }
}

std::vector<int> Groups::CheckRanks(const NewGroupOptions& options) const {
  const size_t world_size = options_.formation.seats.size();
  std::vector<int> ranks(world_size);
  std::iota(ranks.begin(), ranks.end(), 0);
  if (!options.ranks.has_value()) return ranks;
  ranks = *options.ranks;
  std::sort(ranks.begin(), ranks.end());
  if (ranks.empty()) Invalid("the new group cannot be empty");
  if (ranks.size() > world_size) {
    Invalid(
        absl::StrCat("the new group's world size should be less or equal to "
                     "the world size set by init_process_group: ",
                     ranks.size(), " ranks of ", world_size));
  }
  for (const int rank : ranks) {
    if (rank >= 0 && static_cast<size_t>(rank) < world_size) continue;
    Invalid(
        absl::StrCat("The new group's rank should be within the the world_size "
                     "set by init_process_group: rank ",
                     rank, " of world size ", world_size));
  }
  CheckDistinct(ranks, "the new group");
  return ranks;
}

std::shared_ptr<ProcessGroup> Groups::New(const NewGroupOptions& options) {
  // Before all checks: what one rank alone is refused counts on all.
  int64_t number = 0;
  if (!options.use_local_synchronization) {
    MutexLock lock(mutex_);
    number = ++last_number_;
  }
  Plan plan;
  plan.ranks = CheckRanks(options);
  plan.timeout_name = "NewGroupOptions::timeout";
  plan.timeout = CheckTimeout(options.timeout, options_.world->timeout(),
                              plan.timeout_name);
  plan.backend =
      options.backend.empty() ? options_.world->backend() : options.backend;
  CheckBackend(plan.backend);
  plan.nccl = options.nccl.value_or(options_.nccl);
  plan.description = options.description;
  const bool member = std::binary_search(plan.ranks.begin(), plan.ranks.end(),
                                         options_.formation.rank);
  plan.name = options.name.empty() ? absl::StrCat(number) : options.name;
  plan.name_is_fresh = options.name.empty() && number > 0;
  // All ranks take part in that, and all know whether.
  if (number > 0 && plan.backend == options_.world->backend()) {
    plan.descent =
        options_.world->state()->Split({.part = member ? 0 : dataplane::kNoPart,
                                        .group_name = plan.name,
                                        .nccl = plan.nccl});
  }
  if (!member) return non_member_;
  if (!options.name.empty() || number > 0) return Form(plan);
  const std::string hash = HashOf(plan.ranks);
  {
    MutexLock lock(mutex_);
    number = last_by_hash_[hash]++;
  }
  plan.name = absl::StrCat(hash, "_", number);
  // The next call means this one again: the others may still be in it.
  absl::Cleanup give_back = [&] {
    MutexLock lock(mutex_);
    int64_t& last = last_by_hash_[hash];
    if (last == number + 1) last = number;
  };
  std::shared_ptr<ProcessGroup> group = Form(plan);
  std::move(give_back).Cancel();
  return group;
}

std::shared_ptr<ProcessGroup> Groups::Split(
    const std::shared_ptr<ProcessGroup>& parent,
    const std::vector<std::vector<int>>& split_ranks,
    const SplitGroupOptions& options) {
  CheckKnown(parent);
  if (parent->rank() < 0) return non_member_;
  // Before all checks, as of new groups.
  int64_t number = 0;
  {
    MutexLock lock(mutex_);
    number = last_split_[parent->name()]++;
  }
  Plan plan;
  plan.timeout_name = "SplitGroupOptions::timeout";
  plan.timeout =
      CheckTimeout(options.timeout, parent->timeout(), plan.timeout_name);
  plan.backend = parent->backend();
  plan.nccl = options_.nccl;
  plan.description = options.description;
  if (split_ranks.empty()) Invalid("split_ranks cannot be empty");
  std::vector<int> placed(static_cast<size_t>(parent->size()), -1);
  for (size_t i = 0; i < split_ranks.size(); ++i) {
    std::vector<int> ranks = split_ranks[i];
    if (ranks.empty()) Invalid("the split group cannot be empty");
    std::sort(ranks.begin(), ranks.end());
    CheckDistinct(ranks, "the split group");
    for (int& rank : ranks) {
      const int global = parent->state()->GlobalRankOf(rank);
      int& place = placed[static_cast<size_t>(rank)];
      if (place >= 0) {
        Invalid(absl::StrCat("Rank ", rank, " has appeared in both split ",
                             place, " and ", i));
      }
      place = static_cast<int>(i);
      rank = global;
    }
    if (placed[static_cast<size_t>(parent->rank())] == static_cast<int>(i)) {
      plan.ranks = ranks;
    }
  }
  plan.name = absl::StrCat(parent->name(), ":split:", number, ":",
                           placed[static_cast<size_t>(parent->rank())]);
  plan.name_is_fresh = true;
  plan.descent = parent->state()->Split(
      {.part = placed[static_cast<size_t>(parent->rank())],
       .group_name = plan.name,
       .nccl = plan.nccl});
  return plan.ranks.empty() ? non_member_ : Form(plan);
}

std::shared_ptr<ProcessGroup> Groups::Shrink(
    const std::shared_ptr<ProcessGroup>& group,
    const std::vector<int>& ranks_to_exclude,
    const ShrinkGroupOptions& options) {
  CheckKnown(group);
  if (group->rank() < 0) return non_member_;
  Plan plan;
  for (const int rank : SurvivorsOf(*group, ranks_to_exclude)) {
    plan.ranks.push_back(group->state()->GlobalRankOf(rank));
  }
  plan.timeout_name = "ShrinkGroupOptions::timeout";
  plan.timeout =
      CheckTimeout(options.timeout, group->timeout(), plan.timeout_name);
  plan.backend = group->backend();
  plan.nccl = options_.nccl;
  plan.description = options.description;
  const std::string shrunk = NameOfShrunk(group->name(), ranks_to_exclude);
  {
    MutexLock lock(mutex_);
    // Those that formed alone are counted: a call that failed on this rank may
    // never have been made on another.
    const int64_t number = shrunk_[shrunk];
    plan.name = number == 0 ? shrunk : absl::StrCat(shrunk, ":", number);
    plan.name_is_fresh = true;
  }
  const bool aborts = options.shrink_flags == ShrinkGroupOptions::Flags::kAbort;
  std::vector<int> excluded = ranks_to_exclude;
  std::sort(excluded.begin(), excluded.end());
  // Before it is aborted: then nothing is left of it.
  plan.descent = group->state()->Split({.excluded = std::move(excluded),
                                        .aborts = aborts,
                                        .group_name = plan.name,
                                        .nccl = plan.nccl});
  if (aborts) AbortToShrink(*group, ranks_to_exclude);
  std::shared_ptr<ProcessGroup> smaller = Form(plan);
  {
    MutexLock lock(mutex_);
    ++shrunk_[shrunk];
  }
  // Its error is why it was shrunk.
  Destroy(group).IgnoreError();
  return smaller;
}

std::shared_ptr<ProcessGroup> Groups::Form(const Plan& plan) {
  {
    MutexLock lock(mutex_);
    if (plan.name == options_.world->name() || entries_.contains(plan.name)) {
      Invalid(
          absl::StrCat("The specified group name has already been created, "
                       "please use a different group name: \"",
                       plan.name, "\""));
    }
    entries_[plan.name] = Entry();
  }
  absl::Cleanup forget = [&] {
    MutexLock lock(mutex_);
    entries_.erase(plan.name);
  };
  Entry entry = Connect(plan);
  MutexLock lock(mutex_);
  if (over_) {
    entry.group->state()->Shutdown();
    Throw(Origin::kControl,
          absl::FailedPreconditionError(
              absl::StrCat("the default group was destroyed while group \"",
                           plan.name, "\" formed")));
  }
  entries_[plan.name] = entry;
  std::move(forget).Cancel();
  return entry.group;
}

Groups::Entry Groups::Connect(const Plan& plan) {
  const int64_t generation = options_.formation.generation;
  const Deadline deadline = Deadline::After(plan.timeout, plan.timeout_name);
  int64_t number = 0;
  if (!plan.name_is_fresh) {
    MutexLock lock(mutex_);
    number = made_[{plan.name, plan.ranks}]++;
  }
  FailureJudge::Options judging = options_.judging;
  judging.ranks = plan.ranks;
  const std::shared_ptr<FailureJudge> judge =
      options_.live->NewJudge(std::move(judging));
  // So that its barriers, and whoever looks at the job, know who is in it.
  const absl::Status registered =
      RegisterGroups(options_.session->stream(), generation,
                     {{.name = plan.name,
                       .ranks = plan.ranks,
                       .description = plan.description}},
                     deadline)
          .status();
  if (!registered.ok()) {
    const absl::Status known = judge->Known(generation);
    Throw(Origin::kControl, known.ok() ? registered : known);
  }
  const std::string key_prefix =
      absl::StrCat(options_.key_prefix, "groups/", plan.name, "/",
                   HashOf(plan.ranks), "/", number, "/");
  Entry entry;
  entry.bootstrap =
      BootstrapOf(options_.session, key_prefix, judge, generation);
  const int rank =
      static_cast<int>(std::lower_bound(plan.ranks.begin(), plan.ranks.end(),
                                        options_.formation.rank) -
                       plan.ranks.begin());
  const GroupStateOptions group = {
      .name = plan.name,
      .backend = plan.backend,
      .timeout = plan.timeout,
      .timeout_name = plan.timeout_name,
      .generation = generation,
      .seats = SeatsOf(options_.formation, plan.ranks),
      .description = plan.description,
      .rank = rank,
      .is_world = false,
      .key_prefix = key_prefix,
      .barrier_suffix = plan.name_is_fresh
                            ? ""
                            : absl::StrCat("/", HashOf(plan.ranks).substr(0, 8),
                                           "-", number)};
  absl::StatusOr<std::shared_ptr<GroupState>> state =
      ConnectGroup(group,
                   {.rank = rank,
                    .world_size = static_cast<int>(plan.ranks.size()),
                    .group_name = plan.name,
                    .store = entry.bootstrap,
                    .deadline = deadline.at,
                    .local_address = options_.local_address,
                    .device = options_.device,
                    .nccl = plan.nccl,
                    .descent = plan.descent},
                   options_.metrics, options_.session, judge, *options_.live);
  if (!state.ok()) {
    if (!plan.name_is_fresh) {
      // The next call means this one again: the others may still be in it.
      MutexLock lock(mutex_);
      --made_[{plan.name, plan.ranks}];
    }
    Tidy(*options_.session, *entry.bootstrap, generation, plan.name);
    Throw(absl::IsInvalidArgument(state.status()) ? Origin::kControl
                                                  : Origin::kBackend,
          state.status());
  }
  entry.group = std::make_shared<ProcessGroup>(*std::move(state));
  return entry;
}

absl::Status Groups::Destroy(const std::shared_ptr<ProcessGroup>& group) {
  if (group->rank() < 0) return absl::OkStatus();
  Entry entry;
  {
    MutexLock lock(mutex_);
    const auto found = entries_.find(group->name());
    if (found == entries_.end() || found->second.group != group) {
      UnknownGroup();
    }
    entry = found->second;
    entries_.erase(found);
  }
  const auto [error, seen] = End(*entry.group->state());
  Tidy(*options_.session, *entry.bootstrap, options_.formation.generation,
       group->name());
  return seen ? absl::OkStatus() : error;
}

Groups::Outcome Groups::DestroyAll() {
  std::map<std::string, Entry> entries;
  {
    MutexLock lock(mutex_);
    over_ = true;
    entries.swap(entries_);
  }
  Outcome outcome;
  // Those of a coordinator that ends with its job do not matter.
  bool deletes_keys = !options_.judging.embedded;
  for (auto it = entries.rbegin(); it != entries.rend(); ++it) {
    const Entry& entry = it->second;
    if (entry.group == nullptr) continue;
    const auto [error, seen] = End(*entry.group->state());
    deletes_keys = deletes_keys && entry.bootstrap->DeleteOwnKeys();
    outcome.seen = outcome.seen || seen;
    if (!error.ok() && !seen && outcome.unseen.ok()) outcome.unseen = error;
  }
  return outcome;
}

void Groups::CheckKnown(const std::shared_ptr<ProcessGroup>& group) const {
  if (group == options_.world || group->rank() < 0) return;
  MutexLock lock(mutex_);
  const auto found = entries_.find(group->name());
  if (found == entries_.end() || found->second.group != group) UnknownGroup();
}

}  // namespace muster::internal
