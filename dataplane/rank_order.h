#ifndef MUSTER_DATAPLANE_RANK_ORDER_H_
#define MUSTER_DATAPLANE_RANK_ORDER_H_

#include <cstddef>
#include <memory>

#include "muster/base/status.h"
#include "muster/dataplane/reduce_function.h"

namespace muster::dataplane {

// One operand per rank, in memory with the alignment that ReduceFunction
// promises: rank r's `count` elements begin at r * count elements.
class RankOrderOperands {
 public:
  // Makes room, and keeps the memory of an earlier call if it suffices.
  void Reset(int world_size, size_t count, size_t element_bytes);

  std::byte* of(int rank) const {
    return memory_.get() + static_cast<size_t>(rank) * count_ * element_bytes_;
  }

  // Combines the operands of all ranks, in rank order, and returns the result,
  // which is valid until the next Reset. `rank` is this process's, the culprit
  // if the function throws. Errors: kInternal, with the exception's text.
  StatusOr<const std::byte*> Combine(const ReduceFunction& function, int rank);

 private:
  struct Free {
    void operator()(std::byte* memory) const;
  };

  std::unique_ptr<std::byte[], Free> memory_;
  size_t memory_bytes_ = 0;
  int world_size_ = 0;
  size_t count_ = 0;
  size_t element_bytes_ = 1;
};

}  // namespace muster::dataplane

#endif  // MUSTER_DATAPLANE_RANK_ORDER_H_
