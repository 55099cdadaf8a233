// The kinds of collectives, and the one table of what each of them is. Code
// that treats kinds alike asks this table; code that has an algorithm for each
// has one switch for each backend.

#ifndef MUSTER_DATAPLANE_COLLECTIVE_KIND_H_
#define MUSTER_DATAPLANE_COLLECTIVE_KIND_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>

namespace muster::dataplane {

// In lists of inputs or outputs, number r belongs to rank r of the group.
// A rank's own part may be the same memory as what it becomes part of, for
// instance inputs[0] a part of outputs[0]; nothing else may overlap.
enum class CollectiveKind : uint8_t {
  // tensors[0] of every rank becomes the reduction of all of them.
  kAllReduce,
  // tensors[0] of every rank becomes that of `root`.
  kBroadcast,
  // No rank completes before every rank has started.
  kBarrier,
  // tensors[0] of `root` becomes the reduction of all of them. That of others
  // stays as it is.
  kReduce,
  // outputs[r] becomes inputs[0] of rank r; of any sizes.
  kAllGather,
  // outputs[0] becomes all ranks' inputs[0], one after the other.
  kAllGatherIntoTensor,
  // On `root`: outputs[r] becomes inputs[0] of rank r. Others have no outputs.
  // All of one size.
  kGather,
  // outputs[0] becomes inputs[rank] of `root`. Others have no inputs. All of
  // one size.
  kScatter,
  // outputs[0] becomes the reduction of all ranks' inputs[rank]; of any sizes.
  kReduceScatter,
  // outputs[0] becomes the reduction of the rank-th of equal parts of all
  // ranks' inputs[0].
  kReduceScatterTensor,
  // outputs[r] becomes inputs[rank] of rank r; of any sizes.
  kAllToAll,
  // The same with one tensor each, cut along dimension 0 by the splits.
  kAllToAllSingle,

