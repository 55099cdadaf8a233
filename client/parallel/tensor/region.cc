// Regions, by the steps of DTensor's redistribution along the group.

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <vector>

#include "absl/strings/str_cat.h"
#include "client/control/throw.h"
#include "client/parallel/dtensor/mesh_position.h"
#include "client/parallel/dtensor/redistribute.h"
#include "client/parallel/tensor/arguments.h"
#include "muster/base/status.h"
#include "muster/placement.h"
#include "muster/tensor_parallel.h"

namespace muster {
namespace {

using internal::Invalid;
using Kind = RedistributeStep::Kind;

enum class Move { kNothing, kAllReduce, kAllGather, kOwnPart, kReduceScatter };

struct Dual {
  Move forward;
  Move backward;
};

Dual FindDual(Region region) {
  switch (region) {
    case Region::kCopy:
      return {Move::kNothing, Move::kAllReduce};
    case Region::kReduce:
      return {Move::kAllReduce, Move::kNothing};
    case Region::kGather:
      return {Move::kAllGather, Move::kOwnPart};
    case Region::kScatter:
      return {Move::kOwnPart, Move::kAllGather};
    case Region::kGatherSequence:
      return {Move::kAllGather, Move::kReduceScatter};
    case Region::kReduceScatterSequence:
      return {Move::kReduceScatter, Move::kAllGather};
  }
  Invalid(absl::StrCat("argument region: ", static_cast<int>(region)));
}

RedistributeStep MakeStep(Move move, int dim) {
  switch (move) {
    case Move::kAllReduce:
      return {.kind = Kind::kAllReduce, .from = Partial(), .to = Replicate()};
    case Move::kAllGather:
      return {.kind = Kind::kAllGather, .from = Shard(dim), .to = Replicate()};
    case Move::kReduceScatter:
      return {
          .kind = Kind::kReduceScatter, .from = Partial(), .to = Shard(dim)};
    case Move::kNothing:
    case Move::kOwnPart:
      break;
  }
  return {.kind = Kind::kSlice,
          .from = Replicate(),
          .to = move == Move::kNothing ? Replicate() : Shard(dim)};
}

void Run(Move move, const char* output_name, const Tensor& output,
         const char* input_name, const Tensor& input,
         const TensorParallelOptions& options, const char* function) {
  const auto group = internal::FindGroup(options, function);
  if (group == nullptr) return;
  internal::CheckValid(output_name, output);
  internal::CheckValid(input_name, input);
  internal::CheckSameType(output_name, output, input_name, input);
  if (!(output.device() == input.device())) {
    Invalid(absl::StrCat("argument ", output_name, ": ", output.Describe(),
                         ", but ", input_name, " is ", input.Describe()));
  }
  const bool is_output_whole = move == Move::kAllGather;
  const auto whole = is_output_whole ? output.shape() : input.shape();
  const std::vector<int64_t> shape(whole.begin(), whole.end());
  RedistributeStep step = MakeStep(move, options.dim);
  const Placement& cut = is_output_whole ? step.from : step.to;
  const std::vector<int64_t> mesh_shape = {group->size()};
  CheckLayout({.shape = shape, .placements = {cut}}, mesh_shape);
  const ShardBox part =
      ComputeShardBox(shape, {cut}, mesh_shape, {group->rank()});
  internal::CheckShape(is_output_whole ? input_name : output_name,
                       is_output_whole ? input : output, part.lengths, {});
  // One rank has all parts.
  if (group->size() == 1) step.kind = Kind::kSlice;
  internal::RunStep(internal::MeshPosition(group), step, shape, {step.from},
                    input, output);
}

}  // namespace

void RegionForward(Region region, const Tensor& output, const Tensor& input,
                   const TensorParallelOptions& options) {
  Run(FindDual(region).forward, "output", output, "input", input, options,
      "RegionForward");
}

void RegionBackward(Region region, const Tensor& input_gradient,
                    const Tensor& output_gradient,
                    const TensorParallelOptions& options) {
  Run(FindDual(region).backward, "input_gradient", input_gradient,
      "output_gradient", output_gradient, options, "RegionBackward");
}

}  // namespace muster
