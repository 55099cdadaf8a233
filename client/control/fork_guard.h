// Detects that an object was made by the process that forked this one.

#ifndef MUSTER_CLIENT_CONTROL_FORK_GUARD_H_
#define MUSTER_CLIENT_CONTROL_FORK_GUARD_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <utility>

namespace muster::internal {

// ForkGuard is a member of an object that a forked child must not touch. It
// detects the child without a system call.
class ForkGuard {
 public:
  ForkGuard();

  // False in a process that was forked off afterwards.
  bool is_here() const { return forks_ == Forks(); }

  // How many forks this process is away from the first one with a ForkGuard.
  static uint32_t Forks() { return g_forks.load(std::memory_order_relaxed); }

 private:
  static constinit std::atomic<uint32_t> g_forks;

  uint32_t forks_;
};

// The error of every call on something that another process has made.
// "store \"a\" is that of the process that forked this one off"
inline constexpr char kIsParents[] =
    " is that of the process that forked this one off";

// Never frees `object`, which is the parent's, and lets no tool call it a leak.
void KeepForParent(void* object);

// DeleteAtHome deletes what this process has made. What its parent has made
// stays as it is: a destructor would wait for threads that are not here, or use
// the parent's connections and files.
template <typename T>
class DeleteAtHome {
 public:
  void operator()(T* object) const {
    if (fork_guard_.is_here()) {
      delete object;
    } else {
      KeepForParent(object);
    }
  }

 private:
  ForkGuard fork_guard_;
};

template <typename T, typename... Arguments>
std::shared_ptr<T> MakeAtHome(Arguments&&... arguments) {
  return std::shared_ptr<T>(new T(std::forward<Arguments>(arguments)...),
                            DeleteAtHome<T>());
}

}  // namespace muster::internal

#endif  // MUSTER_CLIENT_CONTROL_FORK_GUARD_H_
