#include "dataplane/cpu/shm/hierarchical.h"

#include <algorithm>
#include <cstddef>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "base/exception_guard.h"
#include "base/serial_executor.h"
#include "dataplane/cpu/collectives/schedules.h"
#include "dataplane/cpu/collectives/selection.h"
#include "dataplane/cpu/shm/direct.h"
#include "dataplane/cpu/shm/staged.h"
#include "dataplane/reduction.h"
#include "muster/base/status.h"

namespace muster::dataplane::shm {
namespace {

using cpu::CutParts;
using cpu::kNotePayloadBytesMax;
using cpu::ToBlock;
using cpu::ToBlocks;
using cpu::ToTensor;
using cpu::ToTensors;
using cpu::Transport;

// Up to this size one inter-host group carries everything, with the fewest
// messages. Beyond, each group carries a part.
constexpr size_t kOneGroupBytesMax = kNotePayloadBytesMax;

// The bytes of accumulators at a time, if they are not in the tensor: so many
// that the overhead of a piece does not count.
constexpr size_t kAccumulatorBytes = 16 << 20;

// As kAccumulatorBytes, for each inter-host group in an all_reduce.
constexpr size_t kGroupPieceBytes = 4 << 20;

std::vector<int> InterHostRanks(const Topology& hosts,
                                size_t inter_host_group) {
  std::vector<int> ranks;
  ranks.reserve(hosts.count());
  for (int host = 0; host < hosts.count(); ++host) {
    ranks.push_back(hosts.At(host, inter_host_group));
  }
  return ranks;
}

// The reduction of unfinished accumulators in the inter-host groups.
Sum MakeSum(const Reduction& reduction, const Collective& collective) {
  const ReduceOp op = collective.reduce_op;
  const bool adds = op == ReduceOp::kAvg || op == ReduceOp::kPremulSum;
  return {.type = reduction.in_place() ? collective.data_type()
                                       : DataType::kFloat32,
          .op = adds ? ReduceOp::kSum : op};
}

// The header of `collective`, the same on all ranks of its group.
MessageHeader MakeHeader(const Collective& collective) {
  MessageHeader header = MessageHeader::Of(collective);
  // Input sizes must agree here. Kinds with a size per rank have a hash of all
  // sizes instead.
  if (GetTraits(collective.kind).outputs == TensorList::kWhole) {
    header.element_count = collective.inputs[0].element_count();
  }
  return header;
}

// One collective on this rank.
class HierarchicalRun {
 public:
  // `inter_host_group` is null on a rank that is in none. `is_symmetric`: steps
  // go through symmetric memory if the tensors are there.
  HierarchicalRun(const Collective& collective, const Topology& hosts,
                  ShmContext& context, InterHostGroup* inter_host_group,
                  bool is_symmetric, const TellFailure& tell_failure,
                  std::vector<std::byte>& accumulators,
                  std::vector<std::byte>& results)
      : collective_(collective),
        topology_(hosts),
        context_(context),
        inter_host_(inter_host_group),
        tell_failure_(tell_failure),
        place_(hosts.place()),
        type_(collective.data_type()),
        element_bytes_(DataTypeBytes(type_)),
        header_(context.made),
        is_symmetric_(is_symmetric),
        accumulators_(accumulators),
        results_(results) {}

  Status Run() { return (this->*FindFunction(collective_.kind))(); }
  using KindFunction = Status (HierarchicalRun::*)();
  // Null for kinds that use the connections: those in which every byte has one
  // receiver, so it crosses between hosts once anyway.
  static KindFunction FindFunction(CollectiveKind kind);

  // After Run: whether a step went through symmetric memory.
  bool was_symmetric() const { return was_symmetric_; }

 private:
  Status Barrier();
  Status Broadcast();
  Status AllGather();
  Status AllReduce();
  Status ReduceBetweenHosts(const Reduction& reduction, std::byte* accumulators,
                            const Block& part);
  // If `status` is an error, ends the waits of this rank's other thread.
  Status Tell(Status status) const {
    if (!status.ok()) tell_failure_(collective_, status);
    return status;
  }
  Status Reduce();
  Status ReducePiece(const Reduction& reduction, const Block& piece,
                     size_t inter_host_groups);
  Status ReduceScatter();
  Status ReduceScatterPiece(const Reduction& reduction, const Blocks& inputs,
                            const Block& output);
  Status GatherPacked(const Blocks& blocks, size_t bytes);

