// Memory that is used again.

#ifndef MUSTER_CLIENT_PARALLEL_PIPELINE_BUFFER_POOL_H_
#define MUSTER_CLIENT_PARALLEL_PIPELINE_BUFFER_POOL_H_

#include <cstddef>
#include <map>
#include <memory>
#include <vector>

namespace muster::internal {

// BufferPool hands out buffers. When the last reference to one is gone it
// returns to the pool, which must still exist. One thread at a time.
class BufferPool {
 public:
  using Buffer = std::shared_ptr<std::byte>;

  BufferPool() = default;
  BufferPool(const BufferPool&) = delete;
  BufferPool& operator=(const BufferPool&) = delete;

  // A buffer of this size, aligned to 64 bytes, with any content.
  Buffer Take(size_t bytes);

 private:
  struct FreeMemory {
    void operator()(std::byte* memory) const;
  };
  using Memory = std::unique_ptr<std::byte, FreeMemory>;

  // By size.
  std::map<size_t, std::vector<Memory>> free_;
};

}  // namespace muster::internal

#endif  // MUSTER_CLIENT_PARALLEL_PIPELINE_BUFFER_POOL_H_
