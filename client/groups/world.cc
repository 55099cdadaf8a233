#include "client/groups/world.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/text.h"
#include "client/errors.h"
#include "client/file_store.h"
#include "client/control/backoff.h"
#include "client/groups/debugging.h"
#include "client/control/endpoint.h"
#include "client/control/logging.h"
#include "client/control/stream_session.h"
#include "client/control/throw.h"
#include "client/control/verbs.h"
#include "dataplane/factory.h"
#include "dataplane/observe/metrics.h"
#include "glog/logging.h"

namespace muster::internal {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

// What a process that ends after a failure gives the coordinator to hear so.
constexpr milliseconds kPartingTime{1'000};
// Of the keys of users under a launcher; then the number of the attempt.
constexpr char kAttemptsPrefix[] = "attempts/";
constexpr char kTimeoutName[] = "InitProcessGroupOptions::timeout";

// The others' rendezvous shall time out before the coordinator goes that could
// tell them who is missing; a tenth of the timeout is enough.
constexpr milliseconds kServerPatienceMax = seconds(1);
constexpr milliseconds kFarewellTimeout = seconds(10);
// Everybody has left by then, or has had the time to.
constexpr milliseconds kDrainTimeout{200};
// An embedded coordinator that cannot be reached is not started again.
constexpr milliseconds kCoordinatorLoss = seconds(1);
// Of one whose host or network is gone nothing is heard. Together with the time
// before that is the lease of 10 s, after which that one misses this rank.
constexpr milliseconds kCoordinatorSilence = seconds(9);

// In a store in which the ranks meet: the job and the address of the
// coordinator that rank 0 serves. When it has ended that, the key is gone, or
// empty in a store that deletes none.
constexpr char kMeetingKey[] = "muster/coordinator";
// How often and how long it is tried, since both may have changed meanwhile.
constexpr milliseconds kMeetingInterval{5};
constexpr milliseconds kMeetingAttempt = seconds(2);

[[noreturn]] void Invalid(absl::string_view text) {
  Throw(Origin::kControl, absl::InvalidArgumentError(text));
}

// Those of the environment.
void LoadBackends() {
  const char* const paths = getenv("MUSTER_BACKEND_LIBRARIES");
  if (paths == nullptr) return;
  for (const absl::string_view path :
       absl::StrSplit(paths, ':', absl::SkipEmpty())) {
    ThrowIfFailed(Origin::kControl,
                  dataplane::LoadBackend(std::string(path)).status());
  }
}

void CheckOptions(const InitProcessGroupOptions& options) {
  if (options.timeout.count() <= 0) {
    Invalid(absl::StrCat(kTimeoutName, " must be positive but was ",
                         options.timeout.count(), " ms"));
  }
  if (options.verdict_timeout.count() < 0) {
    Invalid(absl::StrCat(
        "InitProcessGroupOptions::verdict_timeout must not be negative but "
        "was ",
        options.verdict_timeout.count(), " ms"));
  }
  if (options.device_id.has_value() && *options.device_id < 0) {
    Invalid(
        absl::StrCat("InitProcessGroupOptions::device_id must not be "
                     "negative but was ",
                     *options.device_id));
  }
  LoadBackends();
  if (options.last_call.has_value() && options.last_call->count() < 0) {
    Invalid(absl::StrCat(
        "InitProcessGroupOptions::last_call must not be negative but was ",
        options.last_call->count(), " ms"));
  }
  if (options.store == nullptr) return;
  if (options.min_world_size != -1 || options.max_world_size != -1) {
    Invalid("Cannot specify both min_world_size or max_world_size and store.");
  }
  if (!options.init_method.empty()) {
    Invalid("Cannot specify both init_method and store.");
  }
  if (options.world_size <= 0) {
    Invalid("world_size must be positive if using store");
  }
  if (options.rank < 0 || options.rank >= options.world_size) {
    Invalid(
        absl::StrCat("rank must be non-negative if using store, and less "
                     "than world_size ",
                     options.world_size, ", but was ", options.rank));
  }
}

InitProcessGroupOptions WithBackend(InitProcessGroupOptions options) {
  options.backend = options.backend.empty() ? dataplane::DefaultBackend()
                                            : CheckBackend(options.backend);
  return options;
}

const char* Getenv(const char* name) { return std::getenv(name); }

absl::StatusOr<InitPlan> Plan(const InitProcessGroupOptions& options) {
  return PlanInit({.init_method = options.init_method,
                   .world_size = options.world_size,
                   .rank = options.rank,
                   .job = options.job,
                   .min_world_size = options.min_world_size,
                   .max_world_size = options.max_world_size,
                   .has_last_call = options.last_call.has_value()},
                  &Getenv);
}

const std::string& ProcessName() {
  static const std::string* const name = new std::string(
      absl::StrCat(HostName(), "-", getpid(), "-",
                   absl::Hex(std::random_device()(), absl::kZeroPad8)));
  return *name;
}

// What another attempt may overcome: the coordinator of the group before this
// one is still closing down at the same address, or was restarted meanwhile.
// One that was never reached has had the whole timeout.
bool IsTransient(const absl::Status& status, bool connected) {
  return absl::IsAborted(status) || (connected && absl::IsUnavailable(status));
}

std::string PartingReason(const absl::Status& failure) {
  if (failure.ok()) return "finished";
  return absl::StrCat("its group failed: ", failure.message());
}

}  // namespace

std::string WorldPrefix() {
  return absl::StrCat("muster/group/", kWorldName, "/");
}

std::unique_ptr<World> World::Form(const InitProcessGroupOptions& options) {
  return FormOf(options, /*shrinking=*/nullptr);
}

std::unique_ptr<World> World::FormOf(const InitProcessGroupOptions& options,
                                     const Shrinking* shrinking) {
  EnsureLogging();
  CheckOptions(options);
  CurrentDebugLevel();
  Recorder();
  std::unique_ptr<World> world(new World(options));
  world->shrinking_ = shrinking;
  InitPlan plan = {.rank = options.rank, .world_size = options.world_size};
  if (options.store == nullptr) {
    plan = ValueOrThrow(Origin::kControl, Plan(options));
    if (!plan.file.empty()) world->MeetInFile(plan);
  } else {
    world->meeting_ = options.store;
  }
  world->FormGroup(std::move(plan));
  if (world->telemetry_ != nullptr) {
    world->telemetry_->SetRank(world->state_->rank(), world->state_->size());
  }
  world->shrinking_ = nullptr;
  return world;
}

World::World(const InitProcessGroupOptions& options)
    : options_(WithBackend(options)),
      deadline_(Deadline::After(options.timeout, kTimeoutName)) {}

World::~World() {
  // First, so that none of its callbacks runs while the rest goes.
  if (session_ != nullptr) {
    const absl::Status why =
        state_ == nullptr ? absl::OkStatus() : state_->status();
    // Not to be taken for one of the lost: the culprit is.
    if (!why.ok()) session_->Leave(PartingReason(why), kPartingTime);
    session_->Close();
  }
  groups_ = nullptr;
  if (state_ != nullptr) state_->Shutdown();
}

std::string World::debug_address() const { return debug_address_; }

// Where others find the telemetry: none can connect to "any address".
std::string World::DebugAddress(const InitPlan& plan) const {
  if (telemetry_ == nullptr) return "";
  const std::string& address = telemetry_->address();
  const size_t colon = address.rfind(':');
  const std::string host = address.substr(0, colon);
  if (host != "0.0.0.0" && host != "[::]") return address;
  const absl::StatusOr<std::string> local = LocalAddressTowards(plan.endpoint);
  if (!local.ok()) return address;
  return absl::StrContains(*local, ':')
             ? absl::StrCat("[", *local, "]", address.substr(colon))
             : absl::StrCat(*local, address.substr(colon));
}

void World::MeetInFile(const InitPlan& plan) {
  auto store = std::make_shared<FileStore>(plan.file, plan.world_size);
  if (const int64_t stores = store->OpenStores(); stores > plan.world_size) {
    LOG(WARNING) << "more stores than ranks, some are of killed processes or "
                    "of another job: file="
                 << base::Quote(plan.file) << " stores=" << stores
                 << " ranks=" << plan.world_size;
  }
  meeting_ = std::move(store);
}

void World::FormGroup(InitPlan plan) {
  telemetry_ = shrinking_ != nullptr
                   ? shrinking_->old->telemetry_
                   : ValueOrThrow(Origin::kControl,
                                  Telemetry::Start(options_.http_port));
  if (meeting_ != nullptr) plan.embedded = true;
  embedded_ = plan.embedded;
  if (plan.embedded && plan.rank == 0) ServeCoordinator(plan);
  ConnectAndJoin(plan);
  store_ = meeting_ != nullptr ? meeting_
                               : std::make_shared<CoordinatorStore>(session_);
  if (plan.attempt > 0) {
    // What ranks of an earlier attempt have set would mislead these.
    store_ = std::make_shared<PrefixStore>(
        absl::StrCat(kAttemptsPrefix, plan.attempt), store_);
  }
  Connect(plan);
  if (shrinking_ != nullptr) ConfirmAll();
  // Members that died did not tidy up, and an external coordinator outlives
  // any number of groups, as one does that stays with rank 0.
  if (formation_.rank == 0 && (!plan.embedded || shrinking_ != nullptr)) {
    DeleteStaleKeys(*session_, WorldPrefix(), formation_.generation);
    if (plan.attempt > 0) {
      DeleteStaleKeys(*session_, kAttemptsPrefix, plan.attempt);
    }
  }
}

void World::ServeCoordinator(InitPlan& plan) {
  if (meeting_ != nullptr) {
    plan.endpoint.host = ReachableAddress(Getenv("GLOO_SOCKET_IFNAME"));
    // Of this group alone: another coordinator may get the port one day.
    plan.job = ProcessName();
  }
  if (shrinking_ != nullptr && shrinking_->old->coordinator_ != nullptr) {
    coordinator_ = shrinking_->old->coordinator_;
    plan.endpoint.port = coordinator_->port();
    return;
  }
  auto server = EmbeddedCoordinator::StartForRanks(
      {.listen = ListenAddress(plan.endpoint)}, &Getenv);
  if (absl::IsInvalidArgument(server.status())) {
    Throw(Origin::kControl, server.status());
  }
  if (!server.ok()) {
    Throw(Origin::kControl,
          absl::Status(server.status().code(),
                       absl::StrCat("rank 0 cannot serve the coordinator at ",
                                    plan.endpoint.ToString(), ": ",
                                    server.status().message(),
                                    "; it must be an address of rank 0's host "
                                    "that no other rank 0 or job has")));
  }
  coordinator_ = *std::move(server);
  plan.endpoint.port = coordinator_->port();
  if (meeting_ != nullptr) {
    meeting_->Set(kMeetingKey,
                  absl::StrCat(plan.job, " ", plan.endpoint.ToString()));
  }
}

void World::FindCoordinator(InitPlan& plan) {
  const auto late = [&](absl::string_view why) {
    Throw(Origin::kControl,
          absl::DeadlineExceededError(absl::StrCat(
              "rank ", plan.rank, " waited for rank 0 to serve the coordinator",
              " for ", FormatDuration(deadline_.timeout), " ",
              deadline_.Blame(), why)));
  };
  for (;;) {
    try {
      meeting_->Wait(
          {kMeetingKey},
          std::max(milliseconds(1), deadline_.Remaining(Clock::now())));
    } catch (const DistStoreError& error) {
      if (!absl::IsDeadlineExceeded(error.status())) throw;
      late(absl::StrCat(": ", error.what()));
    }
    const std::pair<std::string, std::string> place =
        absl::StrSplit(meeting_->Get(kMeetingKey), absl::MaxSplits(' ', 1));
    const absl::StatusOr<Endpoint> endpoint = ParseEndpoint(place.second);
    if (endpoint.ok()) {
      plan.job = place.first;
      plan.endpoint = *endpoint;
      return;
    }
    // Rank 0 has ended the group before this one.
    if (deadline_.Passed(Clock::now())) late("");
    std::this_thread::sleep_for(kMeetingInterval);
  }
}

void World::ConnectAndJoin(InitPlan& plan) {
  Backoff backoff(static_cast<uint64_t>(plan.rank) + 1);
  const bool finds = meeting_ != nullptr && plan.rank != 0;
  for (;;) {
    absl::Status failure;
    try {
      // Anew each time: what is there may be of a group that is no more.
      if (finds) FindCoordinator(plan);
      formation_ = TryToJoin(plan);
      return;
    } catch (const DistError& error) {
      failure = error.status();
      if (!IsTransient(failure, /*connected=*/session_ != nullptr || finds ||
                                    shrinking_ != nullptr) ||
          deadline_.Passed(Clock::now()) || OthersAreGone()) {
        if (session_ != nullptr) session_->Leave("rendezvous failed");
        throw;
      }
    }
    LOG(WARNING) << "rendezvous interrupted: rank=" << plan.rank
                 << " cause=" << base::Quote(failure.message());
    if (session_ != nullptr) session_->Leave("rendezvous interrupted");
    session_ = nullptr;
    std::this_thread::sleep_for(backoff.Next());
  }
}

Formation World::TryToJoin(const InitPlan& plan) {
  live_ = std::make_shared<LiveGroups>();
  judge_ = live_->NewJudge(Judging(plan));
  SessionOptions session;
  session.address = plan.endpoint.ToString();
  session.job = plan.job;
  // Its rank stays with its name, whichever group it forms.
  if (plan.max_world_size > 0) session.member = ProcessName();
  session.connect_timeout =
      std::max(milliseconds(1), deadline_.Remaining(Clock::now()));
  if ((meeting_ != nullptr && plan.rank != 0) || shrinking_ != nullptr) {
    session.connect_timeout =
        std::min(session.connect_timeout, kMeetingAttempt);
  }
  session.connect_timeout_name = kTimeoutName;
  session.debug_address = debug_address_ = DebugAddress(plan);
  if (plan.embedded) {
    session.coordinator_note = "embedded in rank 0";
    // Rank 0 knows none.
    session.use_token = false;
    session.give_up_after = kCoordinatorLoss;
    session.silence_max = kCoordinatorSilence;
  }
  session.on_event = [live = live_](const MemberEvent& event) {
    live->OnEvent(event);
  };
  session.on_over = [live = live_](const absl::Status& why) {
    live->OnSessionOver(why);
  };
  session.progress = [live = live_] { return live->Progress(); };
  if (telemetry_ != nullptr) telemetry_->SetProgress(session.progress);
  session_ = Session::Connect(std::move(session));
  const milliseconds patience =
      coordinator_ == nullptr
          ? milliseconds(0)
          : std::min(kServerPatienceMax, options_.timeout / 10);
  const Deadline joined = UntilJoined();
  const auto vigil = KeepVigil();
  return session_->Join({.rank = plan.rank,
                         .world_size = std::max(plan.world_size, 0),
                         .timeout = joined.Remaining(Clock::now()) + patience,
                         .timeout_name = joined.name,
                         .min_world_size = std::max(plan.min_world_size, 0),
                         .max_world_size = std::max(plan.max_world_size, 0),
                         .last_call = options_.last_call});
}

// The kernel's own choice of the way to the coordinator, unless the user names
// interfaces.
std::string World::LocalAddress(const InitPlan& plan) const {
  const char* const interfaces = std::getenv("GLOO_SOCKET_IFNAME");
  if (interfaces != nullptr && *interfaces != '\0') return "";
  const absl::StatusOr<std::string> local = LocalAddressTowards(plan.endpoint);
  if (!local.ok()) return "";
  std::set<std::string> hosts;
  for (const Seat& seat : formation_.seats) hosts.insert(seat.host);
  if (hosts.size() > 1 && IsLoopback(*local)) {
    Invalid(absl::StrCat(
        "the group spans ", hosts.size(), " hosts, but rank ", formation_.rank,
        " on ", HostName(), " reaches the coordinator at ",
        plan.endpoint.ToString(),
        " over loopback, where no other host can reach it: give an address of "
        "the network, or name an interface in GLOO_SOCKET_IFNAME"));
  }
  return *local;
}

FailureJudge::Options World::Judging(const InitPlan& plan) const {
  return {.verdict_timeout = options_.verdict_timeout,
          .embedded = plan.embedded,
          .coordinator_loss = kCoordinatorLoss};
}

void World::Connect(const InitPlan& plan) {
  const std::string prefix =
      absl::StrCat(WorldPrefix(), formation_.generation, "/");
  bootstrap_ = BootstrapOf(session_, prefix, judge_, formation_.generation,
                           /*forming=*/nullptr);
  const std::string local_address = LocalAddress(plan);
  const std::shared_ptr<dataplane::Metrics> metrics =
      telemetry_ == nullptr ? nullptr : telemetry_->metrics();
  auto state =
      ConnectGroup({.name = kWorldName,
                    .backend = options_.backend,
                    .timeout = options_.timeout,
                    .timeout_name = kTimeoutName,
                    .generation = formation_.generation,
                    .seats = formation_.seats,
                    .description = "default_pg",
                    .rank = formation_.rank,
                    .key_prefix = prefix},
                   {.rank = formation_.rank,
                    .world_size = static_cast<int>(formation_.seats.size()),
                    .group_name = kWorldName,
                    .store = bootstrap_,
                    .deadline = deadline_.at,
                    .interruption = bootstrap_->interruption(),
                    .local_address = local_address,
                    .device = options_.device_id.value_or(-1),
                    .nccl = options_.nccl},
                   metrics, session_, judge_, *live_);
  if (!state.ok()) {
    const absl::Status& why = state.status();
    if (session_->status().ok() && judge_->Known(formation_.generation).ok()) {
      // The others would wait for this rank, and know of nobody.
      const auto deadline =
          Deadline::After(seconds(2), "2s to report a failure");
      (CulpritsOf(why).empty()
           ? ReportFailure(session_->stream(), std::string(why.message()),
                           deadline)
           : ReportError(session_->stream(), why, deadline))
          .IgnoreError();
      // They hear of it from the coordinator that ends with this rank.
      if (ServesOthers()) resolver_->AwaitOthersGone(kPartingTime);
    }
    Throw(absl::IsInvalidArgument(why) ? Origin::kControl : Origin::kBackend,
          why);
  }
  state_ = *std::move(state);
  group_ = std::make_shared<ProcessGroup>(state_);
  board_ = std::make_shared<CallBoard>(CallBoard::Options{
      .session = session_,
      .key_prefix = prefix,
      .seats = formation_.seats,
      .rank = formation_.rank,
      .is_gone = [live = live_, generation = formation_.generation](int rank) {
        return !live->AbsentOf(generation, {rank}).gone.empty();
      }});
  groups_ = std::make_unique<Groups>(
      GroupsOptions{.formation = formation_,
                    .world = group_,
                    .session = session_,
                    .live = live_,
                    .board = board_,
                    .judging = Judging(plan),
                    .local_address = local_address,
                    .device = options_.device_id.value_or(-1),
                    .nccl = options_.nccl,
                    .metrics = metrics,
                    .key_prefix = prefix});
}

bool World::ServesOthers() const {
  return coordinator_ != nullptr && formation_.seats.size() > 1;
}

void World::EndMeeting() noexcept {
  if (meeting_ == nullptr || coordinator_ == nullptr) return;
  try {
    try {
      meeting_->DeleteKey(kMeetingKey);
    } catch (const DistStoreError& error) {
      if (!absl::IsUnimplemented(error.status())) throw;
      meeting_->Set(kMeetingKey, "");
    }
  } catch (const DistError& error) {
    // The next group finds out by itself that nobody is there any more.
    LOG(WARNING) << "meeting not ended: cause=" << base::Quote(error.what());
  }
}

void World::Destroy() {
  EndMeeting();
  Groups::Outcome others = groups_->DestroyAll();
  absl::Status unseen;
  if (!state_->failure_seen() && !others.seen) {
    unseen = state_->status();
    unseen = unseen.ok() ? others.unseen : state_->Explain(unseen);
  }
  if (coordinator_ == nullptr) bootstrap_->DeleteOwnKeys();
  if (ServesOthers()) judge_->AwaitOthersGone(kFarewellTimeout);
  session_->Leave(PartingReason(state_->status()));
  session_->Close();
  state_->Shutdown();
  if (coordinator_ != nullptr) {
    coordinator_->Drain(kDrainTimeout);
    coordinator_ = nullptr;
  }
  telemetry_ = nullptr;
  if (!unseen.ok()) Throw(Origin::kBackend, std::move(unseen));
}

}  // namespace muster::internal
