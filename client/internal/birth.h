// Which process made an object: this one, or one that forked it off.

#ifndef MUSTER_CLIENT_INTERNAL_BIRTH_H_
#define MUSTER_CLIENT_INTERNAL_BIRTH_H_

#include <atomic>
#include <cstdint>

namespace muster::internal {

// Birth is a member of what a process must leave alone that was forked off: it
// tells that without a system call.
class Birth {
 public:
  Birth();

  bool is_here() const {
    return forks_ == g_forks.load(std::memory_order_relaxed);
  }

 private:
  // How many forks this process is away from the first one with a Birth.
  static constinit std::atomic<uint32_t> g_forks;

  uint32_t forks_;
};

}  // namespace muster::internal

#endif  // MUSTER_CLIENT_INTERNAL_BIRTH_H_
