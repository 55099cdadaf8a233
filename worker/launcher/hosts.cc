#include "worker/launcher/hosts.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <nlohmann/json.hpp>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "base/text.h"
#include "client/control/endpoint.h"
#include "muster/errors.h"
#include "muster/session.h"
#include "muster/store.h"
#include "worker/launcher/attempt.h"

namespace muster::worker {
namespace {

using std::chrono::milliseconds;

// How long to retry for a number that another host had a moment ago: the
// coordinator notices its end after a lease.
constexpr int kTakenLeases = 2;
// Used if the lease is not known.
constexpr milliseconds kTakenTime(20'000);
constexpr std::chrono::milliseconds kTakenPause(500);
// Hosts may end an attempt days apart, but a barrier takes at most a day.
constexpr std::chrono::hours kFinishTime(23);
// Until the other hosts have read the blamed ranks.
constexpr std::chrono::minutes kToldTime(10);
constexpr milliseconds kAnswerTime(2000);

// The reason, for people, with which the rendezvous of a job of MIN:MAX hosts
// is closed after success. The key tells refused hosts.
constexpr char kFinished[] = "finished";
constexpr char kFinishedKey[] = "finished";

std::string Fate(const MemberEvent& event) {
  switch (event.kind) {
    case MemberEvent::Kind::kLeft:
      // A host that joins again has left its generation.
      return event.generation_ended ? "starts again" : "left";
    case MemberEvent::Kind::kFailed:
      return "failed";
    case MemberEvent::Kind::kReplaced:
      return "was replaced";
    default:
      return "was lost";
  }
}

// Whether the coordinator has declared the session lost: the others know, and a
// new session can take part.
bool WasLost(const Status& why) { return IsFailedPrecondition(why); }

// Calls the SDK and converts an exception to a status.
template <typename Call>
Status Try(Call call) {
  try {
    call();
    return OkStatus();
  } catch (const DistError& error) {
    return error.status();
  }
}

// The key under which hosts that were refused the number `rank` name
// themselves.
std::string RivalsKey(int rank) { return absl::StrCat("rivals/", rank, "/"); }

// While a host with a claimed number waits for the others, reports hosts that
// were refused the same number. Otherwise the first host would only see that
// some host does not come.
class Rivals {
 public:
  // `rank` is -1 for a host that claims none.
  Rivals(const std::shared_ptr<Session>& session, int rank) {
    if (rank < 0) return;
    const Status ignored = Try([&] {
      watch_ =
          CoordinatorStore(session).Watch(RivalsKey(rank), {.prefix = true});
    });
    if (watch_ == nullptr) return;
    thread_ = std::thread([this, rank, own = session->member()] {
      // Join reports errors of the connection.
      const Status ended = Try([&] {
        while (!stopping_.load()) {
          const auto change = watch_->Next(kFinishTime);
          if (!change.has_value() || change->kind != KeyChange::Kind::kPut ||
              change->value == own) {
            continue;
          }
          Say(absl::StrCat("node rank ", rank, " is claimed by ", own,
                           " and by ", change->value,
                           ": give each host a --node-rank of its own"));
        }
      });
    });
  }
  ~Rivals() {
    if (!thread_.joinable()) return;
    stopping_.store(true);
    watch_->Cancel();
    thread_.join();
  }
  Rivals(const Rivals&) = delete;
  Rivals& operator=(const Rivals&) = delete;

 private:
  std::unique_ptr<StoreWatch> watch_;
  std::atomic<bool> stopping_ = false;
  std::thread thread_;
};

// Tells Rivals of the host that has `rank`.
void TellRivals(const std::shared_ptr<Session>& session, int rank) {
  const Status ignored = Try([&] {
    CoordinatorStore(session).Set(
        absl::StrCat(RivalsKey(rank), session->member()), session->member(),
        {.ephemeral = true});
  });
}

}  // namespace

Hosts::Hosts(const LaunchOptions& options,
             const CoordinatorAddress& coordinator, std::function<void()> wake)
    : options_(options), coordinator_(coordinator), wake_(std::move(wake)) {}

Hosts::~Hosts() {
  if (const auto session = this->session()) session->Close();
}

std::shared_ptr<Session> Hosts::session() const {
  MutexLock lock(mutex_);
  return session_;
}

SessionOptions Hosts::Options() const {
  SessionOptions options;
  options.address = coordinator_.HostPort();
  options.job = absl::StrCat(coordinator_.job, ".agents");
  return options;
}

Status Hosts::Connect() {
  SessionOptions options = Options();
  const std::string host =
      options_.local_addr.empty() ? internal::HostName() : options_.local_addr;
  options.member = absl::StrCat(host, "-", getpid());
  options.connect_timeout = options_.rendezvous_times.join_timeout;
  options.connect_timeout_name = "--rdzv-conf join_timeout";
  options.stop_connecting = stop_connecting_.get_token();
  options.on_event = [this](const MemberEvent& event) { OnEvent(event); };
  options.on_over = [this](const Status& why) { OnOver(why); };
  // After Close it calls no callbacks.
  if (const auto old = session()) old->Close();
  {
    MutexLock lock(mutex_);
    lost_.reset();
  }
  std::shared_ptr<Session> session;
  Status status = Try([&] { session = Session::Connect(options); });
  if (!status.ok()) return status;
  MutexLock lock(mutex_);
  if (left_) return CancelledError("left");
  session_ = std::move(session);
  return OkStatus();
}

void Hosts::OnEvent(const MemberEvent& event) {
  // Hosts make no groups.
  if (event.kind == MemberEvent::Kind::kGroupFailed) return;
  const std::string& host = event.member.member;
  {
    MutexLock lock(mutex_);
    if (event.kind == MemberEvent::Kind::kWaiting) {
      joined_generation_ = event.generation;
      joined_ = {.why = absl::StrCat(event.waiting,
                                     event.waiting == 1
                                         ? " more host waits to take part ("
                                         : " more hosts wait to take part (",
                                     host, ")"),
                 .joined = true};
    } else if (event.generation > over_generation_ ||
               (event.generation == over_generation_ && !over_.failed)) {
      over_generation_ = event.generation;
      over_.failed = event.kind == MemberEvent::Kind::kFailed;
      over_.why = over_.failed ? event.member.cause
                               : absl::StrCat("host ", event.member.rank, " (",
                                              host, ") ", Fate(event), ": ",
                                              event.member.cause);
    }
  }
  wake_();
}

void Hosts::OnOver(const Status& why) {
  if (!WasLost(why)) return;
  {
    MutexLock lock(mutex_);
    lost_ = {.why = absl::StrCat("this host was lost to the others: ",
                                 why.message()),
             .lost = true};
  }
  wake_();
}

std::optional<Hosts::Change> Hosts::change() const {
  MutexLock lock(mutex_);
  if (generation_ == 0) return std::nullopt;
  if (lost_.has_value()) return lost_;
  if (over_generation_ == generation_) return over_;
  if (joined_generation_ == generation_ && hosts_ < options_.nnodes.max) {
    return joined_;
  }
  return std::nullopt;
}

StatusOr<internal::HostMembers> Hosts::Ask() const {
  SessionOptions options = Options();
  options.connect_timeout = kAnswerTime;
  auto reader = internal::HostMembersReader::Open(options);
  if (!reader.ok()) return reader.status();
  return (*reader)->Read("");
}

StatusOr<milliseconds> Hosts::CatchUp() {
  CoordinatorStore store(session());
  // Events come before the answer, including the loss of this host.
  Status status = Try([&] {
    store.SetTimeout(options_.rendezvous_times.join_timeout);
    store.TryGet("any");
  });
  if (IsUnavailable(status) || IsDeadlineExceeded(status)) {
    return status;
  }
  OnOver(status);
  const auto answer = Ask();
  return answer.ok() ? answer->lease : milliseconds(0);
}

std::string Hosts::Missing() const {
  const auto answer = Ask();
  return answer.ok() ? answer->waiting : "";
}

StatusOr<Formation> Hosts::Join(const std::shared_ptr<Session>& session) {
  JoinOptions join;
  join.rank = options_.node_rank;
  join.timeout = options_.rendezvous_times.join_timeout;
  join.timeout_name = "--rdzv-conf join_timeout";
  if (options_.nnodes.min == options_.nnodes.max) {
    join.world_size = options_.nnodes.max;
  } else {
    join.min_world_size = options_.nnodes.min;
    join.max_world_size = options_.nnodes.max;
    join.last_call = options_.rendezvous_times.last_call;
  }
  std::optional<Instant> until;
  const Rivals rivals(session, join.rank);
  Formation formation;
  while (true) {
    Status status = Try([&] { formation = session->Join(join); });
    if (status.ok()) return formation;
    if (!IsAlreadyExists(status)) return status;
    if (!until.has_value()) {
      const auto answer = Ask();
      const milliseconds time = answer.ok() && answer->lease > milliseconds(0)
                                    ? kTakenLeases * answer->lease
                                    : kTakenTime;
      until = Clock::now() + time;
      if (join.rank >= 0) {
        Say(absl::StrCat("node rank ", join.rank, " is not free, trying for ",
                         absl::FormatDuration(absl::FromChrono(time)), ": ",
                         status.message()));
        TellRivals(session, join.rank);
      }
    }
    MutexLock lock(mutex_);
    if (left_ || Clock::now() >= *until) return status;
    pause_.WaitUntil(mutex_, Clock::now() + kTakenPause);
  }
}

StatusOr<Hosts::Meeting> Hosts::Meet(const Report& report) {
  const auto until = Clock::now() + options_.rendezvous_times.join_timeout;
  while (true) {
    StatusOr<Meeting> meeting = TryToMeet(report);
    // A host, maybe this one, left before all had met, or the coordinator lost
    // its state.
    const bool again = IsAborted(meeting.status()) || WasLost(meeting.status());
    if (!again || Clock::now() >= until) return meeting;
    MutexLock lock(mutex_);
    if (left_) return meeting;
  }
}

StatusOr<Hosts::Meeting> Hosts::TryToMeet(const Report& report) {
  if (const auto old = session(); old == nullptr || !old->status().ok()) {
    Status status = Connect();
    if (!status.ok()) return status;
  }
  const std::shared_ptr<Session> session = this->session();
  const StatusOr<Formation> formation = Join(session);
  if (IsOutOfRange(formation.status())) {
    Status over = formation.status();
    const Status ignored = Try([&] {
      if (CoordinatorStore(session).Check({kFinishedKey})) {
        over.SetPayload(kJobFinishedUrl, "");
      }
    });
    return over;
  }
  if (!formation.ok()) return formation.status();
  return Exchange(session, *formation, report);
}

StatusOr<Hosts::Meeting> Hosts::Exchange(
    const std::shared_ptr<Session>& session, const Formation& formation,
    const Report& report) {
  const auto key = [&](int rank) {
    return absl::StrCat("hosts/", formation.generation, "/", rank);
  };
  nlohmann::json own;
  own["nproc"] = options_.nproc_per_node;
  own["restarts"] = report.restarts;
  own["max_restarts"] = options_.max_restarts;
  own["failure"] = report.failure;
  own["log_run"] = report.log_run;
  own["attempt"] = NewAttempt();
  CoordinatorStore store(session);
  // Empty if that host is gone already.
  std::vector<std::string> values;
  Status status = Try([&] {
    // Deleted with this host's session.
    store.Set(
        key(formation.rank),
        own.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace),
        {.ephemeral = true});
    const auto await_all = [&](const char* barrier) {
      session->AwaitBarrier(
          {.name = barrier, .timeout = options_.rendezvous_times.join_timeout});
    };
    await_all("hosts");
    for (int i = 0; i < formation.world_size; ++i) {
      values.push_back(store.TryGet(key(i)).value_or(StoreValue()).value);
    }
    // Hosts with --restart=none leave after this.
    await_all("met");
  });
  if (!status.ok()) return status;

