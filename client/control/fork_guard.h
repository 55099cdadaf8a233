// Detects that an object was made before this process was forked.

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

  // False in a process that was forked after the construction.
  bool is_here() const { return forks_ == Forks(); }

  // The number of forks between the first process with a ForkGuard and this
  // one.
  static uint32_t Forks() { return g_forks.load(std::memory_order_relaxed); }

 private:
  static constinit std::atomic<uint32_t> g_forks;

  uint32_t forks_;
};

// The error of every call on an object that the parent process has made: "store
// \"a\" is that of the process that forked this one off".
inline constexpr char kIsParents[] =
    " is that of the process that forked this one off";

// Leaks `object`, which is the parent's, without a report from leak checkers.
void KeepForParent(void* object);

// A deleter that deletes only objects that this process has made. It leaves
// objects of the parent as they are: their destructors would wait for threads
// that do not exist here, or use the parent's connections and files.
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
