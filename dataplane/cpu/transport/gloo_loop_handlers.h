#ifndef MUSTER_DATAPLANE_CPU_TRANSPORT_GLOO_LOOP_HANDLERS_H_
#define MUSTER_DATAPLANE_CPU_TRANSPORT_GLOO_LOOP_HANDLERS_H_

// Used only by gloo_pairs.h: handlers that run in each iteration of Gloo's
// event loop.

#include <gloo/transport/tcp/device.h>
#include <sched.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <atomic>
#include <functional>

#include "base/mutex.h"
#include "base/thread_annotations.h"

namespace muster::dataplane::cpu {

namespace gloo_transport = ::gloo::transport;

// Gloo removes a descriptor from its event loop, for each connection made and
// each one closed, by waiting for the loop's next iteration, up to 10 ms later.
// While a LoopSpinner is on, iterations follow each other without pause.
class LoopSpinner : public gloo_transport::tcp::Handler {
 public:
  explicit LoopSpinner(gloo_transport::tcp::Device& device)
      : descriptor_(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)) {
    device.registerDescriptor(descriptor_, EPOLLIN, this);
  }
  // Destroy it after the device, whose loop calls it.
  ~LoopSpinner() override { ::close(descriptor_); }

  void On() { eventfd_write(descriptor_, 1); }
  void Off() {
    eventfd_t value = 0;
    eventfd_read(descriptor_, &value);
  }

  // Calls `function` in an iteration of the loop and waits until it returns.
  // Only while the spinner is on.
  void Run(const std::function<void()>& function) {
    MutexLock lock(mutex_);
    while (task_ != nullptr) changed_.Wait(mutex_);
    task_ = &function;
    while (task_ == &function) changed_.Wait(mutex_);
  }

  void handleEvents(int) override {
    {
      MutexLock lock(mutex_);
      if (task_ != nullptr) {
        (*task_)();
        task_ = nullptr;
        changed_.NotifyAll();
      }
    }
    // The waiting thread needs the processor more than the loop does.
    sched_yield();
  }

 private:
  const int descriptor_;
  Mutex mutex_;
  CondVar changed_;
  const std::function<void()>* task_ MUSTER_GUARDED_BY(mutex_) = nullptr;
};

// Gloo's event loop skips a connection that another thread has locked and polls
// again at once. So it spins while a thread posts a message to a connection on
// which another message arrives. If it has taken that thread's processor, it
// spins for a whole time slice before the thread can continue. This handler,
// which the loop calls in the same iterations, yields the processor.
class LoopYielder : public gloo_transport::tcp::Handler {
 public:
  explicit LoopYielder(gloo_transport::tcp::Device& device)
      : descriptor_(epoll_create1(EPOLL_CLOEXEC)) {
    device.registerDescriptor(descriptor_, EPOLLIN, this);
  }
  // Destroy it after the device, whose loop calls it.
  ~LoopYielder() override { ::close(descriptor_); }

  // `socket` belongs to a connection. Closing it removes it.
  void Watch(int socket) {
    epoll_event event = {};
    event.events = EPOLLIN;
    epoll_ctl(descriptor_, EPOLL_CTL_ADD, socket, &event);
  }

  // Call with true before, and with false after, a call that locks a
  // connection.
  void Posting(bool on) { posting_.store(on, std::memory_order_relaxed); }

  void handleEvents(int) override {
    if (posting_.load(std::memory_order_relaxed)) sched_yield();
  }

 private:
  const int descriptor_;
  std::atomic<bool> posting_{false};
};

}  // namespace muster::dataplane::cpu

#endif  // MUSTER_DATAPLANE_CPU_TRANSPORT_GLOO_LOOP_HANDLERS_H_