  Meeting meeting;
  Assignment& assignment = meeting.assignment;
  assignment.group_rank = formation.rank;
  assignment.group_world_size = formation.world_size;
  assignment.world_size = 0;
  assignment.max_restarts = options_.max_restarts;
  for (int i = 0; i < formation.world_size; ++i) {
    const std::string& value = values[static_cast<size_t>(i)];
    if (value.empty()) {
      return AbortedError(absl::StrCat("host ", i, " went before all had met"));
    }
    const nlohmann::json json = nlohmann::json::parse(value, nullptr, false);
    if (!json.is_object()) {
      return InternalError(absl::StrCat("host ", i, " says ",
                                        base::Quote(value), " under ", key(i)));
    }
    if (i == formation.rank) assignment.first_rank = assignment.world_size;
    assignment.world_size += json.value("nproc", 0);
    assignment.restarts =
        std::max(assignment.restarts, json.value("restarts", 0));
    assignment.max_restarts =
        std::min(assignment.max_restarts,
                 json.value("max_restarts", assignment.max_restarts));
    assignment.log_run = std::max(assignment.log_run, json.value("log_run", 1));
    // The first host's value, the same on all.
    if (i == 0) assignment.attempt = json.value("attempt", assignment.attempt);
    if (meeting.failure.empty()) meeting.failure = json.value("failure", "");
  }
  MutexLock lock(mutex_);
  generation_ = formation.generation;
  hosts_ = formation.world_size;
  return meeting;
}

Status Hosts::AwaitOthers() {
  const std::shared_ptr<Session> session = this->session();
  Status status;
  do {
    status = Try([&] {
      session->AwaitBarrier({.name = "finished",
                             .timeout = kFinishTime,
                             .wait_all_ranks = false});
    });
  } while (IsDeadlineExceeded(status));
  // The coordinator is gone with the state of the others; this host's ranks
  // have succeeded.
  if (!session->status().ok() && !WasLost(session->status())) {
    return OkStatus();
  }
  if (!status.ok()) return AbortedError(status.message());
  if (options_.nnodes.min != options_.nnodes.max) {
    // A host that waits or comes later must not start again; it reads the key
    // when it is refused.
    Status ignored =
        Try([&] { CoordinatorStore(session).Set(kFinishedKey, ""); });
    ignored = Try([&] { session->CloseRendezvous(kFinished); });
  }
  return OkStatus();
}

std::string Hosts::BlamedKey() const {
  MutexLock lock(mutex_);
  return absl::StrCat("blamed/", generation_);
}

std::vector<internal::Culprit> Hosts::Blamed() {
  nlohmann::json said;
  const Status ignored = Try([&] {
    const auto value = CoordinatorStore(session()).TryGet(BlamedKey());
    if (value.has_value()) {
      said = nlohmann::json::parse(value->value, nullptr, false);
    }
  });
  std::vector<internal::Culprit> blamed;
  if (!said.is_array()) return blamed;
  for (const nlohmann::json& one : said) {
    if (!one.is_object()) continue;
    blamed.push_back(
        {.rank = one.value("rank", -1), .pid = one.value("pid", int64_t{0})});
  }
  return blamed;
}

void Hosts::GiveUp(const std::string& failure,
                   const std::vector<internal::Culprit>& blamed) {
  const std::shared_ptr<Session> session = this->session();
  if (session == nullptr) return;
  nlohmann::json ranks = nlohmann::json::array();
  for (const internal::Culprit& culprit : blamed) {
    ranks.push_back({{"rank", culprit.rank}, {"pid", culprit.pid}});
  }
  const Status ignored = Try([&] {
    // Stored before the others are told, and for a while, because this host
    // leaves.
    CoordinatorStore(session).Set(BlamedKey(), ranks.dump(),
                                  {.ttl = kToldTime});
    if (options_.nnodes.min != options_.nnodes.max) {
      session->CloseRendezvous(failure);
    }
    session->ReportFailure(failure);
  });
}

void Hosts::Leave(const std::string& reason,
                  std::chrono::milliseconds timeout) {
  stop_connecting_.request_stop();
  std::shared_ptr<Session> session;
  {
    MutexLock lock(mutex_);
    left_ = true;
    session = session_;
    pause_.NotifyAll();
  }
  if (session == nullptr) return;
  session->Leave(reason, timeout);
  session->Close();
}

}  // namespace muster::worker
