#include "client/control/fork_guard.h"

#include <pthread.h>

#include <atomic>

namespace muster::internal {

constinit std::atomic<uint32_t> ForkGuard::g_forks{0};

ForkGuard::ForkGuard() {
  static const int registered =
      pthread_atfork(nullptr, nullptr, [] { g_forks.fetch_add(1); });
  static_cast<void>(registered);
  forks_ = g_forks.load(std::memory_order_relaxed);
}

void KeepForParent(void* object) {
  struct Kept {
    void* object;
    Kept* next;
  };
  // No lock: a fork could leave it locked.
  static constinit std::atomic<Kept*> all{nullptr};
  auto* const kept = new Kept{object, all.load()};
  while (!all.compare_exchange_weak(kept->next, kept)) {
  }
}

}  // namespace muster::internal
