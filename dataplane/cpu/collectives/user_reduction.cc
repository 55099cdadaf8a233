#include "dataplane/cpu/collectives/user_reduction.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <utility>

#include "dataplane/blocks.h"

namespace muster::dataplane::cpu {
namespace {

// Up to this size of all ranks' tensors together, each rank combines
// everything: one step instead of two.
constexpr size_t kGatheredBytesMax = 128 << 10;

// The bytes of a tensor that are moved and combined at once: they stay in a
// cache, and are so many that the overhead of a step does not count.
constexpr size_t kPieceBytes = 4 << 20;

class Run {
 public:
  Run(const Collective& collective, int rank, int world_size,
      UserReduction::RunStep run_step, RankOrderOperands& operands)
      : collective_(collective),
        rank_(rank),
        world_size_(world_size),
        run_step_(run_step),
        operands_(operands),
        element_bytes_(collective.function_element_bytes()),
        units_(collective.opaque_bytes > 0 ? element_bytes_ : 1) {}

  // An empty all_gather: all ranks compare what they reduce.
  Status Meet();
  // AllReduce and Reduce of small tensors.
  Status Gathered();
  // AllReduce and Reduce in which each rank combines a part.
  Status ByParts();
  Status ReduceScatter();

 private:
  // Blocks count elements of the function; tensors of steps count those of
  // their type, `units_` in one.
  Block ToElements(const Tensor& tensor) const {
    return {static_cast<std::byte*>(tensor.data()),
            static_cast<size_t>(tensor.element_count()) / units_};
  }
  Tensor ToTensor(const Block& block) const {
    return Tensor(block.data, collective_.data_type(),
                  {static_cast<int64_t>(block.count * units_)});
  }
  Collective::Tensors ToTensors(const Blocks& blocks) const {
    Collective::Tensors tensors;
    for (const Block& block : blocks) tensors.push_back(ToTensor(block));
    return tensors;
  }
  // Room for `count` elements of each rank, by rank.
  Blocks MakeOperands(size_t count) {
    operands_.Reset(world_size_, count, element_bytes_);
    Blocks blocks;
    for (int peer = 0; peer < world_size_; ++peer) {
      blocks.push_back({operands_.of(peer), count});
    }
    return blocks;
  }
  // Combines the operands.
  StatusOr<Block> Combine(size_t count) {
    const auto result = operands_.Combine(collective_.function, rank_);
    if (!result.ok()) return result.status();
    return Block{const_cast<std::byte*>(*result), count};
  }
  void Copy(const Block& to, const Block& from) const {
    CopyBlock(to, from, element_bytes_);
  }
  Status Step(CollectiveKind kind, Collective::Tensors inputs,
              Collective::Tensors outputs) const;
  // Gives each rank its block of `give`, combines what comes for this rank,
  // whose block has `count` elements, and returns that.
  StatusOr<Block> ScatterAndCombine(const Blocks& give, size_t count);
  Status PieceByParts(const Block& piece);

  bool IsRoot() const { return rank_ == collective_.root; }
  bool IsToRoot() const { return IsRooted(collective_.kind); }

