#include "client/control/continuations.h"

#include <pthread.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <thread>
#include <utility>

namespace muster::internal {
namespace {

// The queue that this thread serves; null on other threads.
thread_local const void* g_served = nullptr;

struct Table {
  Mutex mutex;
  uint64_t last MUSTER_GUARDED_BY(mutex) = 0;
  std::map<uint64_t, std::weak_ptr<Continuations>> numbered
      MUSTER_GUARDED_BY(mutex);
};

// Never destroyed: groups may end after static objects.
class Tables {
 public:
  static Tables& TheTables() {
    static auto* const instance = new Tables;
    return *instance;
  }

  Table& current() { return *current_.load(std::memory_order_acquire); }

 private:
  Tables() {
    pthread_atfork(nullptr, nullptr, [] { TheTables().StartAnew(); });
  }

  // Called in a forked child, which has no other thread. The parent's lock may
  // be held forever here. Numbers are not reused.
  void StartAnew() MUSTER_NO_THREAD_SAFETY_ANALYSIS {
    auto* const fresh = new Table;
    fresh->last = current().last;
    current_.store(fresh, std::memory_order_release);
  }

  std::atomic<Table*> current_ = new Table;
};

}  // namespace

Continuations::Continuations() : queue_(std::make_shared<Queue>()) {}

Continuations::~Continuations() {
  Close();
  if (number_ == 0) return;
  Table& table = Tables::TheTables().current();
  MutexLock lock(table.mutex);
  table.numbered.erase(number_);
}

std::shared_ptr<Continuations> Continuations::CreateUnnumbered() {
  return MakeAtHome<Continuations>();
}

std::shared_ptr<Continuations> Continuations::Create() {
  auto created = CreateUnnumbered();
  Table& table = Tables::TheTables().current();
  MutexLock lock(table.mutex);
  created->number_ = ++table.last;
  table.numbered.emplace(created->number_, created);
  return created;
}

std::shared_ptr<Continuations> Continuations::Find(uint64_t number) {
  std::shared_ptr<Continuations> found;
  {
    Table& table = Tables::TheTables().current();
    MutexLock lock(table.mutex);
    const auto place = table.numbered.find(number);
    if (place != table.numbered.end()) found = place->second.lock();
  }
  if (found == nullptr) {
    found = CreateUnnumbered();
    found->Close();
  }
  return found;
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
