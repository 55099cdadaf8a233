#ifndef MUSTER_DATAPLANE_PLANS_H_
#define MUSTER_DATAPLANE_PLANS_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "absl/types/span.h"
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
// was there. Used with the group's lock held.
class Plans {
 public:
  // The one that is as `view`, with tensors where those of `view` are: if some
  // are not where they were the last time, it is not `is_valid`. Null: it is
  // not known, runs, or `view` has a tensor that is none. It stays until the
  // lock is let go, or, if `is_running` was set by then, until it has ended.
  Collective* Find(const CollectiveView& view);

  // `collective` was run with success, and not by a plan. Sends and receives
  // and what is on devices, of which more copies are made, are not noted.
  void Note(const Collective& collective);

  // It may have been run by a plan.
  static void HasEnded(const Collective& collective) {
    if (collective.plan != nullptr) collective.plan->is_running = false;
  }

 private:
  struct Planned {
    Collective collective;
    Plan plan;
  };
  struct Place {
    // Of who came last and was not known.
    uint64_t candidate = 0;
    std::unique_ptr<Planned> planned;
  };

  static constexpr size_t kPlaces = 32;
  static size_t PlaceOf(uint64_t hash) { return hash >> 59; }
  static_assert(kPlaces == 1 << (64 - 59));

  // Returns whether any was elsewhere.
  static bool Move(absl::Span<const Tensor> tensors,
                   Collective::Tensors& known);

  std::array<Place, kPlaces> places_;
};

}  // namespace muster::dataplane

#endif  // MUSTER_DATAPLANE_PLANS_H_