  // The steps within this host run as they would in a group on one host. In its
  // first round each step checks that all ranks run the same collective. Blocks
  // are by place.
  Status RunOnHost(const Collective& step);
  Status MeetOnHost() { return RunOnHost({}); }
  // `parts`: the inputs for the part that each rank combines. Writes this
  // rank's part to `accumulators`, which may be its block if
  // reduction.in_place(), combined in rank order and not finished.
  Status CombineOnHost(const Reduction& reduction, const Blocks& parts,
                       std::byte* accumulators);
  // Gives `give` to the other ranks, and takes theirs into `take`, except where
  // that has no data.
  Status GatherOnHost(const Block& give, Blocks take);
  // As above; this rank gives its own block.
  Status GatherOnHost(const Blocks& blocks) {
    return GatherOnHost(blocks[place_], blocks);
  }

  // The number of inter-host groups that carry data of `bytes`.
  size_t InterHostGroupsFor(size_t bytes) const {
    return bytes <= kOneGroupBytesMax ? 1 : topology_.fewest();
  }
  bool IsOn(size_t inter_host_groups) const {
    return place_ < inter_host_groups;
  }
  // Empty blocks for the ranks of this host.
  Blocks NoBlocks() const { return Blocks(topology_.neighbours().size()); }
  // Part p of `whole` belongs to the rank at place p.
  Blocks InParts(const Block& whole, size_t inter_host_groups) const;
  // An inter-host group serves, turn by turn, the ranks at its own place and at
  // every place that is a multiple of the number of groups further. This is
  // what it serves on `host`: the blocks, of `blocks` by rank, of the first
  // ranks, of the next ones, ...
  Blocks InTurn(const Blocks& blocks, int host, size_t turn) const;
  // The number of turns for the host with the most ranks.
  size_t turns() const {
    return (topology_.most() + topology_.fewest() - 1) / topology_.fewest();
  }
  static std::byte* Room(std::vector<std::byte>& memory, size_t bytes) {
    if (memory.size() < bytes) memory.resize(bytes);
    return memory.data();
  }

