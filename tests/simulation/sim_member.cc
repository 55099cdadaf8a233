#include "tests/simulation/sim_member.h"

#include <algorithm>
#include <utility>
#include <variant>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace muster::simulation {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr core::Duration kHeartbeatEvery = seconds(2);

}  // namespace

SimMember::SimMember(int32_t index, const MemberHabits* habits, Random* random)
    : habits_(*habits),
      random_(*random),
      index_(index),
      id_(std::string(1, static_cast<char>('a' + index))) {}

void SimMember::Start(core::Instant now) {
  NewIncarnation();
  epoch_.reset();
  seen_.reset();
  heartbeat_at_ = now;
  BeginRegistering();
}

void SimMember::NewIncarnation() {
  incarnation_ = core::Incarnation(1 + random_.Below(1000000000));
  pending_.clear();
  next_sequence_ = 1;
}

void SimMember::BeginRegistering() {
  phase_ = Phase::kRegistering;
  formation_ = nullptr;
  Request request;
  request.verb = Verb::kRegister;
  Issue(std::move(request));
}

void SimMember::BeginJoining() {
  if (Waiting(Verb::kJoin)) return;
  phase_ = Phase::kJoining;
  formation_ = nullptr;
  Request request;
  request.verb = Verb::kJoin;
  if (habits_.max_world_size > 0) {
    request.join.min_world_size = habits_.min_world_size;
    request.join.max_world_size = habits_.max_world_size;
    request.join.last_call = habits_.last_call;
  } else {
    if (habits_.assigned_ranks) request.join.rank = core::Rank(index_);
    request.join.world_size = habits_.world_size;
  }
  request.join.address = absl::StrCat("at-", id_.value());
  request.join.timeout = random_.Between(1000, 20000);
  Issue(std::move(request));
}

void SimMember::Issue(Request request) {
  request.operation = next_operation_++;
  request.call.member = id_;
  request.call.incarnation = incarnation_;
  if (IsMutation(request.verb) || request.verb == Verb::kJoin ||
      request.verb == Verb::kCloseRendezvous ||
      request.verb == Verb::kRegisterGroups ||
      request.verb == Verb::kAwaitBarrier || request.verb == Verb::kQueuePop) {
    request.call.sequence = core::SequenceNumber(next_sequence_++);
  }
  const uint64_t operation = request.operation;
  pending_.emplace(operation, Pending{std::move(request), {}, false});
}

bool SimMember::Waiting(Verb verb) const {
  return std::any_of(pending_.begin(), pending_.end(), [&](const auto& entry) {
    return entry.second.request.verb == verb;
  });
}

void SimMember::Forget(Verb verb) {
  for (auto it = pending_.begin(); it != pending_.end();) {
    it = it->second.request.verb == verb ? pending_.erase(it) : std::next(it);
  }
}

std::string SimMember::Somebodys(const std::string& prefix) {
  const uint64_t world = static_cast<uint64_t>(habits_.world_size);
  return absl::StrCat(
      prefix, std::string(1, static_cast<char>('a' + random_.Below(world))));
}

// Operations on queues and on keys with lifetimes, and watches.
void SimMember::IssueLifetimeOrQueue() {
  Request request;
  switch (random_.Below(9)) {
    case 0:
    case 1:
      request.verb = Verb::kQueuePush;
      request.key = "queue";
      request.value =
          absl::StrCat(id_.value(), incarnation_.value(), "-", next_value_++);
      break;
    case 2:
    case 3:
      request.verb = Verb::kQueuePop;
      request.key = "queue";
      if (random_.Chance(0.7)) request.timeout = random_.Between(1, 5000);
      break;
    case 4:
      request.verb = Verb::kCompareAndSet;
      request.key = "lock";
      request.value = id_.value();
      request.expected_revision = lock_revision_;
      request.options.ephemeral = random_.Chance(0.7);
      break;
    case 5:
      request.verb = Verb::kSet;
      request.key = Somebodys("going-");
      request.value = absl::StrCat(next_value_++);
      if (random_.Chance(0.7)) request.options.ttl = random_.Between(50, 3000);
      request.options.ephemeral = random_.Chance(0.3);
      break;
    case 6:
      request.verb = Verb::kGet;
      request.key = Somebodys("going-");
      request.timeout = random_.Between(0, 5000);
      break;
    case 7:
      request.verb = Verb::kDeletePrefix;
      request.key = random_.Chance(0.5) ? "going-" : Somebodys("going-");
      break;
    case 8:
      if (Waiting(Verb::kWatch)) return;
      request.verb = Verb::kWatch;
      request.key = random_.Chance(0.5) ? "" : "going-";
      request.after = seen_;
      request.timeout = random_.Between(0, 10000);
      break;
  }
  Issue(std::move(request));
}

