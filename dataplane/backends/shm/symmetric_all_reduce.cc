#include "dataplane/backends/shm/symmetric_all_reduce.h"

#include <algorithm>
#include <cstddef>
#include <cstring>

#include "absl/container/inlined_vector.h"
#include "absl/status/status.h"
#include "dataplane/backends/gloo/schedules.h"
#include "dataplane/backends/shm/selection.h"
#include "dataplane/reduction.h"

namespace muster::dataplane::shm_internal {
namespace {

using gloo_internal::BlockOf;

// What is combined before it is written to the other tensors: in the nearest
// cache.
constexpr size_t kNearBytes = 4 << 10;

class SymmetricAllReduce : public Rounds {
 public:
  SymmetricAllReduce(Workshop& shop, const Collective& collective)
      : Rounds(shop, collective), tensor_(BlockOf(collective.tensors[0])) {}

  absl::StatusOr<bool> Run();

 private:
  // What a rank shows: where in symmetric memory its tensor is.
  struct Offer {
    Regions::Place place = {};
    double factor = 1;
  };

  absl::StatusOr<bool> Go();
  // All have shown where theirs are, and have them in symmetric memory.
  absl::StatusOr<bool> Meet();
  absl::Status CombineThere();

  const Block tensor_;
  // By rank, after Meet: where its tensor is here, and its factor.
  absl::InlinedVector<std::byte*, 16> tensors_;
  absl::InlinedVector<double, 16> factors_;
};

absl::StatusOr<bool> SymmetricAllReduce::Run() {
  // Before anybody hears of a failure: then the tensor is its owner's again.
  const auto withdraw = [this] {
    const Tensor& tensor = collective().tensors[0];
    regions().Withdraw(tensor.data(), tensor.bytes());
  };
  try {
    absl::StatusOr<bool> done = Go();
    if (!done.ok()) withdraw();
    return done;
  } catch (...) {
    withdraw();
    throw;
  }
}

absl::StatusOr<bool> SymmetricAllReduce::Go() {
  absl::StatusOr<bool> met = Meet();
  if (!met.ok() || !*met) return met;
  shop().mesh.set_algorithm(AlgorithmName(Algorithm::kSymmetric));
  absl::Status status = CombineThere();
  if (!status.ok()) return status;
  // Nobody reads what is here any more, nor writes to it.
  status = Open(0);
  if (!status.ok()) return status;
  Post();
  status = AwaitAll();
  if (!status.ok()) return status;
  return true;
}

absl::StatusOr<bool> SymmetricAllReduce::Meet() {
  absl::Status status = Open(sizeof(Offer));
  if (!status.ok()) return status;
  const Offer own = {
      .place = regions().Find(tensor_.data, tensor_.count * element_bytes_),
      .factor = collective().factor};
  std::memcpy(payload(), &own, sizeof(own));
  Post();
  status = AwaitAll();
  if (!status.ok()) return status;
  tensors_.resize(world_size_);
  factors_.resize(world_size_, 1);
  for (int peer = 0; peer < world_size_; ++peer) {
    Regions::Place place;
    std::memcpy(&place, shown(peer) + offsetof(Offer, place), sizeof(place));
    tensors_[peer] = regions().Locate(peer, place);
    // The same on all ranks.
    if (tensors_[peer] == nullptr) return false;
    // What stands behind the place is in another cache line.
    if (collective().reduce_op != ReduceOp::kPremulSum) continue;
    std::memcpy(&factors_[peer], shown(peer) + offsetof(Offer, factor),
                sizeof(double));
  }
  return true;
}

absl::Status SymmetricAllReduce::CombineThere() {
  const Reduction reduction(collective().data_type(), collective().reduce_op);
  const Block own =
      gloo_internal::PartOf(tensor_, rank_, world_size_, element_bytes_);
  const size_t at_once = kNearBytes / element_bytes_;
  const auto first = static_cast<size_t>(own.data - tensor_.data);
  absl::InlinedVector<const void*, 16> operands(world_size_);
  for (size_t done = 0; done < own.count; done += at_once) {
    if (shop().board.is_woken()) return shop().mesh.abort_cause();
    const size_t count = std::min(at_once, own.count - done);
    const size_t offset = first + done * element_bytes_;
    for (int peer = 0; peer < world_size_; ++peer) {
      operands[peer] = tensors_[peer] + offset;
    }
    std::byte* const result = tensors_[rank_] + offset;
    reduction.CombineAll(result, operands, factors_, count, world_size_);
    for (int peer = 0; peer < world_size_; ++peer) {
      if (peer == rank_) continue;
      std::memcpy(tensors_[peer] + offset, result, count * element_bytes_);
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<bool> RunSymmetricAllReduce(Workshop& shop,
                                           const Collective& collective) {
  return SymmetricAllReduce(shop, collective).Run();
}

}  // namespace muster::dataplane::shm_internal