  const Collective& collective_;
  const Topology& topology_;
  ShmContext& context_;
  InterHostGroup* const inter_host_;
  const TellFailure& tell_failure_;
  const size_t place_;
  const DataType type_;
  const size_t element_bytes_;
  const MessageHeader header_;
  // The same on all ranks of this host.
  bool is_symmetric_;
  bool was_symmetric_ = false;
  std::vector<std::byte>& accumulators_;
  std::vector<std::byte>& results_;
};

HierarchicalRun::KindFunction HierarchicalRun::FindFunction(
    CollectiveKind kind) {
  switch (GetTraits(kind).list_form) {
    case CollectiveKind::kBarrier:
      return &HierarchicalRun::Barrier;
    case CollectiveKind::kBroadcast:
      return &HierarchicalRun::Broadcast;
    case CollectiveKind::kAllGather:
      return &HierarchicalRun::AllGather;
    case CollectiveKind::kAllReduce:
      return &HierarchicalRun::AllReduce;
    case CollectiveKind::kReduce:
      return &HierarchicalRun::Reduce;
    case CollectiveKind::kReduceScatter:
      return &HierarchicalRun::ReduceScatter;
    default:
      return nullptr;
  }
}

Status HierarchicalRun::RunOnHost(const Collective& step) {
  if (topology_.neighbours().size() == 1) return OkStatus();
  if (is_symmetric_ && step.kind != CollectiveKind::kBarrier) {
    StatusOr<bool> done = RunSingleCopy(context_, step, Scope::kInRegions);
    if (!done.ok()) return done.status();
    was_symmetric_ = was_symmetric_ || *done;
    // If the first step's tensors are elsewhere, the others' mostly are.
    is_symmetric_ = was_symmetric_;
    if (*done) return OkStatus();
  }
  return FindStaged(step.kind)(context_, step);
}

Status HierarchicalRun::CombineOnHost(const Reduction& reduction,
                                      const Blocks& parts,
                                      std::byte* accumulators) {
  const Block& own = parts[place_];
  if (parts.size() == 1) {
    reduction.Load(accumulators, own.data, own.count, collective_.factor);
    return OkStatus();
  }
  const DataType type = MakeSum(reduction, collective_).type;
  return RunOnHost({.kind = CollectiveKind::kReduceScatter,
                    .inputs = ToTensors(parts, type_),
                    .outputs = {ToTensor({accumulators, own.count}, type)},
                    .reduce_op = collective_.reduce_op,
                    .factor = collective_.factor});
}

Status HierarchicalRun::GatherOnHost(const Block& give, Blocks take) {
  take[place_] = give;
  return RunOnHost({.kind = CollectiveKind::kAllGather,
                    .inputs = {ToTensor(give, type_)},
                    .outputs = ToTensors(take, type_)});
}

Blocks HierarchicalRun::InParts(const Block& whole,
                                size_t inter_host_groups) const {
  Blocks parts = NoBlocks();
  for (size_t i = 0; i < inter_host_groups; ++i) {
    parts[i] = CutPart(whole, i, inter_host_groups, element_bytes_);
  }
  return parts;
}

Blocks HierarchicalRun::InTurn(const Blocks& blocks, int host,
                               size_t turn) const {
  Blocks served = NoBlocks();
  for (size_t i = 0; i < topology_.fewest(); ++i) {
    const int rank = topology_.At(host, i + turn * topology_.fewest());
    if (rank >= 0) served[i] = blocks[rank];
  }
  return served;
}

Status HierarchicalRun::Barrier() {
  Status status = MeetOnHost();
  if (status.ok() && IsOn(1)) status = inter_host_->Barrier(header_);
  return status.ok() ? MeetOnHost() : status;
}

Status HierarchicalRun::Broadcast() {
  const Block tensor = ToBlock(collective_.tensors[0]);
  const int root_host = topology_.host_of(collective_.root);
  const size_t inter_host_groups =
      InterHostGroupsFor(tensor.count * element_bytes_);
  Blocks whole = NoBlocks();
  if (topology_.own() == root_host) {
    whole[topology_.place_of(collective_.root)] = tensor;
  }
  // All ranks of a host meet before an inter-host group waits: ranks that run
  // different collectives may use different inter-host groups.
  Status status =
      topology_.own() == root_host ? GatherOnHost(whole) : MeetOnHost();
  const Blocks parts = InParts(tensor, inter_host_groups);
  if (status.ok() && IsOn(inter_host_groups)) {
    status = inter_host_->Broadcast(header_, type_, parts[place_], root_host);
  }
  if (!status.ok() || topology_.own() == root_host) return status;
  return GatherOnHost(parts);
}

// First the ranks of a host exchange their blocks, then the inter-host groups
// carry them to the other hosts, and then the ranks there get them from their
// ranks of the inter-host groups.
Status HierarchicalRun::AllGather() {
  const Blocks blocks = ToBlocks(collective_.outputs, topology_.world_size());
  size_t bytes = 0;
  for (const Block& block : blocks) bytes += block.count * element_bytes_;
  cpu::CopyBlock(blocks[topology_.neighbours()[place_]],
                 ToBlock(collective_.inputs[0]), element_bytes_);
  Blocks near;
  for (const int rank : topology_.neighbours()) near.push_back(blocks[rank]);
  Status status = GatherOnHost(near);
  if (status.ok() && bytes <= kOneGroupBytesMax) {
    return GatherPacked(blocks, bytes);
  }
  for (size_t turn = 0; turn < turns() && status.ok(); ++turn) {
    std::vector<Blocks> served;
    for (int host = 0; host < topology_.count(); ++host) {
      served.push_back(InTurn(blocks, host, turn));
    }
    if (IsOn(topology_.fewest())) {
      Blocks own;
      for (const Blocks& on_host : served) own.push_back(on_host[place_]);
      status = inter_host_->AllGather(header_, type_, own);
    }
    for (int host = 0; host < topology_.count() && status.ok(); ++host) {
      if (host != topology_.own()) status = GatherOnHost(served[host]);
    }
  }
  return status;
}

// One inter-host group gathers all blocks of a host as one.
Status HierarchicalRun::GatherPacked(const Blocks& blocks, size_t bytes) {
  std::byte* next = Room(results_, bytes);
  const Block all = {next, bytes / element_bytes_};
  Blocks packed(topology_.count());
  for (int host = 0; host < topology_.count(); ++host) {
    packed[host].data = next;
    for (const int rank : topology_.ranks(host)) {
      const Block& block = blocks[rank];
      if (host == topology_.own()) {
        cpu::CopyBlock({next, block.count}, block, element_bytes_);
      }
      packed[host].count += block.count;
      next += block.count * element_bytes_;
    }
  }
  Status status;
  if (IsOn(1)) status = inter_host_->AllGather(header_, type_, packed);
  if (status.ok()) status = GatherOnHost(InParts(all, 1));
  if (!status.ok()) return status;
  for (int host = 0; host < topology_.count(); ++host) {
    next = packed[host].data;
    for (const int rank : topology_.ranks(host)) {
      const Block& block = blocks[rank];
      if (host != topology_.own()) {
        cpu::CopyBlock(block, {next, block.count}, element_bytes_);
      }
      next += block.count * element_bytes_;
    }
  }
  return OkStatus();
}

// While the inter-host groups reduce one piece, the host reduces the next.
Status HierarchicalRun::AllReduce() {
  const Reduction& reduction = Reduction::Of(type_, collective_.reduce_op);
  const Block tensor = ToBlock(collective_.tensors[0]);
  const size_t bytes = reduction.accumulator_bytes();
  const size_t inter_host_groups = InterHostGroupsFor(tensor.count * bytes);
  const size_t per_piece = inter_host_groups * kGroupPieceBytes / bytes;
  const size_t pieces = ChunksFor(tensor.count, per_piece);
  const auto parts_of = [&](size_t piece) {
    return InParts(CutChunk(tensor, piece, per_piece, element_bytes_),
                   inter_host_groups);
  };
  // Room for the piece between hosts and for the next one.
  const size_t room =
      reduction.in_place()
          ? 0
          : std::min(per_piece / inter_host_groups + 1, tensor.count) * bytes;
  std::byte* const memory = Room(accumulators_, 2 * room);
  std::optional<SerialExecutor> executor;
  if (pieces > 1 && IsOn(inter_host_groups)) executor.emplace();
  Status status = Guarded([&] {
    Status done;
    for (size_t i = 0; i <= pieces && done.ok(); ++i) {
      if (i < pieces) {
        const Blocks parts = parts_of(i);
        const Block part = parts[place_];
        std::byte* const sums =
            reduction.in_place() ? part.data : memory + i % 2 * room;
        done = CombineOnHost(reduction, parts, sums);
        if (done.ok() && executor.has_value()) {
          executor->Post([this, &reduction, sums, part] {
            return Tell(ReduceBetweenHosts(reduction, sums, part));
          });
        } else if (done.ok() && IsOn(inter_host_groups)) {
          done = ReduceBetweenHosts(reduction, sums, part);
        }
      }
      if (i == 0 || !done.ok()) continue;
      if (executor.has_value()) done = executor->Await(i);
      if (done.ok()) done = GatherOnHost(parts_of(i - 1));
    }
    return done;
  });
  // Tell before the executor is destroyed, which waits for its running task:
  // that task may wait for a rank that has not begun.
  return executor.has_value() ? Tell(std::move(status)) : status;
}

// Computes this inter-host group's `part` of the result.
Status HierarchicalRun::ReduceBetweenHosts(const Reduction& reduction,
                                           std::byte* accumulators,
                                           const Block& part) {
  const Sum sum = MakeSum(reduction, collective_);
  const size_t bytes = reduction.accumulator_bytes();
  const Block whole = {accumulators, part.count};
  if (reduction.in_place() || part.count * bytes <= kOneGroupBytesMax) {
    Status status = inter_host_->AllReduce(header_, sum, whole);
    if (!status.ok()) return status;
    reduction.Finish(accumulators, part.count, topology_.world_size());
    reduction.Store(part.data, accumulators, part.count);
    return status;
  }
  // Elements travel back, which are smaller than accumulators. They are rounded
  // once, where they are finished.
  const Blocks sums = CutParts(whole, topology_.count(), bytes);
  const Blocks elements = CutParts(part, topology_.count(), element_bytes_);
  const Block& own = sums[topology_.own()];
  Status status = inter_host_->ReduceScatter(header_, sum, sums);
  if (!status.ok()) return status;
  reduction.Finish(own.data, own.count, topology_.world_size());
  reduction.Store(elements[topology_.own()].data, own.data, own.count);
  return inter_host_->AllGather(header_, type_, elements);
}

Status HierarchicalRun::Reduce() {
  const Reduction& reduction = Reduction::Of(type_, collective_.reduce_op);
  const Block tensor = ToBlock(collective_.tensors[0]);
  const size_t bytes = reduction.accumulator_bytes();
  const size_t inter_host_groups = InterHostGroupsFor(tensor.count * bytes);
  const size_t per_piece = kAccumulatorBytes / bytes;
  const size_t pieces = ChunksFor(tensor.count, per_piece);
  for (size_t i = 0; i < pieces; ++i) {
    Status status =
        ReducePiece(reduction, CutChunk(tensor, i, per_piece, element_bytes_),
                    inter_host_groups);
    if (!status.ok()) return status;
  }
  return OkStatus();
}

// Ranks other than the root keep their tensors unchanged.
Status HierarchicalRun::ReducePiece(const Reduction& reduction,
                                    const Block& piece,
                                    size_t inter_host_groups) {
  const int root = collective_.root;
  const bool is_root = topology_.neighbours()[place_] == root;
  Blocks parts = InParts(piece, inter_host_groups);
  Block part = parts[place_];
  const Block sums = {
      Room(accumulators_, part.count * reduction.accumulator_bytes()),
      part.count};
  Status status = CombineOnHost(reduction, parts, sums.data);
  if (status.ok() && IsOn(inter_host_groups)) {
    status = inter_host_->Reduce(header_, MakeSum(reduction, collective_), sums,
                                 topology_.host_of(root));
  }
  if (!status.ok() || topology_.own() != topology_.host_of(root)) return status;
  if (IsOn(inter_host_groups)) {
    reduction.Finish(sums.data, sums.count, topology_.world_size());
    if (!is_root) part.data = Room(results_, part.count * element_bytes_);
    reduction.Store(part.data, sums.data, sums.count);
  }
  if (!is_root) {
    for (Block& each : parts) each.data = nullptr;
  }
  return GatherOnHost(part, std::move(parts));
}

Status HierarchicalRun::ReduceScatter() {
  const Reduction& reduction = Reduction::Of(type_, collective_.reduce_op);
  const Blocks inputs = ToBlocks(collective_.inputs, topology_.world_size());
  const Block output = ToBlock(collective_.outputs[0]);
  size_t most = 0;
  for (const Block& input : inputs) most = std::max(most, input.count);
  const size_t per_piece = std::max<size_t>(
      1, kAccumulatorBytes / reduction.accumulator_bytes() / inputs.size());
  const size_t pieces = ChunksFor(most, per_piece);
  Blocks of_piece(inputs.size());
  for (size_t i = 0; i < pieces; ++i) {
    for (size_t rank = 0; rank < inputs.size(); ++rank) {
      of_piece[rank] = CutChunk(inputs[rank], i, per_piece, element_bytes_);
    }
    Status status = ReduceScatterPiece(
        reduction, of_piece, CutChunk(output, i, per_piece, element_bytes_));
    if (!status.ok()) return status;
  }
  return OkStatus();
}

// An inter-host group reduces the outputs of the ranks that it serves, host by
// host.
Status HierarchicalRun::ReduceScatterPiece(const Reduction& reduction,
                                           const Blocks& inputs,
                                           const Block& output) {
  const size_t inter_host_groups = topology_.fewest();
  const size_t bytes = reduction.accumulator_bytes();
  size_t count = 0;
  for (int host = 0; host < topology_.count(); ++host) {
    for (size_t turn = 0; turn < turns(); ++turn) {
      count += InTurn(inputs, host, turn)[place_].count;
    }
  }
  std::byte* next = Room(accumulators_, count * bytes);
  Blocks sums;
  for (int host = 0; host < topology_.count(); ++host) {
    sums.push_back({next, 0});
    for (size_t turn = 0; topology_.At(host, turn * inter_host_groups) >= 0;
         ++turn) {
      const Blocks parts = InTurn(inputs, host, turn);
      Status status = CombineOnHost(reduction, parts, next);
      if (!status.ok()) return status;
      sums.back().count += parts[place_].count;
      next += parts[place_].count * bytes;
    }
  }
  const Block& own = sums[topology_.own()];
  // The results of the turns after the first belong to other ranks.
  std::byte* result = own.data;
  if (IsOn(inter_host_groups)) {
    Status status = inter_host_->ReduceScatter(
        header_, MakeSum(reduction, collective_), sums);
    if (!status.ok()) return status;
    reduction.Finish(own.data, own.count, topology_.world_size());
    reduction.Store(output.data, own.data, output.count);
    result += output.count * bytes;
  }
  for (size_t turn = 1;
       topology_.At(topology_.own(), turn * inter_host_groups) >= 0; ++turn) {
    Blocks take = InTurn(inputs, topology_.own(), turn);
    for (size_t i = 0; i < inter_host_groups; ++i) {
      take[i].data =
          i + turn * inter_host_groups == place_ ? output.data : nullptr;
    }
    Block give = take[place_];
    if (IsOn(inter_host_groups)) {
      give.data = Room(results_, give.count * element_bytes_);
      reduction.Store(give.data, result, give.count);
      result += give.count * bytes;
    }
    Status status = GatherOnHost(give, std::move(take));
    if (!status.ok()) return status;
  }
  return OkStatus();
}

}  // namespace

Hierarchical::Hierarchical(std::shared_ptr<Segment> segment,
                           std::shared_ptr<const Regions> regions,
                           const Topology& hosts, Transport& transport,
                           const ShmTraits& traits, TellFailure tell_failure)
    : segment_(std::move(segment)),
      regions_(std::move(regions)),
      topology_(hosts),
      transport_(transport),
      near_(transport, topology_.neighbours()),
      round_buffer_(
          segment_->memory(), near_.rank(), near_.world_size(),
          traits.round_buffer,
          [this, &transport](int place) {
            transport.set_waiting_for(place < 0 ? -1
                                                : near_.RankInGroup(place));
          },
          [this](size_t offset, size_t bytes) {
            return segment_->Reserve(offset, bytes);
          }),
      traits_(traits),
      tell_failure_(std::move(tell_failure)),
      context_{.round_buffer = round_buffer_,
               .transport = near_,
               .regions = RegionFinder(*regions_),
               .writes_past_caches = traits.writes_past_caches,
               .runs_steps = true} {
  const auto place = static_cast<size_t>(topology_.place());
  if (place < topology_.fewest())
    inter_host_.emplace(transport, InterHostRanks(topology_, place));
}

bool Hierarchical::LooksForSymmetric(const Collective& collective) const {
  return context_.has_regions &&
         cpu::SelectAlgorithm(collective.kind,
                              {.medium = Medium::kSymmetricMemory,
                               .world_size = round_buffer_.world_size(),
                               .is_crowded = traits_.round_buffer.is_crowded,
                               .bytes = collective.bytes()},
                              traits_.algorithm) == Algorithm::kSymmetric;
}

bool Hierarchical::Takes(const Collective& collective) const {
  return HierarchicalRun::FindFunction(collective.kind) != nullptr;
}

Status Hierarchical::Run(const Collective& collective, Backend::Prepared*) {
  context_.Begin(*regions_);
  context_.made = MakeHeader(collective);
  context_.Say(context_.made, collective.sequence);
  HierarchicalRun run(collective, topology_, context_,
                      inter_host_.has_value() ? &*inter_host_ : nullptr,
                      LooksForSymmetric(collective), tell_failure_,
                      accumulators_, results_);
  Status done = run.Run();
  transport_.set_algorithm(run.was_symmetric() ? "two_levels_symmetric"
                                               : "two_levels");
  context_.history.Add(*context_.header, context_.sequence,
                       History::ComputeDigest(*context_.header));
  if (!done.ok()) return done;
  // See ShmCollectives::Run.
  const int failed = round_buffer_.FindFailed();
  return failed < 0 ? done : near_.Gone(failed);
}

}  // namespace muster::dataplane::shm