void SimMember::IssueOperation() {
  if (random_.Chance(0.5)) return IssueLifetimeOrQueue();
  Request request;
  const std::string mine = absl::StrCat("key-", id_.value());
  const std::string theirs = Somebodys("key-");
  switch (random_.Below(10)) {
    case 7:
      request.verb = Verb::kMultiSet;
      request.keys = {"pair-x", "pair-y"};
      request.value =
          absl::StrCat(id_.value(), incarnation_.value(), "-", next_value_++);
      break;
    case 8:
      request.verb = Verb::kMultiGet;
      request.keys = {"pair-x", "pair-y"};
      request.timeout = random_.Between(0, 5000);
      break;
    case 9:
      request.verb = Verb::kWait;
      request.keys = {Somebodys("going-"), Somebodys("key-"), "pair-x"};
      request.timeout = random_.Between(0, 5000);
      break;
    case 0:
      request.verb = Verb::kSet;
      request.key = mine;
      request.value = absl::StrCat(next_value_++);
      break;
    case 1:
      request.verb = Verb::kGet;
      request.key = theirs;
      request.timeout = random_.Between(0, 5000);
      break;
    case 2:
      request.verb = Verb::kAdd;
      request.key = "counter";
      request.delta = static_cast<int64_t>(random_.Below(100)) - 20;
      break;
    case 3:
      request.verb = Verb::kAppend;
      request.key = "log";
      request.value = id_.value();
      break;
    case 4:
      request.verb = Verb::kCompareSet;
      request.key = "leader";
      request.value = id_.value();
      request.expected = random_.Chance(0.5) ? "" : "a";
      break;
    case 5:
      request.verb = Verb::kDelete;
      request.key = "leader";
      break;
    case 6:
      request.verb = Verb::kGet;
      request.key = "leader";
      request.timeout = random_.Between(0, 5000);
      break;
  }
  Issue(std::move(request));
}

// The ranks of the world are cut into pieces of `width`; returns this rank's
// piece.
std::vector<core::Rank> SimMember::Neighbours(int32_t width) const {
  const int32_t size = static_cast<int32_t>(formation_->world.size());
  const int32_t first = rank_.value() / width * width;
  std::vector<core::Rank> ranks;
  for (int32_t i = first; i < std::min(first + width, size); ++i) {
    ranks.emplace_back(i);
  }
  return ranks;
}

// Uses the world, a registered group and a set of ranks in turn; all ranks use
// the same order.
void SimMember::IssueBarrier() {
  Request request;
  request.verb = Verb::kAwaitBarrier;
  request.barrier.generation = formation_->generation;
  request.barrier.barrier = "b";
  request.barrier.rank = rank_;
  request.barrier.timeout = random_.Between(2000, 10000);
  ++barriers_;
  if (barriers_ % 4 == 2) {
    request.barrier.group = absl::StrCat("by2-", rank_.value() / 2);
    // A member that knows of the registration may omit the ranks.
    if (!grouped_ || random_.Chance(0.5)) request.barrier.ranks = Neighbours(2);
  } else if (barriers_ % 4 == 0) {
    request.barrier.barrier = absl::StrCat("of3-", rank_.value() / 3);
    request.barrier.ranks = Neighbours(3);
  }
  const bool conflict = !calm_ && random_.Chance(habits_.conflict);
  request.barrier.wait_all_ranks = (barriers_ % 3 == 0) != conflict;
  Issue(std::move(request));
}

