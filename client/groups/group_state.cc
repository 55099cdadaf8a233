#include "client/groups/group_state.h"

#include <algorithm>
#include <cstddef>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "base/text.h"
#include "client/control/fork_guard.h"
#include "client/control/deadline.h"
#include "client/groups/debugging.h"
#include "client/control/stream_session.h"
#include "client/control/throw.h"
#include "dataplane/coalescing.h"
#include "dataplane/collective.h"
#include "glog/logging.h"

namespace muster::internal {
namespace {

using std::chrono::milliseconds;

[[noreturn]] void ThrowNotIn(const std::string& rank, const std::string& in) {
  Throw(Origin::kControl,
        absl::InvalidArgumentError(
            absl::StrCat(rank, " is not part of group ", base::Quote(in))));
}

}  // namespace

std::vector<Seat> SeatsOf(const Formation& formation,
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
    std::shared_ptr<Session> session, std::shared_ptr<FailureJudge> judge) {
  const auto devices = backend->devices();
  std::shared_ptr<GroupState> state(
      new GroupState(std::move(options), {devices.begin(), devices.end()},
                     std::move(session), std::move(judge)),
      DeleteAtHome<GroupState>());
  state->communicator_ = std::make_unique<dataplane::Communicator>(
      dataplane::CommunicatorOptions{
          .group_name = state->options_.name,
          .rank = state->rank(),
          .world_size = state->size(),
          .default_timeout = state->options_.timeout},
      std::move(backend));
  state->TellJudge();
  return state;
}

GroupState::GroupState(GroupStateOptions options,
                       std::vector<dataplane::DeviceType> devices,
                       std::shared_ptr<Session> session,
                       std::shared_ptr<FailureJudge> judge)
    : options_(std::move(options)),
      devices_(std::move(devices)),
      session_(std::move(session)),
      judge_(std::move(judge)),
      continuations_(Continuations::Create()) {}

bool GroupState::is_cuda_only() const {
  return !devices_.empty() &&
         std::ranges::find(devices_, DeviceType::kCpu) == devices_.end();
}

void GroupState::TellJudge() {
  const std::weak_ptr<GroupState> weak = weak_from_this();
  FailureJudge::Group group;
  group.name = options_.name;
  group.generation = options_.generation;
  group.rank = global_rank();
  group.seats = options_.seats;
  group.current = [weak]() -> std::string {
    const auto self = weak.lock();
    auto* const communicator = self == nullptr ? nullptr : self->communicator();
    return communicator == nullptr ? "" : communicator->progress().current;
  };
  group.abort = [weak](const absl::Status& why) {
    const auto self = weak.lock();
    auto* const communicator = self == nullptr ? nullptr : self->communicator();
    if (communicator != nullptr) communicator->Abort(why);
  };
  if (session_ != nullptr) {
    group.accuse = [weak](const absl::Status& own) {
      const auto self = weak.lock();
      return self == nullptr ? FailureJudge::Accusation{.error = own}
                             : self->Accuse(own);
    };
  }
  group.connected = [weak] {
    const auto self = weak.lock();
    return self != nullptr && self->session_->stream().connected();
  };
  judge_->Begin(std::move(group));
}

absl::Status GroupState::NotLive() const {
  return absl::FailedPreconditionError(absl::StrCat(
      "Invalid process group specified: group ", base::Quote(options_.name),
      birth_.is_here() ? " was destroyed" : kIsParents));
}

void GroupState::ThrowNotLive() const { Throw(Origin::kControl, NotLive()); }

int GroupState::global_rank() const {
  return options_.seats[static_cast<size_t>(is_member() ? rank() : 0)].rank;
}

int GroupState::GroupRankOf(int global_rank) const {
  // The first for the data plane to judge; of the second nothing comes.
  if (options_.is_world) return global_rank;
  if (!is_member()) return -1;
  for (size_t i = 0; i < options_.seats.size(); ++i) {
    if (options_.seats[i].rank == global_rank) return static_cast<int>(i);
  }
  ThrowNotIn(absl::StrCat("Global rank ", global_rank), options_.name);
}

int GroupState::MemberRankOf(int global_rank) const {
  const int rank = GroupRankOf(global_rank);
  if (rank >= 0 && rank < size()) return rank;
  if (is_member())
    ThrowNotIn(absl::StrCat("Global rank ", global_rank), options_.name);
  return -1;
}

int GroupState::FindGroupRank(const RankArgument& rank,
                              absl::string_view name) const {
  if (rank.global.has_value() && rank.in_group.has_value()) {
    Throw(Origin::kControl,
          absl::InvalidArgumentError(absl::StrCat(
              "Can't specify both group_rank and global_rank: ", name, " is ",
              *rank.global, " and group_", name, " is ", *rank.in_group)));
  }
  if (!rank.global.has_value() && !rank.in_group.has_value()) {
    Throw(Origin::kControl,
          absl::InvalidArgumentError(
              absl::StrCat("Must specify global_rank or group_rank: neither ",
                           name, " nor group_", name, " is given")));
  }
  if (rank.global.has_value()) return GroupRankOf(*rank.global);
  if (is_member()) (void)GlobalRankOf(*rank.in_group);
  return is_member() ? *rank.in_group : -1;
}

int GroupState::GlobalRankOf(int group_rank) const {
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

Work GroupState::Start(const dataplane::CollectiveView& collective,
                       bool async_op) {
  // To find the name takes longer than to find out that it is not needed.
  if (!is_member() && IsForOthers(CollectiveKindName(collective.kind))) {
    return Work();
  }
  dataplane::Collective copy = collective.Copy();
  copy.in_current_stream = !async_op && copy.cuda_device() >= 0;
  auto kept = std::make_shared<dataplane::Collective>(copy);
  dataplane::Communicator& live = LiveCommunicator();
  std::shared_ptr<dataplane::Work> started = live.Start(std::move(copy));
  kept->sequence = live.last_enqueued();
  Watch(*started, collective.timeout, std::move(kept));
  return HandleOf(std::move(started), collective.written(), async_op);
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
    works.push_back(HandleOf(std::move(started[i]), results[i],
                             /*async_op=*/true));
  }
  return works;
}

void GroupState::CheckArguments(const dataplane::Collective& collective) const {
  if (!is_member()) return;
  const absl::Status status = LiveCommunicator().Check(collective);
  if (status.ok()) return;
  Throw(Origin::kControl,
        absl::Status(
            status.code(),
            absl::StrCat(CollectiveKindName(collective.kind), " on group ",
                         base::Quote(options_.name), ": ", status.message())));
}

void GroupState::CheckIsOther(int group_rank, absl::string_view verb) const {
  if (!is_member() || group_rank != rank()) return;
  Throw(Origin::kControl,
        absl::InvalidArgumentError(absl::StrCat(
            verb, " on group ", base::Quote(options_.name),
            ": argument dst: Invalid destination rank: destination rank "
            "should not be the same as the rank of the current process, got ",
            group_rank, "; Isend may send to it")));
}

Work GroupState::HandleOf(std::shared_ptr<dataplane::Work> started,
                          absl::Span<const Tensor> result, bool async_op) {
  auto* const live = communicator();
  // A bad argument is told at once: nobody might look at the handle.
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
    EndOf(dataplane::RunCoalesced(*live, std::move(collectives)), began,
          timeout);
    return Work(continuations_->number(), result);
  }
  std::shared_ptr<dataplane::Work> started =
      dataplane::StartCoalesced(*live, std::move(collectives));
  Watch(*started, timeout);
  return HandleOf(std::move(started), result, async_op);
}

