// Test helpers that wait until a thread is blocked in a system call.

#ifndef MUSTER_BASE_BLOCKED_H_
#define MUSTER_BASE_BLOCKED_H_

#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <cstddef>
#include <cstdint>
#include <fstream>
#include <string>
#include <thread>

namespace muster::base {

// The id that AwaitBlocked and Interrupt take.
inline int64_t ThisThreadId() { return syscall(SYS_gettid); }

// Returns when the thread is blocked. `thread` is 0 until the thread has stored
// its id there.
inline void AwaitBlocked(const std::atomic<int64_t>& thread) {
  // The third word of the stat file is the state; 'S' means sleeping.
  const auto is_blocked = [&] {
    std::ifstream file("/proc/self/task/" + std::to_string(thread) + "/stat");
    std::string text;
    std::getline(file, text);
    const size_t end = text.rfind(')');
    return end != std::string::npos && end + 2 < text.size() &&
           text[end + 2] == 'S';
  };
  while (thread == 0 || !is_blocked()) std::this_thread::yield();
}

// Interrupts the system call in which the thread is blocked (EINTR). Returns
// when the thread is blocked again.
inline void Interrupt(std::thread& thread, const std::atomic<int64_t>& id) {
  static std::atomic<int> interrupts = 0;
  struct sigaction action = {};
  action.sa_handler = [](int) { ++interrupts; };
  sigaction(SIGUSR1, &action, nullptr);
  AwaitBlocked(id);
  const int before = interrupts;
  pthread_kill(thread.native_handle(), SIGUSR1);
  while (interrupts == before) std::this_thread::yield();
  AwaitBlocked(id);
}

}  // namespace muster::base

namespace muster {

// Used so often that they need no prefix.
using base::AwaitBlocked;
using base::Interrupt;
using base::ThisThreadId;

}  // namespace muster

#endif  // MUSTER_BASE_BLOCKED_H_