// Registers the groups of this rank: the world cut into twos, into threes, and
// as a whole. In a conflict, one of them has other ranks.
void SimMember::IssueGroups() {
  Request request;
  request.verb = Verb::kRegisterGroups;
  request.generation = formation_->generation;
  const int32_t size = static_cast<int32_t>(formation_->world.size());
  for (const int32_t width : {2, 3, size}) {
    core::GroupDefinition group;
    group.name = absl::StrCat("by", width, "-", rank_.value() / width);
    group.ranks = Neighbours(width);
    if (!calm_ && group.ranks.size() > 1 && random_.Chance(0.1)) {
      group.ranks = {rank_};
    }
    const bool listed = std::any_of(
        request.groups.begin(), request.groups.end(),
        [&](const auto& other) { return other.name == group.name; });
    if (!listed) request.groups.push_back(std::move(group));
  }
  // A group of this rank alone, until the next call.
  const auto own = [&] {
    return absl::StrCat("of", rank_.value(), "-", groups_);
  };
  request.groups_left = {own()};
  ++groups_;
  request.groups.push_back({.name = own(), .ranks = {rank_}});
  Issue(std::move(request));
}

// Comes to the next call in which all ranks meet, sometimes with other
// arguments than most, or goes on waiting.
void SimMember::IssueGroupCall() {
  Request request;
  request.verb = Verb::kRegisterGroups;
  request.generation = formation_->generation;
  core::GroupCall& call = request.group_call.emplace();
  call.series = "all";
  call.callers = static_cast<int32_t>(formation_->world.size());
  if (group_calls_ > 0 && random_.Chance(0.5)) {
    call.state = core::GroupCallState::kStillWaits;
  } else {
    ++group_calls_;
    const bool odd = !calm_ && random_.Chance(0.1);
    call.arguments = odd ? "makes two" : "makes one";
    call.arguments_hash = odd ? 2 : 1;
    if (random_.Chance(0.1)) call.state = core::GroupCallState::kPasses;
  }
  call.number = group_calls_;
  Issue(std::move(request));
}

// Reports, again and again, a failure of the group of two or, rarely, of the
// default group.
void SimMember::IssueGroupFailure() {
  Request request;
  request.verb = Verb::kReportGroupFailure;
  core::GroupFailureReport& report = request.failure;
  report.generation = formation_->generation;
  if (calm_ || !random_.Chance(habits_.fail)) {
    report.group = absl::StrCat("by2-", rank_.value() / 2);
    report.instance = absl::StrCat("/", group_failures_);
  }
  report.kind = static_cast<core::GroupFailureKind>(random_.Below(4));
  report.error.text = absl::StrCat("seen by rank ", rank_.value());
  report.error.verdict = AbortedError("");
  report.culprits = Neighbours(2);
  report.call = "all_reduce";
  report.wait = std::chrono::seconds(1);
  report.late = random_.Chance(0.1);
  Issue(std::move(request));
}

// Sets the acknowledged and unanswered numbers.
void SimMember::Acknowledge(core::Call& call) const {
  uint64_t through = next_sequence_ - 1;
  call.unanswered.clear();
  for (const auto& [operation, pending] : pending_) {
    const core::SequenceNumber sequence = pending.request.call.sequence;
    if (sequence == core::SequenceNumber()) continue;
    if (habits_.names_unanswered) {
      call.unanswered.push_back(sequence);
    } else {
      through = std::min(through, sequence.value() - 1);
    }
  }
  std::sort(call.unanswered.begin(), call.unanswered.end());
  call.acknowledged_through = core::SequenceNumber(through);
}

