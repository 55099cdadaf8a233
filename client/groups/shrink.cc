// World's part in shrinking the default group.

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/text.h"
#include "client/errors.h"
#include "client/control/endpoint.h"
#include "client/control/throw.h"
#include "client/control/verbs.h"
#include "client/groups/world.h"
#include "base/mutex.h"

namespace muster::internal {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

// How often those that wait for all that stay in a group look who is gone.
constexpr milliseconds kSurvivorsLook{100};
// After how many looks they ask what the others do instead.
constexpr int kLooksPerQuarrel = 3;
// In which a coordinator with the usual lease knows who is lost.
constexpr milliseconds kLossTime = seconds(12);
// In which those that have met join the new group. What keeps one from it the
// coordinator tells sooner, unless that one has reported a failure before.
constexpr milliseconds kJoinTime = seconds(30);
// What one that gives up gives the coordinator to hear so.
constexpr milliseconds kPartingTime = seconds(1);

// Those of the ranks that stay in a group.
[[noreturn]] void ThrowGone(const std::vector<MemberInfo>& gone,
                            const std::string& excluded) {
  std::vector<std::string> names;
  for (const MemberInfo& member : gone) {
    if (names.size() == kRanksInTextMax) break;
    names.push_back(
        absl::StrCat(DescribeMember(member, /*in_world=*/true), ": ",
                     base::Printable(member.cause),
                     member.last_progress.empty() ? "" : "; last progress: ",
                     member.last_progress));
  }
  if (gone.size() > names.size()) {
    names.push_back(absl::StrCat("and ", gone.size() - names.size(), " more"));
  }
  Throw(
      Origin::kBackend,
      WithCulprits(
          absl::UnavailableError(absl::StrCat(
              "group \"", kWorldName, "\" cannot be shrunk without ", excluded,
              " alone, more are gone: ", absl::StrJoin(names, "; "))),
          {gone}));
}

}  // namespace

// Ends a session, and what waits in it, once the others need not be waited for
// any more.
class World::Vigil {
 public:
  Vigil(std::function<bool()> over, std::shared_ptr<Session> session)
      : thread_([this, over = std::move(over), session = std::move(session)] {
          Watch(over, *session);
        }) {}

  ~Vigil() {
    {
      MutexLock lock(mutex_);
      done_ = true;
      changed_.NotifyAll();
    }
    thread_.join();
  }

  Vigil(const Vigil&) = delete;
  Vigil& operator=(const Vigil&) = delete;

 private:
  void Watch(const std::function<bool()>& over, Session& session) {
    while (!over()) {
      MutexLock lock(mutex_);
      if (!done_) changed_.WaitUntil(mutex_, Clock::now() + kSurvivorsLook);
      if (done_) return;
    }
    session.Leave("more are gone from its group", kPartingTime);
  }

