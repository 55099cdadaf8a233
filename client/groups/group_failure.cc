// How the failures of a group's ranks become its one error.

#include <algorithm>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/cleanup/cleanup.h"
#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/text.h"
#include "client/errors.h"
#include "client/control/deadline.h"
#include "client/groups/debugging.h"
#include "client/groups/error_resolver.h"
#include "client/groups/group_state.h"
#include "client/control/stream_session.h"
#include "client/control/throw.h"
#include "client/control/verbs.h"
#include "dataplane/culprit.h"
#include "dataplane/observe/fingerprint.h"

namespace muster::internal {
namespace {

using std::chrono::milliseconds;

// A collective that fails so soon has begun when others had waited for so long
// that they gave up. And who finds so long after its time that it is over was
// not running then: others have waited for it.
constexpr milliseconds kLate(500);

// Until another rank has said whom it blames.
constexpr std::chrono::seconds kOthersTime(3);

// A send or receive: it waits for one rank, and says which.
bool IsPointToPointFailure(const absl::Status& status) {
  return absl::StartsWith(status.message(), "send #") ||
         absl::StartsWith(status.message(), "recv #");
}

// Behind a group's key_prefix: the error that ended it, and the failure before
// that, while the ranks find out whom to blame for it (AgreeOnError).
constexpr char kErrorKey[] = "error";
constexpr char kFailureKey[] = "failure";

// For the few calls that settle a failure.
Deadline SettleDeadline() {
  return Deadline::After(std::chrono::seconds(2), "2s to settle a failure");
}

}  // namespace

absl::Status EndInStore(Session& session, const std::string& key_prefix) {
  for (const char* const key : {kErrorKey, kFailureKey}) {
    const auto error = TryAgreedError(
        session.stream(), absl::StrCat(key_prefix, key),
        Deadline::After(std::chrono::seconds(1), "1s for a group's error"));
    if (error.has_value()) return absl::AbortedError(error->message());
  }
  return absl::OkStatus();
}

RankArgument OrZero(RankArgument rank) {
  if (!rank.global.has_value() && !rank.in_group.has_value()) rank.global = 0;
  return rank;
}

bool GroupState::NoteFailure(Instant began, milliseconds timeout,
                             const dataplane::Collective* collective) {
  auto* const live = communicator();
  if (live == nullptr || live->status().ok()) return false;
  if (timeout.count() == 0) timeout = options_.timeout;
  MutexLock lock(mutex_);
  if (!failed_) {
    const Instant::duration took = Clock::now() - began;
    began_late_ = took < std::min(kLate, timeout / 2);
    overtime_ = std::max(took - timeout, Instant::duration::zero());
    if (collective != nullptr && !IsPointToPoint(collective->kind)) {
      ran_ = dataplane::Fingerprint::Of(*collective, size()).Serialize();
    }
  }
  failed_ = true;
  return true;
}

void GroupState::ThrowFailure(const absl::Status& symptom) {
  auto* const live = communicator();
  if (live != nullptr && live->status().ok()) {
    // Nothing was started: a bad argument, or what one rank has not got.
    Culprits culprits;
    for (const int rank : dataplane::CulpritRanks(symptom)) {
      culprits.members.push_back(MemberOf(rank));
    }
    Throw(Origin::kControl, WithCulprits(symptom, culprits));
  }
  const absl::Status why = Explain(symptom);
  {
    MutexLock lock(mutex_);
    failure_seen_ = true;
  }
  Throw(Origin::kBackend, why);
}

MemberInfo GroupState::MemberOf(int rank) const {
  const Seat& seat = options_.seats[static_cast<size_t>(rank)];
  return {.rank = seat.rank,
          .member = seat.member,
          .host = seat.host,
          .pid = seat.pid};
}

absl::Status GroupState::Explain(const absl::Status& symptom) {
  // The group was destroyed, by this process itself.
  if (absl::IsCancelled(symptom)) return symptom;
  return judge_->Decide(symptom);
}

bool GroupState::AwaitExplained(const absl::Status& symptom, Instant until) {
  auto* const live = communicator();
  // The group was destroyed, or the collective's arguments are bad.
  if (live == nullptr || live->status().ok()) return true;
  return absl::IsCancelled(symptom) || judge_->AwaitFinal(until);
}

void GroupState::Abort(const std::string& reason, std::vector<int> culprits) {
  if (IsForOthers("abort")) return;
  CheckIsHere();
  auto* const live = communicator();
  // Whoever aborts may come after whoever destroys it.
  if (live == nullptr || !status().ok()) return;
  if (culprits.empty()) culprits = {rank()};
  std::sort(culprits.begin(), culprits.end());
  std::vector<MemberInfo> blamed;
  std::vector<int> global_ranks;
  for (const int culprit : culprits) {
    blamed.push_back(MemberOf(culprit));
    global_ranks.push_back(blamed.back().rank);
  }
  absl::Status why =
      WithCulprits(absl::AbortedError(absl::StrCat(
                       "group ", base::Quote(options_.name), ": aborted by ",
                       DescribeMember(MemberOf(rank()), options_.is_world),
                       reason.empty() ? "" : ": ", reason)),
                   {blamed});
  if (options_.is_world) {
    // Its event ends the group on all ranks, this one included.
    ReportError(session_->stream(), why, SettleDeadline()).IgnoreError();
  } else if (session_ != nullptr && session_->stream().connected()) {
    // Another rank may have ended it first.
    why = Agree(why).value_or(why);
    const Culprits theirs = CulpritsOf(why);
    culprits.clear();
    global_ranks.clear();
    for (int each = 0; each < size(); ++each) {
      const int global = options_.seats[static_cast<size_t>(each)].rank;
      if (!theirs.Include(global)) continue;
      culprits.push_back(each);
      global_ranks.push_back(global);
    }
  }
  // The backend tells it to the other ranks.
  why = AsVerdict(std::move(why), global_ranks);
  dataplane::SetCulpritRanks(why, culprits);
  live->Abort(why);
  Explain(why).IgnoreError();
  MutexLock lock(mutex_);
  failure_seen_ = true;
}

// No verdict came: nobody is known to be gone. The ranks may each suspect
// another; what the first of them says holds for all. Of the default group that
// is a report, which ends the generation: the coordinator sends it to all. Of
// another group the store keeps it for its ranks.
FailureJudge::Accusation GroupState::Accuse(const absl::Status& own) {
  StreamSession& stream = session_->stream();
  if (!stream.status().ok()) return {.error = own};
  if (absl::IsInvalidArgument(own)) return AccuseTheOdd(own);
  absl::Status failure = own;
  const std::string failure_key =
      absl::StrCat(options_.key_prefix, kFailureKey);
  if (absl::IsAborted(own)) {
    // It may be what EndInStore said.
    failure =
        TryAgreedError(stream, failure_key, SettleDeadline()).value_or(own);
  }
  const bool timed_out = absl::IsDeadlineExceeded(failure);
  bool began_late = false;
  Instant::duration overtime = {};
  {
    MutexLock lock(mutex_);
    began_late = timed_out && began_late_;
    if (timed_out) overtime = overtime_;
  }
  // Who comes when the others have given up, or had stopped until then, hears
  // from them who it was.
  const bool late = began_late || overtime > kLate;
  if (late && !options_.is_world) return {.error = AwaitAgreed(failure)};
  if (began_late) return {.error = failure, .told = true};
  if (late && judge_->AwaitFinal(Clock::now() + kOthersTime)) {
    return {.error = failure, .told = true};
  }
  if (timed_out) {
    // The others ask the coordinator where this rank is: it is there still.
    const absl::string_view text = failure.message();
    MutexLock lock(mutex_);
    settling_ = absl::StrCat(text.substr(0, text.find(" on group ")),
                             ", which timed out,");
  }
  const absl::Cleanup settled = [this] {
    MutexLock lock(mutex_);
    settling_.clear();
  };
  // For those who wait for this rank in the store, and not on a connection.
  if (timed_out) AgreeOnError(stream, failure_key, failure, SettleDeadline());
  absl::Status named = timed_out && !IsPointToPointFailure(failure)
                           ? NameTheStuck(failure)
                           : failure;
  // Whose time was over first is heard first, of those who come here together.
  if (overtime.count() > 0 &&
      judge_->AwaitFinal(Clock::now() +
                         std::min<Instant::duration>(overtime, kLate))) {
    return {.error = std::move(named), .told = true};
  }
  return Tell(std::move(named));
}

FailureJudge::Accusation GroupState::Tell(absl::Status error) {
  if (options_.is_world) {
    const bool told =
        ReportError(session_->stream(), error, SettleDeadline()).ok();
    return {.error = std::move(error), .told = told};
  }
  return {.error = Agree(error).value_or(error)};
}

// Ranks do not run the same. The first that finds out knows of one other, which
// may be one of many that are right: all say what they run, and one looks.
FailureJudge::Accusation GroupState::AccuseTheOdd(const absl::Status& own) {
  StreamSession& stream = session_->stream();
  std::string ran;
  {
    MutexLock lock(mutex_);
    ran = ran_;
  }
  // At the level DETAIL all have compared.
  if (ran.empty() || CurrentDebugLevel() == DebugLevel::kDetail) {
    return Tell(own);
  }
  const std::string prefix = absl::StrCat(options_.key_prefix, "ran/");
  SetKey(stream, absl::StrCat(prefix, rank()), ran,
         {.ttl = std::chrono::minutes(1)}, SettleDeadline())
      .IgnoreError();
  const auto judges =
      AddToKey(stream, absl::StrCat(options_.key_prefix, "ran_judges"), 1,
               SettleDeadline());
  if (!judges.ok() || *judges == 1) return Tell(NameTheOdd(own, prefix));
  if (options_.is_world) return {.error = own, .told = true};
  return {.error = AwaitAgreed(own)};
}

absl::Status GroupState::NameTheOdd(const absl::Status& own,
                                    const std::string& prefix) {
  StreamSession& stream = session_->stream();
  std::vector<std::string> keys;
  for (int each = 0; each < size(); ++each) {
    keys.push_back(absl::StrCat(prefix, each));
  }
  auto texts = GetKeys(
      stream, keys,
      Deadline::After(std::chrono::seconds(1), "1s for what other ranks run"));
  if (!texts.ok()) {
    // Some have completed it, or come to no collective of the group.
    auto present = ListKeys(stream, prefix, SettleDeadline());
    if (!present.ok()) return own;
    keys = *std::move(present);
    texts = GetKeys(stream, keys, SettleDeadline());
    if (!texts.ok()) return own;
  }
  std::map<int, dataplane::Fingerprint> prints;
  for (size_t i = 0; i < keys.size(); ++i) {
    int each = -1;
    auto print = dataplane::Fingerprint::Parse((*texts)[i]);
    if (print.ok() && absl::SimpleAtoi(keys[i].substr(prefix.size()), &each)) {
      prints.emplace(each, *std::move(print));
    }
  }
  const Culprits before = CulpritsOf(own);
  std::vector<int> suspects;
  for (int each = 0; each < size(); ++each) {
    if (before.Include(GlobalRankOf(each))) suspects.push_back(each);
  }
  const absl::Status odd = dataplane::FindOdd(prints, size(), suspects);
  if (odd.ok()) return own;
  std::vector<int> ranks;
  for (const int each : dataplane::CulpritRanks(odd)) {
    ranks.push_back(GlobalRankOf(each));
  }
  std::string text = absl::StrCat(own.message(), "; ", odd.message());
  const Culprits culprits =
      SeatedAt(options_.seats, ranks, std::string(odd.message()));
  for (const MemberInfo& member : culprits.members) {
    if (before.Include(member.rank)) continue;
    absl::StrAppend(&text, "; ", options_.is_world ? "rank " : "global rank ",
                    member.rank, " is pid ", member.pid, " on ", member.host);
  }
  return WithCulprits(absl::Status(own.code(), text), culprits);
}

// The first error that a rank of the group has brought.
std::optional<absl::Status> GroupState::Agree(const absl::Status& own) {
  return AgreeOnError(session_->stream(),
                      absl::StrCat(options_.key_prefix, kErrorKey), own,
                      SettleDeadline());
}

// The same, but another rank is to bring it.
absl::Status GroupState::AwaitAgreed(const absl::Status& own) {
  const auto theirs = AwaitAgreedError(
      session_->stream(), absl::StrCat(options_.key_prefix, kErrorKey),
      Deadline::After(kOthersTime, "3s for another rank's error"));
  if (theirs.has_value()) return *theirs;
  return Agree(own).value_or(own);
}

// After a timeout of a collective: ranks that are stuck elsewhere do not come
// here, all others do at about the same time. The coordinator sees the
// difference, and tells it to all alike.
absl::Status GroupState::NameTheStuck(const absl::Status& own) {
  const absl::Status met = AwaitBarrier(
      session_->stream(), options_.name, BarrierName("muster/after-timeout"),
      options_.generation, global_rank(),
      /*wait_all_ranks=*/true, SettleDeadline());
  const Culprits stuck = CulpritsOf(met);
  if (met.ok() || stuck.empty()) return own;
  std::vector<std::string> names;
  for (const MemberInfo& member : stuck.members) {
    if (names.size() == kRanksInTextMax) break;
    names.push_back(absl::StrCat(
        DescribeMember(member, options_.is_world), ", last progress: ",
        member.last_progress.empty() ? "none reported" : member.last_progress));
  }
  if (stuck.size() > names.size()) {
    names.push_back(absl::StrCat("and ", stuck.size() - names.size(), " more"));
  }
  return WithCulprits(
      absl::Status(own.code(), absl::StrCat(own.message(),
                                            "; did not come to the end of "
                                            "it: ",
                                            absl::StrJoin(names, "; "))),
      stuck);
}

}  // namespace muster::internal
