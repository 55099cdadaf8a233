// World's part in shrinking the default group.

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "client/errors.h"
#include "client/internal/endpoint.h"
#include "client/internal/throw.h"
#include "client/internal/verbs.h"
#include "client/internal/world.h"

namespace muster::internal {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

// As kFarewellTimeout, of a group that has failed and is shrunk: those that
// stay leave right away, the others have had the error, or are stuck.
constexpr milliseconds kOutcastTimeout = seconds(1);

// How often those that wait for all that stay in a group look who is gone.
constexpr milliseconds kSurvivorsLook{100};
// In which a coordinator with the usual lease knows who is lost.
constexpr milliseconds kLossTime = seconds(12);

// Those of the ranks that stay in a group.
[[noreturn]] void ThrowGone(const std::vector<MemberInfo>& gone,
                            const std::string& excluded) {
  std::vector<std::string> names;
  for (const MemberInfo& member : gone) {
    if (names.size() == kRanksInTextMax) break;
    names.push_back(absl::StrCat(DescribeMember(member, /*in_world=*/true),
                                 ": ", member.cause));
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

// Over the old group's coordinator, while there is one: it knows who is gone
// and will not come to the rendezvous of the new one.
void World::AwaitSurvivors(const std::vector<int>& survivors,
                           const std::string& excluded,
                           const Deadline& deadline) {
  StreamSession& stream = session_->stream();
  const auto key_of = [&](int rank) {
    return absl::StrCat(WorldPrefix(), formation_.generation, "/shrink/",
                        excluded, "/", rank);
  };
  // Refused when this rank has reported a failure: then nobody waits for it.
  if (!SetKey(stream, key_of(formation_.rank), "", deadline).ok()) {
    ThrowIfLost(excluded);
    return AwaitFates(survivors, excluded, deadline);
  }
  for (;;) {
    // Before the question who has come: who leaves has.
    const LiveGroups::Absent absent =
        live_->AbsentOf(formation_.generation, survivors);
    std::vector<std::string> keys;
    for (const int rank : survivors) {
      if (!std::binary_search(absent.reported.begin(), absent.reported.end(),
                              rank)) {
        keys.push_back(key_of(rank));
      }
    }
    const milliseconds slice = std::clamp(deadline.Remaining(Clock::now()),
                                          milliseconds(1), kSurvivorsLook);
    const absl::Status met =
        GetKeys(stream, keys, Deadline::After(slice, "one look")).status();
    // Or the coordinator is no more.
    if (!absl::IsDeadlineExceeded(met)) return ThrowIfLost(excluded);
    if (!absent.gone.empty()) ThrowGone(absent.gone, excluded);
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
void World::AwaitFates(const std::vector<int>& survivors,
                       const std::string& excluded, const Deadline& deadline) {
  const Instant until = std::min(deadline.at, Clock::now() + kLossTime);
  while (session_->status().ok() && Clock::now() < until) {
    LiveGroups::Absent absent =
        live_->AbsentOf(formation_.generation, survivors);
    // This one has reported.
    const size_t fine = absent.reported.size() + absent.left.size();
    const auto lost = std::remove_if(
        absent.gone.begin(), absent.gone.end(), [&](const MemberInfo& member) {
          return std::count(absent.left.begin(), absent.left.end(),
                            member.rank) > 0;
        });
    absent.gone.erase(lost, absent.gone.end());
    if (!absent.gone.empty()) ThrowGone(absent.gone, excluded);
    if (fine >= survivors.size()) return;
    std::this_thread::sleep_for(kSurvivorsLook);
  }
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
    const std::vector<int>& ranks_to_exclude,
    const ShrinkGroupOptions& options) {
  const std::vector<int> survivors = SurvivorsOf(*group_, ranks_to_exclude);
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
  smaller.world_size = static_cast<int>(survivors.size());
  smaller.rank = static_cast<int>(
      std::find(survivors.begin(), survivors.end(), group_->rank()) -
      survivors.begin());
  if (options.shrink_flags == ShrinkGroupOptions::Flags::kAbort) {
    AbortToShrink(*group_, ranks_to_exclude);
  }
  std::vector<int> excluded = ranks_to_exclude;
  std::sort(excluded.begin(), excluded.end());
  AwaitSurvivors(survivors, absl::StrJoin(excluded, ","),
                 Deadline::After(smaller.timeout, timeout_name));
  if (!state_->status().ok()) farewell_timeout_ = kOutcastTimeout;
  return smaller;
}

}  // namespace muster::internal
