#include "dataplane/backends/shm/symmetric_all_reduce.h"

#include <algorithm>
#include <cstddef>
#include <cstring>

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
      : Rounds(shop, collective, /*has_rows=*/false),
        tensor_(BlockOf(collective.tensors[0])) {}

  absl::StatusOr<bool> Run();

 private:
  absl::StatusOr<bool> Go();
  // Where all tensors are, by kept_places().
  absl::Status CombineThere();

  const Block tensor_;
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
  // It reads a part of each rank's, together as much as one of them is.
  const size_t bytes = tensor_.count * element_bytes_;
  const absl::StatusOr<bool> are_there =
      ShowPlaces(tensor_, bytes, kept_places());
  if (!are_there.ok() || !*are_there) return are_there;
  shop().mesh.set_algorithm(AlgorithmName(Algorithm::kSymmetric));
  absl::Status status = CombineThere();
  if (!status.ok()) return status;
  // Nobody reads what is here any more, nor writes to it.
  status = Open(0);
  if (!status.ok()) return status;
  Post(0);
  status = AwaitAll();
  if (!status.ok()) return status;
  return true;
}

absl::Status SymmetricAllReduce::CombineThere() {
  const Places& tensors = kept_places();
  std::vector<const void*>& operands = kept_operands();
  operands.resize(world_size_);
  const Reduction& reduction =
      Reduction::Of(collective().data_type(), collective().reduce_op);
  const Block own =
      gloo_internal::PartOf(tensor_, rank_, world_size_, element_bytes_);
  const size_t at_once = kNearBytes / element_bytes_;
  const auto first = static_cast<size_t>(own.data - tensor_.data);
  for (size_t done = 0; done < own.count; done += at_once) {
    if (shop().board.is_woken()) return shop().mesh.abort_cause();
    const size_t count = std::min(at_once, own.count - done);
    const size_t offset = first + done * element_bytes_;
    for (int peer = 0; peer < world_size_; ++peer) {
      operands[peer] = tensors.data[peer] + offset;
    }
    std::byte* const result = tensors.data[rank_] + offset;
    reduction.CombineAll(result, operands, tensors.factors, count, world_size_);
    for (int peer = 0; peer < world_size_; ++peer) {
      if (peer == rank_) continue;
      std::memcpy(tensors.data[peer] + offset, result, count * element_bytes_);
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
