#include "client/parallel/pipeline/buffer_pool.h"

#include <cstddef>
#include <new>
#include <utility>
#include <vector>

namespace muster::internal {

constexpr std::align_val_t kAlignment{64};

void BufferPool::FreeMemory::operator()(std::byte* memory) const {
  ::operator delete(memory, kAlignment);
}

BufferPool::Buffer BufferPool::Take(size_t bytes) {
  std::vector<Memory>& free = free_[bytes];
  Memory memory;
  if (free.empty()) {
    // So that a return cannot fail.
    free.reserve(free.capacity() + 1);
    memory.reset(static_cast<std::byte*>(::operator new(bytes, kAlignment)));
  } else {
    memory = std::move(free.back());
    free.pop_back();
  }
  return {memory.release(),
          [&free](std::byte* taken) { free.push_back(Memory(taken)); }};
}

}  // namespace muster::internal