std::vector<Request> SimMember::Step(core::Instant now) {
  if (phase_ == Phase::kGone) return {};
  if (phase_ == Phase::kRunning || phase_ == Phase::kJoining) {
    const bool fails = !calm_ && random_.Chance(habits_.fail);
    const bool leaves = leaving_ || (!calm_ && random_.Chance(habits_.leave));
    if (fails || leaves) {
      phase_ = Phase::kEnding;
      pending_.clear();
      Request request;
      request.verb = leaves ? Verb::kLeave : Verb::kReportFailure;
      Issue(std::move(request));
    }
  }
  if (phase_ == Phase::kRunning) {
    if (!Waiting(Verb::kAwaitBarrier) && random_.Chance(0.7)) IssueBarrier();
    if (!Waiting(Verb::kRegisterGroups) && random_.Chance(0.1)) IssueGroups();
    if (!Waiting(Verb::kRegisterGroups) && random_.Chance(0.2)) {
      IssueGroupCall();
    }
    if (grouped_ && !Waiting(Verb::kReportGroupFailure) &&
        random_.Chance(0.1)) {
      IssueGroupFailure();
    }
    if (!calm_ && random_.Chance(habits_.close)) {
      Request request;
      request.verb = Verb::kCloseRendezvous;
      Issue(std::move(request));
    }
    while (static_cast<int64_t>(pending_.size()) < habits_.operations_max &&
           random_.Chance(0.5)) {
      IssueOperation();
    }
  }
  std::vector<Request> requests;
  for (auto& [operation, pending] : pending_) {
    if (pending.sent && now - pending.sent_at < habits_.retry_after) continue;
    // Before the registration is answered, no other call is accepted.
    if (phase_ == Phase::kRegistering &&
        pending.request.verb != Verb::kRegister) {
      continue;
    }
    pending.sent = true;
    pending.sent_at = now;
    Acknowledge(pending.request.call);
    requests.push_back(pending.request);
  }
  if (phase_ != Phase::kRegistering && now >= heartbeat_at_) {
    heartbeat_at_ = now + kHeartbeatEvery;
    Request request;
    request.verb = Verb::kHeartbeat;
    request.call.member = id_;
    request.call.incarnation = incarnation_;
    requests.push_back(std::move(request));
  }
  return requests;
}

void SimMember::Reconnected() {
  if (phase_ == Phase::kGone || phase_ == Phase::kRegistering) return;
  for (auto& [operation, pending] : pending_) pending.sent = false;
  Request request;
  request.verb = Verb::kRegister;
  Issue(std::move(request));
}

void SimMember::Receive(const core::Event& event) {
  if (phase_ != Phase::kRunning || formation_ == nullptr ||
      event.generation != formation_->generation) {
    return;
  }
  if (event.generation_over) return BeginJoining();
  GrowFor(event.waiting);
}

// Joins again if others wait for a seat and the world has room.
void SimMember::GrowFor(int32_t waiting) {
  if (habits_.grows() && waiting > 0 &&
      static_cast<int32_t>(formation_->world.size()) < habits_.max_world_size) {
    BeginJoining();
  }
}

void SimMember::Receive(const Response& response, core::Instant now) {
  if (phase_ == Phase::kGone || response.incarnation != incarnation_) return;
  if (epoch_.has_value() && *epoch_ != response.epoch) {
    // The coordinator has forgotten everything.
    epoch_ = response.epoch;
    seen_.reset();
    pending_.clear();
    BeginRegistering();
    return;
  }
  const StatusCode code = response.reply.status.code();
  if (response.operation == 0) {  // a heartbeat
    if (code == StatusCode::kFailedPrecondition) {
      if (phase_ == Phase::kRegistering) return;
      NewIncarnation();
      BeginRegistering();
    } else if (const auto* beat =
                   std::get_if<core::HeartbeatReply>(&response.reply.payload);
               beat != nullptr && phase_ == Phase::kRunning &&
               beat->generation >= formation_->generation) {
      if (beat->generation > formation_->generation ||
          !beat->generation_running) {
        BeginJoining();
      } else {
        GrowFor(beat->waiting);
      }
    }
    return;
  }
  const auto it = pending_.find(response.operation);
  if (it == pending_.end()) return;
  if (code == StatusCode::kCancelled) return;  // the answer to an older attempt
  const Request request = it->second.request;
  pending_.erase(it);
  Complete(request, response);
}

