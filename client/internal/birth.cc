#include "client/internal/birth.h"

#include <pthread.h>

namespace muster::internal {

constinit std::atomic<uint32_t> Birth::g_forks{0};

Birth::Birth() {
  static const int registered =
      pthread_atfork(nullptr, nullptr, [] { g_forks.fetch_add(1); });
  static_cast<void>(registered);
  forks_ = g_forks.load(std::memory_order_relaxed);
}

}  // namespace muster::internal
