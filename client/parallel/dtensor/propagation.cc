// The rules of operations. A rule is a table: each row tells how the inputs may
// lie along one dimension of the mesh, and how the output then lies.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "client/control/throw.h"
#include "muster/placement.h"

namespace muster {
namespace {

using internal::Invalid;

struct Row {
  std::vector<Placement> inputs;
  Placement output;
};

// The linear reductions that are still to do in the inputs.
std::vector<Placement> FindLinearPartials(
    const std::vector<TensorLayout>& inputs) {
  std::vector<Placement> found;
  for (const TensorLayout& input : inputs) {
    for (const Placement& placement : input.placements) {
      const bool is_linear =
          placement.is_partial() && (placement.op() == ReduceOp::kSum ||
                                     placement.op() == ReduceOp::kAvg);
      if (is_linear &&
          std::find(found.begin(), found.end(), placement) == found.end()) {
        found.push_back(placement);
      }
    }
  }
  return found;
}

bool IsPossible(const TensorLayout& layout) {
  std::optional<ReduceOp> op;
  for (const Placement& placement : layout.placements) {
    if (!placement.is_partial()) continue;
    if (op.has_value() && *op != placement.op()) return false;
    op = placement.op();
  }
  return true;
}

// Chooses a row for each dimension of the mesh.
class Choice {
 public:
  Choice(const std::vector<Row>& rows, const std::vector<TensorLayout>& inputs,
         std::vector<int64_t> output_shape,
         const std::vector<int64_t>& mesh_shape)
      : rows_(rows), inputs_(inputs), mesh_shape_(mesh_shape) {
    candidate_.inputs.resize(inputs.size());
    candidate_.output.shape = std::move(output_shape);
    candidate_.output.data_type = inputs.front().data_type;
  }

  Propagation Find() {
    if (!TakeAsTheyLie()) Search(0);
    return *best_;
  }

 private:
  void Add(const Row& row) {
    for (size_t i = 0; i < inputs_.size(); ++i) {
      candidate_.inputs[i].push_back(row.inputs[i]);
    }
    candidate_.output.placements.push_back(row.output);
  }

  void RemoveLast() {
    for (auto& placements : candidate_.inputs) placements.pop_back();
    candidate_.output.placements.pop_back();
  }

  // If a row fits each dimension of the mesh, nothing needs to move.
  bool TakeAsTheyLie() {
    const auto empty = candidate_;
    for (size_t dim = 0; dim < mesh_shape_.size(); ++dim) {
      const auto fits = [&](const Row& row) {
        for (size_t i = 0; i < inputs_.size(); ++i) {
          if (row.inputs[i] != inputs_[i].placements[dim]) return false;
        }
        return true;
      };
      const auto row = std::find_if(rows_.begin(), rows_.end(), fits);
      if (row != rows_.end()) {
        Add(*row);
        continue;
      }
      candidate_ = empty;
      return false;
    }
    const bool is_possible = IsPossible(candidate_.output);
    if (is_possible) best_ = candidate_;
    candidate_ = empty;
    return is_possible;
  }

  void Search(size_t dim) {
    if (dim == mesh_shape_.size()) {
      Compare();
      return;
    }
    for (const Row& row : rows_) {
      Add(row);
      Search(dim + 1);
      RemoveLast();
    }
  }

  void Compare() {
    if (!IsPossible(candidate_.output)) return;
    candidate_.bytes = candidate_.steps = 0;
    for (size_t i = 0; i < inputs_.size(); ++i) {
      TensorLayout wanted = inputs_[i];
      wanted.placements = candidate_.inputs[i];
      const RedistributePlan plan =
          PlanRedistribute(inputs_[i], wanted.placements, mesh_shape_);
      candidate_.bytes += plan.bytes();
      candidate_.steps += static_cast<int64_t>(plan.steps.size());
    }
    if (!best_.has_value() || std::tie(candidate_.bytes, candidate_.steps) <
                                  std::tie(best_->bytes, best_->steps)) {
      best_ = candidate_;
    }
  }

