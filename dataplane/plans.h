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

// Plans knows the collectives that a group has run: most programs run a few
// again and again, and to check one, and to find out how it goes, takes longer
// than a small one takes to run. What is looked for is all that a caller says
// of it but where its tensors are, its factor and its timeout: what depends on
// where tensors are must be found out again.
//
// A table of a few, by hash: who comes twice in a row takes the place of who
// was there. What came after a collective the last time is looked at first:
// programs run theirs in one order, again and again. Used with the group's lock
// held.
class Plans {
 public:
  // The one that is as `view`, with tensors where those of `view` are: if some
  // are not where they were the last time, it is not `is_valid`. Null: it is
  // not known, runs, or `view` has a tensor that is none. It stays until the
  // lock is let go, or, if `is_running` was set by then, until it has ended.
  Collective* Find(const CollectiveView& view);

  // `collective` was run with success, and not by a plan; `looks`: see Plan.
  // Sends and receives and what is on devices, of which more copies are made,
  // are not noted.
  void Note(const Collective& collective, const std::atomic<bool>& looks);

  // It may have been run by a plan.
  static void HasEnded(const Collective& collective) {
    if (collective.plan != nullptr) collective.plan->is_running = false;
  }

 private:
  struct Planned {
    Collective collective;
    Plan plan;
    // That was found after it the last time; null: none was, or it has gone.
    Planned* next = nullptr;
  };
  struct Place {
    // Of who came last and was not known.
    uint64_t candidate = 0;
    std::unique_ptr<Planned> planned;
  };

  // Of what most often differs. The multiplier is the golden ratio's.
  template <typename Call>
  static uint64_t HashOf(const Call& call) {
    constexpr uint64_t kMultiplier = 0x9e3779b97f4a7c15u;
    const Tensor* const tensor = FirstTensorOf(call);
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
  // `view` is as `planned`, which is not running, and may be null; see Find.
  static bool Takes(const CollectiveView& view, Planned* planned);
  // For what has not come after the last one the last time; it has then.
  Planned* FindByHash(const CollectiveView& view);

  static constexpr size_t kPlaces = 32;
  static size_t PlaceOf(uint64_t hash) { return hash >> 59; }
  static_assert(kPlaces == 1 << (64 - 59));

  // Each field counts, but for those of sends and receives, which are not
  // known, those that Find takes over, and what the tensors are like.
  static bool IsAs(const CollectiveView& view, const Collective& known);
  // Of kinds that HasSplits.
  static bool HasSameSplits(const CollectiveView& view,
                            const Collective& known);
  // Whether `tensors` are as the `known` ones, which are as many, and valid.
  // Those are where these are then, and `moved` is set if they were elsewhere.
  static bool Take(std::span<const Tensor> tensors, Collective::Tensors& known,
                   bool& moved);

  std::array<Place, kPlaces> places_;
  // That was found last; null: none was, or it has gone.
  Planned* last_ = nullptr;
};

// What every small collective calls.

inline bool Plans::IsAs(const CollectiveView& view, const Collective& known) {
  // Another one would have to be looked at here.
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
  // Also of one that is another one after all.
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
  // The group's default stands there if that is zero.
  collective.timeout = view.timeout;
  return &collective;
}

}  // namespace muster::dataplane

#endif  // MUSTER_DATAPLANE_PLANS_H_