  Mutex mutex_;
  CondVar changed_;
  bool done_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

// Over the old group's coordinator, while there is one: it knows who is gone
// and will not come to the rendezvous of the new one.
void World::AwaitSurvivors(Shrinking& shrinking, const Deadline& deadline) {
  StreamSession& stream = session_->stream();
  const std::string& excluded = shrinking.excluded;
  const auto key_of = [&](int rank) {
    return absl::StrCat(WorldPrefix(), formation_.generation, "/shrink/",
                        excluded, "/", rank);
  };
  // Refused when this rank has reported a failure: then nobody waits for it.
  if (!SetKey(stream, key_of(formation_.rank), "", deadline).ok()) {
    ThrowIfLost(excluded);
    return AwaitFates(shrinking, deadline);
  }
  CallBoard::Waiting waiting(
      board_.get(), {.series = absl::StrCat("shrink/", excluded),
                     .place = absl::StrCat("shrink/", excluded),
                     .meaning = absl::StrCat("shrinks group \"", kWorldName,
                                             "\" without ", excluded),
                     .ranks = shrinking.survivors});
  for (int looks = 1;; ++looks) {
    // Before the question who has come: who leaves has.
    const LiveGroups::Absent absent =
        live_->AbsentOf(formation_.generation, shrinking.survivors);
    std::vector<std::string> keys;
    for (const int rank : shrinking.survivors) {
      if (!std::binary_search(absent.reported.begin(), absent.reported.end(),
                              rank)) {
        keys.push_back(key_of(rank));
      }
    }
    const milliseconds slice = std::clamp(deadline.Remaining(Clock::now()),
                                          milliseconds(1), kSurvivorsLook);
    const absl::Status met =
        GetKeys(stream, keys, Deadline::After(slice, "one look")).status();
    if (met.ok()) {
      waiting.Succeed();
      // Those of an earlier call may be there without their ranks.
      shrinking.met =
          absent.reported.empty() && excluded_before_.insert(excluded).second;
      // For those that have reported, and see no keys.
      if (!absent.reported.empty()) session_->Leave("shrinks its group");
      return;
    }
    // Or the coordinator is no more.
    if (!absl::IsDeadlineExceeded(met)) return ThrowIfLost(excluded);
    if (!absent.gone.empty()) ThrowGone(absent.gone, excluded);
    if (looks % kLooksPerQuarrel == 0) {
      if (absl::Status quarrel = waiting.Look(); !quarrel.ok()) {
        // Not for the next call's.
        DeleteKey(stream, key_of(formation_.rank), deadline)
            .status()
            .IgnoreError();
        Throw(Origin::kControl, std::move(quarrel));
      }
    }
    if (deadline.Passed(Clock::now())) {
      Throw(Origin::kControl,
            absl::DeadlineExceededError(
                absl::StrCat("group \"", kWorldName,
                             "\": not all ranks that stay came to "
                             "shrink it without ",
                             excluded, " in ", FormatDuration(deadline.timeout),
                             " ", deadline.Blame())));
    }
  }
}

// What a rank that has reported a failure can still see: those that stay report
// it too, or leave this group when they have met; or they are lost, which the
// coordinator may not have known when it was told of the first.
void World::AwaitFates(const Shrinking& shrinking, const Deadline& deadline) {
  const Instant until = std::min(deadline.at, Clock::now() + kLossTime);
  while (session_->status().ok() && Clock::now() < until) {
    ThrowIfGone(shrinking);
    const LiveGroups::Absent absent =
        live_->AbsentOf(formation_.generation, shrinking.survivors);
    // This one has reported.
    const size_t fine = absent.reported.size() + absent.left.size();
    if (fine >= shrinking.survivors.size()) return;
    std::this_thread::sleep_for(kSurvivorsLook);
  }
}

// Those of the ranks that are lost, so far as the coordinator has told, or that
// served it. Who has left may have come to the call.
std::vector<MemberInfo> World::Gone(const std::vector<int>& survivors) const {
  LiveGroups::Absent absent = live_->AbsentOf(formation_.generation, survivors);
  const auto lost = std::remove_if(
      absent.gone.begin(), absent.gone.end(), [&](const MemberInfo& member) {
        return std::count(absent.left.begin(), absent.left.end(), member.rank) >
               0;
      });
  absent.gone.erase(lost, absent.gone.end());
  const absl::Status over = session_->status();
  if (embedded_ && absl::IsUnavailable(over) && absent.gone.empty() &&
      std::count(survivors.begin(), survivors.end(), 0) > 0) {
    absent.gone =
        SeatedAt(formation_.seats, {0}, std::string(over.message())).members;
  }
  return absent.gone;
}

void World::ThrowIfGone(const Shrinking& shrinking) const {
  const std::vector<MemberInfo> gone = Gone(shrinking.survivors);
  if (!gone.empty()) ThrowGone(gone, shrinking.excluded);
}

bool World::OthersAreGone() const {
  return shrinking_ != nullptr &&
         !shrinking_->old->Gone(shrinking_->survivors).empty();
}

std::shared_ptr<World::Vigil> World::KeepVigil() const {
  if (shrinking_ == nullptr) return nullptr;
  return std::make_shared<Vigil>([this] { return OthersAreGone(); }, session_);
}

Deadline World::UntilJoined() const {
  if (shrinking_ == nullptr || !shrinking_->met ||
      deadline_.Remaining(Clock::now()) <= kJoinTime) {
    return deadline_;
  }
  return Deadline::After(kJoinTime, "for ranks that have met");
}

// Either all of them have the new group or none, as the coordinator decides:
// those that had it would not meet those that go on with the old one.
void World::ConfirmAll() {
  ThrowIfFailed(Origin::kBackend,
                AwaitBarrier(session_->stream(), kWorldName, "muster/shrunk",
                             formation_.generation, formation_.rank,
                             /*wait_all_ranks=*/false, deadline_));
}

// The coordinator has taken this very rank for lost: the others have been told,
// and go on without it.
void World::ThrowIfLost(const std::string& excluded) const {
  const absl::Status why = session_->status();
  if (!absl::IsFailedPrecondition(why)) return;
  const MemberInfo self{.rank = formation_.rank,
                        .member = session_->member(),
                        .host = HostName(),
                        .pid = getpid(),
                        .cause = std::string(why.message())};
  Throw(
      Origin::kBackend,
      WithCulprits(absl::FailedPreconditionError(absl::StrCat(
                       "group \"", kWorldName, "\" cannot be shrunk without ",
                       excluded, " by this rank, ", formation_.rank,
                       ", which the others do not wait for: ", why.message())),
                   {{self}}));
}

InitProcessGroupOptions World::PrepareToShrink(
    const std::vector<int>& ranks_to_exclude, const ShrinkGroupOptions& options,
    Shrinking& shrinking) {
  shrinking.old = this;
  shrinking.survivors = SurvivorsOf(*group_, ranks_to_exclude);
  if (options_.min_world_size != -1 || options_.max_world_size != -1) {
    Throw(Origin::kControl,
          absl::FailedPreconditionError(
              "an elastic group cannot be shrunk: those that are left form it "
              "again by DestroyProcessGroup and InitProcessGroup"));
  }
  InitProcessGroupOptions smaller = options_;
  const std::string timeout_name = "ShrinkGroupOptions::timeout";
  smaller.timeout =
      CheckTimeout(options.timeout, options_.timeout, timeout_name);
  smaller.world_size = static_cast<int>(shrinking.survivors.size());
  smaller.rank =
      static_cast<int>(std::find(shrinking.survivors.begin(),
                                 shrinking.survivors.end(), group_->rank()) -
                       shrinking.survivors.begin());
  if (options.shrink_flags == ShrinkGroupOptions::Flags::kAbort) {
    AbortToShrink(*group_, ranks_to_exclude);
  }
  std::vector<int> excluded = ranks_to_exclude;
  std::sort(excluded.begin(), excluded.end());
  shrinking.excluded = absl::StrJoin(excluded, ",");
  AwaitSurvivors(shrinking, Deadline::After(smaller.timeout, timeout_name));
  EndGeneration(ranks_to_exclude);
  return smaller;
}

// The next one does not form before. A coordinator that was out of reach when
// the group failed has not been told.
void World::EndGeneration(const std::vector<int>& ranks_to_exclude) {
  if (state_->status().ok()) return AbortToShrink(*group_, ranks_to_exclude);
  if (live_->IsOver(formation_.generation) || !session_->status().ok()) return;
  ReportError(session_->stream(), state_->status(),
              Deadline::After(kPartingTime, "1s to report a failure"))
      .IgnoreError();
}

std::unique_ptr<World> World::Shrink(const std::vector<int>& ranks_to_exclude,
                                     const ShrinkGroupOptions& options) {
  Shrinking shrinking;
  const InitProcessGroupOptions smaller =
      PrepareToShrink(ranks_to_exclude, options, shrinking);
  groups_->DestroyAll();
  state_->Shutdown();
  std::unique_ptr<World> formed;
  try {
    formed = FormOf(smaller, &shrinking);
  } catch (const DistError& error) {
    ThrowIfLost(shrinking.excluded);
    ThrowIfGone(shrinking);
    ThrowNotShrunk(shrinking, error);
  }
  GiveWay();
  return formed;
}

// An error of the group that did not form, with whom it blames as ranks of this
// one, which stays.
void World::ThrowNotShrunk(const Shrinking& shrinking,
                           const DistError& error) const {
  const Culprits theirs = CulpritsOf(error.status());
  Culprits culprits;
  std::vector<std::string> names;
  for (size_t rank = 0; rank < shrinking.survivors.size(); ++rank) {
    if (!theirs.Include(static_cast<int>(rank))) continue;
    const Seat& seat =
        formation_.seats[static_cast<size_t>(shrinking.survivors[rank])];
    culprits.members.push_back({.rank = seat.rank,
                                .member = seat.member,
                                .host = seat.host,
                                .pid = seat.pid,
                                .cause = error.what()});
    if (names.size() == kRanksInTextMax) continue;
    names.push_back(absl::StrCat(
        "rank ", rank, " of the new group is ",
        DescribeMember(culprits.members.back(), /*in_world=*/true)));
  }
  if (culprits.empty()) throw;
  absl::Status why(
      error.status().code(),
      absl::StrCat("group \"", kWorldName, "\" cannot be shrunk without ",
                   shrinking.excluded, " alone: ", error.what(), "; ",
                   absl::StrJoin(names, "; ")));
  Throw(Origin::kBackend, WithCulprits(std::move(why), culprits));
}

// To the group that was formed of this one, with the same coordinator or
// another.
void World::GiveWay() {
  bootstrap_->DeleteOwnKeys();
  session_->Leave("its group was shrunk", kPartingTime);
  session_->Close();
}

}  // namespace muster::internal
