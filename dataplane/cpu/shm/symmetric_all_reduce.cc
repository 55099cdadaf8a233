#include "dataplane/cpu/shm/symmetric_all_reduce.h"

#include <algorithm>
#include <cstddef>
#include <cstring>

#include "dataplane/cpu/collectives/schedules.h"
#include "dataplane/reduction.h"
#include "muster/base/status.h"

namespace muster::dataplane::shm {
namespace {

using cpu::ToBlock;

// The bytes that are combined before they are written to the other tensors:
// they stay in the nearest cache.
constexpr size_t kNearBytes = 4 << 10;

class SymmetricAllReduce : public Rounds {
 public:
  SymmetricAllReduce(ShmContext& context, const Collective& collective)
      : Rounds(context, collective, /*has_rows=*/false),
        tensor_(ToBlock(collective.tensors[0])) {}

  StatusOr<bool> Run();

 private:
  StatusOr<bool> Go();
  // Combines this rank's part of all tensors, at kept_places(), and writes the
  // result to all.
  Status CombineThere(const Reduction& reduction, Range own);

  const Block tensor_;
};

StatusOr<bool> SymmetricAllReduce::Run() {
  // Withdraw before the failure is reported: then the tensor is its owner's
  // again.
  const auto withdraw = [this] {
    const Tensor& tensor = collective().tensors[0];
    regions().Withdraw(tensor.data(), tensor.bytes());
  };
  try {
    StatusOr<bool> done = Go();
    if (!done.ok()) withdraw();
    return done;
  } catch (...) {
    withdraw();
    throw;
  }
}

StatusOr<bool> SymmetricAllReduce::Go() {
  // A rank reads a part of each tensor, together the size of one tensor.
  Status status = PublishLocation(tensor_, kept_places());
  if (!status.ok()) return status;
  // Prepare while the others' locations come.
  const Reduction& reduction =
      Reduction::Of(collective().data_type(), collective().reduce_op);
  const Range own = CutPart(tensor_.count, rank_, world_size_);
  kept_operands().resize(world_size_);
  StatusOr<bool> are_there = AwaitRemoteBuffers(kept_places());
  if (!are_there.ok() || !*are_there) return are_there;
  context().transport.set_algorithm(AlgorithmName(Algorithm::kSymmetric));
  status = CombineThere(reduction, own);
  if (!status.ok()) return status;
  // After this no rank reads or writes this rank's tensor any more.
  status = Meet();
  if (!status.ok()) return status;
  return true;
}

Status SymmetricAllReduce::CombineThere(const Reduction& reduction, Range own) {
  const RemoteBuffers& tensors = kept_places();
  std::vector<const void*>& operands = kept_operands();
  const size_t at_once = ElementsIn(kNearBytes);
  size_t offset = own.first * element_bytes_;
  for (size_t left = own.count; left > 0;) {
    if (context().round_buffer.is_woken())
      return context().transport.abort_cause();
    const size_t count = std::min(at_once, left);
    for (int peer = 0; peer < world_size_; ++peer) {
      operands[peer] = tensors.data[peer] + offset;
    }
    std::byte* const result = tensor_.data + offset;
    reduction.CombineAll(result, operands, tensors.factors, count, world_size_);
    const size_t bytes = count * element_bytes_;
    for (int peer = 0; peer < world_size_; ++peer) {
      if (peer == rank_) continue;
      std::memcpy(tensors.data[peer] + offset, result, bytes);
    }
    offset += bytes;
    left -= count;
  }
  return OkStatus();
}

}  // namespace

StatusOr<bool> RunSymmetricAllReduce(ShmContext& context,
                                     const Collective& collective) {
  return SymmetricAllReduce(context, collective).Run();
}

}  // namespace muster::dataplane::shm
