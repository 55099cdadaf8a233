// The kinds of collectives and the table of their traits. Code that treats
// kinds alike reads the table; a backend that has one algorithm per kind has
// one switch.

#ifndef MUSTER_DATAPLANE_COLLECTIVE_KIND_H_
#define MUSTER_DATAPLANE_COLLECTIVE_KIND_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>

#include "muster/base/export.h"

namespace MUSTER_EXPORT muster {
namespace dataplane {

// Element r of a list of inputs or outputs belongs to rank r of the group. A
// rank's own input may be the same memory as its own part of the output, for
// instance inputs[0] a part of outputs[0]; no other overlap is allowed.
//
// The numbers of kinds never change (ArgumentsHash): a new kind comes last.
enum class CollectiveKind : uint8_t {
  // tensors[0] of every rank becomes the reduction of all of them.
  kAllReduce,
  // tensors[0] of every rank becomes tensors[0] of `root`.
  kBroadcast,
  // No rank completes before every rank has started.
  kBarrier,
  // tensors[0] of `root` becomes the reduction of all of them. On the other
  // ranks it does not change.
  kReduce,
  // outputs[r] becomes inputs[0] of rank r. Sizes may differ between ranks.
  kAllGather,
  // outputs[0] becomes the concatenation of all ranks' inputs[0].
  kAllGatherIntoTensor,
  // On `root`: outputs[r] becomes inputs[0] of rank r. Other ranks have no
  // outputs. All tensors have one size.
  kGather,
  // outputs[0] becomes inputs[rank] of `root`. Other ranks have no inputs. All
  // tensors have one size.
  kScatter,
  // outputs[0] becomes the reduction of all ranks' inputs[rank]. Sizes may
  // differ.
  kReduceScatter,
  // inputs[0] is cut into equal parts; outputs[0] becomes the reduction of part
  // number rank of all ranks.
  kReduceScatterTensor,
  // outputs[r] becomes inputs[rank] of rank r. Sizes may differ.
  kAllToAll,
  // As kAllToAll, with one input and one output, cut along dimension 0 by the
  // splits.
  kAllToAllSingle,

  // Point to point: not ordered with the collectives above, and numbered apart.
  // Messages from one rank to another with the same `tag` arrive in the order
  // of their sends. A rank may send to itself.
  //
  // inputs[0] goes to rank `peer`. Complete when the tensor may be used again.
  kSend,
  // outputs[0] becomes the message of rank `peer`, or of any rank (kAnyPeer);
  // Work::source_rank() is the sender.
  kRecv,
};

inline constexpr int kCollectiveKindCount = 14;

// The contents of one of a collective's three lists of tensors.
enum class TensorList : uint8_t {
  kEmpty,
  // One tensor, which is this rank's part.
  kOne,
  // One tensor: the concatenation of all ranks' parts.
  kWhole,
  // One tensor for each rank.
  kPerRank,
  // kPerRank on the root, kEmpty on the other ranks.
  kPerRankOnRoot,
};

struct CollectiveTraits {
  CollectiveKind kind;
  // The name in c10d.
  const char* name;
  // Collective::tensors (which it works on in place), inputs and outputs.
  TensorList tensors = TensorList::kEmpty;
  TensorList inputs = TensorList::kEmpty;
  TensorList outputs = TensorList::kEmpty;
  bool reduces = false;
  bool has_root = false;
  // True for kSend and kRecv.
  bool is_point_to_point = false;
  // Parts of different ranks may have different sizes.
  bool is_uneven = false;
  // Several may be coalesced into one (coalescing.h).
  bool can_coalesce = false;
  // The equivalent kind that has kPerRank lists in place of kWhole ones; by
  // default the kind itself. A backend that cuts whole tensors into parts needs
  // only this kind.
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
      // For a number that is not a kind.
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

// Accepts any number, because a kind may have come from a peer.
constexpr const CollectiveTraits& GetTraits(CollectiveKind kind) {
  const auto index = static_cast<size_t>(kind);
  return kCollectiveTraits[index < kCollectiveKindCount ? index
                                                        : kCollectiveKindCount];
}

// The name in the table. The string is never destroyed.
const std::string& CollectiveKindName(CollectiveKind kind);

// Whether the collective reduces, and so has a `reduce_op`.
constexpr bool IsReduction(CollectiveKind kind) {
  return GetTraits(kind).reduces;
}

// Whether it has a `root`.
constexpr bool IsRooted(CollectiveKind kind) {
  return GetTraits(kind).has_root;
}

constexpr bool IsPointToPoint(CollectiveKind kind) {
  return GetTraits(kind).is_point_to_point;
}

// Whether the list has one part per rank.
constexpr bool HasParts(TensorList list) {
  return list != TensorList::kEmpty && list != TensorList::kOne;
}

// Whether a rank sends a different part to each rank.
constexpr bool GivesEachItsOwn(CollectiveKind kind) {
  return HasParts(GetTraits(kind).inputs);
}

// Whether a rank receives a different part from each rank.
constexpr bool TakesFromEach(CollectiveKind kind) {
  return HasParts(GetTraits(kind).outputs);
}

constexpr bool IsAllToAll(CollectiveKind kind) {
  return GivesEachItsOwn(kind) && TakesFromEach(kind);
}

// Whether parts may differ in size and every rank knows all the sizes.
constexpr bool KnowsAllSizes(CollectiveKind kind) {
  return GetTraits(kind).is_uneven && !IsAllToAll(kind);
}

// Whether it has input_splits and output_splits.
constexpr bool HasSplits(CollectiveKind kind) {
  return GetTraits(kind).is_uneven &&
         GetTraits(kind).inputs == TensorList::kWhole;
}

constexpr bool HasTensors(CollectiveKind kind) {
  const CollectiveTraits& traits = GetTraits(kind);
  return traits.tensors != TensorList::kEmpty ||
         traits.inputs != TensorList::kEmpty ||
         traits.outputs != TensorList::kEmpty;
}

}  // namespace dataplane
}  // namespace muster

#endif  // MUSTER_DATAPLANE_COLLECTIVE_KIND_H_