  // Point to point: not ordered with what stands above, and numbered apart.
  // Messages of one rank to another with one `tag` arrive in the order of their
  // sends. A rank may send to itself.
  //
  // inputs[0] goes to rank `peer`. Complete when the tensor may be used again.
  kSend,
  // outputs[0] becomes what rank `peer` sends, or kAnyPeer does; the handle's
  // source_rank() says who.
  kRecv,
};

inline constexpr int kCollectiveKindCount = 14;

// What one of a collective's three lists of tensors holds.
enum class TensorList : uint8_t {
  kEmpty,
  // One tensor, which is this rank's part.
  kOne,
  // One tensor: the parts of all ranks, one after the other.
  kWhole,
  // One tensor for each rank.
  kPerRank,
  // The same on the root; on other ranks the list is empty.
  kPerRankOnRoot,
};

struct CollectiveTraits {
  CollectiveKind kind;
  // c10d's name.
  const char* name;
  // Collective::tensors (which it works on in place), inputs and outputs.
  TensorList tensors = TensorList::kEmpty;
  TensorList inputs = TensorList::kEmpty;
  TensorList outputs = TensorList::kEmpty;
  bool reduces = false;
  bool has_root = false;
  // It is a kSend or kRecv.
  bool is_point_to_point = false;
  // Parts of different ranks may have different sizes.
  bool is_uneven = false;
  // Several may be coalesced into one (coalescing.h).
  bool can_coalesce = false;
  // The kind that does the same with kPerRank lists in place of kWhole ones.
  // Backends that cut whole tensors into parts need only that one.
  // By default the kind itself.
  CollectiveKind list_form = CollectiveKind(kCollectiveKindCount);
};

// In the order of CollectiveKind.
inline constexpr auto kCollectiveTraits = [] {
  using enum CollectiveKind;
  using enum TensorList;
  auto kinds = std::to_array<CollectiveTraits>({
      {.kind = kAllReduce,
       .name = "all_reduce",
       .tensors = kOne,
       .reduces = true,
       .can_coalesce = true},
      {.kind = kBroadcast,
       .name = "broadcast",
       .tensors = kOne,
       .has_root = true},
      {.kind = kBarrier, .name = "barrier"},
      {.kind = kReduce,
       .name = "reduce",
       .tensors = kOne,
       .reduces = true,
       .has_root = true},
      {.kind = kAllGather,
       .name = "all_gather",
       .inputs = kOne,
       .outputs = kPerRank,
       .is_uneven = true,
       .can_coalesce = true},
      {.kind = kAllGatherIntoTensor,
       .name = "all_gather_into_tensor",
       .inputs = kOne,
       .outputs = kWhole,
       .can_coalesce = true,
       .list_form = kAllGather},
      {.kind = kGather,
       .name = "gather",
       .inputs = kOne,
       .outputs = kPerRankOnRoot,
       .has_root = true},
      {.kind = kScatter,
       .name = "scatter",
       .inputs = kPerRankOnRoot,
       .outputs = kOne,
       .has_root = true},
      {.kind = kReduceScatter,
       .name = "reduce_scatter",
       .inputs = kPerRank,
       .outputs = kOne,
       .reduces = true,
       .is_uneven = true},
      {.kind = kReduceScatterTensor,
       .name = "reduce_scatter_tensor",
       .inputs = kWhole,
       .outputs = kOne,
       .reduces = true,
       .can_coalesce = true,
       .list_form = kReduceScatter},
      {.kind = kAllToAll,
       .name = "all_to_all",
       .inputs = kPerRank,
       .outputs = kPerRank,
       .is_uneven = true},
      {.kind = kAllToAllSingle,
       .name = "all_to_all_single",
       .inputs = kWhole,
       .outputs = kWhole,
       .is_uneven = true,
       .list_form = kAllToAll},
      {.kind = kSend,
       .name = "send",
       .inputs = kOne,
       .is_point_to_point = true},
      {.kind = kRecv,
       .name = "recv",
       .outputs = kOne,
       .is_point_to_point = true},
      // Traits of a number that is no kind.
      {.kind = CollectiveKind(kCollectiveKindCount),
       .name = "unknown collective"},
  });
  for (CollectiveTraits& traits : kinds) {
    if (traits.list_form == CollectiveKind(kCollectiveKindCount)) {
      traits.list_form = traits.kind;
    }
  }
  return kinds;
}();

consteval bool AreInOrder() {
  for (size_t i = 0; i < kCollectiveTraits.size(); ++i) {
    if (kCollectiveTraits[i].kind != CollectiveKind(i)) return false;
  }
  return kCollectiveTraits.size() == kCollectiveKindCount + 1;
}
static_assert(AreInOrder());

// Of any number: a kind may have come from a peer.
constexpr const CollectiveTraits& TraitsOf(CollectiveKind kind) {
  const auto index = static_cast<size_t>(kind);
  return kCollectiveTraits[index < kCollectiveKindCount ? index
                                                        : kCollectiveKindCount];
}

// The name in the table; it lives as long as the process.
const std::string& CollectiveKindName(CollectiveKind kind);

// Whether the collective reduces, and so has a `reduce_op`.
constexpr bool IsReduction(CollectiveKind kind) {
  return TraitsOf(kind).reduces;
}

// Whether it has a `root`.
constexpr bool IsRooted(CollectiveKind kind) { return TraitsOf(kind).has_root; }

constexpr bool IsPointToPoint(CollectiveKind kind) {
  return TraitsOf(kind).is_point_to_point;
}

// Whether the list has a part for each rank.
constexpr bool HasParts(TensorList list) {
  return list != TensorList::kEmpty && list != TensorList::kOne;
}

// Kinds in which a rank has for each other one what that one alone gets.
constexpr bool GivesEachItsOwn(CollectiveKind kind) {
  return HasParts(TraitsOf(kind).inputs);
}

// Kinds in which a rank takes from each other one what that one alone has.
constexpr bool TakesFromEach(CollectiveKind kind) {
  return HasParts(TraitsOf(kind).outputs);
}

// Kinds in which it does both.
constexpr bool IsAllToAll(CollectiveKind kind) {
  return GivesEachItsOwn(kind) && TakesFromEach(kind);
}

// Kinds in which every rank knows the sizes of all ranks' parts, which may
// differ.
constexpr bool KnowsAllSizes(CollectiveKind kind) {
  return TraitsOf(kind).is_uneven && !IsAllToAll(kind);
}

// Whether it has input_splits and output_splits.
constexpr bool HasSplits(CollectiveKind kind) {
  return TraitsOf(kind).is_uneven &&
         TraitsOf(kind).inputs == TensorList::kWhole;
}

constexpr bool HasTensors(CollectiveKind kind) {
  const CollectiveTraits& traits = TraitsOf(kind);
  return traits.tensors != TensorList::kEmpty ||
         traits.inputs != TensorList::kEmpty ||
         traits.outputs != TensorList::kEmpty;
}

}  // namespace muster::dataplane

#endif  // MUSTER_DATAPLANE_COLLECTIVE_KIND_H_
