#include "client/groups/groups.h"

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <map>
#include <memory>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "base/text.h"
#include "client/control/deadline.h"
#include "client/control/group_name.h"
#include "client/control/throw.h"
#include "client/control/verbs.h"
#include "client/groups/debugging.h"
#include "dataplane/culprit.h"
#include "dataplane/observe/consistency_check.h"
#include "dataplane/observe/flight_recorder.h"
#include "dataplane/observe/point_to_point_check.h"
#include "dataplane/observe/recorder.h"
#include "glog/logging.h"
#include "muster/dataplane/bootstrap_store.h"
#include "muster/dataplane/factory.h"

namespace muster::internal {
namespace {

using std::chrono::milliseconds;

[[noreturn]] void UnknownGroup() { Invalid("Invalid process group specified"); }

std::string ComputeHash(const std::vector<int>& ranks) {
  return StableHash(absl::StrJoin(ranks, "_"));
}

// Throws if a rank is there twice; `ranks` ascend.
void CheckDistinct(const std::vector<int>& ranks, absl::string_view what) {
  const auto twice = std::adjacent_find(ranks.begin(), ranks.end());
  if (twice != ranks.end()) {
    Invalid(absl::StrCat(what, " cannot have duplicate ranks, but rank ",
                         *twice, " is in it twice"));
  }
}

// Unique even among ended groups of the same name.
std::string UniqueName(const GroupState& group) {
  return absl::StrCat(group.options().name, group.options().barrier_suffix);
}
std::string UniqueName(const ProcessGroup& group) {
  return UniqueName(*group.state());
}

// With more excluded ranks the name has a hash.
constexpr size_t kExcludedInNameMax = 8;

// Returns the same name in every process that excludes the same ranks, whatever
// it excluded before.
std::string NameWithout(const std::string& group, std::vector<int> excluded) {
  std::sort(excluded.begin(), excluded.end());
  return NameOfShrunk(group, excluded.size() > kExcludedInNameMax
                                 ? ComputeHash(excluded)
                                 : absl::StrJoin(excluded, "_"));
}

// Ends a group. Returns its error, and whether a caller has seen it.
std::pair<Status, bool> End(GroupState& state) {
  Status error = state.status();
  const bool seen = state.failure_seen();
  if (!error.ok() && !seen) error = state.Explain(error);
  state.Shutdown();
  return {error, seen};
}

// Removes this rank's state of a group from the coordinator, which deletes the
// group when all ranks have left it. If the coordinator does not answer, it
// keeps the state until the next generation.
void Tidy(Session& session, SessionBootstrap& bootstrap, int64_t generation,
          const std::string& group) {
  if (!bootstrap.DeleteOwnKeys()) return;
  LeaveGroup(session.stream(), generation, group,
             Deadline::After(std::chrono::seconds(2), "2s for tidying up"))
      .IgnoreError();
}

// The counters of calls that all ranks make.
constexpr char kNewGroupSeries[] = "new_group";
std::string SplitSeries(const ProcessGroup& parent) {
  return absl::StrCat("split_group/", StableHash(UniqueName(parent)));
}

// Checks NewGroupOptions::device_id against the default group's device.
int CheckDevice(std::optional<int> wanted, int of_world) {
  if (!wanted.has_value()) return of_world;
  if (*wanted < 0) {
    Invalid(absl::StrCat(
        "NewGroupOptions::device_id must not be negative but was ", *wanted));
  }
  if (of_world >= 0 && *wanted != of_world) {
    Invalid(
        absl::StrCat("NewGroupOptions::device_id is ", *wanted,
                     ", but the default group is bound to cuda:", of_world));
  }
  return *wanted;
}

}  // namespace

milliseconds CheckTimeout(milliseconds timeout, milliseconds fallback,
                          absl::string_view name) {
  return CheckNotNegative(timeout, name).count() == 0 ? fallback : timeout;
}

std::vector<int> FindSurvivors(const ProcessGroup& group,
                               const std::vector<int>& ranks_to_exclude) {
  if (ranks_to_exclude.empty()) Invalid("ranks_to_exclude cannot be empty");
  std::vector<int> excluded = ranks_to_exclude;
  std::sort(excluded.begin(), excluded.end());
  CheckDistinct(excluded, "ranks_to_exclude");
  std::vector<int> survivors;
  for (const int rank : excluded) {
    if (rank >= 0 && rank < group.size()) continue;
    Invalid(absl::StrCat("ranks_to_exclude: rank ", rank, " is not in group ",
                         base::Quote(group.name()), ", whose ranks are 0 to ",
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
    global.push_back(group.state()->ToGlobalRank(rank));
  }
  std::sort(global.begin(), global.end());
  group.state()->Abort(
      absl::StrCat(
          "shrunk without ", group.state()->options().is_world ? "" : "global ",
          global.size() == 1 ? "rank " : "ranks ", absl::StrJoin(global, ", ")),
      ranks_to_exclude);
}

std::string CheckBackend(const std::string& backend) {
  std::string name = absl::AsciiStrToLower(backend);
  ThrowIfFailed(ErrorSource::kControl, dataplane::CheckBackend(name));
  return name;
}

std::string CheckCpuTransport(const std::string& name,
                              const std::string& fallback) {
  ThrowIfFailed(ErrorSource::kControl, dataplane::CheckCpuTransport(name));
  return name.empty() ? fallback : name;
}

SharedCall Groups::MakeSharedCall(const Plan& plan, int64_t instance) {
  const bool numbered = plan.call_number > 0;
  return {.number = plan.call_number,
          .series = numbered ? plan.call_series
                             : absl::StrCat(GetMaker(plan.name), "/",
                                            StableHash(plan.name)),
          .instance = numbered ? 0 : instance,
          .arguments = absl::StrCat(plan.name, "/", ComputeHash(plan.ranks)),
          .meaning =
              plan.meaning.empty()
                  ? absl::StrCat(
                        "makes group ", base::Quote(plan.name), " of ",
                        base::CountedRanksText(plan.ranks, plan.ranks.size()))
                  : plan.meaning,
          .ranks = plan.ranks,
          .callers = plan.callers};
}

Groups::Groups(GroupsOptions options)
    : options_(std::move(options)),
      non_member_(std::make_shared<ProcessGroup>(
          GroupState::NonMember(options_.formation.rank))) {}

Groups::~Groups() {
  MutexLock lock(mutex_);
  for (auto& [name, entry] : entries_) {
    if (entry.state != nullptr) entry.state->Shutdown();
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

Groups::Plan Groups::PlanNew(const NewGroupOptions& options,
                             int64_t number) const {
  Plan plan;
  plan.ranks = CheckRanks(options);
  plan.timeout_name = "NewGroupOptions::timeout";
  plan.timeout = CheckTimeout(options.timeout, options_.world->timeout(),
                              plan.timeout_name);
  plan.backend = CheckBackend(
      options.backend.empty() ? options_.world->backend() : options.backend);
  plan.device = CheckDevice(options.device_id, options_.device);
  plan.nccl = options.nccl.value_or(options_.nccl);
  plan.cpu_transport = CheckCpuTransport(
      options.cpu_transport, options_.world->state()->options().cpu_transport);
  plan.description = options.description;
  plan.name = options.name.empty() ? absl::StrCat(number) : options.name;
  plan.name_is_fresh = options.name.empty() && number > 0;
  plan.call_number = number;
  plan.call_series = kNewGroupSeries;
  if (number > 0) plan.callers = options_.world->size();
  return plan;
}

bool Groups::Refuses(const NewGroupOptions& options) const {
  try {
    PlanNew(options, 1);
    return false;
  } catch (const DistError&) {
    return true;
  }
}

std::shared_ptr<ProcessGroup> Groups::New(const NewGroupOptions& options) {
  EndDropped();
  // Counts before all checks: a call that only one rank refuses counts on all.
  int64_t number = 0;
  if (!options.use_local_synchronization) {
    MutexLock lock(mutex_);
    number = ++last_number_;
  }
  Plan plan;
  try {
    plan = PlanNew(options, number);
  } catch (const DistError& error) {
    if (number > 0) {
      options_.calls->Refuse({.number = number,
                              .series = kNewGroupSeries,
                              .callers = options_.world->size()},
                             error.what());
    }
    throw;
  }
  const bool member = std::binary_search(plan.ranks.begin(), plan.ranks.end(),
                                         options_.formation.rank);
  // All ranks take part, and the condition is the same on all.
  if (number > 0 && plan.backend == options_.world->backend()) {
    plan.parent_handle = options_.world->state()->Split(
        {.part = member ? 0 : dataplane::kNoPart,
         .group_name = plan.name,
         .nccl = std::make_shared<dataplane::NcclOptions>(plan.nccl)});
  }
  if (!member) {
    if (number > 0) options_.calls->Pass(MakeSharedCall(plan, 0));
    return non_member_;
  }
  if (!options.name.empty() || number > 0) return Form(plan);
  const std::string hash = ComputeHash(plan.ranks);
  {
    MutexLock lock(mutex_);
    number = last_by_hash_[hash]++;
  }
  plan.name = absl::StrCat(hash, "_", number);
  // The next call repeats this one, in which the others may still wait.
  absl::Cleanup give_back = [&] {
    MutexLock lock(mutex_);
    int64_t& last = last_by_hash_[hash];
    if (last == number + 1) last = number;
  };
  std::shared_ptr<ProcessGroup> group = Form(plan);
  std::move(give_back).Cancel();
  return group;
}

Groups::Plan Groups::PlanSplit(const ProcessGroup& parent,
                               const std::vector<std::vector<int>>& split_ranks,
                               const SplitGroupOptions& options,
                               int64_t number) const {
  Plan plan;
  plan.timeout_name = "SplitGroupOptions::timeout";
  plan.timeout =
      CheckTimeout(options.timeout, parent.timeout(), plan.timeout_name);
  plan.backend = parent.backend();
  plan.device = parent.state()->options().device;
  plan.cpu_transport = parent.state()->options().cpu_transport;
  plan.nccl = options_.nccl;
  plan.description = options.description;
  if (split_ranks.empty()) Invalid("split_ranks cannot be empty");
  std::vector<int> copies(static_cast<size_t>(parent.size()), -1);
  for (size_t i = 0; i < split_ranks.size(); ++i) {
    std::vector<int> ranks = split_ranks[i];
    if (ranks.empty()) Invalid("the split group cannot be empty");
    std::sort(ranks.begin(), ranks.end());
    CheckDistinct(ranks, "the split group");
    for (int& rank : ranks) {
      const int global = parent.state()->ToGlobalRank(rank);
      int& place = copies[static_cast<size_t>(rank)];
      if (place >= 0) {
        Invalid(absl::StrCat("Rank ", rank, " has appeared in both split ",
                             place, " and ", i));
      }
      place = static_cast<int>(i);
      rank = global;
    }
    if (copies[static_cast<size_t>(parent.rank())] == static_cast<int>(i)) {
      plan.ranks = ranks;
    }
  }
  const int part = copies[static_cast<size_t>(parent.rank())];
  plan.name = NameOfSplit(UniqueName(parent), number - 1, part);
  plan.name_is_fresh = true;
  plan.call_number = number;
  plan.call_series = SplitSeries(parent);
  plan.callers = parent.size();
  if (plan.ranks.empty()) {
    plan.meaning = absl::StrCat("splits group ", base::Quote(parent.name()),
                                " into parts of which it is in none");
  }
  plan.parent_handle = parent.state()->Split(
      {.part = part,
       .group_name = plan.name,
       .nccl = std::make_shared<dataplane::NcclOptions>(plan.nccl)});
  return plan;
}

std::shared_ptr<ProcessGroup> Groups::Split(
    const std::shared_ptr<ProcessGroup>& parent,
    const std::vector<std::vector<int>>& split_ranks,
    const SplitGroupOptions& options) {
  CheckKnown(parent);
  if (parent->rank() < 0) return non_member_;
  EndDropped();
  const std::string series = UniqueName(*parent);
  // Before all checks, as in New.
  int64_t number = 0;
  {
    MutexLock lock(mutex_);
    number = ++last_split_[series];
  }
  Plan plan;
  try {
    plan = PlanSplit(*parent, split_ranks, options, number);
  } catch (const DistError& error) {
    options_.calls->Refuse({.number = number,
                            .series = SplitSeries(*parent),
                            .callers = parent->size()},
                           error.what());
    throw;
  }
  if (!plan.ranks.empty()) return Form(plan);
  options_.calls->Pass(MakeSharedCall(plan, 0));
  return non_member_;
}

std::shared_ptr<ProcessGroup> Groups::Shrink(
    const std::shared_ptr<ProcessGroup>& group,
    const std::vector<int>& ranks_to_exclude,
    const ShrinkGroupOptions& options) {
  CheckKnown(group);
  if (group->rank() < 0) return non_member_;
  Plan plan;
  for (const int rank : FindSurvivors(*group, ranks_to_exclude)) {
    plan.ranks.push_back(group->state()->ToGlobalRank(rank));
  }
  plan.timeout_name = "ShrinkGroupOptions::timeout";
  plan.timeout =
      CheckTimeout(options.timeout, group->timeout(), plan.timeout_name);
  plan.backend = group->backend();
  plan.device = group->state()->options().device;
  plan.cpu_transport = group->state()->options().cpu_transport;
  plan.nccl = options_.nccl;
  plan.description = options.description;
  // Once it has formed, the old group is gone and cannot be shrunk again.
  plan.name = NameWithout(UniqueName(*group), ranks_to_exclude);
  plan.name_is_fresh = true;
  plan.meaning =
      absl::StrCat("shrinks group ", base::Quote(group->name()), " to ",
                   base::CountedRanksText(plan.ranks, plan.ranks.size()));
  const bool aborts = options.shrink_flags == ShrinkGroupOptions::Flags::kAbort;
  std::vector<int> excluded = ranks_to_exclude;
  std::sort(excluded.begin(), excluded.end());
  // Before the abort, which destroys the parent's communicator.
  plan.parent_handle = group->state()->Split(
      {.excluded = std::move(excluded),
       .aborts = aborts,
       .group_name = plan.name,
       .nccl = std::make_shared<dataplane::NcclOptions>(plan.nccl)});
  if (aborts) AbortToShrink(*group, ranks_to_exclude);
  std::shared_ptr<ProcessGroup> smaller = Form(plan);
  // Its error is the reason for the call.
  Destroy(group).IgnoreError();
  return smaller;
}

std::shared_ptr<ProcessGroup> Groups::Form(const Plan& plan) {
  bool taken = false;
  int64_t instance = 0;
  {
    MutexLock lock(mutex_);
    taken = plan.name == options_.world->name() || entries_.contains(plan.name);
    if (!taken) entries_[plan.name] = Entry();
    if (taken && !plan.name_is_fresh) instance = made_[{plan.name, plan.ranks}];
  }
  if (taken) {
    const std::string why = absl::StrCat(
        "The specified group name has already been created, "
        "please use a different group name: ",
        base::Quote(plan.name));
    options_.calls->Refuse(MakeSharedCall(plan, instance), why);
    Invalid(why);
  }
  absl::Cleanup forget = [&] {
    MutexLock lock(mutex_);
    entries_.erase(plan.name);
  };
  Made made = Connect(plan);
  MutexLock lock(mutex_);
  if (over_) {
    made.group->state()->Shutdown();
    Throw(ErrorSource::kControl,
          FailedPreconditionError(
              absl::StrCat("the default group was destroyed while group ",
                           base::Quote(plan.name), " formed")));
  }
  entries_[plan.name] = {.group = made.group,
                         .state = made.group->state(),
                         .bootstrap = made.bootstrap};
  std::move(forget).Cancel();
  return made.group;
}

std::shared_ptr<ErrorResolver> Groups::FindResolver(
    const std::vector<int>& ranks) const {
  ErrorResolver::Options judging = options_.judging;
  judging.ranks = ranks;
  return options_.live->NewResolver(std::move(judging));
}

// Registers the group, so that its barriers and tools know its ranks.
void Groups::Register(const Plan& plan, const SharedCall& call,
                      const ErrorResolver& resolver,
                      const Deadline& deadline) const {
  const Status registered =
      options_.calls->Begin(call,
                            {{.name = plan.name,
                              .ranks = plan.ranks,
                              .description = plan.description}},
                            deadline);
  if (registered.ok()) return;
  const Status known = resolver.Known(options_.formation.generation);
  Throw(ErrorSource::kControl, known.ok() ? registered : known);
}

Groups::Made Groups::Connect(const Plan& plan) {
  const int64_t generation = options_.formation.generation;
  const Deadline deadline = Deadline::After(plan.timeout, plan.timeout_name);
  int64_t number = 0;
  if (!plan.name_is_fresh) {
    MutexLock lock(mutex_);
    number = made_[{plan.name, plan.ranks}]++;
  }
  // The next call repeats one that failed, in which the others may still wait.
  absl::Cleanup give_back = [&] {
    if (plan.name_is_fresh) return;
    MutexLock lock(mutex_);
    --made_[{plan.name, plan.ranks}];
  };
  const SharedCall call = MakeSharedCall(plan, number);
  const std::shared_ptr<ErrorResolver> resolver = FindResolver(plan.ranks);
  Register(plan, call, *resolver, deadline);
  const std::string key_prefix =
      absl::StrCat(options_.key_prefix, "groups/", plan.name, "/",
                   ComputeHash(plan.ranks), "/", number, "/");
  Made made;
  const auto forming =
      std::make_shared<GroupCalls::Waiting>(options_.calls, call);
  made.bootstrap = MakeBootstrap(options_.session, key_prefix, resolver,
                                 generation, forming);
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
      .seats = FindSeats(options_.formation, plan.ranks),
      .description = plan.description,
      .rank = rank,
      .is_world = false,
      .barrier_suffix =
          plan.name_is_fresh
              ? ""
              : absl::StrCat("/", ComputeHash(plan.ranks).substr(0, 8), "-",
                             number)};
  StatusOr<std::shared_ptr<GroupState>> state = ConnectGroup(
      group,
      {.rank = rank,
       .world_size = static_cast<int>(plan.ranks.size()),
       .group_name = plan.name,
       .store = made.bootstrap,
       .deadline = deadline.at,
       .interruption = made.bootstrap->interruption(),
       .local_address = options_.local_address,
       .device = plan.device,
       .nccl = std::make_shared<dataplane::NcclOptions>(plan.nccl),
       .parent_handle = plan.parent_handle,
       .cpu_transport = plan.cpu_transport},
      options_.metrics, options_.session, resolver, *options_.live);
  if (!state.ok()) {
    Tidy(*options_.session, *made.bootstrap, generation, plan.name);
    Throw(IsInvalidArgument(state.status()) ? ErrorSource::kControl
                                            : ErrorSource::kBackend,
          state.status());
  }
  std::move(give_back).Cancel();
  forming->Succeed();
  made.group = std::make_shared<ProcessGroup>(*std::move(state));
  return made;
}

void Groups::EndDropped() {
  std::map<std::string, Entry> dropped;
  {
    MutexLock lock(mutex_);
    for (auto it = entries_.begin(); it != entries_.end();) {
      const Entry& entry = it->second;
      // A Work has the state, too. DestroyProcessGroup reports errors that no
      // caller has seen.
      const bool is_used = entry.state == nullptr || !entry.group.expired() ||
                           entry.state.use_count() > 1 ||
                           !entry.state->status().ok();
      const auto here = it++;
      if (is_used) continue;
      last_split_.erase(UniqueName(*entry.state));
      dropped.insert(entries_.extract(here));
    }
  }
  for (const auto& [name, entry] : dropped) {
    End(*entry.state);
    Tidy(*options_.session, *entry.bootstrap, options_.formation.generation,
         name);
  }
}

Status Groups::Destroy(const std::shared_ptr<ProcessGroup>& group) {
  if (group->rank() < 0) return OkStatus();
  Entry entry;
  {
    MutexLock lock(mutex_);
    const auto found = entries_.find(group->name());
    if (found == entries_.end() || found->second.group.lock() != group) {
      UnknownGroup();
    }
    entry = found->second;
    entries_.erase(found);
    last_split_.erase(UniqueName(*group));
  }
  const auto [error, seen] = End(*entry.state);
  Tidy(*options_.session, *entry.bootstrap, options_.formation.generation,
       group->name());
  EndDropped();
  return seen ? OkStatus() : error;
}

Groups::DestroyResult Groups::DestroyAll() {
  std::map<std::string, Entry> entries;
  {
    MutexLock lock(mutex_);
    over_ = true;
    entries.swap(entries_);
  }
  DestroyResult outcome;
  // Keys need not be deleted if the coordinator ends with its job.
  bool deletes_keys = !options_.judging.embedded;
  for (auto it = entries.rbegin(); it != entries.rend(); ++it) {
    const Entry& entry = it->second;
    if (entry.state == nullptr) continue;
    const auto [error, seen] = End(*entry.state);
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
  if (found == entries_.end() || found->second.group.lock() != group) {
    UnknownGroup();
  }
}

// Connecting the ranks of a group.

namespace {

// Adds global ranks and hosts to the backend's error; the backend does not know
// them.
Status NotFormed(const GroupStateOptions& group, const Status& why) {
  if (IsInvalidArgument(why) || !ToCulprits(why).empty()) return why;
  std::string text = absl::StrCat("group ", base::Quote(group.name), " of ",
                                  group.seats.size(), " ranks did not form");
  if (IsDeadlineExceeded(why)) {
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
  const Culprits culprits = SeatedAt(group.seats, ranks, why.message());
  for (const MemberInfo& member : culprits.members) {
    absl::StrAppend(
        &text, "; ",
        group.is_world
            ? ""
            : absl::StrCat("rank ", in_group[member.rank], " of it is "),
        DescribeMember(member, group.is_world));
  }
  return WithCulprits(Status(why.code(), text), culprits);
}

// The function in which the ranks of the group wait for each other.
std::string GetCallName(const GroupStateOptions& group) {
  return group.is_world ? "init_process_group" : GetMaker(group.name);
}

// Wraps the backend for the debug level, the flight recorder and metrics, which
// may be null.
std::unique_ptr<dataplane::Backend> Watched(
    std::unique_ptr<dataplane::Backend> backend,
    const GroupStateOptions& options,
    std::shared_ptr<dataplane::BootstrapStore> store,
    std::shared_ptr<dataplane::Metrics> metrics) {
  const DebugLevel level = CurrentDebugLevel();
  const int size = static_cast<int>(options.seats.size());
  std::vector<int> ranks;
  ranks.reserve(options.seats.size());
  for (const Seat& seat : options.seats) ranks.push_back(seat.rank);
  const int global_rank = ranks[static_cast<size_t>(options.rank)];
  if (level != DebugLevel::kOff) {
    LOG(INFO) << "group formed: group=" << base::LogValue(options.name)
              << " rank=" << options.rank << " global_rank=" << global_rank
              << " size=" << size << " ranks=" << absl::StrJoin(ranks, ",")
              << " backend=" << base::LogValue(options.backend);
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
  const bool records = recorder->capacity() > 0;
  if (!records && metrics == nullptr) return backend;
  return std::make_unique<dataplane::Recorder>(
      std::move(backend), recorder,
      dataplane::FlightRecorder::Group{.name = options.name,
                                       .description = options.description,
                                       .backend = options.backend,
                                       .ranks = std::move(ranks)},
      std::move(metrics), [global_rank, records](const Status&) {
        // Otherwise there is nothing to read.
        if (records) DumpAfterFailure(global_rank);
      });
}

}  // namespace

std::shared_ptr<SessionBootstrap> MakeBootstrap(
    const std::shared_ptr<Session>& session, const std::string& key_prefix,
    const std::shared_ptr<ErrorResolver>& resolver, int64_t generation,
    const std::shared_ptr<GroupCalls::Waiting>& forming) {
  return std::make_shared<SessionBootstrap>(
      session, key_prefix,
      [resolver, generation,
       forming = std::weak_ptr(forming)](bool asks) -> Status {
        Status known = resolver->Known(generation);
        if (known.ok()) known = resolver->FindTrouble(generation);
        if (!known.ok() || !asks) return known;
        const auto waiting = forming.lock();
        return waiting == nullptr ? OkStatus() : waiting->Check();
      });
}

StatusOr<std::shared_ptr<GroupState>> ConnectGroup(
    GroupStateOptions options, const dataplane::BackendOptions& peers,
    std::shared_ptr<dataplane::Metrics> metrics,
    std::shared_ptr<Session> session, std::shared_ptr<ErrorResolver> resolver,
    LiveGroups& live) {
  options.device = peers.device;
  options.cpu_transport = peers.cpu_transport;
  const LiveGroups::Connecting connecting(&live, options.name,
                                          GetCallName(options));
  ErrorResolver::Group forming;
  forming.name = options.name;
  forming.instance = options.barrier_suffix;
  forming.generation = options.generation;
  forming.seats = options.seats;
  forming.abort = [interruption = peers.interruption](const Status& why) {
    interruption.Interrupt(why);
  };
  resolver->Form(std::move(forming));
  auto backend = dataplane::CreateBackend(options.backend, peers);
  if (!backend.ok()) {
    // A peer that broke a connection may be gone.
    Status known = IsUnavailable(backend.status())
                       ? resolver->AwaitKnown(options.generation)
                       : resolver->Known(options.generation);
    return known.ok() ? NotFormed(options, backend.status()) : known;
  }
  backend =
      Watched(*std::move(backend), options, peers.store, std::move(metrics));
  auto state = GroupState::Create(std::move(options), *std::move(backend),
                                  std::move(session), std::move(resolver));
  live.Add(state);
  return state;
}

void Groups::Meet(const std::string& arguments, const std::string& meaning) {
  const Deadline deadline = Deadline::After(options_.world->timeout(),
                                            "InitProcessGroupOptions::timeout");
  const std::vector<int> ranks = options_.world->ranks();
  int64_t number = 0;
  {
    MutexLock lock(mutex_);
    number = ++last_meeting_;
  }
  const SharedCall call = {.number = number,
                           .series = "init_device_mesh",
                           .arguments = absl::StrCat(number, "/", arguments),
                           .meaning = meaning};
  Status met = options_.calls->Begin(call, {}, deadline);
  if (IsInvalidArgument(met)) Throw(ErrorSource::kControl, std::move(met));
  const auto waiting =
      std::make_shared<GroupCalls::Waiting>(options_.calls, call);
  const std::string prefix =
      absl::StrCat(options_.key_prefix, "meetings/", number, "/",
                   StableHash(arguments), "/");
  const auto bootstrap =
      MakeBootstrap(options_.session, prefix, FindResolver(ranks),
                    options_.formation.generation, waiting);
  if (met.ok()) {
    met = SetKey(options_.session->stream(),
                 absl::StrCat(prefix, options_.formation.rank), "",
                 {.ttl = std::chrono::hours(1)}, deadline);
  }
  std::vector<std::string> keys;
  keys.reserve(ranks.size());
  for (const int rank : ranks) keys.push_back(absl::StrCat(rank));
  if (met.ok()) met = bootstrap->Get(keys, deadline.at).status();
  if (met.ok()) {
    waiting->Succeed();
    return;
  }
  if (IsDeadlineExceeded(met)) {
    std::vector<int> missing;
    for (const int rank : ranks) {
      const Status came =
          bootstrap->Get({absl::StrCat(rank)}, Clock::now()).status();
      if (IsDeadlineExceeded(came)) missing.push_back(rank);
    }
    dataplane::SetCulpritRanks(met, missing);
    met = NotFormed(options_.world->state()->options(), met);
  }
  if (IsInvalidArgument(met)) Throw(ErrorSource::kControl, std::move(met));
  {
    // The next call repeats this one, in which the others may still wait.
    MutexLock lock(mutex_);
    if (last_meeting_ == number) --last_meeting_;
  }
  Throw(ErrorSource::kBackend, std::move(met));
}

}  // namespace muster::internal
