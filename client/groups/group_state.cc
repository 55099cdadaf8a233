#include "client/groups/group_state.h"

#include <algorithm>
#include <cstddef>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "base/text.h"
#include "client/control/convert.h"
#include "client/control/deadline.h"
#include "client/control/fork_guard.h"
#include "client/control/stream_session.h"
#include "client/control/throw.h"
#include "client/control/verbs.h"
#include "client/groups/debugging.h"
#include "client/groups/error_resolver.h"
#include "dataplane/coalescing.h"
#include "dataplane/culprit.h"
#include "dataplane/failed_call.h"
#include "dataplane/observe/fingerprint.h"
#include "glog/logging.h"
#include "muster/base/status.h"
#include "muster/dataplane/collective.h"
#include "muster/errors.h"

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

void GroupState::OnCompletion(Work& work, std::function<void()> callback) {
  if (work.work_ == nullptr) return callback();
  work.work_->OnCompletion(
      [callback = std::move(callback)](const Status&) { callback(); });
}

bool GroupState::is_cuda_only() const {
  return !devices_.empty() &&
         std::ranges::find(devices_, DeviceType::kCpu) == devices_.end();
}

void GroupState::TellResolver() {
  const std::weak_ptr<GroupState> weak = weak_from_this();
  ErrorResolver::Group group;
  group.name = options_.name;
  group.instance = options_.barrier_suffix;
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
    group.report = [weak](const ErrorResolver::Symptom& symptom) {
      const auto self = weak.lock();
      return self == nullptr ? ErrorResolver::Answer() : self->Report(symptom);
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
  // The communicator changes opaque tensors to bytes.
  dataplane::Collective::Tensors opaque;
  if (collective.data_type() == dataplane::DataType::kOpaque) {
    opaque = collective.written();
  }
  const Status status = LiveCommunicator().Run(collective);
  ThrowUnlessOk(status, collective.started, collective.timeout, &collective);
  return Work(continuations_->number(),
              opaque.empty() ? collective.written() : opaque);
}

void GroupState::Refuse(dataplane::Collective&& collective, const Status& why,
                        bool is_prepared) {
  const std::string kind = CollectiveKindName(collective.kind);
  if (!is_prepared) {
    ThrowFailure(LiveCommunicator().Refuse(std::move(collective), why));
  }
  ThrowFailure(Status(
      why.code(), absl::StrCat(kind, " on group ", base::Quote(options_.name),
                               ": ", why.message())));
}

void GroupState::UseUpNumber(dataplane::CollectiveKind kind,
                             const Status& why) {
  if (!is_member()) return;
  dataplane::Collective collective;
  collective.kind = kind;
  try {
    Refuse(std::move(collective), why, /*is_prepared=*/false);
  } catch (const DistError&) {
    // The caller's error says more about the argument.
    if (!status().ok()) throw;
  }
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

// Failures.

namespace {

using std::chrono::milliseconds;

// A collective that fails sooner than this after its start had begun when
// others were about to give up. A rank that detects the timeout later than this
// was not running: others have waited for it.
constexpr milliseconds kLate(500);

// A send or receive waits for one rank and names that.
bool IsPointToPointFailure(const Status& status) {
  const auto call = dataplane::FindFailedCall(status);
  return call.has_value() && call->is_point_to_point;
}

Deadline ReportDeadline() {
  return Deadline::After(std::chrono::seconds(2), "2s to report a failure");
}

}  // namespace

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
    const milliseconds slack = std::min(kLate, timeout / 2);
    began_late_ = took < slack;
    ended_early_ = took + slack < timeout;
    overtime_ = std::max(took - timeout, Instant::duration::zero());
    if (collective != nullptr && !IsPointToPoint(collective->kind)) {
      ran_ = dataplane::MakeFingerprint(*collective, size()).Serialize();
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
  if (IsDeadlineExceeded(symptom)) {
    // The coordinator shows others where this rank is: it is still there.
    const auto call = dataplane::FindFailedCall(symptom);
    MutexLock lock(mutex_);
    settling_ = absl::StrCat(call.has_value() ? call->label : "a call",
                             ", which timed out,");
  }
  Status why = resolver_->Decide(symptom);
  MutexLock lock(mutex_);
  settling_.clear();
  return why;
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
  if (session_ != nullptr &&
      (options_.is_world || session_->stream().connected())) {
    // Another rank may have ended the group first. If it is the default group,
    // an event tells.
    const auto verdict = Report({.error = why, .is_decision = true}).verdict;
    if (verdict.has_value()) why = ToError(*verdict);
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

ErrorResolver::Answer GroupState::Report(
    const ErrorResolver::Symptom& symptom) {
  using Request = v1::ReportGroupFailureRequest;
  StreamSession& stream = session_->stream();
  const Status& error = symptom.error;
  Request request;
  request.set_generation(options_.generation);
  if (!options_.is_world) {
    request.set_group(options_.name);
    request.set_instance(options_.barrier_suffix);
  }
  request.set_call(symptom.call);
  Instant::duration overtime = {};
  Instant::duration wait = symptom.wait;
  // Not if another rank timed out and said so in its goodbye.
  bool timed_out = false;
  {
    MutexLock lock(mutex_);
    request.set_fingerprint(ran_);
    timed_out = IsDeadlineExceeded(error) && !ended_early_;
    if (timed_out) overtime = overtime_;
    // The rank came when the others gave up, or was stopped until then.
    request.set_late(began_late_ || overtime_ > kLate);
  }
  if (symptom.is_decision) {
    request.set_kind(Request::DECISION);
  } else if (IsInvalidArgument(error)) {
    // At level DETAIL all collectives have been compared.
    const bool compares = !request.fingerprint().empty() &&
                          CurrentDebugLevel() != DebugLevel::kDetail;
    request.set_kind(compares ? Request::MISMATCH : Request::DECISION);
  } else if (timed_out && !IsPointToPointFailure(error)) {
    request.set_kind(Request::TIMEOUT);
  } else if (!IsDeadlineExceeded(error) && !IsUnavailable(error) &&
             !IsAborted(error) && ToCulprits(error).empty()) {
    // No other rank is involved.
    request.set_kind(Request::DECISION);
  } else {
    request.set_kind(Request::SYMPTOM);
    // A send or receive knows its peer.
    if (timed_out) wait = overtime;
  }
  if (!stream.judges_groups()) {
    // An older coordinator, whose verdict is the first report.
    const bool may_wait =
        request.kind() == Request::SYMPTOM && symptom.waited < wait;
    return {.reached = options_.is_world && !may_wait &&
                       ReportError(stream, error, ReportDeadline()).ok()};
  }
  *request.mutable_wait() = ToProto(duration_cast<milliseconds>(wait));
  *request.mutable_overtime() = ToProto(duration_cast<milliseconds>(overtime));
  const auto answer =
      ReportGroupFailure(stream, std::move(request), error, ReportDeadline());
  if (answer.ok()) return {.reached = true, .verdict = *answer};
  const Status& failure = answer.status();
  // If the session is over, the resolver hears why.
  if (IsUnavailable(failure) || IsDeadlineExceeded(failure) ||
      !stream.status().ok()) {
    return {};
  }
  return {.refusal = failure};
}

}  // namespace muster::internal
