#include "dataplane/biased_mutex.h"

#include <linux/membarrier.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <thread>

#include "glog/logging.h"

namespace muster::dataplane {
namespace {

bool Membarrier(int command) {
  return syscall(SYS_membarrier, command, 0, 0) == 0;
}

bool RegisterFences() {
  return Membarrier(MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED) &&
         Membarrier(MEMBARRIER_CMD_PRIVATE_EXPEDITED);
}

std::atomic<bool>& HasFences() {
  static std::atomic<bool> has_fences = RegisterFences();
  return has_fences;
}

// Makes all threads of this process pass a fence.
void FenceThreads() {
  if (Membarrier(MEMBARRIER_CMD_PRIVATE_EXPEDITED)) return;
  // A sandbox has forbidden membarrier since it was registered. No processor
  // delays a store for this long.
  HasFences() = false;
  std::this_thread::sleep_for(std::chrono::milliseconds(10));
}

}  // namespace

void BiasedMutex::Prepare() { HasFences(); }

void BiasedMutex::LockSlowly(bool often) {
  // Restores errno, as Mutex does.
  const int error = errno;
  bare_.Lock();
  if (is_biased_.load(std::memory_order_relaxed)) Revoke();
  const uintptr_t self = ThisThread();
  if (last_ != self) streak_ = 0;
  last_ = self;
  const uintptr_t home = home_.load(std::memory_order_relaxed);
  if (often && (home == 0 || home == self)) {
    streak_ = std::min(streak_ + 1, kStreak);
    if (streak_ == kStreak && HasFences()) Bias();
  }
  errno = error;
}

void BiasedMutex::Revoke() {
  is_biased_.store(false, std::memory_order_relaxed);
  // If the home passes the fence before it checks the bias, it sees that the
  // bias is gone. Otherwise this thread sees is_inside_, which the home set
  // before that check.
  FenceThreads();
  while (is_inside_.load(std::memory_order_acquire) != 0) {
    is_inside_.wait(1, std::memory_order_acquire);
  }
}

void BiasedMutex::Bias() {
  streak_ = 0;
  is_inside_.store(1, std::memory_order_relaxed);
  is_entered_ = true;
  home_.store(ThisThread(), std::memory_order_relaxed);
  is_biased_.store(true, std::memory_order_relaxed);
  bare_.Unlock();
}

void BiasedMutex::LockedTwice() {
  LOG(FATAL) << "a thread has locked a mutex that it has";
}

void BiasedMutex::WakeRevoker() {
  // notify_one does nothing unless it sees a waiter. With the fence, either it
  // sees the waiter or the waiter sees the store to is_inside_ and does not
  // sleep.
  std::atomic_thread_fence(std::memory_order_seq_cst);
  is_inside_.notify_one();
}

}  // namespace muster::dataplane
