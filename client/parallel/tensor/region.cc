// Regions, by the steps of DTensor's redistribution along the group.

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "client/control/throw.h"
#include "client/parallel/agreement/agreement.h"
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
using dataplane::CollectiveKind;

enum class Move { kNothing, kAllReduce, kAllGather, kOwnPart, kReduceScatter };

struct Dual {
  Move forward;
  Move backward;
};

// Empty: there is no such region.
std::optional<Dual> FindDual(Region region) {
  switch (region) {
    case Region::kCopy:
      return Dual{Move::kNothing, Move::kAllReduce};
    case Region::kReduce:
      return Dual{Move::kAllReduce, Move::kNothing};
    case Region::kGather:
      return Dual{Move::kAllGather, Move::kOwnPart};
    case Region::kScatter:
      return Dual{Move::kOwnPart, Move::kAllGather};
    case Region::kGatherSequence:
      return Dual{Move::kAllGather, Move::kReduceScatter};
    case Region::kReduceScatterSequence:
      return Dual{Move::kReduceScatter, Move::kAllGather};
  }
  return std::nullopt;
}

std::string RegionText(Region region) {
  switch (region) {
    case Region::kCopy:
      return "kCopy";
    case Region::kReduce:
      return "kReduce";
    case Region::kGather:
      return "kGather";
    case Region::kScatter:
      return "kScatter";
    case Region::kGatherSequence:
      return "kGatherSequence";
    case Region::kReduceScatterSequence:
      return "kReduceScatterSequence";
  }
  return absl::StrCat(static_cast<int>(region));
}

CollectiveKind FindKind(Move move) {
  switch (move) {
    case Move::kAllGather:
      return CollectiveKind::kAllGather;
    case Move::kReduceScatter:
      return CollectiveKind::kReduceScatter;
    default:
      return CollectiveKind::kAllReduce;
  }
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

// One rank's side of a region.
struct Sides {
  const char* output_name;
  const Tensor& output;
  const char* input_name;
  const Tensor& input;
};

// Checks the arguments, and prepares the step.
internal::PreparedStep Prepare(Move move, const Sides& sides, int dim,
                               const internal::MeshPosition& mesh) {
  const auto& [output_name, output, input_name, input] = sides;
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
  RedistributeStep step = MakeStep(move, dim);
  const Placement& cut = is_output_whole ? step.from : step.to;
  const ShardBox part =
      ComputeShardBox(shape, {cut}, mesh.shape(), mesh.coordinate());
  internal::CheckShape(is_output_whole ? input_name : output_name,
                       is_output_whole ? input : output, part.lengths, {});
  // One rank has all parts.
  if (mesh.shape()[0] == 1) step.kind = Kind::kSlice;
  return {mesh, step, shape, {step.from}, input, output};
}

void Run(const char* function, Region region, Move Dual::*direction,
         const Sides& sides, const TensorParallelOptions& options) {
  const auto group = internal::FindGroup(options, function);
  if (group == nullptr) return;
  const internal::MeshPosition mesh(group);
  const auto dual = FindDual(region);
  const Move move = dual.has_value() ? (*dual).*direction : Move::kAllReduce;
  std::optional<internal::PreparedStep> step;
  const auto check = [&](internal::Agreement& agreement) {
    if (!dual.has_value()) {
      Invalid(absl::StrCat("argument region: ", RegionText(region)));
    }
    step.emplace(Prepare(move, sides, options.dim, mesh));
    const bool is_output_whole = move == Move::kAllGather;
    agreement.Add("argument region", RegionText(region));
    agreement.Add("argument dim", absl::StrCat(options.dim));
    agreement.Add(absl::StrCat("argument ", is_output_whole ? sides.output_name
                                                            : sides.input_name),
                  internal::DescribeForAllRanks(is_output_whole ? sides.output
                                                                : sides.input));
  };
  if (move == Move::kNothing || move == Move::kOwnPart) {
    // Needs no other rank.
    internal::Agreement alone(function);
    check(alone);
  } else {
    internal::CheckOnAllRanks(group, function, FindKind(move), options, check);
  }
  step->Run(sides.input);
}

}  // namespace

void RegionForward(Region region, const Tensor& output, const Tensor& input,
                   const TensorParallelOptions& options) {
  Run("RegionForward", region, &Dual::forward,
      {"output", output, "input", input}, options);
}

void RegionBackward(Region region, const Tensor& input_gradient,
                    const Tensor& output_gradient,
                    const TensorParallelOptions& options) {
  Run("RegionBackward", region, &Dual::backward,
      {"input_gradient", input_gradient, "output_gradient", output_gradient},
      options);
}

}  // namespace muster
