// The cheapest redistribution: Dijkstra's algorithm over the placements.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "muster/placement.h"

namespace muster {
namespace {

using Kind = RedistributeStep::Kind;

const char* KindName(Kind kind) {
  switch (kind) {
    case Kind::kAllGather:
      return "all_gather";
    case Kind::kReduceScatter:
      return "reduce_scatter";
    case Kind::kAllReduce:
      return "all_reduce";
    case Kind::kAllToAll:
      return "all_to_all";
    case Kind::kSlice:
      return "slice";
    case Kind::kFill:
      return "fill";
  }
  return "?";
}

// A placement as a number that orders it: Replicate, Shard, Partial.
using State = std::vector<int>;
constexpr int kPartialBase = 1 << 20;

int ToNumber(const Placement& placement) {
  if (placement.is_replicate()) return 0;
  if (placement.is_shard()) return placement.dim() + 1;
  return kPartialBase + static_cast<int>(placement.op());
}

Placement ToPlacement(int number) {
  if (number == 0) return Replicate();
  if (number < kPartialBase) return Shard(number - 1);
  return Partial(ReduceOp(number - kPartialBase));
}

bool IsPartial(int number) { return number >= kPartialBase; }

State ToState(const std::vector<Placement>& placements) {
  State state;
  state.reserve(placements.size());
  for (const Placement& one : placements) state.push_back(ToNumber(one));
  return state;
}

// The placements that a tensor can have on its way.
class Search {
 public:
  Search(const TensorLayout& from, const std::vector<Placement>& to,
         const std::vector<int64_t>& mesh_shape)
      : shape_(from.shape),
        element_bytes_(
            static_cast<int64_t>(dataplane::DataTypeBytes(from.data_type))),
        mesh_shape_(mesh_shape),
        source_(ToState(from.placements)),
        target_(ToState(to)) {}

  std::vector<RedistributeStep> Run() {
    Reach(source_, {}, nullptr);
    while (!queue_.empty()) {
      const State state = std::get<2>(*queue_.begin());
      queue_.erase(queue_.begin());
      if (state == target_) break;
      for (size_t dim = 0; dim < state.size(); ++dim) Leave(state, dim);
    }
    std::vector<RedistributeStep> steps;
    for (State state = target_; state != source_;) {
      const Node& node = nodes_.at(state);
      steps.push_back(node.step);
      state = node.before;
    }
    std::reverse(steps.begin(), steps.end());
    return steps;
  }

 private:
  struct Node {
    int64_t bytes = 0;
    int64_t steps = 0;
    State before = {};
    RedistributeStep step = {};
  };

  // Offers all steps from `state` along mesh dimension `dim`.
  void Leave(const State& state, size_t dim) {
    std::vector<int> next = {0};
    for (size_t i = 0; i < shape_.size(); ++i) {
      next.push_back(static_cast<int>(i) + 1);
    }
    // A tensor becomes Partial only where that is its end.
    if (IsPartial(target_[dim])) next.push_back(target_[dim]);
    for (const int to : next) {
      const auto step = FindStep(state, dim, to);
      if (!step.has_value()) continue;
      State after = state;
      after[dim] = to;
      Reach(after, *step, &state);
    }
  }

  void Reach(const State& state, const RedistributeStep& step,
             const State* before) {
    Node node = {.step = step};
    if (before != nullptr) {
      const Node& previous = nodes_.at(*before);
      node.bytes = previous.bytes + step.bytes;
      node.steps = previous.steps + 1;
      node.before = *before;
    }
    const auto present = nodes_.find(state);
    if (present != nodes_.end()) {
      const Node& other = present->second;
      if (std::tie(other.bytes, other.steps) <=
          std::tie(node.bytes, node.steps)) {
        return;
      }
      queue_.erase({other.bytes, other.steps, state});
    }
    queue_.insert({node.bytes, node.steps, state});
    nodes_[state] = std::move(node);
  }

  // Whether a later mesh dimension cuts what dimension `dim` has cut.
  bool IsCutAgain(const State& state, size_t dim, int number) const {
    return number > 0 && !IsPartial(number) &&
           std::find(state.begin() + static_cast<int64_t>(dim) + 1, state.end(),
                     number) != state.end();
  }

