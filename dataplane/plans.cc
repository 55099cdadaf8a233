#include "dataplane/plans.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "absl/types/span.h"

namespace muster::dataplane {
namespace {

// Of what most often differs. The multiplier is the golden ratio's.
template <typename Call>
uint64_t HashOf(const Call& call) {
  constexpr uint64_t kMultiplier = 0x9e3779b97f4a7c15u;
  const Tensor* const tensor = FirstTensorOf(call);
  const uint64_t size =
      tensor == nullptr ? 0
                        : static_cast<uint64_t>(tensor->element_count()) << 4 |
                              static_cast<uint64_t>(tensor->data_type());
  const uint64_t what = static_cast<uint64_t>(call.kind) |
                        static_cast<uint64_t>(call.reduce_op) << 8 |
                        static_cast<uint64_t>(call.root) << 32;
  return (what * kMultiplier ^ size) * kMultiplier;
}

bool AreAlike(const Collective::Tensors& known,
              absl::Span<const Tensor> tensors) {
  // As two lists of three mostly are.
  if (tensors.empty()) return known.empty();
  if (known.size() != tensors.size()) return false;
  for (size_t i = 0; i < tensors.size(); ++i) {
    if (!known[i].IsLike(tensors[i]) || !tensors[i].is_valid()) return false;
  }
  return true;
}

bool AreEqual(const std::vector<int64_t>& known,
              absl::Span<const int64_t> splits) {
  return known.size() == splits.size() &&
         std::equal(known.begin(), known.end(), splits.begin());
}

// Each field counts, but for those of sends and receives, which are not known,
// and for those that Find takes over.
bool IsAs(const CollectiveView& view, const Collective& known) {
  // Another one would have to be looked at here.
  static_assert(sizeof(CollectiveView) == 128);
  return view.kind == known.kind && view.reduce_op == known.reduce_op &&
         view.root == known.root && view.timeout.count() >= 0 &&
         AreAlike(known.tensors, view.tensors) &&
         AreAlike(known.inputs, view.inputs) &&
         AreAlike(known.outputs, view.outputs) &&
         (view.kind != CollectiveKind::kAllToAllSingle ||
          (AreEqual(known.input_splits, view.input_splits) &&
           AreEqual(known.output_splits, view.output_splits)));
}

}  // namespace

inline bool Plans::Move(absl::Span<const Tensor> tensors,
                        Collective::Tensors& known) {
  bool moved = false;
  for (size_t i = 0; i < tensors.size(); ++i) {
    void* const data = tensors[i].data();
    if (known[i].data_ == data) continue;
    known[i].data_ = data;
    moved = true;
  }
  return moved;
}

Collective* Plans::Find(const CollectiveView& view) {
  Planned* const planned = places_[PlaceOf(HashOf(view))].planned.get();
  if (planned == nullptr || planned->plan.is_running) return nullptr;
  Collective& collective = planned->collective;
  if (!IsAs(view, collective)) return nullptr;
  if (Move(view.tensors, collective.tensors) |
      Move(view.inputs, collective.inputs) |
      Move(view.outputs, collective.outputs)) {
    planned->plan.is_valid = false;
  }
  collective.factor = view.factor;
  // The group's default stands there if that is zero.
  collective.timeout = view.timeout;
  return &collective;
}

void Plans::Note(const Collective& collective) {
  if (IsPointToPoint(collective.kind) || collective.cuda_device() >= 0) return;
  const uint64_t hash = HashOf(collective);
  Place& place = places_[PlaceOf(hash)];
  if (place.candidate != hash) {
    place.candidate = hash;
    return;
  }
  if (place.planned != nullptr && place.planned->plan.is_running) return;
  auto planned = std::make_unique<Planned>();
  planned->collective = collective;
  planned->plan.bytes = collective.bytes();
  planned->collective.plan = &planned->plan;
  place.planned = std::move(planned);
}

}  // namespace muster::dataplane
