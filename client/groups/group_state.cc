#include "client/groups/group_state.h"

#include <algorithm>
#include <cstddef>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "base/status.h"
#include "base/text.h"
#include "client/control/deadline.h"
#include "client/control/fork_guard.h"
#include "client/control/stream_session.h"
#include "client/control/throw.h"
#include "client/control/verbs.h"
#include "client/errors.h"
#include "client/groups/debugging.h"
#include "client/groups/error_resolver.h"
#include "dataplane/coalescing.h"
#include "dataplane/collective.h"
#include "dataplane/culprit.h"
#include "dataplane/failed_call.h"
#include "dataplane/observe/fingerprint.h"
#include "glog/logging.h"

namespace muster::internal {
namespace {

using std::chrono::milliseconds;

[[noreturn]] void ThrowNotIn(const std::string& rank, const std::string& in) {
  Throw(ErrorSource::kControl,
        InvalidArgumentError(
            absl::StrCat(rank, " is not part of group ", base::Quote(in))));
}

}  // namespace

std::vector<Seat> FindSeats(const Formation& formation,
                            const std::vector<int>& ranks) {
  std::vector<Seat> seats;
  for (const Seat& seat : formation.seats) {
    if (std::binary_search(ranks.begin(), ranks.end(), seat.rank)) {
      seats.push_back(seat);
    }
  }
  return seats;
}

std::shared_ptr<GroupState> GroupState::NonMember(int global_rank) {
  GroupStateOptions options;
  options.name = "NON_GROUP_MEMBER";
  options.is_world = false;
  options.seats.push_back({.rank = global_rank});
  return std::shared_ptr<GroupState>(
      new GroupState(std::move(options), /*devices=*/{}, nullptr, nullptr),
      DeleteAtHome<GroupState>());
}

std::shared_ptr<GroupState> GroupState::Create(
    GroupStateOptions options, std::unique_ptr<dataplane::Backend> backend,
    std::shared_ptr<Session> session, std::shared_ptr<ErrorResolver> resolver) {
  const auto devices = backend->devices();
  std::shared_ptr<GroupState> state(
      new GroupState(std::move(options), {devices.begin(), devices.end()},
                     std::move(session), std::move(resolver)),
      DeleteAtHome<GroupState>());
  state->communicator_ = std::make_unique<dataplane::Communicator>(
      dataplane::CommunicatorOptions{
          .group_name = state->options_.name,
          .rank = state->rank(),
          .world_size = state->size(),
          .default_timeout = state->options_.timeout},
      std::move(backend));
  state->TellResolver();
  return state;
}

GroupState::GroupState(GroupStateOptions options,
                       std::vector<dataplane::DeviceType> devices,
                       std::shared_ptr<Session> session,
                       std::shared_ptr<ErrorResolver> resolver)
    : options_(std::move(options)),
      devices_(std::move(devices)),
      session_(std::move(session)),
      resolver_(std::move(resolver)),
      continuations_(Continuations::Create()) {}

bool GroupState::is_cuda_only() const {
  return !devices_.empty() &&
         std::ranges::find(devices_, DeviceType::kCpu) == devices_.end();
}

void GroupState::TellResolver() {
  const std::weak_ptr<GroupState> weak = weak_from_this();
  ErrorResolver::Group group;
  group.name = options_.name;
  group.generation = options_.generation;
  group.rank = global_rank();
  group.seats = options_.seats;
  group.current = [weak]() -> std::string {
    const auto self = weak.lock();
    auto* const communicator = self == nullptr ? nullptr : self->communicator();
    return communicator == nullptr ? "" : communicator->progress().current;
  };
  group.abort = [weak](const Status& why) {
    const auto self = weak.lock();
    auto* const communicator = self == nullptr ? nullptr : self->communicator();
    if (communicator != nullptr) communicator->Abort(why);
  };
  if (session_ != nullptr) {
    group.accuse = [weak](const Status& own) {
      const auto self = weak.lock();
      return self == nullptr ? ErrorResolver::Accusation{.error = own}
                             : self->Report(own);
    };
  }
  group.connected = [weak] {
    const auto self = weak.lock();
    return self != nullptr && self->session_->stream().connected();
  };
  resolver_->Begin(std::move(group));
}

Status GroupState::NotLive() const {
  return FailedPreconditionError(absl::StrCat(
      "Invalid process group specified: group ", base::Quote(options_.name),
      fork_guard_.is_here() ? " was destroyed" : kIsParents));
}

void GroupState::ThrowNotLive() const {
  Throw(ErrorSource::kControl, NotLive());
}

int GroupState::global_rank() const {
  return options_.seats[static_cast<size_t>(is_member() ? rank() : 0)].rank;
}

int GroupState::ToGroupRank(int global_rank) const {
  // The data plane checks ranks of the default group. Non-members have none.
  if (options_.is_world) return global_rank;
  if (!is_member()) return -1;
  for (size_t i = 0; i < options_.seats.size(); ++i) {
    if (options_.seats[i].rank == global_rank) return static_cast<int>(i);
  }
  ThrowNotIn(absl::StrCat("Global rank ", global_rank), options_.name);
}

int GroupState::ToMemberRank(int global_rank) const {
  const int rank = ToGroupRank(global_rank);
  if (rank >= 0 && rank < size()) return rank;
  if (is_member())
    ThrowNotIn(absl::StrCat("Global rank ", global_rank), options_.name);
  return -1;
}

int GroupState::FindGroupRank(const RankArgument& rank,
                              absl::string_view name) const {
  if (rank.global.has_value() && rank.in_group.has_value()) {
    Throw(ErrorSource::kControl,
          InvalidArgumentError(absl::StrCat(
              "Can't specify both group_rank and global_rank: ", name, " is ",
              *rank.global, " and group_", name, " is ", *rank.in_group)));
  }
  if (!rank.global.has_value() && !rank.in_group.has_value()) {
    Throw(ErrorSource::kControl,
          InvalidArgumentError(
              absl::StrCat("Must specify global_rank or group_rank: neither ",
                           name, " nor group_", name, " is given")));
  }
  if (rank.global.has_value()) return ToGroupRank(*rank.global);
  if (is_member()) (void)ToGlobalRank(*rank.in_group);
  return is_member() ? *rank.in_group : -1;
}

int GroupState::ToGlobalRank(int group_rank) const {
  if (group_rank < 0 || group_rank >= size()) {
    ThrowNotIn(absl::StrCat("Group rank ", group_rank), options_.name);
  }
  return options_.seats[static_cast<size_t>(group_rank)].rank;
}

std::vector<int> GroupState::ranks() const {
  std::vector<int> ranks;
  if (!is_member()) return ranks;
  ranks.reserve(options_.seats.size());
  for (const Seat& seat : options_.seats) ranks.push_back(seat.rank);
  return ranks;
}

bool GroupState::IsForOthers(absl::string_view verb) const {
  if (is_member()) return false;
  LOG(WARNING) << "Running " << verb << " on global rank " << global_rank()
               << " which does not belong to the given group.";
  return true;
}

Work GroupState::Run(dataplane::Collective&& collective, bool async_op) {
  // A caller with device tensors goes on before the collective is complete.
  if (async_op || !is_member() || collective.cuda_device() >= 0) {
    return StartCopy(std::move(collective), async_op);
  }
  const Status status = LiveCommunicator().Run(collective);
  ThrowUnlessOk(status, collective.started, collective.timeout, &collective);
  return Work(continuations_->number(), collective.written());
}

PreparedCollective GroupState::Prepare(dataplane::Collective&& collective) {
  std::unique_ptr<dataplane::PreparedCollective> prepared;
  if (is_member()) {
    auto made = LiveCommunicator().Prepare(std::move(collective));
    if (!made.ok()) ThrowFailure(made.status());
    prepared = *std::move(made);
  } else {
    prepared =
        std::make_unique<dataplane::PreparedCollective>(std::move(collective));
  }
  // A forked child must not take the locks that its destructor takes.
  return PreparedCollective(
      shared_from_this(),
      std::shared_ptr<dataplane::PreparedCollective>(
          prepared.release(), DeleteAtHome<dataplane::PreparedCollective>()));
}

void GroupState::Run(dataplane::PreparedCollective& prepared) {
  const dataplane::Collective& arguments = prepared.arguments();
  if (!is_member() || arguments.cuda_device() >= 0) {
    StartCopy(arguments, /*async_op=*/false);
    return;
  }
  const Status status = LiveCommunicator().Run(prepared);
  if (status.ok()) return;
  auto* const live = communicator();
  // If it was refused, another thread may begin a run.
  if (live == nullptr || live->status().ok()) ThrowFailure(status);
  const dataplane::Collective& ran = prepared.last_run();
  ThrowUnlessOk(status, ran.started, ran.timeout, &ran);
}

Work GroupState::Start(
    const std::shared_ptr<dataplane::PreparedCollective>& prepared) {
  const dataplane::Collective& arguments = prepared->arguments();
  if (!is_member() || arguments.cuda_device() >= 0) {
    return StartCopy(arguments, /*async_op=*/true);
  }
  return MakeWatched(LiveCommunicator().Start(prepared), arguments,
                     /*async_op=*/true);
}

Work GroupState::StartCopy(dataplane::Collective collective, bool async_op) {
  // Checks first, because finding the name takes longer.
  if (!is_member() && IsForOthers(CollectiveKindName(collective.kind))) {
    return Work();
  }
  collective.in_current_stream = !async_op && collective.cuda_device() >= 0;
  return MakeWatched(LiveCommunicator().Start(collective), collective,
                     async_op);
}

Work GroupState::MakeWatched(std::shared_ptr<dataplane::Work> started,
                             const dataplane::Collective& collective,
                             bool async_op) {
  auto kept = std::make_shared<dataplane::Collective>(collective);
  kept->sequence = LiveCommunicator().last_enqueued();
  Watch(*started, collective.timeout, std::move(kept));
  return MakeHandle(std::move(started), collective.written(), async_op);
}

std::vector<Work> GroupState::RunTogether(
    std::vector<dataplane::Collective> collectives) {
  if (IsForOthers("batch_isend_irecv")) {
    return std::vector<Work>(collectives.size());
  }
  std::vector<std::vector<Tensor>> results;
  std::vector<milliseconds> timeouts;
  for (const dataplane::Collective& one : collectives) {
    results.emplace_back(one.outputs.begin(), one.outputs.end());
    timeouts.push_back(one.timeout);
  }
  std::vector<Work> works;
  works.reserve(collectives.size());
  auto started = LiveCommunicator().StartTogether(std::move(collectives));
  for (size_t i = 0; i < started.size(); ++i) {
    Watch(*started[i], timeouts[i]);
    works.push_back(MakeHandle(std::move(started[i]), results[i],
                               /*async_op=*/true));
  }
  return works;
}

void GroupState::CheckArguments(const dataplane::Collective& collective) const {
  if (!is_member()) return;
  const Status status = LiveCommunicator().Check(collective);
  if (status.ok()) return;
  Throw(
      ErrorSource::kControl,
      Status(status.code(),
             absl::StrCat(CollectiveKindName(collective.kind), " on group ",
                          base::Quote(options_.name), ": ", status.message())));
}

void GroupState::CheckIsOther(int group_rank, absl::string_view verb) const {
  if (!is_member() || group_rank != rank()) return;
  Throw(ErrorSource::kControl,
        InvalidArgumentError(absl::StrCat(
            verb, " on group ", base::Quote(options_.name),
            ": argument dst: Invalid destination rank: destination rank "
            "should not be the same as the rank of the current process, got ",
            group_rank, "; Isend may send to it")));
}

Work GroupState::MakeHandle(std::shared_ptr<dataplane::Work> started,
                            std::span<const Tensor> result, bool async_op) {
  auto* const live = communicator();
  // Throws a bad argument at once: the caller might not look at the Work.
  const bool refused = started->IsCompleted() && !started->status().ok() &&
                       live != nullptr && live->status().ok();
  Work work(std::move(started), shared_from_this(), result);
  if (!async_op || refused) work.Wait();
  return work;
}

Work GroupState::RunCoalesced(std::vector<dataplane::Collective> collectives,
                              bool async_op) {
  if (IsForOthers("coalesced")) return Work();
  std::vector<Tensor> result;
  for (dataplane::Collective& one : collectives) {
    const auto& written = one.outputs.empty() ? one.tensors : one.outputs;
    result.insert(result.end(), written.begin(), written.end());
  }
  auto* const live = &LiveCommunicator();
  const milliseconds timeout =
      collectives.empty() ? milliseconds(0) : collectives.front().timeout;
  bool goes_on = async_op;
  for (const auto& one : collectives) goes_on |= one.cuda_device() >= 0;
  if (!goes_on) {
    const Instant began = Clock::now();
    ThrowUnlessOk(dataplane::RunCoalesced(*live, std::move(collectives)), began,
                  timeout);
    return Work(continuations_->number(), result);
  }
  std::shared_ptr<dataplane::Work> started =
      dataplane::StartCoalesced(*live, std::move(collectives));
  Watch(*started, timeout);
  return MakeHandle(std::move(started), result, async_op);
}

void GroupState::Watch(
    dataplane::Work& work, milliseconds timeout,
    std::shared_ptr<const dataplane::Collective> collective) {
  const Instant began = Clock::now();
  work.OnCompletion([weak = weak_from_this(), began, timeout,
                     collective = std::move(collective)](const Status& status) {
    if (status.ok()) return;
    const auto self = weak.lock();
    if (self == nullptr ||
        !self->NoteFailure(began, timeout, collective.get())) {
      return;
    }
    self->explanations_.Run(
        [self, status] { self->Explain(status).IgnoreError(); });
  });
}

void GroupState::ThrowUnlessOk(const Status& status, Instant began,
                               milliseconds timeout,
                               const dataplane::Collective* collective) {
  if (status.ok()) return;
  NoteFailure(began, timeout, collective);
  ThrowFailure(status);
}

std::shared_ptr<dataplane::ParentHandle> GroupState::Split(
    const dataplane::SplitOptions& options) {
  auto* const live = communicator();
  return live == nullptr ? nullptr : live->Split(options);
}

std::shared_ptr<dataplane::SymmetricMemory> GroupState::AllocateSymmetric(
    size_t bytes, std::optional<DeviceType> device, milliseconds timeout) {
  if (IsForOthers("allocate_symmetric")) return nullptr;
  auto* const live = &LiveCommunicator();
  const std::string name = timeout.count() == 0
                               ? options_.timeout_name
                               : "AllocateSymmetricOptions::timeout";
  if (timeout.count() == 0) timeout = options_.timeout;
  const bool has_cuda =
      std::ranges::find(devices_, DeviceType::kCuda) != devices_.end();
  const DeviceType own = has_cuda ? DeviceType::kCuda : DeviceType::kCpu;
  auto memory =
      live->AllocateSymmetric({.bytes = bytes,
                               .device = device.value_or(own),
                               .deadline = Deadline::After(timeout, name).at});
  if (!memory.ok()) ThrowFailure(memory.status());
  return *std::move(memory);
}

void GroupState::Shutdown() {
  if (!fork_guard_.is_here()) return;
  const bool was_shut_down = was_shut_down_.exchange(true);
  resolver_->End();
  if (!was_shut_down) {
    if (CurrentDebugLevel() != DebugLevel::kOff) {
      LOG(INFO) << "group ended: group=" << base::LogValue(options_.name)
                << " rank=" << options_.rank
                << " global_rank=" << global_rank();
    }
    communicator_->Shutdown();
  }
  // After everything that could add tasks.
  explanations_.Close();
  continuations_->Close();
}

Status GroupState::status() const {
  if (!is_member()) return OkStatus();
  if (!fork_guard_.is_here()) return NotLive();
  auto* const live = communicator();
  Status known = resolver_->Known(options_.generation);
  if (!known.ok()) return known;
  return live == nullptr ? OkStatus() : live->status();
}

bool GroupState::failure_seen() const {
  MutexLock lock(mutex_);
  return failure_seen_;
}

std::vector<GroupProgress> GroupState::Progress() const {
  auto* const live = communicator();
  if (live == nullptr) return {};
  dataplane::Progress progress = live->progress();
  if (progress.current.empty()) {
    MutexLock lock(mutex_);
    progress.current = settling_;
  }
  std::optional<PeerCall> peer_call;
  if (progress.peer_call.has_value()) {
    peer_call = {.sends = progress.peer_call->sends,
                 .number = static_cast<int64_t>(progress.peer_call->number),
                 .peer = progress.peer_call->peer};
  }
  return {{.group = progress.group_name,
           .last_enqueued = static_cast<int64_t>(progress.last_enqueued),
           .last_completed = static_cast<int64_t>(progress.last_completed),
           .current = progress.current,
           .running_for = std::chrono::duration_cast<milliseconds>(
               Clock::now() - progress.since),
           .peer_call = peer_call,
           .arguments_hash = progress.arguments_hash}};
}

// The coordinator counts the instances of a barrier by group and name. A rank
// that has missed one must not meet it in the next group of the same name.
std::string GroupState::BarrierName(absl::string_view name) const {
  return absl::StrCat(name, options_.barrier_suffix);
}

// Monitored barriers.

using std::chrono::milliseconds;

std::string GroupState::BarrierText(const Status& status,
                                    milliseconds timeout) const {
  const Culprits missing = ToCulprits(status);
  if (missing.empty()) return status.message();
  std::vector<int> ranks;
  for (const MemberInfo& member : missing.members) {
    if (ranks.size() < kRanksInTextMax) ranks.push_back(member.rank);
  }
  const size_t count = missing.size();
  const std::string more =
      count > ranks.size()
          ? absl::StrCat(" and ", count - ranks.size(), " more")
          : "";
  return absl::StrCat(
      "[Rank ", global_rank(), "]: ", count == 1 ? "Rank " : "Ranks ",
      absl::StrJoin(ranks, ", "), more, " failed to pass monitoredBarrier in ",
      timeout.count(), " ms: ", status.message());
}

void GroupState::MonitoredBarrier(milliseconds timeout, bool wait_all_ranks) {
  if (IsForOthers("monitored_barrier")) return;
  auto* const live = &LiveCommunicator();
  if (const Status broken = live->status(); !broken.ok()) {
    ThrowFailure(broken);
  }
  if (size() == 1) return;
  const std::string name = timeout.count() == 0
                               ? options_.timeout_name
                               : "MonitoredBarrierOptions::timeout";
  if (timeout.count() == 0) timeout = options_.timeout;
  const Status status = AwaitBarrier(
      session_->stream(), options_.name, BarrierName("monitored_barrier"),
      options_.generation, global_rank(), wait_all_ranks,
      Deadline::After(timeout, name));
  if (status.ok()) return;
  // The arguments conflict; ranks that have not arrived are not culprits.
  if (IsInvalidArgument(status)) {
    Throw(ErrorSource::kControl, Status(status.code(), status.message()));
  }
  Throw(ErrorSource::kControl,
        WithCulprits(Status(status.code(), BarrierText(status, timeout)),
                     ToCulprits(status)));
}

// Agreement on the error that ends the group.

namespace {

using std::chrono::milliseconds;

// A collective that fails sooner than this after its start had begun when
// others were about to give up. A rank that detects the timeout later than this
// was not running: others have waited for it.
constexpr milliseconds kLate(500);

// How long to wait for another rank's error.
constexpr std::chrono::seconds kOthersTime(3);

// A send or receive waits for one rank and names that.
bool IsPointToPointFailure(const Status& status) {
  const auto call = dataplane::FindFailedCall(status);
  return call.has_value() && call->is_point_to_point;
}

// Keys after a group's key_prefix: the error that ended the group, and before
// that the failure, while the ranks look for the culprit (AgreeOnError).
constexpr char kErrorKey[] = "error";
constexpr char kFailureKey[] = "failure";

// For the calls of the agreement.
Deadline SettleDeadline() {
  return Deadline::After(std::chrono::seconds(2), "2s to settle a failure");
}

}  // namespace

Status EndInStore(Session& session, const std::string& key_prefix) {
  for (const char* const key : {kErrorKey, kFailureKey}) {
    const auto error = TryAgreedError(
        session.stream(), absl::StrCat(key_prefix, key),
        Deadline::After(std::chrono::seconds(1), "1s for a group's error"));
    if (error.has_value()) return AbortedError(error->message());
  }
  return OkStatus();
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

void GroupState::ThrowFailure(const Status& symptom) {
  auto* const live = communicator();
  if (live != nullptr && live->status().ok()) {
    // Nothing was started: a bad argument, or a rank lacks a resource.
    Culprits culprits;
    for (const int rank : dataplane::CulpritRanks(symptom)) {
      culprits.members.push_back(GetMember(rank));
    }
    Throw(ErrorSource::kControl, WithCulprits(symptom, culprits));
  }
  const Status why = Explain(symptom);
  {
    MutexLock lock(mutex_);
    failure_seen_ = true;
  }
  Throw(ErrorSource::kBackend, why);
}

MemberInfo GroupState::GetMember(int rank) const {
  const Seat& seat = options_.seats[static_cast<size_t>(rank)];
  return {.rank = seat.rank,
          .member = seat.member,
          .host = seat.host,
          .pid = seat.pid};
}

Status GroupState::Explain(const Status& symptom) {
  // This process has destroyed the group.
  if (IsCancelled(symptom)) return symptom;
  return resolver_->Decide(symptom);
}

bool GroupState::AwaitExplained(const Status& symptom, Instant until) {
  auto* const live = communicator();
  // The group was destroyed, or the collective's arguments are bad.
  if (live == nullptr || live->status().ok()) return true;
  return IsCancelled(symptom) || resolver_->AwaitFinal(until);
}

void GroupState::Abort(const std::string& reason, std::vector<int> culprits) {
  if (IsForOthers("abort")) return;
  CheckIsHere();
  auto* const live = communicator();
  // The group may be destroyed already.
  if (live == nullptr || !status().ok()) return;
  if (culprits.empty()) culprits = {rank()};
  std::sort(culprits.begin(), culprits.end());
  std::vector<MemberInfo> blamed;
  std::vector<int> global_ranks;
  for (const int culprit : culprits) {
    blamed.push_back(GetMember(culprit));
    global_ranks.push_back(blamed.back().rank);
  }
  Status why =
      WithCulprits(AbortedError(absl::StrCat(
                       "group ", base::Quote(options_.name), ": aborted by ",
                       DescribeMember(GetMember(rank()), options_.is_world),
                       reason.empty() ? "" : ": ", reason)),
                   {blamed});
  if (options_.is_world) {
    // The report's event ends the group on all ranks, including this one.
    ReportError(session_->stream(), why, SettleDeadline()).IgnoreError();
  } else if (session_ != nullptr && session_->stream().connected()) {
    // Another rank may have ended the group first.
    why = Agree(why).value_or(why);
    const Culprits theirs = ToCulprits(why);
    culprits.clear();
    global_ranks.clear();
    for (int each = 0; each < size(); ++each) {
      const int global = options_.seats[static_cast<size_t>(each)].rank;
      if (!theirs.Include(global)) continue;
      culprits.push_back(each);
      global_ranks.push_back(global);
    }
  }
  // The backend sends the error to the other ranks.
  why = AsVerdict(std::move(why), global_ranks);
  dataplane::SetCulpritRanks(why, culprits);
  live->Abort(why);
  Explain(why).IgnoreError();
  MutexLock lock(mutex_);
  failure_seen_ = true;
}

// Called when no verdict came: no member is known to be gone. Each rank may
// suspect another one; the first error counts for all. For the default group it
// is a report, which ends the generation and which the coordinator sends to
// all. For another group it is stored for its ranks.
ErrorResolver::Accusation GroupState::Report(const Status& own) {
  StreamSession& stream = session_->stream();
  if (!stream.status().ok()) return {.error = own};
  if (IsInvalidArgument(own)) return AccuseTheOdd(own);
  Status failure = own;
  const std::string failure_key =
      absl::StrCat(options_.key_prefix, kFailureKey);
  if (IsAborted(own)) {
    // The error may come from EndInStore.
    failure =
        TryAgreedError(stream, failure_key, SettleDeadline()).value_or(own);
  }
  const bool timed_out = IsDeadlineExceeded(failure);
  bool began_late = false;
  Instant::duration overtime = {};
  {
    MutexLock lock(mutex_);
    began_late = timed_out && began_late_;
    if (timed_out) overtime = overtime_;
  }
  // A rank that came after the others had given up, or was stopped until then,
  // takes the others' error.
  const bool late = began_late || overtime > kLate;
  if (late && !options_.is_world) return {.error = AwaitAgreed(failure)};
  if (began_late) return {.error = failure, .told = true};
  if (late && resolver_->AwaitFinal(Clock::now() + kOthersTime)) {
    return {.error = failure, .told = true};
  }
  if (timed_out) {
    // The others ask the coordinator about this rank: it is still there.
    const auto call = dataplane::FindFailedCall(failure);
    MutexLock lock(mutex_);
    settling_ = absl::StrCat(call.has_value() ? call->label : "a call",
                             ", which timed out,");
  }
  const absl::Cleanup settled = [this] {
    MutexLock lock(mutex_);
    settling_.clear();
  };
  // For ranks that wait for this one in the store and not on a connection.
  if (timed_out) AgreeOnError(stream, failure_key, failure, SettleDeadline());
  Status named = timed_out && !IsPointToPointFailure(failure)
                     ? NameTheStuck(failure)
                     : failure;
  // Among ranks that come here together, the first timeout is reported first.
  if (overtime.count() > 0 &&
      resolver_->AwaitFinal(Clock::now() +
                            std::min<Instant::duration>(overtime, kLate))) {
    return {.error = std::move(named), .told = true};
  }
  return Tell(std::move(named));
}

ErrorResolver::Accusation GroupState::Tell(Status error) {
  if (options_.is_world) {
    const bool told =
        ReportError(session_->stream(), error, SettleDeadline()).ok();
    return {.error = std::move(error), .told = told};
  }
  return {.error = Agree(error).value_or(error)};
}

// Ranks run different collectives. The first rank that detects it knows of one
// other rank, which may be one of many that are right. So all publish their
// collectives, and one rank compares them.
ErrorResolver::Accusation GroupState::AccuseTheOdd(const Status& own) {
  StreamSession& stream = session_->stream();
  std::string ran;
  {
    MutexLock lock(mutex_);
    ran = ran_;
  }
  // At level DETAIL all have been compared.
  if (ran.empty() || CurrentDebugLevel() == DebugLevel::kDetail) {
    return Tell(own);
  }
  const std::string prefix = absl::StrCat(options_.key_prefix, "ran/");
  SetKey(stream, absl::StrCat(prefix, rank()), ran,
         {.ttl = std::chrono::minutes(1)}, SettleDeadline())
      .IgnoreError();
  const auto finders =
      AddToKey(stream, absl::StrCat(options_.key_prefix, "ran_judges"), 1,
               SettleDeadline());
  if (!finders.ok() || *finders == 1) return Tell(NameTheOdd(own, prefix));
  if (options_.is_world) return {.error = own, .told = true};
  return {.error = AwaitAgreed(own)};
}

Status GroupState::NameTheOdd(const Status& own, const std::string& prefix) {
  StreamSession& stream = session_->stream();
  std::vector<std::string> keys;
  for (int each = 0; each < size(); ++each) {
    keys.push_back(absl::StrCat(prefix, each));
  }
  auto texts = GetKeys(
      stream, keys,
      Deadline::After(std::chrono::seconds(1), "1s for what other ranks run"));
  if (!texts.ok()) {
    // Some have completed the collective, or run none in the group.
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
  const Culprits before = ToCulprits(own);
  std::vector<int> suspects;
  for (int each = 0; each < size(); ++each) {
    if (before.Include(ToGlobalRank(each))) suspects.push_back(each);
  }
  const Status odd = dataplane::FindOdd(prints, size(), suspects);
  if (odd.ok()) return own;
  std::vector<int> ranks;
  for (const int each : dataplane::CulpritRanks(odd)) {
    ranks.push_back(ToGlobalRank(each));
  }
  std::string text = absl::StrCat(own.message(), "; ", odd.message());
  const Culprits culprits = SeatedAt(options_.seats, ranks, odd.message());
  for (const MemberInfo& member : culprits.members) {
    if (before.Include(member.rank)) continue;
    absl::StrAppend(&text, "; ", options_.is_world ? "rank " : "global rank ",
                    member.rank, " is pid ", member.pid, " on ", member.host);
  }
  return WithCulprits(Status(own.code(), text), culprits);
}

// Returns the first error that any rank of the group has stored.
std::optional<Status> GroupState::Agree(const Status& own) {
  return AgreeOnError(session_->stream(),
                      absl::StrCat(options_.key_prefix, kErrorKey), own,
                      SettleDeadline());
}

// The same, but waits for another rank's error first.
Status GroupState::AwaitAgreed(const Status& own) {
  const auto theirs = AwaitAgreedError(
      session_->stream(), absl::StrCat(options_.key_prefix, kErrorKey),
      Deadline::After(kOthersTime, "3s for another rank's error"));
  if (theirs.has_value()) return *theirs;
  return Agree(own).value_or(own);
}

// Called after the timeout of a collective. Ranks that are stuck elsewhere do
// not come here; all others do at about the same time. The coordinator sees the
// difference and tells all ranks the same.
Status GroupState::NameTheStuck(const Status& own) {
  const Status met = AwaitBarrier(session_->stream(), options_.name,
                                  BarrierName("muster/after-timeout"),
                                  options_.generation, global_rank(),
                                  /*wait_all_ranks=*/true, SettleDeadline());
  const Culprits stuck = ToCulprits(met);
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
      Status(own.code(), absl::StrCat(own.message(),
                                      "; did not come to the end of "
                                      "it: ",
                                      absl::StrJoin(names, "; "))),
      stuck);
}

}  // namespace muster::internal