void GroupState::Watch(
    dataplane::Work& work, milliseconds timeout,
    std::shared_ptr<const dataplane::Collective> collective) {
  const Instant began = Clock::now();
  work.OnCompletion(
      [weak = weak_from_this(), began, timeout,
       collective = std::move(collective)](const absl::Status& status) {
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

void GroupState::EndOf(const absl::Status& status, Instant began,
                       milliseconds timeout,
                       const dataplane::CollectiveView* collective) {
  if (status.ok()) return;
  auto* const live = communicator();
  if (collective == nullptr || live == nullptr) {
    NoteFailure(began, timeout, nullptr);
  } else {
    dataplane::Collective ran = collective->Copy();
    ran.sequence = live->last_enqueued();
    NoteFailure(began, timeout, &ran);
  }
  ThrowFailure(status);
}

std::shared_ptr<dataplane::Descent> GroupState::Split(
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
  if (!birth_.is_here()) return;
  const bool was_shut_down = was_shut_down_.exchange(true);
  judge_->End();
  if (!was_shut_down) {
    if (CurrentDebugLevel() != DebugLevel::kOff) {
      LOG(INFO) << "group ended: group=" << base::LogValue(options_.name)
                << " rank=" << options_.rank
                << " global_rank=" << global_rank();
    }
    communicator_->Shutdown();
  }
  // After all that could give it work.
  explanations_.Close();
  continuations_->Close();
}

absl::Status GroupState::status() const {
  if (!is_member()) return absl::OkStatus();
  if (!birth_.is_here()) return NotLive();
  auto* const live = communicator();
  absl::Status known = judge_->Known(options_.generation);
  if (!known.ok()) return known;
  return live == nullptr ? absl::OkStatus() : live->status();
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
           .peer_call = peer_call}};
}

// The coordinator counts a barrier's instances by group and name: one that a
// rank has missed must not meet it in the next group of the same name.
std::string GroupState::BarrierName(absl::string_view name) const {
  return absl::StrCat(name, options_.barrier_suffix);
}

}  // namespace muster::internal
