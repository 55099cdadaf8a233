#ifndef MUSTER_DATAPLANE_PLANS_H_
#define MUSTER_DATAPLANE_PLANS_H_

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "dataplane/collective.h"
#include "dataplane/tensor.h"

namespace muster::dataplane {

// Plans remembers collectives that a group has run. Most programs run a few
// collectives again and again, and checking one and choosing its algorithm
// takes longer than running a small one. A remembered collective matches if all
// of the caller's arguments are equal, except the tensors' addresses, the
// factor and the timeout. Facts that depend on addresses are checked again.
//
// The table is small and indexed by hash. A collective that comes twice in a
// row in one entry replaces that entry. Find first tries the successor of the
// last one found, because programs repeat their order. All calls need the
// group's lock.
class Plans {
 public:
  // Returns the remembered collective that matches `view`, with its tensors
  // moved to the addresses in `view`. If any address changed, its plan is no
  // longer `is_valid`. Returns null if none matches, if it is running, or if
  // `view` has an invalid tensor. The result lives until the lock is released
  // or, if the caller sets `is_running` before, until the run has ended.
  Collective* Find(const CollectiveView& view);

  // Remembers `collective`, which has succeeded without a plan.
  // `checks_tensors` is Plan::looks_where_tensors_are. Ignores sends, receives
  // and collectives on CUDA devices, which are copied further.
  void Note(const Collective& collective,
            const std::atomic<bool>& checks_tensors);

  // `collective` may have been run without a plan.
  static void HasEnded(const Collective& collective) {
    if (collective.plan != nullptr) collective.plan->is_running = false;
  }

 private:
  struct Planned {
    Collective collective;
    Plan plan;
    // The one found after this one the last time; null if unknown or removed.
    Planned* next = nullptr;
  };
  struct HashSlot {
    // Hash of the last unknown collective that came here.
    uint64_t candidate = 0;
    std::unique_ptr<Planned> planned;
  };

  // Hashes the fields that differ most often. The multiplier is 2^64 divided by
  // the golden ratio.
  template <typename Call>
  static uint64_t ComputeHash(const Call& call) {
    constexpr uint64_t kMultiplier = 0x9e3779b97f4a7c15u;
    const Tensor* const tensor = FindFirstTensor(call);
    const uint64_t size = tensor == nullptr
                              ? 0
                              : static_cast<uint64_t>(tensor->element_count())
                                        << 4 |
                                    static_cast<uint64_t>(tensor->data_type());
    const uint64_t what = static_cast<uint64_t>(call.kind) |
                          static_cast<uint64_t>(call.reduce_op) << 8 |
                          static_cast<uint64_t>(call.root) << 32;
    return (what * kMultiplier ^ size) * kMultiplier;
  }
  // True if `planned` is not null, not running, and matches `view`; see Find.
  static bool Takes(const CollectiveView& view, Planned* planned);
  // Called when the successor of the last one does not match. Updates the
  // successor.
  Planned* FindByHash(const CollectiveView& view);

  static constexpr size_t kPlaces = 32;
  static size_t ToIndex(uint64_t hash) { return hash >> 59; }
  static_assert(kPlaces == 1 << (64 - 59));

  // Compares all fields except those of sends and receives, those that Find
  // updates, and the tensors themselves.
  static bool IsAs(const CollectiveView& view, const Collective& known);
  // Called only for kinds for which HasSplits is true.
  static bool HasSameSplits(const CollectiveView& view,
                            const Collective& known);
  // Whether `tensors` are valid and equal to `known`, which has the same
  // length, in all but their addresses. Copies the addresses into `known`; sets
  // `moved` if any of them changed.
  static bool Take(std::span<const Tensor> tensors, Collective::Tensors& known,
                   bool& moved);

  std::array<HashSlot, kPlaces> places_;
  // The one found last; null if there is none or it was removed.
  Planned* last_ = nullptr;
};

// Inline: every small collective calls these.

inline bool Plans::IsAs(const CollectiveView& view, const Collective& known) {
  // A new field must be compared here.
  static_assert(sizeof(CollectiveView) == 128);
  return view.kind == known.kind && view.reduce_op == known.reduce_op &&
         view.root == known.root && view.timeout.count() >= 0 &&
         view.tensors.size() == known.tensors.size() &&
         view.inputs.size() == known.inputs.size() &&
         view.outputs.size() == known.outputs.size() &&
         (!HasSplits(view.kind) || HasSameSplits(view, known));
}

inline bool Plans::Take(std::span<const Tensor> tensors,
                        Collective::Tensors& known, bool& moved) {
  Tensor* of_known = known.data();
  for (const Tensor& tensor : tensors) {
    if (!of_known->IsLike(tensor)) return false;
    moved |= of_known->data_ != tensor.data_;
    of_known->data_ = tensor.data_;
    ++of_known;
  }
  return true;
}

[[gnu::always_inline]] inline bool Plans::Takes(const CollectiveView& view,
                                                Planned* planned) {
  if (planned == nullptr || planned->plan.is_running) return false;
  Collective& collective = planned->collective;
  if (!IsAs(view, collective)) return false;
  bool moved = false;
  bool is_alike = Take(view.tensors, collective.tensors, moved);
  if (!view.inputs.empty() || !view.outputs.empty()) {
    is_alike = is_alike && Take(view.inputs, collective.inputs, moved) &&
               Take(view.outputs, collective.outputs, moved);
  }
  // Take may have changed addresses even if the collective does not match.
  if (moved) planned->plan.is_valid = false;
  return is_alike;
}

[[gnu::always_inline]] inline Collective* Plans::Find(
    const CollectiveView& view) {
  Planned* planned = last_ == nullptr ? nullptr : last_->next;
  if (!Takes(view, planned)) {
    planned = FindByHash(view);
    if (planned == nullptr) return nullptr;
  }
  last_ = planned;
  Collective& collective = planned->collective;
  collective.factor = view.factor;
  // Overwrites the group's default, which the last run put there if this is
  // zero.
  collective.timeout = view.timeout;
  return &collective;
}

}  // namespace muster::dataplane

#endif  // MUSTER_DATAPLANE_PLANS_H_
