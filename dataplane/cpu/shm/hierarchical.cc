#include "dataplane/cpu/shm/hierarchical.h"

#include <algorithm>
#include <cstddef>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "base/exception_guard.h"
#include "base/serial_executor.h"
#include "base/status.h"
#include "dataplane/cpu/collectives/schedules.h"
#include "dataplane/cpu/collectives/selection.h"
#include "dataplane/cpu/shm/intra_host.h"
#include "dataplane/reduction.h"
#include "dataplane/releasable_lock.h"

namespace muster::dataplane::shm {
namespace {

using cpu::CutParts;
using cpu::kNotePayloadBytesMax;
using cpu::ToBlock;
using cpu::ToBlocks;
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

// The one tensor of which ranks read each other's parts; without data, where
// there are several.
Block GetWhole(const Collective& collective) {
  const CollectiveTraits& traits = GetTraits(collective.kind);
  if (traits.tensors == TensorList::kOne) return ToBlock(collective.tensors[0]);
  if (traits.outputs == TensorList::kWhole &&
      traits.inputs == TensorList::kOne) {
    return ToBlock(collective.outputs[0]);
  }
  if (traits.inputs == TensorList::kWhole &&
      traits.outputs == TensorList::kOne) {
    return ToBlock(collective.inputs[0]);
  }
  return {};
}

// One collective on this rank.
class HierarchicalRun {
 public:
  // `inter_host_group` is null on a rank that is in none.
  HierarchicalRun(const Collective& collective, const Topology& hosts,
                  ShmContext& context, InterHostGroup* inter_host_group,
                  const TellFailure& tell_failure,
                  std::vector<std::byte>& accumulators,
                  std::vector<std::byte>& results)
      : collective_(collective),
        topology_(hosts),
        inter_host_(inter_host_group),
        tell_failure_(tell_failure),
        place_(hosts.place()),
        type_(collective.data_type()),
        element_bytes_(DataTypeBytes(type_)),
        header_(MakeHeader(collective)),
        inside_(context, collective),
        accumulators_(accumulators),
        results_(results) {}

  // `is_symmetric`: checks whether the tensors are in symmetric memory.
  Status Run(bool is_symmetric);
  using KindFunction = Status (HierarchicalRun::*)();
  // Null for kinds that use the connections: those in which every byte has one
  // receiver, so it crosses between hosts once anyway.
  static KindFunction FindFunction(CollectiveKind kind);

  // After Run: whether the tensors were in symmetric memory.
  bool is_mapped() const { return inside_.is_mapped(); }

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
  Status GatherBetweenHosts(const Blocks& blocks, size_t bytes);
  Status GatherPacked(const Blocks& blocks, size_t bytes);

  // The number of inter-host groups that carry data of `bytes`.
  size_t InterHostGroupsFor(size_t bytes) const {
    return bytes <= kOneGroupBytesMax ? 1 : topology_.fewest();
  }
  bool IsOn(size_t inter_host_groups) const {
    return place_ < inter_host_groups;
  }
  // Empty block lists for the ranks of this host.
  std::vector<BlockList> NoBlockLists() const {
    return std::vector<BlockList>(topology_.neighbours().size());
  }
  // Part p of `whole` belongs to the rank at place p.
  std::vector<BlockList> InParts(const Block& whole,
                                 size_t inter_host_groups) const;
  // The most ranks of one host that an inter-host group serves: those at its
  // own place, and at every place that is a multiple of `inter_host_groups`
  // further.
  size_t Turns(size_t inter_host_groups) const {
    return (topology_.most() + inter_host_groups - 1) / inter_host_groups;
  }
  static std::byte* Room(std::vector<std::byte>& memory, size_t bytes) {
    if (memory.size() < bytes) memory.resize(bytes);
    return memory.data();
  }