  const Collective& collective_;
  const int rank_;
  const int world_size_;
  const UserReduction::RunStep run_step_;
  RankOrderOperands& operands_;
  const size_t element_bytes_;
  const size_t units_;
};

Status Run::Step(CollectiveKind kind, Collective::Tensors inputs,
                 Collective::Tensors outputs) const {
  Collective step;
  step.kind = kind;
  step.inputs = std::move(inputs);
  step.outputs = std::move(outputs);
  step.root = collective_.root;
  step.step_of = &collective_;
  step.opaque_bytes = collective_.opaque_bytes;
  step.timeout = collective_.timeout;
  step.started = collective_.started;
  step.deadline = collective_.deadline;
  step.sequence = collective_.sequence;
  return run_step_(step);
}

Status Run::Meet() {
  return Step(CollectiveKind::kAllGather, {ToTensor({})},
              ToTensors(Blocks(world_size_)));
}

Status Run::Gathered() {
  const Block tensor = ToElements(collective_.tensors[0]);
  Status status;
  if (IsToRoot()) {
    Collective::Tensors outputs;
    if (IsRoot()) outputs = ToTensors(MakeOperands(tensor.count));
    status =
        Step(CollectiveKind::kGather, {ToTensor(tensor)}, std::move(outputs));
    if (!IsRoot()) return status;
  } else {
    // One tensor takes less time to make than a list.
    operands_.Reset(world_size_, tensor.count, element_bytes_);
    const size_t all = tensor.count * static_cast<size_t>(world_size_);
    status = Step(CollectiveKind::kAllGatherIntoTensor, {ToTensor(tensor)},
                  {ToTensor({operands_.of(0), all})});
  }
  if (!status.ok()) return status;
  const auto result = Combine(tensor.count);
  if (!result.ok()) return result.status();
  Copy(tensor, *result);
  return OkStatus();
}

StatusOr<Block> Run::ScatterAndCombine(const Blocks& give, size_t count) {
  Status status = Step(CollectiveKind::kAllToAll, ToTensors(give),
                       ToTensors(MakeOperands(count)));
  if (!status.ok()) return status;
  return Combine(count);
}

Status Run::PieceByParts(const Block& piece) {
  Blocks parts = CutParts(piece, world_size_, element_bytes_);
  const Block own = parts[rank_];
  const auto result = ScatterAndCombine(parts, own.count);
  if (!result.ok()) return result.status();
  if (!IsToRoot()) {
    Copy(own, *result);
    return Step(CollectiveKind::kAllGather, {ToTensor(own)}, ToTensors(parts));
  }
  // The other ranks keep their tensors unchanged. Parts differ in size, so this
  // is no gather.
  Blocks give(world_size_);
  give[collective_.root] = *result;
  if (!IsRoot()) parts.assign(world_size_, Block());
  return Step(CollectiveKind::kAllToAll, ToTensors(give), ToTensors(parts));
}

Status Run::ByParts() {
  const Block tensor = ToElements(collective_.tensors[0]);
  const size_t per_piece =
      std::max(kPieceBytes / element_bytes_, static_cast<size_t>(world_size_));
  const size_t pieces = ChunksFor(tensor.count, per_piece);
  for (size_t i = 0; i < pieces; ++i) {
    Status status =
        PieceByParts(CutChunk(tensor, i, per_piece, element_bytes_));
    if (!status.ok()) return status;
  }
  return OkStatus();
}

Status Run::ReduceScatter() {
  Blocks inputs;
  for (const Block& input : ToBlocks(collective_.inputs, world_size_)) {
    inputs.push_back({input.data, input.count / units_});
  }
  const Block output = ToElements(collective_.outputs[0]);
  size_t most = 0;
  for (const Block& input : inputs) most = std::max(most, input.count);
  const size_t per_piece = std::max<size_t>(
      kPieceBytes / element_bytes_ / static_cast<size_t>(world_size_), 1);
  const size_t pieces = ChunksFor(most, per_piece);
  Blocks give(world_size_);
  for (size_t i = 0; i < pieces; ++i) {
    for (int peer = 0; peer < world_size_; ++peer) {
      give[peer] = CutChunk(inputs[peer], i, per_piece, element_bytes_);
    }
    const Block own = CutChunk(output, i, per_piece, element_bytes_);
    const auto result = ScatterAndCombine(give, own.count);
    if (!result.ok()) return result.status();
    Copy(own, *result);
  }
  return OkStatus();
}

}  // namespace

Status UserReduction::Run(const Collective& collective, int rank,
                          int world_size, bool meets_first, RunStep run_step,
                          const char*& algorithm) {
  if (world_size == 1) {
    if (!collective.tensors.empty()) return OkStatus();
    CopyBlock(ToBlock(collective.outputs[0]), ToBlock(collective.inputs[0]),
              collective.outputs[0].element_bytes());
    return OkStatus();
  }
  cpu::Run run(collective, rank, world_size, run_step, operands_);
  const bool is_gathered =
      !collective.tensors.empty() &&
      collective.tensors[0].bytes() <=
          kGatheredBytesMax / static_cast<size_t>(world_size);
  // A small all_reduce begins with an all_gather anyway.
  if (meets_first && !(is_gathered && !IsRooted(collective.kind))) {
    Status met = run.Meet();
    if (!met.ok()) return met;
  }
  if (collective.tensors.empty()) {
    algorithm = "scattered";
    return run.ReduceScatter();
  }
  if (is_gathered) {
    algorithm = "gathered";
    return run.Gathered();
  }
  algorithm = "by_parts";
  return run.ByParts();
}

}  // namespace muster::dataplane::cpu
