#include "client/parallel/dtensor/redistribute.h"

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "client/control/throw.h"
#include "muster/base/status.h"

namespace muster::internal {
namespace {

using Kind = RedistributeStep::Kind;

// Which elements this rank exchanges with each rank of a group, by rank in the
// group, and where they lie in its tensor.
struct Parts {
  std::vector<ShardBox> boxes;
  std::vector<int64_t> counts;
  // The first element of each, if all lie one after the other in the tensor;
  // otherwise empty.
  std::vector<int64_t> displacements;
};

class Step {
 public:
  Step(const MeshPosition& mesh, const RedistributeStep& step,
       const std::vector<int64_t>& shape, std::vector<Placement> placements,
       OwnedTensor in, std::optional<Tensor> out = std::nullopt)
      : mesh_(mesh),
        step_(step),
        dim_(static_cast<size_t>(step.mesh_dim)),
        shape_(shape),
        before_(std::move(placements)),
        after_(before_),
        in_(std::move(in)),
        given_out_(std::move(out)),
        element_bytes_(in_.tensor.element_bytes()) {
    after_[dim_] = step.to;
    in_box_ = BoxAt(before_, mesh_.coordinate()[dim_]);
    out_box_ = BoxAt(after_, mesh_.coordinate()[dim_]);
  }

  OwnedTensor Run() {
    switch (step_.kind) {
      case Kind::kAllGather:
        return AllGather();
      case Kind::kReduceScatter:
        return ReduceScatter();
      case Kind::kAllReduce:
        return AllReduce();
      case Kind::kAllToAll:
        return AllToAll();
      case Kind::kSlice:
        return Slice();
      case Kind::kFill:
        return Fill();
    }
    return {};
  }

 private:
  ShardBox BoxAt(const std::vector<Placement>& placements,
                 int64_t index) const {
    return ComputeShardBox(shape_, placements, mesh_.shape(),
                           mesh_.CoordinateAlong(dim_, index));
  }

  ProcessGroup& group() const { return *mesh_.group(dim_); }

  OwnedTensor Allocate(const std::vector<int64_t>& shape) const {
    return AllocateTensor(in_.tensor.data_type(), shape);
  }

  OwnedTensor MakeOut() const {
    if (given_out_.has_value()) return {.tensor = *given_out_};
    return Allocate(out_box_.lengths);
  }

  void RequireHost() const {
    const Device device = in_.tensor.device();
    if (device.type != DeviceType::kCpu) {
      Throw(ErrorSource::kControl,
            UnimplementedError(absl::StrCat(
                "parts of a tensor on ", dataplane::DeviceName(device),
                " that are not contiguous, or are copied by the host")));
    }
  }

  void Copy(const void* from, const ShardBox& from_box, void* to,
            const ShardBox& to_box, const ShardBox& part) const {
    RequireHost();
    CopyBox(from, from_box, to, to_box, part, element_bytes_);
  }

