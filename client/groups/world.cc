#include "client/groups/world.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <functional>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "base/text.h"
#include "client/control/backoff.h"
#include "client/control/endpoint.h"
#include "client/control/logging.h"
#include "client/control/stream_session.h"
#include "client/control/throw.h"
#include "client/control/verbs.h"
#include "client/groups/debugging.h"
#include "dataplane/observe/metrics.h"
#include "glog/logging.h"
#include "muster/base/mutex.h"
#include "muster/base/status.h"
#include "muster/base/thread_annotations.h"
#include "muster/dataplane/factory.h"
#include "muster/errors.h"
#include "muster/file_store.h"

namespace muster::internal {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

// How long a process that ends after a failure waits for the coordinator.
constexpr milliseconds kPartingTime{1'000};
// Prefix of the users' keys under a launcher; the attempt's number follows.
constexpr char kAttemptsPrefix[] = "attempts/";
constexpr char kTimeoutName[] = "InitProcessGroupOptions::timeout";

// The name of one coordinator may be gone while another one serves.
StatusOr<std::string> LocalAddressTowardsAny(const InitPlan& plan) {
  StatusOr<std::string> local;
  for (const Endpoint& each : plan.Addresses()) {
    local = LocalAddressTowards(each);
    if (local.ok()) break;
  }
  return local;
}

// How much longer the coordinator's rank stays in the rendezvous than the
// others, so that they learn from it which ranks are missing. At most a tenth
// of the timeout.
constexpr milliseconds kServerPatienceMax = seconds(1);
constexpr milliseconds kGoodbyeTimeout = seconds(10);
// All ranks have left by then, or had the time to.
constexpr milliseconds kDrainTimeout{200};
// An embedded coordinator that is gone does not come back.
constexpr milliseconds kCoordinatorLoss = seconds(1);
// A coordinator whose host or network is gone closes no connection. Together
// with kCoordinatorLoss this is the lease of 10 s, after which that coordinator
// would miss this rank.
constexpr milliseconds kCoordinatorSilence = seconds(9);

// The key in a store in which the ranks meet: the job, and the address of the
// coordinator that rank 0 serves. Afterwards the key is deleted, or empty in a
// store that cannot delete.
constexpr char kMeetingKey[] = "muster/coordinator";
// The interval and duration of attempts, as job and address may change.
constexpr milliseconds kMeetingInterval{5};
constexpr milliseconds kMeetingAttempt = seconds(2);

// Loads the backends that the environment names.
void LoadBackends() {
  const char* const paths = getenv("MUSTER_BACKEND_LIBRARIES");
  if (paths == nullptr) return;
  for (const absl::string_view path :
       absl::StrSplit(paths, ':', absl::SkipEmpty())) {
    ThrowIfFailed(ErrorSource::kControl,
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
  CheckCpuTransport(options.cpu_transport, /*fallback=*/"");
  return options;
}

const char* Getenv(const char* name) { return std::getenv(name); }

StatusOr<InitPlan> Plan(const InitProcessGroupOptions& options) {
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

// Whether another attempt may succeed: the coordinator of the group before is
// still closing at the same address, or has restarted. If none was ever
// reached, the whole timeout has passed.
bool IsTransient(const Status& status, bool connected) {
  return IsAborted(status) || (connected && IsUnavailable(status));
}

std::string PartingReason(const Status& failure) {
  if (failure.ok()) return "finished";
  return absl::StrCat("its group failed: ", failure.message());
}

}  // namespace

std::string WorldPrefix() {
  return absl::StrCat("muster/group/", kWorldName, "/");
}

std::unique_ptr<World> World::Form(const InitProcessGroupOptions& options) {
  return MakeWorld(options, /*shrinking=*/nullptr);
}

std::unique_ptr<World> World::MakeWorld(const InitProcessGroupOptions& options,
                                        const Shrinking* shrinking) {
  EnsureLogging();
  CheckOptions(options);
  CurrentDebugLevel();
  Recorder();
  std::unique_ptr<World> world(new World(options));
  world->shrinking_ = shrinking;
  InitPlan plan = {.rank = options.rank, .world_size = options.world_size};
  if (options.store == nullptr) {
    plan = ValueOrThrow(ErrorSource::kControl, Plan(options));
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
  // First, so that no callback runs during the destruction.
  if (session_ != nullptr) {
    const Status why = state_ == nullptr ? OkStatus() : state_->status();
    // Leaves in peace, so that the others blame the culprit and not this rank.
    if (!why.ok()) session_->Leave(PartingReason(why), kPartingTime);
    session_->Close();
  }
  groups_ = nullptr;
  if (state_ != nullptr) state_->Shutdown();
}

std::string World::debug_address() const { return debug_address_; }

// Returns the address at which others reach the telemetry, since they cannot
// connect to "any address".
std::string World::DebugAddress(const InitPlan& plan) const {
  if (telemetry_ == nullptr) return "";
  const std::string& address = telemetry_->address();
  const size_t colon = address.rfind(':');
  const std::string host = address.substr(0, colon);
  if (host != "0.0.0.0" && host != "[::]") return address;
  const StatusOr<std::string> local = LocalAddressTowardsAny(plan);
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
                   : ValueOrThrow(ErrorSource::kControl,
                                  Telemetry::Start(options_.http_port));
  if (meeting_ != nullptr) plan.embedded = true;
  embedded_ = plan.embedded;
  if (plan.embedded && plan.rank == 0) ServeCoordinator(plan);
  ConnectAndJoin(plan);
  store_ = meeting_ != nullptr ? meeting_
                               : std::make_shared<CoordinatorStore>(session_);
  if (plan.attempt > 0) {
    // Keys of an earlier attempt would mislead these ranks.
    store_ = std::make_shared<PrefixStore>(
        absl::StrCat(kAttemptsPrefix, plan.attempt), store_);
  }
  Connect(plan);
  if (shrinking_ != nullptr) ConfirmAll();
  // Members that died have left keys, and an external coordinator outlives
  // groups, as does one that stays with rank 0.
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
    // For this group only: another coordinator may get the same port later.
    plan.job = ProcessName();
  }
  if (shrinking_ != nullptr && shrinking_->old->coordinator_ != nullptr) {
    coordinator_ = shrinking_->old->coordinator_;
    plan.endpoint.port = coordinator_->port();
    return;
  }
  auto server = EmbeddedCoordinator::StartForRanks(
      {.listen = ListenAddress(plan.endpoint)}, &Getenv);
  if (IsInvalidArgument(server.status())) {
    Throw(ErrorSource::kControl, server.status());
  }
  if (!server.ok()) {
    Throw(ErrorSource::kControl,
          Status(server.status().code(),
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
    Throw(ErrorSource::kControl,
          DeadlineExceededError(absl::StrCat(
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
      if (!IsDeadlineExceeded(error.status())) throw;
      late(absl::StrCat(": ", error.what()));
    }
    const std::pair<std::string, std::string> place =
        absl::StrSplit(meeting_->Get(kMeetingKey), absl::MaxSplits(' ', 1));
    const StatusOr<Endpoint> endpoint = ParseEndpoint(place.second);
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
    Status failure;
    try {
      // Again each time: the value may be that of a group that has ended.
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
  resolver_ = live_->NewResolver(Judging(plan));
  SessionOptions session;
  session.address = JoinEndpoints(plan.Addresses());
  session.job = plan.job;
  // The same name gives it the same rank in every group that it forms.
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
    // Rank 0's coordinator does not use tokens.
    session.use_token = false;
    session.give_up_after = kCoordinatorLoss;
    session.silence_max = kCoordinatorSilence;
  }
  session.on_event = [live = live_](const MemberEvent& event) {
    live->OnEvent(event);
  };
  session.on_over = [live = live_](const Status& why) {
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
  const auto watch = WatchForOthers();
  return session_->Join({.rank = plan.rank,
                         .world_size = std::max(plan.world_size, 0),
                         .timeout = joined.Remaining(Clock::now()) + patience,
                         .timeout_name = joined.name,
                         .min_world_size = std::max(plan.min_world_size, 0),
                         .max_world_size = std::max(plan.max_world_size, 0),
                         .last_call = options_.last_call});
}

// Returns the address that the kernel uses towards the coordinator; "" if the
// user names interfaces.
std::string World::LocalAddress(const InitPlan& plan) const {
  const char* const interfaces = std::getenv("GLOO_SOCKET_IFNAME");
  if (interfaces != nullptr && *interfaces != '\0') return "";
  const StatusOr<std::string> local = LocalAddressTowardsAny(plan);
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

ErrorResolver::Options World::Judging(const InitPlan& plan) const {
  return {.verdict_timeout = options_.verdict_timeout,
          .embedded = plan.embedded,
          .coordinator_loss = kCoordinatorLoss};
}

void World::Connect(const InitPlan& plan) {
  const std::string prefix =
      absl::StrCat(WorldPrefix(), formation_.generation, "/");
  bootstrap_ = MakeBootstrap(session_, prefix, resolver_, formation_.generation,
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
                    .rank = formation_.rank},
                   {.rank = formation_.rank,
                    .world_size = static_cast<int>(formation_.seats.size()),
                    .group_name = kWorldName,
                    .store = bootstrap_,
                    .deadline = deadline_.at,
                    .interruption = bootstrap_->interruption(),
                    .local_address = local_address,
                    .device = options_.device_id.value_or(-1),
                    .nccl = std::make_shared<NcclOptions>(options_.nccl),
                    .cpu_transport = options_.cpu_transport},
                   metrics, session_, resolver_, *live_);
  if (!state.ok()) {
    const Status& why = state.status();
    if (session_->status().ok() &&
        resolver_->Known(formation_.generation).ok()) {
      // Otherwise the others would wait for this rank without knowing why.
      const auto deadline =
          Deadline::After(seconds(2), "2s to report a failure");
      (ToCulprits(why).empty()
           ? ReportFailure(session_->stream(), why.message(), deadline)
           : ReportError(session_->stream(), why, deadline))
          .IgnoreError();
      // They learn it from the coordinator, which ends with this rank.
      if (ServesOthers()) resolver_->AwaitOthersGone(kPartingTime);
    }
    Throw(
        IsInvalidArgument(why) ? ErrorSource::kControl : ErrorSource::kBackend,
        why);
  }
  state_ = *std::move(state);
  group_ = std::make_shared<ProcessGroup>(state_);
  calls_ = std::make_shared<const GroupCalls>(session_, formation_.generation);
  groups_ = std::make_unique<Groups>(
      GroupsOptions{.formation = formation_,
                    .world = group_,
                    .session = session_,
                    .live = live_,
                    .calls = calls_,
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
      if (!IsUnimplemented(error.status())) throw;
      meeting_->Set(kMeetingKey, "");
    }
  } catch (const DistError& error) {
    // The next group detects by itself that no coordinator is there.
    LOG(WARNING) << "meeting not ended: cause=" << base::Quote(error.what());
  }
}

void World::Destroy() {
  EndMeeting();
  Groups::DestroyResult others = groups_->DestroyAll();
  Status unseen;
  if (!state_->failure_seen() && !others.seen) {
    unseen = state_->status();
    unseen = unseen.ok() ? others.unseen : state_->Explain(unseen);
  }
  if (coordinator_ == nullptr) bootstrap_->DeleteOwnKeys();
  if (ServesOthers()) resolver_->AwaitOthersGone(kGoodbyeTimeout);
  session_->Leave(PartingReason(state_->status()));
  session_->Close();
  state_->Shutdown();
  if (coordinator_ != nullptr) {
    coordinator_->Drain(kDrainTimeout);
    coordinator_ = nullptr;
  }
  telemetry_ = nullptr;
  if (!unseen.ok()) Throw(ErrorSource::kBackend, std::move(unseen));
}

// Shrinking the default group.

namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

// How often a rank that waits for the survivors checks for lost ranks.
constexpr milliseconds kSurvivorsLook{100};
// How many such checks come before one of the other ranks' calls.
constexpr int kTriesPerCheck = 3;
// The time in which a coordinator with the usual lease detects losses.
constexpr milliseconds kLossTime = seconds(12);
// The time in which ranks that have met join the new group. The coordinator
// reports losses sooner, unless this rank has reported a failure.
constexpr milliseconds kJoinTime = seconds(30);

// Throws for survivors that are gone.
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
      ErrorSource::kBackend,
      WithCulprits(
          UnavailableError(absl::StrCat(
              "group \"", kWorldName, "\" cannot be shrunk without ", excluded,
              " alone, more are gone: ", absl::StrJoin(names, "; "))),
          {gone}));
}

}  // namespace

// Ends a session and its waits when the wait for the others is in vain.
class World::OthersWatch {
 public:
  OthersWatch(std::function<bool()> over, std::shared_ptr<Session> session)
      : thread_([this, over = std::move(over), session = std::move(session)] {
          Watch(over, *session);
        }) {}

  ~OthersWatch() {
    {
      MutexLock lock(mutex_);
      done_ = true;
      changed_.NotifyAll();
    }
    thread_.join();
  }

  OthersWatch(const OthersWatch&) = delete;
  OthersWatch& operator=(const OthersWatch&) = delete;

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
  bool done_ MUSTER_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

// Uses the old group's coordinator while it exists: it knows which ranks are
// gone and will not come to the new rendezvous.
void World::AwaitSurvivors(Shrinking& shrinking, const Deadline& deadline) {
  StreamSession& stream = session_->stream();
  const std::string& excluded = shrinking.excluded;
  const auto key_of = [&](int rank) {
    return absl::StrCat(WorldPrefix(), formation_.generation, "/shrink/",
                        excluded, "/", rank);
  };
  const SharedCall call = {
      .series = absl::StrCat("shrink_group/world/", StableHash(excluded)),
      .arguments = excluded,
      .meaning =
          absl::StrCat("shrinks group \"", kWorldName, "\" without ", excluded),
      .ranks = shrinking.survivors};
  if (Status differ = calls_->Begin(call, {}, deadline);
      IsInvalidArgument(differ)) {
    Throw(ErrorSource::kControl, std::move(differ));
  }
  GroupCalls::Waiting waiting(calls_, call);
  // The store refuses this if this rank has reported a failure.
  if (!SetKey(stream, key_of(formation_.rank), "", deadline).ok()) {
    ThrowIfLost(excluded);
    return AwaitFates(shrinking, deadline);
  }
  for (int polls = 1;; ++polls) {
    // Before GetKeys: a rank that leaves has met the others.
    const LiveGroups::Absent absent =
        live_->FindAbsent(formation_.generation, shrinking.survivors);
    std::vector<std::string> keys;
    for (const int rank : shrinking.survivors) {
      if (!std::binary_search(absent.reported.begin(), absent.reported.end(),
                              rank)) {
        keys.push_back(key_of(rank));
      }
    }
    const milliseconds slice = std::clamp(deadline.Remaining(Clock::now()),
                                          milliseconds(1), kSurvivorsLook);
    const Status met =
        GetKeys(stream, keys, Deadline::After(slice, "one look")).status();
    if (met.ok()) {
      waiting.Succeed();
      // Keys of an earlier call may exist without their ranks.
      shrinking.met =
          absent.reported.empty() && excluded_before_.insert(excluded).second;
      // For ranks that have reported and cannot read keys.
      if (!absent.reported.empty()) session_->Leave("shrinks its group");
      return;
    }
    // The coordinator may be gone, too.
    if (!IsDeadlineExceeded(met)) return ThrowIfLost(excluded);
    if (!absent.gone.empty()) ThrowGone(absent.gone, excluded);
    if (polls % kTriesPerCheck == 0) {
      if (Status differ = waiting.Check(); !differ.ok()) {
        // The key must not count for the next call.
        DeleteKey(stream, key_of(formation_.rank), deadline)
            .status()
            .IgnoreError();
        Throw(ErrorSource::kControl, std::move(differ));
      }
    }
    if (deadline.Passed(Clock::now())) {
      Throw(ErrorSource::kControl,
            DeadlineExceededError(
                absl::StrCat("group \"", kWorldName,
                             "\": not all ranks that stay came to "
                             "shrink it without ",
                             excluded, " in ", FormatDuration(deadline.timeout),
                             " ", deadline.Blame())));
    }
  }
}

// Waits for the end of the other members, all that a rank which has reported a
// failure can still see. Survivors report the failure too, or leave this group
// when they have met. Other members are lost, perhaps without the coordinator's
// knowledge when it had the first report.
void World::AwaitFates(const Shrinking& shrinking, const Deadline& deadline) {
  const Instant until = std::min(deadline.at, Clock::now() + kLossTime);
  while (session_->status().ok() && Clock::now() < until) {
    ThrowIfGone(shrinking);
    const LiveGroups::Absent absent =
        live_->FindAbsent(formation_.generation, shrinking.survivors);
    // This rank has reported.
    const size_t fine = absent.reported.size() + absent.left.size();
    if (fine >= shrinking.survivors.size()) return;
    std::this_thread::sleep_for(kSurvivorsLook);
  }
}

// Returns the lost survivors: those that the coordinator has announced, and the
// one that served it. A rank that has left may have come to the call.
std::vector<MemberInfo> World::Gone(const std::vector<int>& survivors) const {
  LiveGroups::Absent absent =
      live_->FindAbsent(formation_.generation, survivors);
  const auto lost = std::remove_if(
      absent.gone.begin(), absent.gone.end(), [&](const MemberInfo& member) {
        return std::count(absent.left.begin(), absent.left.end(), member.rank) >
               0;
      });
  absent.gone.erase(lost, absent.gone.end());
  const Status over = session_->status();
  if (embedded_ && IsUnavailable(over) && absent.gone.empty() &&
      std::count(survivors.begin(), survivors.end(), 0) > 0) {
    absent.gone = SeatedAt(formation_.seats, {0}, over.message()).members;
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

std::shared_ptr<World::OthersWatch> World::WatchForOthers() const {
  if (shrinking_ == nullptr) return nullptr;
  return std::make_shared<OthersWatch>([this] { return OthersAreGone(); },
                                       session_);
}

Deadline World::UntilJoined() const {
  if (shrinking_ == nullptr || !shrinking_->met ||
      deadline_.Remaining(Clock::now()) <= kJoinTime) {
    return deadline_;
  }
  return Deadline::After(kJoinTime, "for ranks that have met");
}

// The coordinator decides for all ranks alike that the new group exists.
// Otherwise some ranks would go on with the new group and some with the old.
void World::ConfirmAll() {
  ThrowIfFailed(ErrorSource::kBackend,
                AwaitBarrier(session_->stream(), kWorldName, "muster/shrunk",
                             formation_.generation, formation_.rank,
                             /*wait_all_ranks=*/false, deadline_));
}

// Throws if the coordinator has declared this rank lost: the others know, and
// go on without it.
void World::ThrowIfLost(const std::string& excluded) const {
  const Status why = session_->status();
  if (!IsFailedPrecondition(why)) return;
  const MemberInfo self{.rank = formation_.rank,
                        .member = session_->member(),
                        .host = HostName(),
                        .pid = getpid(),
                        .cause = why.message()};
  Throw(
      ErrorSource::kBackend,
      WithCulprits(FailedPreconditionError(absl::StrCat(
                       "group \"", kWorldName, "\" cannot be shrunk without ",
                       excluded, " by this rank, ", formation_.rank,
                       ", which the others do not wait for: ", why.message())),
                   {{self}}));
}

InitProcessGroupOptions World::PrepareToShrink(
    const std::vector<int>& ranks_to_exclude, const ShrinkGroupOptions& options,
    Shrinking& shrinking) {
  shrinking.old = this;
  shrinking.survivors = FindSurvivors(*group_, ranks_to_exclude);
  if (options_.min_world_size != -1 || options_.max_world_size != -1) {
    Throw(ErrorSource::kControl,
          FailedPreconditionError(
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

// The next generation does not form before this one ends. A coordinator that
// was out of reach when the group failed does not know yet.
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
    formed = MakeWorld(smaller, &shrinking);
  } catch (const DistError& error) {
    ThrowIfLost(shrinking.excluded);
    ThrowIfGone(shrinking);
    ThrowNotShrunk(shrinking, error);
  }
  GiveWay();
  return formed;
}

// Throws the error of the group that did not form, with the culprits as ranks
// of this group, which stays.
void World::ThrowNotShrunk(const Shrinking& shrinking,
                           const DistError& error) const {
  const Culprits theirs = ToCulprits(error.status());
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
  Status why(
      error.status().code(),
      absl::StrCat("group \"", kWorldName, "\" cannot be shrunk without ",
                   shrinking.excluded, " alone: ", error.what(), "; ",
                   absl::StrJoin(names, "; ")));
  Throw(ErrorSource::kBackend, WithCulprits(std::move(why), culprits));
}

// Leaves this group after a new one was formed from it.
void World::GiveWay() {
  bootstrap_->DeleteOwnKeys();
  session_->Leave("its group was shrunk", kPartingTime);
  session_->Close();
}

}  // namespace muster::internal