void SimMember::Complete(const Request& request, const Response& response) {
  const StatusCode code = response.reply.status.code();
  if (phase_ == Phase::kEnding) {
    // Answered or fenced: over either way.
    if (request.verb == Verb::kLeave || request.verb == Verb::kReportFailure) {
      phase_ = Phase::kGone;
    }
    return;
  }
  if (code == StatusCode::kFailedPrecondition) {
    NewIncarnation();
    BeginRegistering();
    return;
  }
  switch (request.verb) {
    case Verb::kRegister: {
      Forget(Verb::kRegister);
      epoch_ = response.epoch;
      if (phase_ == Phase::kRegistering) BeginJoining();
      break;
    }
    case Verb::kJoin: {
      const auto* formed =
          std::get_if<core::FormationReply>(&response.reply.payload);
      if (code == StatusCode::kOutOfRange) {
        phase_ = Phase::kEnding;
        pending_.clear();
        Request leave;
        leave.verb = Verb::kLeave;
        Issue(std::move(leave));
        break;
      }
      if (formed == nullptr) {
        BeginJoining();
        break;
      }
      formation_ = *formed;
      for (size_t i = 0; i < formation_->world.size(); ++i) {
        if (formation_->world[i].member == id_) {
          rank_ = core::Rank(static_cast<int32_t>(i));
        }
      }
      barriers_ = 0;
      grouped_ = false;
      group_calls_ = 0;
      group_failures_ = 0;
      Forget(Verb::kAwaitBarrier);
      Forget(Verb::kRegisterGroups);
      Forget(Verb::kReportGroupFailure);
      phase_ = Phase::kRunning;
      break;
    }
    case Verb::kCompareAndSet:
      if (const auto* set =
              std::get_if<core::CompareSetReply>(&response.reply.payload)) {
        lock_revision_ = set->revision;
      }
      break;
    case Verb::kWatch:
      if (const auto* watched =
              std::get_if<core::WatchReply>(&response.reply.payload)) {
        seen_ = watched->revision;
      } else if (code == StatusCode::kOutOfRange) {
        seen_.reset();
      }
      break;
    case Verb::kAwaitBarrier:
      if (phase_ == Phase::kRunning) CompleteBarrier(request, response);
      break;
    case Verb::kReportGroupFailure: {
      const auto* verdict =
          std::get_if<core::GroupFailureReply>(&response.reply.payload);
      if (verdict != nullptr && *verdict != nullptr) ++group_failures_;
      break;
    }
    case Verb::kRegisterGroups:
      if (phase_ == Phase::kRunning && response.reply.status.ok() &&
          !request.groups.empty()) {
        grouped_ = true;
      }
      break;
    default:
      break;
  }
}

void SimMember::CompleteBarrier(const Request& request,
                                const Response& response) {
  if (response.reply.status.ok() && request.barrier.ranks.empty() &&
      request.barrier.group.empty()) {
    ++released_;
  }
  if (response.reply.status.code() == StatusCode::kAborted) {
    BeginJoining();
  }
}

std::string SimMember::Describe() const {
  std::string text =
      absl::StrCat(id_.value(), "/", incarnation_.value(), " phase ",
                   static_cast<int>(phase_), " released ", released_);
  for (const auto& [operation, pending] : pending_) {
    absl::StrAppend(&text, "\n    pending ", ToCommand(pending.request));
  }
  return text;
}

}  // namespace muster::simulation
