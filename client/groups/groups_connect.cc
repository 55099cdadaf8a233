// How the ranks of one group meet and connect.

#include <algorithm>
#include <chrono>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/text.h"
#include "client/groups/debugging.h"
#include "client/groups/groups.h"
#include "client/control/throw.h"
#include "client/control/verbs.h"
#include "dataplane/bootstrap_store.h"
#include "dataplane/culprit.h"
#include "dataplane/observe/consistency_check.h"
#include "dataplane/observe/point_to_point_check.h"
#include "dataplane/observe/recorder.h"
#include "dataplane/factory.h"
#include "dataplane/observe/flight_recorder.h"
#include "glog/logging.h"

namespace muster::internal {

namespace {

// What the backend says, which knows neither the ranks of the default group nor
// hosts, with both.
absl::Status NotFormed(const GroupStateOptions& group,
                       const absl::Status& why) {
  if (absl::IsInvalidArgument(why) || !CulpritsOf(why).empty()) return why;
  std::string text = absl::StrCat("group ", base::Quote(group.name), " of ",
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

// The call in which the ranks of the group wait for each other.
std::string CallOf(const GroupStateOptions& group) {
  if (group.is_world) return "init_process_group";
  if (absl::StrContains(group.name, ":shrink:")) return "shrink_group";
  if (absl::StrContains(group.name, ":split:")) return "split_group";
  return "new_group";
}

// With what the debug level, the flight recorder and metrics, which may be
// null, want to see of it.
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
  return std::make_unique<dataplane::Recording>(
      std::move(backend), recorder,
      dataplane::FlightRecorder::Group{.name = options.name,
                                       .description = options.description,
                                       .backend = options.backend,
                                       .ranks = std::move(ranks)},
      std::move(metrics), [global_rank, records](const absl::Status&) {
        // Else there is nothing to be read.
        if (records) DumpAfterFailure(global_rank);
      });
}

}  // namespace

std::shared_ptr<SessionBootstrap> BootstrapOf(
    const std::shared_ptr<Session>& session, const std::string& key_prefix,
    const std::shared_ptr<FailureJudge>& judge, int64_t generation,
    const std::shared_ptr<CallBoard::Waiting>& forming) {
  return std::make_shared<SessionBootstrap>(
      session, key_prefix,
      [judge, generation, session, key_prefix,
       forming = std::weak_ptr(forming)](bool asks) -> absl::Status {
        absl::Status known = judge->Known(generation);
        if (!known.ok() || !asks) return known;
        absl::Status end = EndInStore(*session, key_prefix);
        const auto waiting = forming.lock();
        return !end.ok() || waiting == nullptr ? end : waiting->Look();
      });
}

absl::StatusOr<std::shared_ptr<GroupState>> ConnectGroup(
    GroupStateOptions options, const dataplane::BackendOptions& peers,
    std::shared_ptr<dataplane::Metrics> metrics,
    std::shared_ptr<Session> session, std::shared_ptr<FailureJudge> judge,
    LiveGroups& live) {
  options.device = peers.device;
  const LiveGroups::Connecting connecting(&live, options.name, CallOf(options));
  FailureJudge::Group forming;
  forming.name = options.name;
  forming.generation = options.generation;
  forming.seats = options.seats;
  forming.abort = [interruption = peers.interruption](const absl::Status& why) {
    interruption.Interrupt(why);
  };
  judge->Form(std::move(forming));
  auto backend = dataplane::CreateBackend(options.backend, peers);
  if (!backend.ok()) {
    // A peer that broke a connection may be gone.
    absl::Status known = absl::IsUnavailable(backend.status())
                             ? judge->AwaitKnown(options.generation)
                             : judge->Known(options.generation);
    return known.ok() ? NotFormed(options, backend.status()) : known;
  }
  backend =
      Watched(*std::move(backend), options, peers.store, std::move(metrics));
  auto state = GroupState::Create(std::move(options), *std::move(backend),
                                  std::move(session), std::move(judge));
  live.Add(state);
  return state;
}

void Groups::Meet(const std::string& meaning) {
  const Deadline deadline = Deadline::After(options_.world->timeout(),
                                            "InitProcessGroupOptions::timeout");
  const std::vector<int> ranks = options_.world->ranks();
  int64_t number = 0;
  {
    MutexLock lock(mutex_);
    number = ++last_meeting_;
  }
  const std::string place =
      absl::StrCat("meetings/", number, "/", StableHash(meaning), "/");
  const auto waiting = std::make_shared<CallBoard::Waiting>(
      options_.board.get(), SharedCall{.number = number,
                                       .series = "meetings",
                                       .place = place,
                                       .meaning = meaning,
                                       .ranks = ranks});
  const std::string prefix = absl::StrCat(options_.key_prefix, place);
  const auto bootstrap = BootstrapOf(options_.session, prefix, JudgeOf(ranks),
                                     options_.formation.generation, waiting);
  absl::Status met = SetKey(options_.session->stream(),
                            absl::StrCat(prefix, options_.formation.rank), "",
                            {.ttl = std::chrono::hours(1)}, deadline);
  std::vector<std::string> keys;
  keys.reserve(ranks.size());
  for (const int rank : ranks) keys.push_back(absl::StrCat(rank));
  if (met.ok()) met = bootstrap->Get(keys, deadline.at).status();
  if (met.ok()) {
    waiting->Succeed();
    return;
  }
  if (absl::IsDeadlineExceeded(met)) {
    std::vector<int> missing;
    for (const int rank : ranks) {
      const absl::Status came =
          bootstrap->Get({absl::StrCat(rank)}, Clock::now()).status();
      if (absl::IsDeadlineExceeded(came)) missing.push_back(rank);
    }
    dataplane::SetCulpritRanks(met, missing);
    met = NotFormed(options_.world->state()->options(), met);
  }
  if (absl::IsInvalidArgument(met)) Throw(Origin::kControl, std::move(met));
  {
    // The next call means this one again: the others may still be in it.
    MutexLock lock(mutex_);
    if (last_meeting_ == number) --last_meeting_;
  }
  Throw(Origin::kBackend, std::move(met));
}

}  // namespace muster::internal