  std::optional<RedistributeStep> FindStep(const State& state, size_t dim,
                                           int to) const {
    const int from = state[dim];
    if (from == to || IsCutAgain(state, dim, from) ||
        IsCutAgain(state, dim, to)) {
      return std::nullopt;
    }
    for (size_t i = 0; i < state.size(); ++i) {
      if (IsPartial(to) && i != dim && IsPartial(state[i]) && state[i] != to) {
        return std::nullopt;
      }
    }
    RedistributeStep step = {.mesh_dim = static_cast<int>(dim),
                             .from = ToPlacement(from),
                             .to = ToPlacement(to)};
    const auto kind = FindKind(step.from, step.to);
    if (!kind.has_value()) return std::nullopt;
    const int64_t ranks = mesh_shape_[dim];
    step.kind = ranks == 1 ? Kind::kSlice : *kind;
    if (step.kind == Kind::kSlice || step.kind == Kind::kFill) return step;
    State after = state;
    after[dim] = to;
    const int64_t larger = std::max(LocalBytes(state), LocalBytes(after));
    step.bytes = larger - larger / ranks;
    if (step.kind == Kind::kAllReduce) step.bytes *= 2;
    return step;
  }

  static std::optional<Kind> FindKind(const Placement& from,
                                      const Placement& to) {
    if (to.is_partial()) {
      if (from.is_partial()) return std::nullopt;
      if (from.is_shard() && to.op() == ReduceOp::kAvg) return std::nullopt;
      return Kind::kFill;
    }
    if (from.is_replicate()) return Kind::kSlice;
    if (from.is_shard()) {
      return to.is_shard() ? Kind::kAllToAll : Kind::kAllGather;
    }
    return to.is_shard() ? Kind::kReduceScatter : Kind::kAllReduce;
  }

  // Bytes of the first rank, which has the largest part.
  int64_t LocalBytes(const State& state) const {
    std::vector<int64_t> lengths = shape_;
    for (size_t i = 0; i < state.size(); ++i) {
      if (state[i] == 0 || IsPartial(state[i])) continue;
      int64_t& length = lengths[static_cast<size_t>(state[i]) - 1];
      length = (length + mesh_shape_[i] - 1) / mesh_shape_[i];
    }
    int64_t bytes = element_bytes_;
    for (const int64_t length : lengths) bytes *= length;
    return bytes;
  }

  const std::vector<int64_t> shape_;
  const int64_t element_bytes_;
  const std::vector<int64_t> mesh_shape_;
  const State source_;
  const State target_;
  std::map<State, Node> nodes_;
  // Bytes, steps, state.
  std::set<std::tuple<int64_t, int64_t, State>> queue_;
};

}  // namespace

int64_t RedistributePlan::bytes() const {
  int64_t sum = 0;
  for (const RedistributeStep& step : steps) sum += step.bytes;
  return sum;
}

std::string RedistributePlan::ToText() const {
  std::string text = absl::StrCat(from.ToText(), " to ", muster::ToText(to),
                                  " on mesh (", absl::StrJoin(mesh_shape, ", "),
                                  "): ", bytes(), " bytes per rank\n");
  for (const RedistributeStep& step : steps) {
    absl::StrAppend(&text, "  mesh dim ", step.mesh_dim, ": ",
                    step.from.ToText(), " to ", step.to.ToText(), ", ",
                    KindName(step.kind), ", ", step.bytes, " bytes\n");
  }
  return text;
}

RedistributePlan PlanRedistribute(const TensorLayout& from,
                                  const std::vector<Placement>& to,
                                  const std::vector<int64_t>& mesh_shape) {
  CheckLayout(from, mesh_shape);
  TensorLayout target = from;
  target.placements = to;
  CheckLayout(target, mesh_shape);
  RedistributePlan plan = {.from = from, .to = to, .mesh_shape = mesh_shape};
  plan.steps = Search(from, to, mesh_shape).Run();
  return plan;
}

}  // namespace muster