  const Collective& collective_;
  const Topology& topology_;
  InterHostGroup* const inter_host_;
  const TellFailure& tell_failure_;
  const size_t place_;
  const DataType type_;
  const size_t element_bytes_;
  const MessageHeader header_;
  IntraHost inside_;
  std::vector<std::byte>& accumulators_;
  std::vector<std::byte>& results_;
};

Status HierarchicalRun::Run(bool is_symmetric) {
  Status status;
  if (is_symmetric) status = inside_.MeetAt(GetWhole(collective_));
  if (status.ok()) status = (this->*FindFunction(collective_.kind))();
  // Other ranks may still read from this one.
  return status.ok() && is_mapped() ? inside_.Meet() : status;
}

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

std::vector<BlockList> HierarchicalRun::InParts(
    const Block& whole, size_t inter_host_groups) const {
  std::vector<BlockList> block_lists = NoBlockLists();
  for (size_t i = 0; i < inter_host_groups; ++i) {
    block_lists[i] = {CutPart(whole, i, inter_host_groups, element_bytes_)};
  }
  return block_lists;
}

Status HierarchicalRun::Barrier() {
  Status status = inside_.Meet();
  if (status.ok() && IsOn(1)) status = inter_host_->Barrier(header_);
  return status.ok() ? inside_.Meet() : status;
}

Status HierarchicalRun::Broadcast() {
  const Block tensor = ToBlock(collective_.tensors[0]);
  const int root_host = topology_.host_of(collective_.root);
  const size_t inter_host_groups =
      InterHostGroupsFor(tensor.count * element_bytes_);
  Status status;
  if (topology_.own() == root_host) {
    std::vector<BlockList> block_lists = NoBlockLists();
    block_lists[topology_.place_of(collective_.root)] = {tensor};
    status = inside_.PublishWhole(block_lists);
  } else if (!inside_.has_met()) {
    // Meet before an inter-host group waits: ranks of a host that run different
    // collectives may use different inter-host groups.
    status = inside_.Meet();
  }
  const std::vector<BlockList> parts = InParts(tensor, inter_host_groups);
  if (status.ok() && IsOn(inter_host_groups)) {
    status =
        inter_host_->Broadcast(header_, type_, parts[place_][0], root_host);
  }
  if (!status.ok() || topology_.own() == root_host) return status;
  return inside_.PublishWhole(parts);
}

// First the ranks of a host exchange their blocks, then the inter-host groups
// carry them to the other hosts, and then the ranks there get them from their
// ranks of the inter-host groups.
Status HierarchicalRun::AllGather() {
  const Blocks blocks = ToBlocks(collective_.outputs, topology_.world_size());
  size_t bytes = 0;
  for (const Block& block : blocks) bytes += block.count * element_bytes_;
  const size_t inter_host_groups = InterHostGroupsFor(bytes);
  cpu::CopyBlock(blocks[topology_.neighbours()[place_]],
                 ToBlock(collective_.inputs[0]), element_bytes_);
  std::vector<BlockList> block_lists = NoBlockLists();
  for (size_t i = 0; i < block_lists.size(); ++i) {
    block_lists[i] = {blocks[topology_.neighbours()[i]]};
  }
  Status status = inside_.PublishWhole(block_lists);
  if (status.ok() && IsOn(inter_host_groups))
    status = GatherBetweenHosts(blocks, bytes);
  if (!status.ok()) return status;
  block_lists = NoBlockLists();
  for (int host = 0; host < topology_.count(); ++host) {
    if (host == topology_.own()) continue;
    const std::vector<int>& ranks = topology_.ranks(host);
    for (size_t i = 0; i < ranks.size(); ++i) {
      block_lists[i % inter_host_groups].push_back(blocks[ranks[i]]);
    }
  }
  return inside_.PublishWhole(block_lists);
}

Status HierarchicalRun::GatherBetweenHosts(const Blocks& blocks, size_t bytes) {
  if (bytes <= kOneGroupBytesMax) return GatherPacked(blocks, bytes);
  const size_t inter_host_groups = topology_.fewest();
  for (size_t turn = 0; turn < Turns(inter_host_groups); ++turn) {
    Blocks served(topology_.count());
    for (int host = 0; host < topology_.count(); ++host) {
      const int rank = topology_.At(host, place_ + turn * inter_host_groups);
      if (rank >= 0) served[host] = blocks[rank];
    }
    Status status = inter_host_->AllGather(header_, type_, served);
    if (!status.ok()) return status;
  }
  return OkStatus();
}

// Gathers all blocks of a host as one.
Status HierarchicalRun::GatherPacked(const Blocks& blocks, size_t bytes) {
  std::byte* next = Room(results_, bytes);
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
  Status status = inter_host_->AllGather(header_, type_, packed);
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
        const std::vector<BlockList> parts = parts_of(i);
        const Block part = IsOn(inter_host_groups) ? parts[place_][0] : Block{};
        std::byte* const sums =
            reduction.in_place() ? part.data : memory + i % 2 * room;
        done = inside_.Combine(reduction, parts, sums);
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
      if (done.ok()) done = inside_.PublishWhole(parts_of(i - 1));
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
  std::vector<BlockList> parts = InParts(piece, inter_host_groups);
  const Block part = IsOn(inter_host_groups) ? parts[place_][0] : Block{};
  const Block sums = {
      Room(accumulators_, part.count * reduction.accumulator_bytes()),
      part.count};
  Status status = inside_.Combine(reduction, parts, sums.data);
  if (status.ok() && IsOn(inter_host_groups)) {
    status = inter_host_->Reduce(header_, MakeSum(reduction, collective_), sums,
                                 topology_.host_of(root));
  }
  if (!status.ok() || topology_.own() != topology_.host_of(root)) return status;
  if (IsOn(inter_host_groups)) {
    reduction.Finish(sums.data, sums.count, topology_.world_size());
    Block& result = parts[place_][0];
    if (!is_root) result.data = Room(results_, part.count * element_bytes_);
    reduction.Store(result.data, sums.data, sums.count);
  }
  return inside_.Publish(parts, is_root);
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
  std::vector<BlockList> wanted = NoBlockLists();
  // The results for the ranks of this host.
  std::vector<BlockList> results = NoBlockLists();
  Blocks sums(topology_.count());
  for (int host = 0; host < topology_.count(); ++host) {
    const std::vector<int>& ranks = topology_.ranks(host);
    for (size_t inter_host_group = 0; inter_host_group < inter_host_groups;
         ++inter_host_group) {
      for (size_t i = inter_host_group; i < ranks.size();
           i += inter_host_groups) {
        const Block& input = inputs[ranks[i]];
        wanted[inter_host_group].push_back(input);
        if (inter_host_group == place_) sums[host].count += input.count;
        if (host != topology_.own()) continue;
        results[inter_host_group].push_back(
            {i == place_ ? output.data : nullptr, input.count});
      }
    }
  }
  std::byte* next =
      Room(accumulators_,
           IsOn(inter_host_groups) ? CountElements(wanted[place_]) * bytes : 0);
  Status status = inside_.Combine(reduction, wanted, next);
  if (status.ok() && IsOn(inter_host_groups)) {
    for (Block& sum : sums) {
      sum.data = next;
      next += sum.count * bytes;
    }
    const Block& own = sums[topology_.own()];
    status = inter_host_->ReduceScatter(header_,
                                        MakeSum(reduction, collective_), sums);
    if (!status.ok()) return status;
    reduction.Finish(own.data, own.count, topology_.world_size());
    std::byte* stored = Room(results_, own.count * element_bytes_);
    std::byte* sum = own.data;
    for (Block& result : results[place_]) {
      if (result.data == nullptr) {
        result.data = stored;
        stored += result.count * element_bytes_;
      }
      reduction.Store(result.data, sum, result.count);
      sum += result.count * bytes;
    }
  }
  // The same on all ranks of this host.
  if (!status.ok() || topology_.neighbours().size() == inter_host_groups)
    return status;
  return inside_.Publish(results, !IsOn(inter_host_groups));
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
               .writes_past_caches = traits.writes_past_caches} {
  const auto place = static_cast<size_t>(topology_.place());
  if (place < topology_.fewest())
    inter_host_.emplace(transport, InterHostRanks(topology_, place));
}

bool Hierarchical::LooksForSymmetric(const Collective& collective) const {
  if (!context_.has_regions || GetWhole(collective).data == nullptr)
    return false;
  return cpu::SelectAlgorithm(collective.kind,
                              {.medium = Medium::kSymmetricMemory,
                               .world_size = round_buffer_.world_size(),
                               .is_crowded = traits_.round_buffer.is_crowded,
                               .bytes = collective.bytes()},
                              traits_.algorithm) == Algorithm::kSymmetric;
}

bool Hierarchical::Takes(const Collective& collective) const {
  return HierarchicalRun::FindFunction(collective.kind) != nullptr;
}

Status Hierarchical::Run(const Collective& collective, Backend::Prepared*,
                         ReleasableLock* order) {
  if (order != nullptr) order->Release();
  context_.Begin(*regions_);
  context_.Say(collective);
  HierarchicalRun run(collective, topology_, context_,
                      inter_host_.has_value() ? &*inter_host_ : nullptr,
                      tell_failure_, accumulators_, results_);
  Status done = run.Run(LooksForSymmetric(collective));
  transport_.set_algorithm(run.is_mapped() ? "two_levels_symmetric"
                                           : "two_levels");
  context_.history.Add(*context_.header, context_.sequence,
                       History::ComputeDigest(*context_.header));
  if (!done.ok()) return done;
  // See ShmCollectives::Run.
  const int failed = round_buffer_.FindFailed();
  return failed < 0 ? done : near_.Gone(failed);
}

}  // namespace muster::dataplane::shm
