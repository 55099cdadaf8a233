#include "muster/pipeline_schedule.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "base/text.h"
#include "client/control/throw.h"

namespace muster {
namespace {

using Kind = PipelineActionKind;

constexpr std::array<absl::string_view, 8> kLetters = {
    "F", "B", "I", "W", "SEND_F", "RECV_F", "SEND_B", "RECV_B"};

// Finds the actions of a schedule, and checks each rank's list.
class ActionIndex {
 public:
  // Throws unless every action is in range, is of a stage of its rank, and is
  // there once.
  explicit ActionIndex(const PipelineSchedule& schedule);

  // The position of the action in the list of its stage's rank; -1: it is not
  // there.
  int Find(const PipelineAction& action) const {
    return positions_[ToNumber(action)];
  }

  // Throws unless all computations are there, with what they need before them,
  // and all messages are sent and received.
  void CheckAll() const;

  int GetRank(int stage) const {
    return schedule_.stage_ranks[static_cast<size_t>(stage)];
  }
  bool IsLast(int stage) const { return stage + 1 == schedule_.stages(); }

  // The computation that gives the gradient of the stage's input.
  PipelineAction GetInputBackward(int stage, int microbatch) const {
    const PipelineAction whole = {Kind::kBackward, stage, microbatch};
    if (Find(whole) >= 0) return whole;
    return {Kind::kBackwardInput, stage, microbatch};
  }

  // The message from another rank that a computation waits for.
  std::optional<PipelineAction> FindAwaited(const PipelineAction& action) const;

  [[noreturn]] void Fail(absl::string_view text) const {
    internal::Invalid(absl::StrCat("pipeline schedule ",
                                   base::Quote(schedule_.name), ": ", text));
  }

 private:
  size_t ToNumber(const PipelineAction& action) const {
    return (static_cast<size_t>(action.kind) * schedule_.stage_ranks.size() +
            static_cast<size_t>(action.stage)) *
               static_cast<size_t>(schedule_.microbatches) +
           static_cast<size_t>(action.microbatch);
  }
  void CheckNumbers() const;
  void CheckInRange(int rank, const PipelineAction& action) const;
  void CheckBefore(const PipelineAction& earlier,
                   const PipelineAction& later) const;
  void CheckStage(int stage, int microbatch) const;
  void CheckMessage(const PipelineAction& content, const PipelineAction& send,
                    const PipelineAction& receive,
                    const PipelineAction& user) const;
  // The first and the last stage have messages on one side alone.
  void CheckEnd(int stage, absl::string_view name, Kind first,
                Kind second) const;

