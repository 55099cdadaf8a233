#include "tests/simulation/sim_world.h"

#include <algorithm>
#include <iostream>
#include <variant>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "coordinator/storage/record_codec.h"

namespace muster::simulation {
namespace {

using std::chrono::milliseconds;
using std::chrono::minutes;
using std::chrono::seconds;

constexpr core::Duration kChaos = seconds(30);
constexpr core::Duration kHealing = seconds(120);
constexpr milliseconds kClogMax = seconds(15);
// More than two leases.
constexpr milliseconds kCutMax = seconds(25);
constexpr core::Duration kSilenceMax = seconds(40);
constexpr core::Duration kLeaving = seconds(60);
constexpr core::Duration kMemberStep = milliseconds(400);
constexpr milliseconds kTickLateMax = milliseconds(40);
// Less than the reconnect grace, so that a member whose connection closed still
// exists when its calls come back.
constexpr int64_t kReconnectMsMax = 900;

// The state that a restart must not change.
std::string Durable(const core::JobSnapshot& job) {
  std::string text = absl::StrCat(
      "keys=", job.keys, " items=", job.queue_items, " bytes=", job.store_bytes,
      " revision=", job.revision, " generation=", job.generation.value(),
      job.generation_running ? " running" : "", " world=", job.world_size,
      " closed=", job.rendezvous_closed);
  for (const core::GroupSnapshot& group : job.groups) {
    absl::StrAppend(&text, " ", group.name, "=", group.registered, "/",
                    group.ranks->size());
  }
  for (const core::MemberSnapshot& member : job.members) {
    const bool live = member.state == core::MemberState::kAlive ||
                      member.state == core::MemberState::kDisconnected;
    absl::StrAppend(
        &text, " ", member.id.value(), "/", member.incarnation.value(), ":",
        live ? "live" : core::MemberStateName(member.state), ":",
        member.rank.has_value() ? member.rank->value() : -1, ":", member.cause);
  }
  return text;
}

}  // namespace

SimWorld::SimWorld(uint64_t seed, bool trace)
    : random_(seed),
      trace_(trace),
      checker_(kTickLateMax),
      now_(seconds(1000)),
      traced_at_(now_) {
  DrawTrouble();
  const int64_t members = habits_.world_size;
  members_.reserve(static_cast<size_t>(members));
  for (int32_t i = 0; i < members; ++i) {
    members_.emplace_back(i, &habits_, &random_);
  }
  up_.assign(members_.size(), false);
  clogged_until_.assign(members_.size(), now_);
}

// Each kind of trouble is absent in half of the runs, so that some combinations
// are rare and none is impossible.
void SimWorld::DrawTrouble() {
  const auto maybe = [&](double most) {
    return random_.Chance(0.5)
               ? 0.0
               : most * static_cast<double>(random_.Below(1000)) / 1000;
  };
  trouble_.loss = maybe(0.3);
  trouble_.duplication = maybe(0.3);
  trouble_.delay_ms_max = random_.Chance(0.5) ? 5 : 1500;
  trouble_.clog = maybe(0.02);
  trouble_.cut = maybe(0.01);
  trouble_.member_crash = maybe(0.03);
  trouble_.silent_crash = maybe(1);
  trouble_.disconnect = maybe(0.03);
  trouble_.cancel = maybe(0.05);
  trouble_.coordinator_crash = maybe(0.01);
  trouble_.durable = random_.Chance(0.5);
  trouble_.tick_late_ms_max = static_cast<int64_t>(
      random_.Below(static_cast<uint64_t>(kTickLateMax.count())));
  habits_.world_size = 1 + static_cast<int32_t>(random_.Below(5));
  habits_.assigned_ranks = random_.Chance(0.7);
  habits_.retry_after = random_.Between(300, 3000);
  habits_.operations_max = 1 + static_cast<int64_t>(random_.Below(6));
  habits_.conflict = maybe(0.05);
  habits_.leave = maybe(0.02);
  habits_.fail = maybe(0.02);
  habits_.names_unanswered = random_.Chance(0.5);
  habits_.close = random_.Chance(0.15) ? 0.01 : 0.0;
  if (random_.Chance(0.6)) return;
  const uint64_t members = static_cast<uint64_t>(habits_.world_size);
  const uint64_t least = 1 + random_.Below(members);
  habits_.min_world_size = static_cast<int32_t>(least);
  habits_.max_world_size =
      static_cast<int32_t>(least + random_.Below(members - least + 1));
  if (random_.Chance(0.8)) habits_.last_call = random_.Between(0, 6000);
}

void SimWorld::Trace(const std::string& line) {
  if (!trace_) return;
  const auto passed =
      std::chrono::duration_cast<milliseconds>(now_ - traced_at_);
  if (passed.count() > 0) {
    std::cout << "advance " << passed.count() << "ms\n";
    traced_at_ = now_;
  }
  std::cout << line << "\n";
}

core::CoordinatorOptions SimWorld::OptionsOfCoordinator() const {
  core::CoordinatorOptions options;
  options.durable = trouble_.durable;
  options.membership.silence_max = kSilenceMax;
  // Long, because worlds are small, and should leave together now and then.
  options.membership.departure_pause_per_member = milliseconds(20);
  options.limits.watch_history_changes = kWatchHistoryChanges;
  // Room for one or two decisions, so that late ranks sometimes find theirs
  // gone.
  options.limits.decided_barrier_bytes = 700;
  return options;
}

void SimWorld::StartCoordinator() {
  ++epoch_;
  ++life_;
  coordinator_ = std::make_unique<core::Coordinator>(
      core::CoordinatorEpoch(epoch_), OptionsOfCoordinator());
  reply_targets_.clear();
  checker_.Restart(core::CoordinatorEpoch(epoch_));
  Trace(absl::StrCat("# coordinator starts with epoch ", epoch_));
}

// Crashes the coordinator and starts another with its records.
void SimWorld::ResumeCoordinator() {
  ++life_;
  const std::string before = Durable(coordinator_->Snapshot(now_));
  std::optional<int64_t> history_after;
  std::vector<core::Record> records;
  for (const auto& [key, value] : disk_) {
    StatusOr<coordinator::DecodedRecord> decoded =
        coordinator::DecodeRecord(key, value);
    if (!decoded.ok()) return checker_.Fail(decoded.status().ToString());
    if (const auto* store = std::get_if<core::StoreRecord>(&decoded->record)) {
      history_after = store->history_after;
    }
    records.push_back(std::move(decoded->record));
  }
  const std::unique_ptr<core::Coordinator> old = std::move(coordinator_);
  coordinator_ = std::make_unique<core::Coordinator>(
      core::CoordinatorEpoch(epoch_), OptionsOfCoordinator());
  coordinator_->Restore(std::move(records), now_);
  reply_targets_.clear();
  checker_.Resume(now_);
  if (history_after.has_value()) {
    checker_.CompareWatches(*old, *coordinator_, *history_after, now_);
  }
  Trace("restart");
  const std::string after = Durable(coordinator_->Snapshot(now_));
  if (before != after) {
    checker_.Fail(
        absl::StrCat("I9: before the restart ", before, ", after it ", after));
  }
  const Status invariants = coordinator_->CheckInvariants();
  if (!invariants.ok()) checker_.Fail(invariants.ToString());
}

// Stores the changes of the step.
void SimWorld::Store() {
  for (const core::Record& record : coordinator_->TakeChanges()) {
    const std::string key = coordinator::EncodeKey("sim", record);
    std::optional<std::string> value = coordinator::EncodeValue(record);
    if (value.has_value()) {
      disk_[key] = *std::move(value);
    } else {
      disk_.erase(key);
    }
  }
}

void SimWorld::At(core::Instant when, Action action) {
  queue_.emplace(std::make_pair(when, next_event_++), std::move(action));
}

// Moves the clock to `when`, with a tick for every deadline on the way.
void SimWorld::AdvanceTo(core::Instant when) {
  while (!checker_.failure().has_value()) {
    const std::optional<core::Instant> due = coordinator_->NextDeadline();
    if (!due.has_value()) break;
    const core::Instant tick =
        *due + random_.Between(0, trouble_.tick_late_ms_max);
    if (tick > when) break;
    now_ = std::max(now_, tick);
    Tick();
  }
  now_ = std::max(now_, when);
  // Deadlines that are due must not wait for the next event.
  const std::optional<core::Instant> due = coordinator_->NextDeadline();
  if (due.has_value() && *due <= now_) Tick();
}

void SimWorld::Tick() {
  core::Outbox out;
  coordinator_->Tick(now_, out);
  Deliver(out, /*ticked=*/true);
}

// Runs until `end`, or until `done`. Returns the value of `done`.
bool SimWorld::RunUntil(core::Instant end, const std::function<bool()>& done) {
  while (!checker_.failure().has_value()) {
    if (done()) return true;
    if (queue_.empty() || queue_.begin()->first.first > end) {
      AdvanceTo(end);
      return done();
    }
    const auto next = queue_.begin();
    AdvanceTo(next->first.first);
    const Action action = std::move(next->second);
    queue_.erase(next);
    action();
    ++statistics_.steps;
  }
  return false;
}

// Delivers a message on the link of a member: late, never or twice.
void SimWorld::Transmit(size_t index, const Action& deliver) {
  int copies = random_.Chance(trouble_.loss) ? 0 : 1;
  if (copies == 0) ++statistics_.lost_messages;
  if (copies == 1 && random_.Chance(trouble_.duplication)) copies = 2;
  for (; copies > 0; --copies) {
    const core::Instant sent = std::max(now_, clogged_until_[index]);
    At(sent + random_.Between(0, trouble_.delay_ms_max), deliver);
  }
}

void SimWorld::Send(size_t index, const Request& request) {
  // A request to a coordinator that ends is lost with its connection.
  Transmit(index, [this, index, request, life = life_] {
    if (life == life_) Handle(index, request);
  });
}

void SimWorld::StepMember(size_t index) {
  At(now_ + kMemberStep + random_.Between(0, 50),
     [this, index] { StepMember(index); });
  HaveAccidents(index);
  if (!up_[index]) return;
  SimMember& member = members_[index];
  if (member.ended()) {
    up_[index] = false;
    At(now_ + random_.Between(100, 3000), [this, index] {
      members_[index].Start(now_);
      up_[index] = true;
    });
    return;
  }
  for (const Request& request : member.Step(now_)) Send(index, request);
}

void SimWorld::HaveAccidents(size_t index) {
  if (random_.Chance(trouble_.clog)) {
    clogged_until_[index] = now_ + random_.Between(100, kClogMax.count());
  }
  if (random_.Chance(trouble_.cut)) {
    std::fill(clogged_until_.begin(), clogged_until_.end(),
              now_ + random_.Between(100, kCutMax.count()));
  }
  if (random_.Chance(trouble_.coordinator_crash)) {
    ++statistics_.coordinator_restarts;
    trouble_.durable ? ResumeCoordinator() : StartCoordinator();
  }
  if (!up_[index]) return;
  if (random_.Chance(trouble_.member_crash)) return CrashMember(index);
  if (random_.Chance(trouble_.disconnect)) Disconnect(index);
  if (random_.Chance(trouble_.cancel)) {
    const std::vector<core::WaiterId> waiters =
        checker_.Waiters(members_[index].id());
    if (waiters.empty()) return;
    const core::WaiterId waiter = waiters[random_.Below(waiters.size())];
    Trace(absl::StrCat("cancel w", waiter.value()));
    core::Outbox out;
    coordinator_->CancelWaiter(waiter, out);
    Deliver(out);
  }
}

void SimWorld::CrashMember(size_t index) {
  ++statistics_.member_crashes;
  up_[index] = false;
  if (!random_.Chance(trouble_.silent_crash)) {
    const core::MemberId id = members_[index].id();
    const core::Incarnation incarnation = members_[index].incarnation();
    At(now_ + random_.Between(0, 5), [this, id, incarnation] {
      Trace(absl::StrCat("disconnect ", id.value(), "/", incarnation.value()));
      core::Outbox out;
      coordinator_->Disconnected(id, incarnation, now_, out);
      Deliver(out);
    });
  }
  At(now_ + random_.Between(100, 5000), [this, index] {
    members_[index].Start(now_);
    up_[index] = true;
  });
}

// Closes the connection; the member comes back on another one.
void SimWorld::Disconnect(size_t index) {
  const SimMember& member = members_[index];
  core::Outbox out;
  for (core::WaiterId waiter : checker_.Waiters(member.id())) {
    const Request* request = checker_.FindRequest(waiter);
    if (request->call.incarnation != member.incarnation()) continue;
    Trace(absl::StrCat("detach w", waiter.value()));
    coordinator_->DetachWaiter(waiter, out);
  }
  Trace(absl::StrCat("disconnect ", member.id().value(), "/",
                     member.incarnation().value()));
  coordinator_->Disconnected(member.id(), member.incarnation(), now_, out);
  Deliver(out);
  const core::Incarnation incarnation = member.incarnation();
  At(now_ + random_.Between(0, kReconnectMsMax), [this, index, incarnation] {
    if (up_[index] && members_[index].incarnation() == incarnation) {
      members_[index].Reconnected();
    }
  });
}

// Handles a request at the coordinator.
void SimWorld::Handle(size_t index, Request request) {
  ++statistics_.requests;
  request.call.waiter = core::WaiterId(next_waiter_++);
  Trace(ToCommand(request));
  reply_targets_[request.call.waiter] = {index, request.operation,
                                         request.call.incarnation};
  checker_.Before(request, *coordinator_, now_);
  core::Outbox out;
  Dispatch(request, out);
  Deliver(out);
}

void SimWorld::Dispatch(const Request& request, core::Outbox& out) {
  core::Coordinator& to = *coordinator_;
  const core::Call& call = request.call;
  switch (request.verb) {
    case Verb::kRegister:
      return to.Register(call, {.host = "host-" + call.member.value()}, now_,
                         out);
    case Verb::kHeartbeat:
      return to.Heartbeat(call, {}, now_, out);
    case Verb::kLeave:
      return to.Leave(call, "done", now_, out);
    case Verb::kReportFailure:
      return to.ReportFailure(call, {.text = "broken"}, now_, out);
    case Verb::kReportGroupFailure:
      return to.ReportGroupFailure(call, request.failure, now_, out);
    case Verb::kJoin:
      return to.Join(call, request.join, now_, out);
    case Verb::kCloseRendezvous:
      return to.CloseRendezvous(call, "finished", now_, out);
    case Verb::kRegisterGroups:
      return to.RegisterGroups(call,
                               {.generation = request.generation,
                                .left = request.groups_left,
                                .groups = request.groups,
                                .call = request.group_call},
                               now_, out);
    case Verb::kAwaitBarrier:
      return to.Arrive(call, request.barrier, now_, out);
    default:
      break;
  }
  const auto verb = [&](core::StoreEngine& store) {
    ApplyToStore(request, now_, store, out);
  };
  if (IsMutation(request.verb)) {
    to.Mutate(call, VerbName(request.verb), now_, out, verb);
  } else if (request.verb == Verb::kQueuePop) {
    to.MutateAndPark(call, VerbName(request.verb), now_, out, verb);
  } else {
    to.Read(call, now_, out, verb);
  }
}

void SimWorld::Count(const core::Outbox& out) {
  statistics_.events += static_cast<int64_t>(out.events.size());
  for (const core::Notice& notice : out.notices) {
    switch (notice.kind) {
      case core::NoticeKind::kGenerationFormed:
        ++statistics_.generations;
        break;
      case core::NoticeKind::kHostsSilent:
        ++statistics_.silences;
        break;
      case core::NoticeKind::kBarrierReleased:
        ++statistics_.barriers_released;
        break;
      case core::NoticeKind::kBarrierTimedOut:
      case core::NoticeKind::kBarrierMemberLost:
      case core::NoticeKind::kBarrierConflict:
      case core::NoticeKind::kBarrierAborted:
        ++statistics_.barriers_failed;
        break;
      default:
        break;
    }
  }
}

// Sends the contents of the outbox.
void SimWorld::Deliver(core::Outbox& out, bool ticked) {
  Count(out);
  Store();
  checker_.CheckStep(out, ticked, now_, *coordinator_);
  const Status invariants = coordinator_->CheckInvariants();
  if (!invariants.ok()) checker_.Fail(invariants.ToString());
  for (const core::Publication& publication : out.events) {
    if (publication.event.kind != core::EventKind::kWaiting &&
        publication.event.kind != core::EventKind::kGroupFailed &&
        !absl::StartsWith(publication.event.cause, "gave up")) {
      checker_.Departed(publication.event);
    }
    for (const core::MemberId& id : *publication.audience) {
      const size_t index = static_cast<size_t>(id.value()[0] - 'a');
      const core::Event event = publication.event;
      Transmit(index, [this, index, event] {
        if (up_[index]) members_[index].Receive(event);
      });
    }
  }
  const uint64_t epoch = epoch_;
  const uint64_t life = life_;
  for (const core::Reply& reply : out.replies) {
    checker_.Observe(reply, now_);
    const auto origin = reply_targets_.find(reply.waiter);
    if (origin == reply_targets_.end()) continue;
    Response response;
    response.operation = origin->second.operation;
    response.incarnation = origin->second.incarnation;
    response.epoch = core::CoordinatorEpoch(epoch);
    response.reply = reply;
    const size_t to = origin->second.index;
    reply_targets_.erase(origin);
    Transmit(to, [this, to, life, response] {
      // The answer of a coordinator that has ended is lost with its connection.
      if (life == life_ && up_[to]) members_[to].Receive(response, now_);
    });
  }
  checker_.CompareRevisions(*coordinator_, now_);
}

// Whether as many members as a world needs have passed `barriers` barriers.
bool SimWorld::AllReleased(int64_t barriers) const {
  const auto released = std::count_if(
      members_.begin(), members_.end(),
      [&](const auto& member) { return member.released() >= barriers; });
  if (habits_.max_world_size == 0) return released >= habits_.world_size;
  return released >=
         (habits_.grows() ? habits_.max_world_size : habits_.min_world_size);
}

// Whether the rendezvous is closed and nobody waits for it.
bool SimWorld::Closed() const {
  if (habits_.close == 0) return false;
  const core::JobSnapshot job = coordinator_->Snapshot(now_);
  return !job.rendezvous_closed.empty() && job.joined == 0;
}

// Ends all trouble.
void SimWorld::Heal() {
  Trace("# the network heals");
  Trouble calm;
  calm.tick_late_ms_max = trouble_.tick_late_ms_max;
  calm.durable = trouble_.durable;
  trouble_ = calm;
  std::fill(clogged_until_.begin(), clogged_until_.end(), now_);
  for (SimMember& member : members_) {
    member.set_calm();
    member.ResetScore();
  }
}

void SimWorld::CheckLiveness() {
  if (RunUntil(now_ + kHealing, [&] { return Closed() || AllReleased(3); })) {
    return;
  }
  std::string text = "I8: no three barriers in two quiet minutes";
  for (const SimMember& member : members_) {
    absl::StrAppend(&text, "\n  ", member.Describe());
  }
  checker_.Fail(text);
}

void SimWorld::CheckEmptiness() {
  checker_.CompareStores(*coordinator_, now_);
  for (SimMember& member : members_) member.BeginLeaving();
  const bool all_gone = RunUntil(now_ + kLeaving, [&] {
    return std::all_of(members_.begin(), members_.end(),
                       [](const auto& member) { return member.gone(); });
  });
  if (!all_gone) checker_.Fail("I8: somebody cannot leave");
  // Messages on their way arrive. One may be the registration of a process that
  // is dead: then its lease must end, or its silence together with another's.
  RunUntil(now_ + kCutMax + kSilenceMax + seconds(15), [] { return false; });
  checker_.ExpectNoWaiters();
  const core::JobSnapshot left = coordinator_->Snapshot(now_);
  if (!left.barriers.empty() || left.waiters != 0 ||
      left.retained_replies != 0 || left.joined != 0 || !left.groups.empty() ||
      !coordinator_->Idle()) {
    checker_.Fail(absl::StrCat("I7: ", left.barriers.size(), " barriers, ",
                               left.groups.size(), " groups, ", left.waiters,
                               " waiters, ", left.retained_replies,
                               " replies are left behind"));
  }
  AdvanceTo(now_ + minutes(11));
  if (!coordinator_->Snapshot(now_).members.empty() ||
      coordinator_->NextDeadline().has_value()) {
    checker_.Fail("I7: members are left behind");
  }
}

std::optional<std::string> SimWorld::Run() {
  StartCoordinator();
  for (size_t i = 0; i < members_.size(); ++i) {
    At(now_ + random_.Between(0, 2000), [this, i] {
      members_[i].Start(now_);
      up_[i] = true;
      StepMember(i);
    });
  }
  RunUntil(now_ + kChaos, [] { return false; });
  Heal();
  CheckLiveness();
  CheckEmptiness();
  return checker_.failure();
}

}  // namespace muster::simulation
