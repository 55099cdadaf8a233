#include "client/parallel/dtensor/redistribute.h"

#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "client/control/throw.h"
#include "muster/base/status.h"

namespace muster::internal {

using Kind = RedistributeStep::Kind;

PreparedStep::PreparedStep(const MeshPosition& mesh,
                           const RedistributeStep& step,
                           const std::vector<int64_t>& shape,
                           const std::vector<Placement>& before,
                           const Tensor& in, const std::optional<Tensor>& out)
    : mesh_(mesh),
      step_(step),
      dim_(static_cast<size_t>(step.mesh_dim)),
      shape_(shape),
      type_(in.data_type()),
      device_(in.device()),
      element_bytes_(in.element_bytes()) {
  std::vector<Placement> after = before;
  after[dim_] = step.to;
  in_box_ = BoxAt(before, mesh_.coordinate()[dim_]);
  out_box_ = BoxAt(after, mesh_.coordinate()[dim_]);
  const bool copies =
      !out.has_value() || out->data() != in.data() || !(out_box_ == in_box_);
  bool writes_out = true;
  switch (step_.kind) {
    case Kind::kAllGather:
      taken_ = FindParts(out_box_, before);
      if (taken_.displacements.empty()) received_ = AllocateFor(taken_);
      break;
    case Kind::kReduceScatter:
      given_ = FindParts(in_box_, after);
      if (given_.displacements.empty()) packed_ = AllocateFor(given_);
      break;
    case Kind::kAllToAll:
      given_ = FindParts(in_box_, after);
      taken_ = FindParts(out_box_, before);
      packed_ = AllocateFor(given_);
      received_ = AllocateFor(taken_);
      break;
    case Kind::kAllReduce:
      if (copies) RequireHost();
      break;
    case Kind::kSlice:
      writes_out = out.has_value() || !(out_box_ == in_box_);
      if (writes_out && copies) RequireHost();
      break;
    case Kind::kFill:
      writes_out = !KeepsAll();
      break;
  }
  if (!writes_out) return;
  out_ = out.has_value() ? OwnedTensor{.tensor = *out}
                         : AllocateTensor(type_, out_box_.lengths);
}

// Whether a fill changes nothing on this rank.
bool PreparedStep::KeepsAll() const {
  const ReduceOp op = step_.to.op();
  // Throws on all ranks if it throws on one that fills.
  FillPartial(Tensor(nullptr, type_, {0}), op);
  return step_.from.is_replicate() &&
         (mesh_.coordinate()[dim_] == 0 ||
          (op != ReduceOp::kSum && op != ReduceOp::kProduct));
}

ShardBox PreparedStep::BoxAt(const std::vector<Placement>& placements,
                             int64_t index) const {
  return ComputeShardBox(shape_, placements, mesh_.shape(),
                         mesh_.CoordinateAlong(dim_, index));
}

void PreparedStep::RequireHost() const {
  if (device_.type == DeviceType::kCpu) return;
  Throw(ErrorSource::kControl,
        UnimplementedError(absl::StrCat(
            "parts of a tensor on ", dataplane::DeviceName(device_),
            " that are not contiguous, or are copied by the host")));
}

// The parts of `whole` that the other ranks have under `placements`.
PreparedStep::Parts PreparedStep::FindParts(
    const ShardBox& whole, const std::vector<Placement>& placements) const {
  const auto ranks = static_cast<size_t>(mesh_.shape()[dim_]);
  Parts parts = {std::vector<ShardBox>(ranks), std::vector<int64_t>(ranks),
                 std::vector<int64_t>(ranks)};
  bool is_contiguous = true;
  for (size_t i = 0; i < ranks; ++i) {
    const auto rank =
        static_cast<size_t>(mesh_.GroupRank(dim_, static_cast<int64_t>(i)));
    parts.boxes[rank] =
        Intersect(whole, BoxAt(placements, static_cast<int64_t>(i)));
    parts.counts[rank] = parts.boxes[rank].element_count();
    const auto first = FindContiguous(whole, parts.boxes[rank]);
    parts.displacements[rank] = first.value_or(0);
    is_contiguous = is_contiguous && first.has_value();
  }
  if (!is_contiguous) parts.displacements.clear();
  return parts;
}

// A buffer that has the parts one after the other.
OwnedTensor PreparedStep::AllocateFor(const Parts& parts) const {
  RequireHost();
  int64_t count = 0;
  for (const int64_t one : parts.counts) count += one;
  return AllocateTensor(type_, {count});
}

void PreparedStep::Pack(const Tensor& in) const {
  auto* to = static_cast<std::byte*>(packed_.tensor.data());
  for (const ShardBox& box : given_.boxes) {
    CopyBox(in.data(), in_box_, to, box, box, element_bytes_);
    to += static_cast<size_t>(box.element_count()) * element_bytes_;
  }
}

void PreparedStep::Unpack() const {
  const auto* from = static_cast<const std::byte*>(received_.tensor.data());
  for (const ShardBox& box : taken_.boxes) {
    CopyBox(from, box, out_->tensor.data(), out_box_, box, element_bytes_);
    from += static_cast<size_t>(box.element_count()) * element_bytes_;
  }
}

void PreparedStep::CopyToOut(const Tensor& in, const ShardBox& part) const {
  if (in.data() == out_->tensor.data()) return;
  CopyBox(in.data(), in_box_, out_->tensor.data(), out_box_, part,
          element_bytes_);
}

void PreparedStep::AllGather(const Tensor& in) const {
  if (!taken_.displacements.empty()) {
    group().AllGatherV(out_->tensor, in, taken_.counts,
                       {.displacements = taken_.displacements});
    return;
  }
  group().AllGatherV(received_.tensor, in, taken_.counts);
  Unpack();
}

void PreparedStep::ReduceScatter(const Tensor& in) const {
  const ReduceOp op = step_.from.op();
  if (!given_.displacements.empty()) {
    group().ReduceScatterV(out_->tensor, in, given_.counts,
                           {.op = op, .displacements = given_.displacements});
    return;
  }
  Pack(in);
  group().ReduceScatterV(out_->tensor, packed_.tensor, given_.counts,
                         {.op = op});
}

void PreparedStep::AllToAll(const Tensor& in) const {
  Pack(in);
  group().AllToAllSingle(received_.tensor, packed_.tensor,
                         {.output_split_sizes = taken_.counts,
                          .input_split_sizes = given_.counts});
  Unpack();
}

OwnedTensor PreparedStep::Run(const OwnedTensor& in) {
  if (!out_.has_value()) return in;
  switch (step_.kind) {
    case Kind::kAllGather:
      AllGather(in.tensor);
      break;
    case Kind::kReduceScatter:
      ReduceScatter(in.tensor);
      break;
    case Kind::kAllReduce:
      CopyToOut(in.tensor, out_box_);
      group().AllReduce(out_->tensor, {.op = step_.from.op()});
      break;
    case Kind::kAllToAll:
      AllToAll(in.tensor);
      break;
    case Kind::kSlice:
      CopyToOut(in.tensor, out_box_);
      break;
    case Kind::kFill:
      FillPartial(out_->tensor, step_.to.op());
      if (step_.from.is_shard()) CopyToOut(in.tensor, in_box_);
      break;
  }
  return *out_;
}

PreparedPlan::PreparedPlan(const MeshPosition& mesh,
                           const RedistributePlan& plan, Device device) {
  if (!plan.steps.empty() && device.type != DeviceType::kCpu) {
    Throw(ErrorSource::kControl,
          UnimplementedError(absl::StrCat("a DTensor on ",
                                          dataplane::DeviceName(device),
                                          " cannot be redistributed")));
  }
  std::vector<Placement> placements = plan.from.placements;
  for (const RedistributeStep& step : plan.steps) {
    steps_.emplace_back(mesh, step, plan.from.shape, placements,
                        Tensor(nullptr, plan.from.data_type, {0}));
    placements[static_cast<size_t>(step.mesh_dim)] = step.to;
  }
}

OwnedTensor PreparedPlan::Run(OwnedTensor local) {
  for (; !steps_.empty(); steps_.pop_front()) {
    local = steps_.front().Run(local);
  }
  return local;
}

}  // namespace muster::internal