  const PipelineSchedule& schedule_;
  std::vector<int> positions_;
};

ActionIndex::ActionIndex(const PipelineSchedule& schedule)
    : schedule_(schedule) {
  CheckNumbers();
  positions_.assign(kLetters.size() * schedule.stage_ranks.size() *
                        static_cast<size_t>(schedule.microbatches),
                    -1);
  for (int rank = 0; rank < schedule.ranks(); ++rank) {
    const auto& actions = schedule.actions[static_cast<size_t>(rank)];
    for (size_t i = 0; i < actions.size(); ++i) {
      CheckInRange(rank, actions[i]);
      int& position = positions_[ToNumber(actions[i])];
      if (position >= 0) {
        Fail(absl::StrCat("rank ", rank, " has ", actions[i].ToText(),
                          " twice, as actions ", position, " and ", i));
      }
      position = static_cast<int>(i);
    }
  }
}

void ActionIndex::CheckNumbers() const {
  if (schedule_.microbatches < 1 || schedule_.stages() < 1 ||
      schedule_.ranks() < 1) {
    Fail(absl::StrCat(schedule_.ranks(), " ranks, ", schedule_.stages(),
                      " stages and ", schedule_.microbatches,
                      " microbatches, at least 1 of each is needed"));
  }
  if (int64_t{schedule_.stages()} * schedule_.microbatches >
      kStageMicrobatchesMax) {
    Fail(absl::StrCat(
        schedule_.stages(), " stages times ", schedule_.microbatches,
        " microbatches is above the limit of ", kStageMicrobatchesMax));
  }
  for (int stage = 0; stage < schedule_.stages(); ++stage) {
    const int rank = GetRank(stage);
    if (rank >= 0 && rank < schedule_.ranks()) continue;
    Fail(absl::StrCat("stage ", stage, " is on rank ", rank,
                      ", there are actions for ", schedule_.ranks(), " ranks"));
  }
}

void ActionIndex::CheckInRange(int rank, const PipelineAction& action) const {
  const bool known = static_cast<size_t>(action.kind) < kLetters.size() &&
                     action.stage >= 0 && action.stage < schedule_.stages() &&
                     action.microbatch >= 0 &&
                     action.microbatch < schedule_.microbatches;
  if (!known) {
    Fail(absl::StrCat("rank ", rank, " has ", action.ToText(), ", there are ",
                      schedule_.stages(), " stages and ",
                      schedule_.microbatches, " microbatches"));
  }
  if (GetRank(action.stage) != rank) {
    Fail(absl::StrCat("rank ", rank, " has ", action.ToText(), ", but stage ",
                      action.stage, " is on rank ", GetRank(action.stage)));
  }
}

void ActionIndex::CheckBefore(const PipelineAction& earlier,
                              const PipelineAction& later) const {
  const int first = Find(earlier);
  const int second = Find(later);
  const int rank = GetRank(later.stage);
  if (first < 0) {
    Fail(absl::StrCat("rank ", rank, ": ", later.ToText(), " needs ",
                      earlier.ToText(), ", which is missing"));
  }
  if (first > second) {
    Fail(absl::StrCat("rank ", rank, ": ", later.ToText(), " (action ", second,
                      ") needs ", earlier.ToText(), ", which comes later (",
                      first, ")"));
  }
}

void ActionIndex::CheckStage(int stage, int microbatch) const {
  const PipelineAction forward = {Kind::kForward, stage, microbatch};
  const PipelineAction whole = {Kind::kBackward, stage, microbatch};
  const PipelineAction weight = {Kind::kBackwardWeight, stage, microbatch};
  const PipelineAction input = {Kind::kBackwardInput, stage, microbatch};
  const bool halves = Find(input) >= 0 || Find(weight) >= 0;
  const PipelineAction backward =
      halves ? GetInputBackward(stage, microbatch) : whole;
  for (const PipelineAction& one : {forward, backward, weight}) {
    if (Find(one) >= 0 || (backward == whole && one == weight)) continue;
    Fail(absl::StrCat("rank ", GetRank(stage), " lacks ", one.ToText()));
  }
  for (const PipelineAction& one : {input, weight}) {
    if (backward != whole || Find(one) < 0) continue;
    Fail(absl::StrCat("rank ", GetRank(stage), " has both ", whole.ToText(),
                      " and ", one.ToText()));
  }
  CheckBefore(forward, backward);
  if (backward == input) CheckBefore(input, weight);
}

void ActionIndex::CheckMessage(const PipelineAction& content,
                               const PipelineAction& send,
                               const PipelineAction& receive,
                               const PipelineAction& user) const {
  const int from = GetRank(send.stage);
  const int to = GetRank(receive.stage);
  if (from == to) {
    CheckBefore(content, user);
    for (const PipelineAction& one : {send, receive}) {
      if (Find(one) < 0) continue;
      Fail(absl::StrCat("rank ", from, " has ", one.ToText(), ", but stages ",
                        send.stage, " and ", receive.stage,
                        " are both on this rank"));
    }
    return;
  }
  if ((Find(send) < 0) != (Find(receive) < 0)) {
    const bool sent = Find(receive) < 0;
    Fail(absl::StrCat("rank ", sent ? from : to, " has ",
                      (sent ? send : receive).ToText(), ", but rank ",
                      sent ? to : from, " lacks ",
                      (sent ? receive : send).ToText()));
  }
  CheckBefore(receive, user);
  CheckBefore(content, send);
}

void ActionIndex::CheckAll() const {
  for (int stage = 0; stage < schedule_.stages(); ++stage) {
    for (int i = 0; i < schedule_.microbatches; ++i) CheckStage(stage, i);
  }
  for (int stage = 0; stage + 1 < schedule_.stages(); ++stage) {
    const int next = stage + 1;
    for (int i = 0; i < schedule_.microbatches; ++i) {
      CheckMessage(
          {Kind::kForward, stage, i}, {Kind::kSendActivation, stage, i},
          {Kind::kReceiveActivation, next, i}, {Kind::kForward, next, i});
      CheckMessage(GetInputBackward(next, i), {Kind::kSendGradient, next, i},
                   {Kind::kReceiveGradient, stage, i},
                   GetInputBackward(stage, i));
    }
  }
  CheckEnd(0, "first", Kind::kReceiveActivation, Kind::kSendGradient);
  CheckEnd(schedule_.stages() - 1, "last", Kind::kSendActivation,
           Kind::kReceiveGradient);
}

void ActionIndex::CheckEnd(int stage, absl::string_view name, Kind first,
                           Kind second) const {
  for (int i = 0; i < schedule_.microbatches; ++i) {
    for (const Kind kind : {first, second}) {
      const PipelineAction action = {kind, stage, i};
      if (Find(action) < 0) continue;
      Fail(absl::StrCat("rank ", GetRank(stage), " has ", action.ToText(),
                        ", but stage ", stage, " is the ", name));
    }
  }
}

std::optional<PipelineAction> ActionIndex::FindAwaited(
    const PipelineAction& action) const {
  const int stage = action.stage;
  if (action.kind == Kind::kForward) {
    if (stage == 0 || GetRank(stage - 1) == GetRank(stage)) return std::nullopt;
    return PipelineAction{Kind::kSendActivation, stage - 1, action.microbatch};
  }
  if (action.kind == Kind::kBackward || action.kind == Kind::kBackwardInput) {
    if (IsLast(stage) || GetRank(stage + 1) == GetRank(stage)) {
      return std::nullopt;
    }
    return PipelineAction{Kind::kSendGradient, stage + 1, action.microbatch};
  }
  return std::nullopt;
}

// Runs the ranks of a checked schedule side by side in simulated time.
class SimulatedRun {
 public:
  using Duration = std::function<double(const PipelineAction&)>;

