#include "dataplane/cpu/transport/shared_thread.h"

#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <memory>
#include <system_error>
#include <utility>
#include <vector>

#include "dataplane/cpu/transport/socket.h"

namespace muster::dataplane::cpu {

SharedThread::Task::Task(std::function<Instant()> step, int socket)
    : step_(std::move(step)), socket_(socket), thread_(Get()) {
  thread_->Add(this);
}

SharedThread::Task::~Task() { Stop(); }

void SharedThread::Task::Wake() { thread_->Wake(this); }

void SharedThread::Task::Stop() { thread_->Remove(this); }

std::shared_ptr<SharedThread> SharedThread::Get() {
  // Never destroyed: groups may end when the process does.
  static Mutex& mutex = *new Mutex;
  static std::weak_ptr<SharedThread>& last = *new std::weak_ptr<SharedThread>;
  MutexLock lock(mutex);
  std::shared_ptr<SharedThread> shared = last.lock();
  if (shared == nullptr || !shared->is_here()) {
    shared = std::make_shared<SharedThread>();
    last = shared;
  }
  return shared;
}

SharedThread::SharedThread() {
  const auto fail = [&](int error) {
    if (poll_ >= 0) ::close(poll_);
    if (woken_ >= 0) ::close(woken_);
    throw std::system_error(error, std::generic_category(),
                            "cannot watch groups");
  };
  poll_ = epoll_create1(EPOLL_CLOEXEC);
  if (poll_ < 0) fail(errno);
  woken_ = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
  if (woken_ < 0) fail(errno);
  epoll_event event = {};
  event.events = EPOLLIN;
  if (epoll_ctl(poll_, EPOLL_CTL_ADD, woken_, &event) != 0) fail(errno);
  try {
    thread_ = std::thread([this] { Run(); });
  } catch (...) {
    ::close(poll_);
    ::close(woken_);
    throw;
  }
}

SharedThread::~SharedThread() {
  if (is_here()) {
    {
      MutexLock lock(mutex_);
      is_over_ = true;
    }
    eventfd_write(woken_, 1);
    thread_.join();
  } else {
    thread_.detach();
  }
  ::close(poll_);
  ::close(woken_);
}

void SharedThread::Add(Task* task) {
  MutexLock lock(mutex_);
  tasks_.insert(task);
  if (task->socket_ < 0) return;
  epoll_event event = {};
  event.events = EPOLLIN;
  event.data.ptr = task;
  if (epoll_ctl(poll_, EPOLL_CTL_ADD, task->socket_, &event) != 0) {
    const int error = errno;
    tasks_.erase(task);
    throw std::system_error(error, std::generic_category(),
                            "cannot watch groups");
  }
  task->is_watched_ = true;
}

void SharedThread::Remove(Task* task) {
  // In a forked child the locks may be held for ever.
  if (!is_here()) return;
  MutexLock lock(mutex_);
  if (tasks_.erase(task) == 0) return;
  Unwatch(task);
  while (running_ == task) stepped_.Wait(mutex_);
}

void SharedThread::Unwatch(Task* task) {
  if (!std::exchange(task->is_watched_, false)) return;
  epoll_ctl(poll_, EPOLL_CTL_DEL, task->socket_, nullptr);
}

void SharedThread::Wake(Task* task) {
  if (!is_here()) return;
  MutexLock lock(mutex_);
  if (!tasks_.contains(task)) return;
  task->is_due_ = true;
  // One wake-up is enough: the thread checks all tasks before it sleeps again.
  if (std::exchange(is_asleep_, false)) eventfd_write(woken_, 1);
}

Instant SharedThread::RunDue() {
  Instant next = Instant::max();
  std::vector<Task*> due;
  const Instant now = Clock::now();
  for (Task* const task : tasks_) {
    if (task->is_due_ || task->next_ <= now) {
      due.push_back(task);
    } else {
      next = std::min(next, task->next_);
    }
  }
  for (Task* const task : due) {
    if (!tasks_.contains(task)) continue;
    task->is_due_ = false;
    task->next_ = Instant::max();
    running_ = task;
    mutex_.Unlock();
    const Instant wanted = task->step_();
    mutex_.Lock();
    running_ = nullptr;
    if (tasks_.contains(task)) task->next_ = wanted;
    stepped_.NotifyAll();
  }
  // Other tasks may be due by now.
  return due.empty() ? next : Instant::min();
}

void SharedThread::Sleep(Instant next) {
  is_asleep_ = true;
  mutex_.Unlock();
  std::array<epoll_event, 64> events;
  const int count =
      epoll_wait(poll_, events.data(), static_cast<int>(events.size()),
                 next == Instant::max() ? -1 : PollTimeout(next));
  mutex_.Lock();
  is_asleep_ = false;
  for (int i = 0; i < count; ++i) {
    auto* const task = static_cast<Task*>(events[i].data.ptr);
    eventfd_t value = 0;
    if (task == nullptr) {
      eventfd_read(woken_, &value);
    } else if (tasks_.contains(task)) {
      Unwatch(task);
      task->is_due_ = true;
    }
  }
}

void SharedThread::Run() {
  mutex_.Lock();
  while (!is_over_) {
    const Instant next = RunDue();
    if (next != Instant::min() && !is_over_) Sleep(next);
  }
  mutex_.Unlock();
}

}  // namespace muster::dataplane::cpu
