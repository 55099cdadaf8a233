#include "dataplane/plans.h"

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>

namespace muster::dataplane {

bool Plans::HasSameSplits(const CollectiveView& view, const Collective& known) {
  return std::ranges::equal(view.input_splits, known.input_splits) &&
         std::ranges::equal(view.output_splits, known.output_splits);
}

Plans::Planned* Plans::FindByHash(const CollectiveView& view) {
  Planned* const planned = places_[ToIndex(ComputeHash(view))].planned.get();
  if (!Takes(view, planned)) return nullptr;
  if (last_ != nullptr) last_->next = planned;
  return planned;
}

void Plans::Note(const Collective& collective,
                 const std::atomic<bool>& checks_tensors) {
  if (IsPointToPoint(collective.kind) || collective.cuda_device() >= 0) return;
  const uint64_t hash = ComputeHash(collective);
  HashSlot& place = places_[ToIndex(hash)];
  if (place.candidate != hash) {
    place.candidate = hash;
    return;
  }
  if (place.planned != nullptr && place.planned->plan.is_running) return;
  auto planned = std::make_unique<Planned>();
  planned->collective = collective;
  planned->plan.looks_where_tensors_are = &checks_tensors;
  planned->plan.bytes = collective.bytes();
  planned->collective.plan = &planned->plan;
  for (const HashSlot& other : places_) {
    if (other.planned != nullptr &&
        other.planned->next == place.planned.get()) {
      other.planned->next = nullptr;
    }
  }
  if (last_ == place.planned.get()) last_ = nullptr;
  place.planned = std::move(planned);
}

}  // namespace muster::dataplane