  SimulatedRun(const PipelineSchedule& schedule, const ActionIndex& index,
               const Duration& duration)
      : schedule_(schedule),
        index_(index),
        duration_(duration),
        next_(schedule.actions.size()),
        clocks_(schedule.actions.size()),
        arrivals_(schedule.actions.size()) {
    for (size_t rank = 0; rank < next_.size(); ++rank) {
      arrivals_[rank].resize(schedule.actions[rank].size());
    }
  }

  // Throws if ranks wait for each other.
  PipelineSimulation Run();

 private:
  const std::vector<PipelineAction>& GetActions(size_t rank) const {
    return schedule_.actions[rank];
  }
  // Returns false if the rank has to wait for another one.
  bool TryStep(size_t rank);
  // The time when the message of a send arrives; empty: it was not sent yet.
  std::optional<double> FindArrival(const PipelineAction& send) const;
  [[noreturn]] void FailDeadlock() const;

  const PipelineSchedule& schedule_;
  const ActionIndex& index_;
  const Duration& duration_;
  // By rank: the next action, and the time.
  std::vector<size_t> next_;
  std::vector<double> clocks_;
  // By rank and action, of sends.
  std::vector<std::vector<double>> arrivals_;
  PipelineSimulation result_;
};

std::optional<double> SimulatedRun::FindArrival(
    const PipelineAction& send) const {
  const auto rank = static_cast<size_t>(index_.GetRank(send.stage));
  const auto position = static_cast<size_t>(index_.Find(send));
  if (position >= next_[rank]) return std::nullopt;
  return arrivals_[rank][position];
}

bool SimulatedRun::TryStep(size_t rank) {
  const PipelineAction& action = GetActions(rank)[next_[rank]];
  double& clock = clocks_[rank];
  if (const auto awaited = index_.FindAwaited(action)) {
    const auto arrival = FindArrival(*awaited);
    if (!arrival.has_value()) return false;
    clock = std::max(clock, *arrival);
  }
  const bool sends = action.kind == Kind::kSendActivation ||
                     action.kind == Kind::kSendGradient;
  if (action.computes() || sends) {
    const double duration = duration_(action);
    if (!(duration >= 0)) {
      index_.Fail(absl::StrCat("the duration of ", action.ToText(),
                               " must not be negative but was ", duration));
    }
    if (sends) {
      arrivals_[rank][next_[rank]] = clock + duration;
    } else {
      clock += duration;
      result_.ranks[rank].busy += duration;
    }
  }
  ++next_[rank];
  return true;
}

void SimulatedRun::FailDeadlock() const {
  std::vector<std::string> waits;
  for (size_t rank = 0; rank < next_.size(); ++rank) {
    if (next_[rank] == GetActions(rank).size()) continue;
    const PipelineAction& action = GetActions(rank)[next_[rank]];
    const auto awaited = index_.FindAwaited(action);
    if (waits.size() < base::kRanksInTextMax) {
      waits.push_back(absl::StrCat("rank ", rank, " waits in ", action.ToText(),
                                   " for ", awaited->ToText(), " of rank ",
                                   index_.GetRank(awaited->stage)));
    }
  }
  index_.Fail(absl::StrCat("deadlock: ", absl::StrJoin(waits, "; ")));
}

int ComputeActivationsMax(const std::vector<PipelineAction>& actions) {
  int held = 0;
  int most = 0;
  for (const PipelineAction& action : actions) {
    if (action.kind == Kind::kForward) most = std::max(most, ++held);
    if (action.kind == Kind::kBackward ||
        action.kind == Kind::kBackwardWeight) {
      --held;
    }
  }
  return most;
}

PipelineSimulation SimulatedRun::Run() {
  result_.ranks.resize(next_.size());
  for (bool moved = true; moved;) {
    moved = false;
    for (size_t rank = 0; rank < next_.size(); ++rank) {
      while (next_[rank] < GetActions(rank).size() && TryStep(rank)) {
        moved = true;
      }
    }
  }
  for (size_t rank = 0; rank < next_.size(); ++rank) {
    if (next_[rank] < GetActions(rank).size()) FailDeadlock();
    result_.makespan = std::max(result_.makespan, clocks_[rank]);
  }
  double bubbles = 0;
  for (size_t rank = 0; rank < next_.size(); ++rank) {
    PipelineSimulation::Rank& one = result_.ranks[rank];
    one.bubble = result_.makespan - one.busy;
    one.activations_max = ComputeActivationsMax(GetActions(rank));
    bubbles += one.bubble;
  }
  if (result_.makespan > 0) {
    result_.bubble_fraction =
        bubbles / (result_.makespan * static_cast<double>(next_.size()));
  }
  return std::move(result_);
}

}  // namespace

std::string PipelineAction::ToText() const {
  const auto letters = static_cast<size_t>(kind);
  return absl::StrCat(
      stage, letters < kLetters.size() ? kLetters[letters] : "?", microbatch);
}

void PipelineSchedule::AddTransfers() {
  const ActionIndex index(*this);
  const auto receive = [&](const PipelineAction& user,
                           std::vector<PipelineAction>& actions) {
    if (!index.FindAwaited(user).has_value()) return;
    actions.push_back({user.kind == Kind::kForward ? Kind::kReceiveActivation
                                                   : Kind::kReceiveGradient,
                       user.stage, user.microbatch});
  };
  std::vector<std::vector<PipelineAction>> all(actions.size());
  for (size_t rank = 0; rank < actions.size(); ++rank) {
    for (size_t i = 0; i < actions[rank].size(); ++i) {
      const PipelineAction& action = actions[rank][i];
      if (!action.computes()) {
        index.Fail(absl::StrCat("AddTransfers: rank ", rank, " already has ",
                                action.ToText()));
      }
      if (i == 0) receive(action, all[rank]);
      if (i + 1 < actions[rank].size())
        receive(actions[rank][i + 1], all[rank]);
      all[rank].push_back(action);
      const int stage = action.stage;
      if (action.kind == Kind::kForward) {
        if (!index.IsLast(stage) &&
            index.GetRank(stage + 1) != index.GetRank(stage)) {
          all[rank].push_back(
              {Kind::kSendActivation, stage, action.microbatch});
        }
      } else if (action.kind != Kind::kBackwardWeight && stage > 0 &&
                 index.GetRank(stage - 1) != index.GetRank(stage)) {
        all[rank].push_back({Kind::kSendGradient, stage, action.microbatch});
      }
    }
  }
  actions = std::move(all);
}

void PipelineSchedule::Validate() const {
  (void)Simulate([](const PipelineAction&) { return 0.0; });
}

std::string PipelineSchedule::ToText() const {
  std::string text;
  for (size_t rank = 0; rank < actions.size(); ++rank) {
    absl::StrAppend(&text, "rank ", rank, ":");
    for (const PipelineAction& action : actions[rank]) {
      absl::StrAppend(&text, " ", action.ToText());
    }
    text += '\n';
  }
  return text;
}

PipelineSimulation PipelineSchedule::Simulate(
    const std::function<double(const PipelineAction&)>& duration) const {
  const ActionIndex index(*this);
  index.CheckAll();
  return SimulatedRun(*this, index, duration).Run();
}

}  // namespace muster
