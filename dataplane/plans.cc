#include "dataplane/plans.h"

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>

namespace muster::dataplane {

bool Plans::HasSplits(const CollectiveView& view, const Collective& known) {
  return std::ranges::equal(view.input_splits, known.input_splits) &&
         std::ranges::equal(view.output_splits, known.output_splits);
}

void Plans::Note(const Collective& collective, const std::atomic<bool>& looks) {
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
  planned->plan.looks_where_tensors_are = &looks;
  planned->plan.bytes = collective.bytes();
  planned->collective.plan = &planned->plan;
  place.planned = std::move(planned);
}

}  // namespace muster::dataplane
