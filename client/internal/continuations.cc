#include "client/internal/continuations.h"

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <thread>
#include <utility>

namespace muster::internal {
namespace {

using dataplane::MutexLock;

// The queue that this thread serves, if it does.
thread_local const void* g_served = nullptr;

// Those that Find finds.
struct Known {
  dataplane::Mutex mutex;
  uint64_t last_number ABSL_GUARDED_BY(mutex) = 0;
  std::map<uint64_t, std::weak_ptr<Continuations>> all ABSL_GUARDED_BY(mutex);

  // Groups may end when statics are gone.
  static Known& Instance() {
    static auto* const instance = new Known;
    return *instance;
  }
};

}  // namespace

Continuations::Continuations(uint64_t number)
    : number_(number), queue_(std::make_shared<Queue>()) {}

std::shared_ptr<Continuations> Continuations::Create() {
  Known& known = Known::Instance();
  MutexLock lock(known.mutex);
  const uint64_t number = ++known.last_number;
  std::shared_ptr<Continuations> created(new Continuations(number));
  known.all.emplace(number, created);
  return created;
}

std::shared_ptr<Continuations> Continuations::Find(uint64_t number) {
  Known& known = Known::Instance();
  MutexLock lock(known.mutex);
  const auto found = known.all.find(number);
  return found == known.all.end() ? nullptr : found->second.lock();
}

Continuations::~Continuations() {
  Close();
  if (number_ == 0) return;
  Known& known = Known::Instance();
  MutexLock lock(known.mutex);
  known.all.erase(number_);
}

bool Continuations::IsThisThread() const { return g_served == queue_.get(); }

bool Continuations::Push(std::function<void()>& task) {
  MutexLock lock(queue_->mutex);
  if (queue_->closed) return false;
  queue_->tasks.push_back(std::move(task));
  queue_->changed.NotifyAll();
  return true;
}

void Continuations::Run(std::function<void()> task) {
  if (!Push(task)) return task();
  MutexLock lock(thread_mutex_);
  if (!thread_.joinable()) {
    thread_ = std::thread([queue = queue_] { Serve(queue); });
  }
}

void Continuations::Close() {
  {
    MutexLock lock(queue_->mutex);
    queue_->closed = true;
    queue_->changed.NotifyAll();
  }
  std::thread thread;
  {
    MutexLock lock(thread_mutex_);
    thread.swap(thread_);
  }
  if (!thread.joinable()) return;
  if (IsThisThread()) {
    thread.detach();
  } else {
    thread.join();
  }
}

void Continuations::Serve(const std::shared_ptr<Queue>& queue) {
  g_served = queue.get();
  for (;;) {
    std::function<void()> task;
    {
      MutexLock lock(queue->mutex);
      while (queue->tasks.empty()) {
        if (queue->closed) return;
        queue->changed.Wait(queue->mutex);
      }
      task = std::move(queue->tasks.front());
      queue->tasks.pop_front();
    }
    task();
  }
}

}  // namespace muster::internal
