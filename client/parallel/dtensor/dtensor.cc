#include "muster/dtensor.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "client/control/throw.h"
#include "client/parallel/agreement/agreement.h"
#include "client/parallel/dtensor/distribute.h"
#include "client/parallel/dtensor/mesh_position.h"
#include "client/parallel/dtensor/random_fill.h"
#include "client/parallel/dtensor/redistribute.h"
#include "client/parallel/dtensor/tensor_memory.h"
#include "glog/logging.h"
#include "muster/base/status.h"

namespace muster {

using internal::Agreement;
using internal::CatchError;
using internal::ErrorSource;
using internal::Invalid;
using internal::MeshPosition;
using internal::OwnedTensor;
using internal::ThrowIfFailed;

namespace {

using Shape = std::vector<int64_t>;

std::string ShapeText(const Shape& shape) {
  return absl::StrCat("[", absl::StrJoin(shape, ","), "]");
}

Shape ToShape(const Tensor& tensor) {
  return {tensor.shape().begin(), tensor.shape().end()};
}

Status CheckTensor(const char* name, const Tensor& tensor) {
  Status status = tensor.Validate();
  if (status.ok() && tensor.data_type() == DataType::kOpaque) {
    status = InvalidArgumentError(
        absl::StrCat(tensor.Describe(), " has opaque elements"));
  }
  if (status.ok()) return status;
  return Status(status.code(),
                absl::StrCat("argument ", name, ": ", status.message()));
}

// Whether this process is in the mesh. Otherwise warns.
bool IsMember(const MeshPosition& position, const DeviceMesh& mesh,
              const char* function) {
  if (!position.is_member()) {
    LOG(WARNING) << "Running " << function << " on global rank "
                 << mesh.GetRank() << " which is not in " << mesh.ToString();
  }
  return position.is_member();
}

ShardBox ComputeOwnBox(const MeshPosition& position,
                       const TensorLayout& layout) {
  if (position.is_member()) {
    return ComputeShardBox(layout.shape, layout.placements, position.shape(),
                           position.coordinate());
  }
  const Shape zeros(layout.shape.size(), 0);
  return {.offsets = zeros, .lengths = zeros};
}

OwnedTensor NoElements(DataType type) {
  return {.tensor = Tensor(nullptr, type, {0})};
}

Status CheckLocalShape(const Tensor& local, const TensorLayout& layout,
                       const MeshPosition& position) {
  const ShardBox box = ComputeOwnBox(position, layout);
  if (ToShape(local) == box.lengths) return OkStatus();
  return InvalidArgumentError(
      absl::StrCat("argument local: ", local.Describe(), ", but the part of ",
                   layout.ToText(), " is ", box.ToText()));
}

// Finds the whole shape from the local shapes of all ranks, and checks that
// each rank has its part.
Shape ComputeWholeShape(const MeshPosition& position, const Tensor& local,
                        const std::vector<Placement>& placements) {
  const std::vector<std::string> bytes = internal::GatherOverMesh(
      position, std::string(reinterpret_cast<const char*>(local.shape().data()),
                            local.shape().size_bytes()));
  std::vector<Shape> shapes;
  for (const std::string& one : bytes) {
    Shape& shape = shapes.emplace_back(one.size() / sizeof(int64_t));
    std::copy_n(one.data(), one.size(), reinterpret_cast<char*>(shape.data()));
  }
  // Sums the first line along the dimensions of the mesh that cut a dimension.
  Shape whole(shapes.front().size(), 0);
  const auto ranks = static_cast<int64_t>(shapes.size());
  std::vector<Shape> coordinates;
  for (int64_t index = 0; index < ranks; ++index) {
    Shape coordinate(position.shape().size());
    int64_t rest = index;
    for (size_t dim = coordinate.size(); dim-- > 0;) {
      coordinate[dim] = rest % position.shape()[dim];
      rest /= position.shape()[dim];
    }
    for (size_t k = 0; k < whole.size(); ++k) {
      bool counts = true;
      for (size_t dim = 0; dim < coordinate.size(); ++dim) {
        counts = counts && (coordinate[dim] == 0 ||
                            placements[dim] == Shard(static_cast<int>(k)));
      }
      if (counts) whole[k] += shapes[static_cast<size_t>(index)][k];
    }
    coordinates.push_back(std::move(coordinate));
  }
  for (size_t i = 0; i < shapes.size(); ++i) {
    const ShardBox box =
        ComputeShardBox(whole, placements, position.shape(), coordinates[i]);
    if (box.lengths == shapes[i]) continue;
    Invalid(absl::StrCat("DTensor::FromLocal: argument local has shape ",
                         ShapeText(shapes[i]), " on rank ", position.ranks()[i],
                         ", but together the ranks have ", ShapeText(whole),
                         " ", ToText(placements),
                         ", of which the rank's part is ", box.ToText()));
  }
  return whole;
}

}  // namespace

struct DTensor::State {
  State(const DeviceMesh& its_mesh,
        std::shared_ptr<const MeshPosition> its_position,
        TensorLayout its_layout, OwnedTensor its_local)
      : mesh(its_mesh),
        position(std::move(its_position)),
        layout(std::move(its_layout)),
        box(ComputeOwnBox(*position, layout)),
        local(std::move(its_local)) {}

