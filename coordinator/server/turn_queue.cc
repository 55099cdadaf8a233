#include "coordinator/server/turn_queue.h"

#include <utility>

namespace muster::coordinator {

TurnQueue::TurnQueue(int threads) {
  threads_.reserve(threads);
  for (int i = 0; i < threads; ++i) threads_.emplace_back([this] { Run(); });
}

TurnQueue::~TurnQueue() { Stop(); }

void TurnQueue::Post(const Job* job, std::function<void()> turn) {
  {
    MutexLock lock(mu_);
    auto& waiting = turns_[job];
    if (waiting.empty()) rotation_.push_back(job);
    waiting.push_back(std::move(turn));
  }
  wakes_.NotifyOne();
}

void TurnQueue::Stop() {
  {
    MutexLock lock(mu_);
    stopping_ = true;
  }
  wakes_.NotifyAll();
  for (std::thread& thread : threads_) {
    if (thread.joinable()) thread.join();
  }
}

void TurnQueue::Run() {
  while (true) {
    std::function<void()> turn;
    {
      MutexLock lock(mu_);
      while (rotation_.empty()) {
        // A turn that runs may post another one.
        if (stopping_ && running_ == 0) return;
        wakes_.Wait(mu_);
      }
      const Job* const job = rotation_.front();
      rotation_.pop_front();
      const auto waiting = turns_.find(job);
      turn = std::move(waiting->second.front());
      waiting->second.pop_front();
      if (waiting->second.empty()) {
        turns_.erase(waiting);
      } else {
        rotation_.push_back(job);
      }
      ++running_;
    }
    turn();
    // What it held goes without the lock, and before the queue counts as idle.
    turn = nullptr;
    bool ended = false;
    {
      MutexLock lock(mu_);
      --running_;
      ended = stopping_ && running_ == 0;
    }
    if (ended) wakes_.NotifyAll();
  }
}

}  // namespace muster::coordinator