  const std::vector<Row>& rows_;
  const std::vector<TensorLayout>& inputs_;
  const std::vector<int64_t>& mesh_shape_;
  Propagation candidate_;
  std::optional<Propagation> best_;
};

std::string ShapeText(const std::vector<int64_t>& shape) {
  return absl::StrCat("[", absl::StrJoin(shape, ","), "]");
}

void CheckInputs(const std::vector<TensorLayout>& inputs,
                 const std::vector<int64_t>& mesh_shape) {
  if (inputs.empty()) Invalid("argument inputs: no tensors");
  for (const TensorLayout& input : inputs) CheckLayout(input, mesh_shape);
}

void CheckDim(const char* name, int dim, const TensorLayout& input) {
  if (dim >= 0 && dim < static_cast<int>(input.shape.size())) return;
  Invalid(absl::StrCat("argument ", name, ": ", dim, " of a tensor with ",
                       input.shape.size(), " dimensions"));
}

std::vector<int64_t> Broadcast(const std::vector<TensorLayout>& inputs) {
  std::vector<int64_t> shape;
  for (const TensorLayout& input : inputs) {
    if (shape.size() < input.shape.size()) {
      shape.insert(shape.begin(), input.shape.size() - shape.size(), 1);
    }
    for (size_t i = 1; i <= input.shape.size(); ++i) {
      int64_t& size = shape[shape.size() - i];
      const int64_t other = input.shape[input.shape.size() - i];
      if (size == 1) size = other;
      if (size == other || other == 1) continue;
      Invalid(absl::StrCat("argument inputs: shape ", ShapeText(input.shape),
                           " cannot be broadcast to ", ShapeText(shape)));
    }
  }
  return shape;
}

}  // namespace

Propagation PropagatePointwise(const std::vector<TensorLayout>& inputs,
                               const std::vector<int64_t>& mesh_shape,
                               bool is_linear) {
  CheckInputs(inputs, mesh_shape);
  const std::vector<int64_t> shape = Broadcast(inputs);
  std::vector<Row> rows = {
      {std::vector<Placement>(inputs.size()), Replicate()}};
  for (size_t dim = 0; dim < shape.size(); ++dim) {
    Row row = {{}, Shard(static_cast<int>(dim))};
    for (const TensorLayout& input : inputs) {
      const size_t missing = shape.size() - input.shape.size();
      const bool has_dim =
          dim >= missing && input.shape[dim - missing] == shape[dim];
      row.inputs.push_back(has_dim ? Shard(static_cast<int>(dim - missing))
                                   : Replicate());
    }
    rows.push_back(std::move(row));
  }
  if (is_linear) {
    for (const Placement& partial : FindLinearPartials(inputs)) {
      rows.push_back({std::vector<Placement>(inputs.size(), partial), partial});
    }
  }
  return Choice(rows, inputs, shape, mesh_shape).Find();
}

Propagation PropagateMatmul(const TensorLayout& a, const TensorLayout& b,
                            const std::vector<int64_t>& mesh_shape) {
  const std::vector<TensorLayout> inputs = {a, b};
  CheckInputs(inputs, mesh_shape);
  if (a.shape.size() < 2 || b.shape.size() != 2 ||
      a.shape.back() != b.shape.front()) {
    Invalid(absl::StrCat("arguments a and b: no product of ",
                         ShapeText(a.shape), " and ", ShapeText(b.shape)));
  }
  std::vector<int64_t> shape = a.shape;
  shape.back() = b.shape.back();
  const int last = static_cast<int>(shape.size()) - 1;
  std::vector<Row> rows = {{{Replicate(), Replicate()}, Replicate()},
                           {{Replicate(), Shard(1)}, Shard(last)},
                           {{Shard(last), Shard(0)}, Partial()}};
  for (int dim = 0; dim < last; ++dim) {
    rows.push_back({{Shard(dim), Replicate()}, Shard(dim)});
  }
  for (const Placement& partial : FindLinearPartials(inputs)) {
    rows.push_back({{partial, Replicate()}, partial});
    rows.push_back({{Replicate(), partial}, partial});
  }
  return Choice(rows, inputs, shape, mesh_shape).Find();
}

Propagation PropagateSum(const TensorLayout& input, int dim,
                         const std::vector<int64_t>& mesh_shape) {
  const std::vector<TensorLayout> inputs = {input};
  CheckInputs(inputs, mesh_shape);
  CheckDim("dim", dim, input);
  std::vector<int64_t> shape = input.shape;
  shape.erase(shape.begin() + dim);
  std::vector<Row> rows = {{{Replicate()}, Replicate()}};
  for (int i = 0; i < static_cast<int>(input.shape.size()); ++i) {
    rows.push_back(
        {{Shard(i)}, i == dim ? Partial() : Shard(i < dim ? i : i - 1)});
  }
  for (const Placement& partial : FindLinearPartials(inputs)) {
    rows.push_back({{partial}, partial});
  }
  return Choice(rows, inputs, shape, mesh_shape).Find();
}

Propagation PropagateTranspose(const TensorLayout& input, int dim0, int dim1,
                               const std::vector<int64_t>& mesh_shape) {
  CheckInputs({input}, mesh_shape);
  CheckDim("dim0", dim0, input);
  CheckDim("dim1", dim1, input);
  Propagation result = {.inputs = {input.placements}, .output = input};
  std::swap(result.output.shape[static_cast<size_t>(dim0)],
            result.output.shape[static_cast<size_t>(dim1)]);
  for (Placement& placement : result.output.placements) {
    if (placement == Shard(dim0)) {
      placement = Shard(dim1);
    } else if (placement == Shard(dim1)) {
      placement = Shard(dim0);
    }
  }
  return result;
}

}  // namespace muster