  const DeviceMesh mesh;
  const std::shared_ptr<const MeshPosition> position;
  const TensorLayout layout;
  const ShardBox box;
  const OwnedTensor local;
};

DTensor::DTensor(std::shared_ptr<const State> state)
    : state_(std::move(state)) {}

DTensor DTensor::FromLocal(const Tensor& local, const DeviceMesh& mesh,
                           const std::vector<Placement>& placements,
                           const FromLocalOptions& options) {
  auto position = std::make_shared<const MeshPosition>(mesh);
  TensorLayout layout = {.shape = options.shape.value_or(Shape()),
                         .placements = placements,
                         .data_type = local.data_type()};
  if (!IsMember(*position, mesh, "DTensor::FromLocal")) {
    return DTensor(std::make_shared<State>(mesh, std::move(position),
                                           std::move(layout),
                                           NoElements(local.data_type())));
  }
  Status own = CheckTensor("local", local);
  if (own.ok()) {
    TensorLayout checked = layout;
    if (!options.shape.has_value()) checked.shape = ToShape(local);
    own = CatchError([&] { CheckLayout(checked, position->shape()); });
  }
  if (own.ok() && options.shape.has_value()) {
    own = CheckLocalShape(local, layout, *position);
  }
  Agreement agreement("DTensor::FromLocal");
  agreement.AddFault(own);
  agreement.Add("argument placements", muster::ToText(placements));
  agreement.Add("argument local's type",
                dataplane::DataTypeName(local.data_type()));
  agreement.Add("argument local's device",
                dataplane::DeviceTypeName(local.device().type));
  agreement.Add("argument local's number of dimensions",
                absl::StrCat(local.shape().size()));
  agreement.Add("argument shape",
                options.shape.has_value() ? ShapeText(*options.shape) : "none");
  agreement.Check(position->groups());
  if (!options.shape.has_value()) {
    layout.shape = ComputeWholeShape(*position, local, placements);
  }
  return DTensor(std::make_shared<State>(mesh, std::move(position),
                                         std::move(layout),
                                         OwnedTensor{.tensor = local}));
}

DTensor DTensor::Distribute(const Tensor& full, const DeviceMesh& mesh,
                            const std::vector<Placement>& placements) {
  auto position = std::make_shared<const MeshPosition>(mesh);
  TensorLayout layout = {.placements = placements};
  OwnedTensor local = NoElements(layout.data_type);
  if (IsMember(*position, mesh, "DTensor::Distribute")) {
    local = internal::RunDistribute(*position, full, layout);
  }
  return DTensor(std::make_shared<State>(mesh, std::move(position),
                                         std::move(layout), std::move(local)));
}

DTensor DTensor::Zeros(const std::vector<int64_t>& shape, DataType data_type,
                       const DeviceMesh& mesh,
                       const std::vector<Placement>& placements) {
  auto position = std::make_shared<const MeshPosition>(mesh);
  TensorLayout layout = {
      .shape = shape, .placements = placements, .data_type = data_type};
  CheckLayout(layout, position->shape());
  if (data_type == DataType::kOpaque) {
    Invalid("argument data_type: opaque elements have no size");
  }
  OwnedTensor local = NoElements(data_type);
  if (IsMember(*position, mesh, "DTensor::Zeros")) {
    local = internal::AllocateTensor(data_type,
                                     ComputeOwnBox(*position, layout).lengths);
    std::memset(local.tensor.data(), 0, local.tensor.bytes());
  }
  return DTensor(std::make_shared<State>(mesh, std::move(position),
                                         std::move(layout), std::move(local)));
}

DTensor DTensor::Redistribute(const std::vector<Placement>& placements) const {
  const State& from = *state_;
  TensorLayout layout = from.layout;
  layout.placements = placements;
  OwnedTensor local = from.local;
  if (IsMember(*from.position, from.mesh, "DTensor::Redistribute")) {
    std::optional<internal::PreparedPlan> plan;
    Agreement agreement("DTensor::Redistribute");
    agreement.AddFault(CatchError([&] {
      plan.emplace(
          *from.position,
          PlanRedistribute(from.layout, placements, from.position->shape()),
          local.tensor.device());
    }));
    agreement.Add("argument placements", muster::ToText(placements));
    agreement.Add("argument this", from.layout.ToText());
    agreement.Check(from.position->groups());
    local = plan->Run(std::move(local));
  }
  return DTensor(std::make_shared<State>(from.mesh, from.position,
                                         std::move(layout), std::move(local)));
}

DTensor DTensor::FullTensor() const {
  return Redistribute(std::vector<Placement>(placements().size()));
}

Tensor DTensor::ToLocal() const { return state_->local.tensor; }
const DeviceMesh& DTensor::mesh() const { return state_->mesh; }
const std::vector<int64_t>& DTensor::shape() const {
  return state_->layout.shape;
}
DataType DTensor::data_type() const { return state_->layout.data_type; }
const std::vector<Placement>& DTensor::placements() const {
  return state_->layout.placements;
}
TensorLayout DTensor::layout() const { return state_->layout; }
const ShardBox& DTensor::box() const { return state_->box; }

std::string DTensor::ToText() const {
  return absl::StrCat(state_->layout.ToText(), " on ", state_->mesh.ToString());
}

namespace {

// Whether there is something to fill.
bool CheckFill(const DTensor& tensor) {
  if (!internal::IsFloat(tensor.data_type())) {
    Invalid(
        absl::StrCat("random numbers are float16, bfloat16, float32 or "
                     "float64, the tensor is ",
                     tensor.ToText()));
  }
  for (const Placement& placement : tensor.placements()) {
    if (!placement.is_partial()) continue;
    Invalid(absl::StrCat("no random numbers for a sum that is to be made: ",
                         tensor.ToText()));
  }
  const Tensor local = tensor.ToLocal();
  if (local.device().type != DeviceType::kCpu) {
    internal::Throw(
        ErrorSource::kControl,
        UnimplementedError(absl::StrCat(
            "no random numbers on ", dataplane::DeviceName(local.device()))));
  }
  return local.element_count() > 0;
}

}  // namespace

void DTensor::FillUniform(uint64_t seed, double low, double high) {
  if (!(low <= high)) {
    Invalid(absl::StrCat("argument low: ", low, " is above high: ", high));
  }
  if (!CheckFill(*this)) return;
  internal::FillUniform(ToLocal(), box(), shape(), seed, low, high);
}

void DTensor::FillNormal(uint64_t seed, double mean, double stddev) {
  if (!(stddev >= 0)) {
    Invalid(absl::StrCat("argument stddev: ", stddev, " is negative"));
  }
  if (!CheckFill(*this)) return;
  internal::FillNormal(ToLocal(), box(), shape(), seed, mean, stddev);
}

}  // namespace muster