  // The parts of `whole` that the other ranks have under `placements`.
  Parts FindParts(const ShardBox& whole,
                  const std::vector<Placement>& placements) const {
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

  // Copies parts of `tensor`, which has the elements of `whole`, one after the
  // other into a buffer, or from it.
  OwnedTensor Pack(const Parts& parts, const ShardBox& whole) const {
    OwnedTensor packed = AllocateFor(parts);
    auto* to = static_cast<std::byte*>(packed.tensor.data());
    for (const ShardBox& box : parts.boxes) {
      Copy(in_.tensor.data(), whole, to, box, box);
      to += static_cast<size_t>(box.element_count()) * element_bytes_;
    }
    return packed;
  }

  void Unpack(const OwnedTensor& packed, const Parts& parts,
              const ShardBox& whole, const OwnedTensor& to) const {
    const auto* from = static_cast<const std::byte*>(packed.tensor.data());
    for (const ShardBox& box : parts.boxes) {
      Copy(from, box, to.tensor.data(), whole, box);
      from += static_cast<size_t>(box.element_count()) * element_bytes_;
    }
  }

  OwnedTensor AllocateFor(const Parts& parts) const {
    int64_t count = 0;
    for (const int64_t one : parts.counts) count += one;
    return Allocate({count});
  }

  OwnedTensor AllGather() const {
    OwnedTensor out = MakeOut();
    const Parts parts = FindParts(out_box_, before_);
    if (!parts.displacements.empty()) {
      group().AllGatherV(out.tensor, in_.tensor, parts.counts,
                         {.displacements = parts.displacements});
      return out;
    }
    RequireHost();
    const OwnedTensor packed = AllocateFor(parts);
    group().AllGatherV(packed.tensor, in_.tensor, parts.counts);
    Unpack(packed, parts, out_box_, out);
    return out;
  }

  OwnedTensor ReduceScatter() const {
    OwnedTensor out = MakeOut();
    const Parts parts = FindParts(in_box_, after_);
    const ReduceOp op = step_.from.op();
    if (!parts.displacements.empty()) {
      group().ReduceScatterV(out.tensor, in_.tensor, parts.counts,
                             {.op = op, .displacements = parts.displacements});
      return out;
    }
    const OwnedTensor packed = Pack(parts, in_box_);
    group().ReduceScatterV(out.tensor, packed.tensor, parts.counts, {.op = op});
    return out;
  }

  OwnedTensor AllReduce() const {
    OwnedTensor out = MakeOut();
    if (in_.tensor.data() != out.tensor.data()) {
      Copy(in_.tensor.data(), in_box_, out.tensor.data(), out_box_, out_box_);
    }
    group().AllReduce(out.tensor, {.op = step_.from.op()});
    return out;
  }

  OwnedTensor AllToAll() const {
    const Parts given = FindParts(in_box_, after_);
    const Parts taken = FindParts(out_box_, before_);
    const OwnedTensor sent = Pack(given, in_box_);
    const OwnedTensor received = AllocateFor(taken);
    group().AllToAllSingle(received.tensor, sent.tensor,
                           {.output_split_sizes = taken.counts,
                            .input_split_sizes = given.counts});
    OwnedTensor out = MakeOut();
    Unpack(received, taken, out_box_, out);
    return out;
  }

  OwnedTensor Slice() const {
    if (!given_out_.has_value() && out_box_ == in_box_) return in_;
    OwnedTensor out = MakeOut();
    if (in_.tensor.data() != out.tensor.data()) {
      Copy(in_.tensor.data(), in_box_, out.tensor.data(), out_box_, out_box_);
    }
    return out;
  }

  OwnedTensor Fill() const {
    const ReduceOp op = step_.to.op();
    // Throws on all ranks if it throws on one that fills.
    FillPartial(Tensor(nullptr, in_.tensor.data_type(), {0}), op);
    const bool keeps_all = step_.from.is_replicate() &&
                           (mesh_.coordinate()[dim_] == 0 ||
                            (op != ReduceOp::kSum && op != ReduceOp::kProduct));
    if (keeps_all) return in_;
    OwnedTensor out = MakeOut();
    FillPartial(out.tensor, op);
    if (step_.from.is_shard()) {
      Copy(in_.tensor.data(), in_box_, out.tensor.data(), out_box_, in_box_);
    }
    return out;
  }

  const MeshPosition& mesh_;
  const RedistributeStep& step_;
  const size_t dim_;
  const std::vector<int64_t>& shape_;
  const std::vector<Placement> before_;
  std::vector<Placement> after_;
  const OwnedTensor in_;
  const std::optional<Tensor> given_out_;
  const size_t element_bytes_;
  ShardBox in_box_;
  ShardBox out_box_;
};

}  // namespace

void RunStep(const MeshPosition& mesh, const RedistributeStep& step,
             const std::vector<int64_t>& shape,
             const std::vector<Placement>& before, const Tensor& in,
             const Tensor& out) {
  Step(mesh, step, shape, before, {.tensor = in}, out).Run();
}

OwnedTensor RunPlan(const MeshPosition& mesh, const RedistributePlan& plan,
                    OwnedTensor local) {
  const Device device = local.tensor.device();
  if (!plan.steps.empty() && device.type != DeviceType::kCpu) {
    Throw(ErrorSource::kControl,
          UnimplementedError(absl::StrCat("a DTensor on ",
                                          dataplane::DeviceName(device),
                                          " cannot be redistributed")));
  }
  std::vector<Placement> placements = plan.from.placements;
  for (const RedistributeStep& step : plan.steps) {
    local =
        Step(mesh, step, plan.from.shape, placements, std::move(local)).Run();
    placements[static_cast<size_t>(step.mesh_dim)] = step.to;
  }
  return local;
}

}  // namespace muster::internal
