// Memory that MemoryStats counts, and the buffers of collectives.

#ifndef MUSTER_CLIENT_PARALLEL_SHARD_COUNTED_MEMORY_H_
#define MUSTER_CLIENT_PARALLEL_SHARD_COUNTED_MEMORY_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "muster/fully_shard.h"
#include "muster/process_group.h"
#include "muster/sharded_optimizer.h"
#include "muster/symmetric.h"

namespace muster::internal {

// Allocates memory aligned to 64 bytes.
std::shared_ptr<void> AllocateAligned(size_t bytes);
// The same, or what `allocate` returns if it is not null. Throws DistError
// (kResourceExhausted) if it returns no memory.
std::shared_ptr<void> Allocate(size_t bytes, const AllocateFunction& allocate);

// Calls `allocate`, which runs no collectives. If it throws on a rank, throws
// DistError (kResourceExhausted) on all of them, with that rank's number and
// the exception's text. `what` begins the text, and `groups` is as in
// Agreement::Check. All ranks make the call. Throws
// what a collective throws.
void AllocateTogether(const std::string& what,
                      const std::vector<std::shared_ptr<ProcessGroup>>& groups,
                      const std::function<void()>& allocate);

class MemoryCounter {
 public:
  using Kind = MemoryStats::Use MemoryStats::*;

  void Add(Kind kind, int64_t bytes);
  const MemoryStats& stats() const { return stats_; }

 private:
  MemoryStats stats_;
};

// Movable. The counter must outlive it.
class CountedMemory {
 public:
  // Has no memory.
  CountedMemory() = default;
  // `allocate` may be null. The memory is not initialized.
  CountedMemory(MemoryCounter& counter, MemoryCounter::Kind kind, int64_t bytes,
                const AllocateFunction& allocate = nullptr);
  // Takes memory that exists.
  CountedMemory(MemoryCounter& counter, MemoryCounter::Kind kind, int64_t bytes,
                SymmetricTensor symmetric);
  CountedMemory(CountedMemory&& other) noexcept { *this = std::move(other); }
  CountedMemory& operator=(CountedMemory&& other) noexcept;
  ~CountedMemory() { Free(); }

  bool empty() const { return counter_ == nullptr; }
  std::byte* data() const { return data_; }
  int64_t bytes() const { return bytes_; }
  bool is_symmetric() const { return symmetric_.tensor().data() != nullptr; }
  void Free();

 private:
  MemoryCounter* counter_ = nullptr;
  MemoryCounter::Kind kind_ = nullptr;
  int64_t bytes_ = 0;
  std::byte* data_ = nullptr;
  std::shared_ptr<void> memory_;
  SymmetricTensor symmetric_;
};

// Buffers of one size for the collectives of a group, which are kept: symmetric
// memory if the group has it. Whether there is a free one depends only on the
// calls, so that all ranks allocate together.
class CountedBufferPool {
 public:
  CountedBufferPool(std::shared_ptr<ProcessGroup> group, MemoryCounter& counter,
                    MemoryCounter::Kind kind, int64_t bytes)
      : group_(std::move(group)),
        counter_(counter),
        kind_(kind),
        bytes_(bytes) {}

  CountedMemory Take();
  void Give(CountedMemory memory) { free_.push_back(std::move(memory)); }

 private:
  const std::shared_ptr<ProcessGroup> group_;
  MemoryCounter& counter_;
  const MemoryCounter::Kind kind_;
  const int64_t bytes_;
  // False: the group has refused it.
  bool symmetric_ = true;
  std::vector<CountedMemory> free_;
};

}  // namespace muster::internal

#endif  // MUSTER_CLIENT_PARALLEL_SHARD_COUNTED_MEMORY_H_
