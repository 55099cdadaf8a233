#include "muster/hash_store.h"

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <iterator>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/text.h"
#include "client/control/deadline.h"
#include "client/control/fork_guard.h"
#include "client/control/throw.h"
#include "client/stores/store_rules.h"
#include "muster/base/mutex.h"
#include "muster/base/status.h"
#include "muster/base/thread_annotations.h"

namespace muster {
namespace {

using internal::Deadline;
using internal::ErrorSource;
using internal::ThrowIfFailed;
using internal::ValueOrThrow;

}  // namespace

// State that clones share. A key is in `values_` or, with at least one item, in
// `queues_`, never in both.
class HashStore::Map {
 public:
  // Throws in a forked child, where a lock may be held forever.
  Map& Here() {
    if (!fork_guard_.is_here()) {
      internal::Throw(ErrorSource::kStore,
                      FailedPreconditionError(
                          absl::StrCat("HashStore", internal::kIsParents)));
    }
    return *this;
  }

  Status Set(std::string_view key, std::string_view value) {
    MutexLock lock(mutex_);
    if (Status queue = CheckIsNoQueue("set", key); !queue.ok()) {
      return queue;
    }
    Put(key, value, ++revision_);
    return OkStatus();
  }

  StatusOr<std::vector<std::string>> GetAll(
      const std::vector<std::string>& keys, const Deadline& deadline) {
    MutexLock lock(mutex_);
    std::vector<std::string> values;
    values.reserve(keys.size());
    Status ready = Await(keys, deadline);
    if (!ready.ok()) return ready;
    for (const std::string& key : keys) {
      if (Status queue = CheckIsNoQueue("get", key); !queue.ok()) {
        return queue;
      }
      values.push_back(values_.find(key)->second.value);
    }
    return values;
  }

  StatusOr<int64_t> Add(std::string_view key, int64_t delta) {
    MutexLock lock(mutex_);
    if (Status queue = CheckIsNoQueue("add", key); !queue.ok()) {
      return queue;
    }
    StatusOr<int64_t> sum = internal::Sum(base::ToAbsl(key), Find(key), delta);
    if (sum.ok()) Put(key, absl::StrCat(*sum), ++revision_);
    return sum;
  }

  Status Append(std::string_view key, std::string_view value) {
    MutexLock lock(mutex_);
    if (Status queue = CheckIsNoQueue("append", key); !queue.ok()) {
      return queue;
    }
    const std::string* const present = Find(key);
    Put(key,
        absl::StrCat(present == nullptr ? "" : *present, base::ToAbsl(value)),
        ++revision_);
    return OkStatus();
  }

  bool Check(const std::vector<std::string>& keys) {
    MutexLock lock(mutex_);
    return Missing(keys).empty();
  }

  Status Wait(const std::vector<std::string>& keys, const Deadline& deadline) {
    MutexLock lock(mutex_);
    return Await(keys, deadline);
  }

  StatusOr<std::string> CompareSet(std::string_view key,
                                   std::string_view expected,
                                   std::string_view desired) {
    MutexLock lock(mutex_);
    if (Status queue = CheckIsNoQueue("compare set", key); !queue.ok()) {
      return queue;
    }
    const internal::CompareSetDecision decision = internal::DecideCompareSet(
        Find(key), base::ToAbsl(expected), base::ToAbsl(desired));
    std::string result(decision.result);
    if (decision.write) Put(key, desired, ++revision_);
    return result;
  }

  StatusOr<CompareAndSetResult> CompareAndSet(std::string_view key,
                                              int64_t expected_revision,
                                              std::string_view desired) {
    if (expected_revision < 0) {
      return InvalidArgumentError(absl::StrCat("compare and set: revision is ",
                                               expected_revision,
                                               ", must not be negative"));
    }
    MutexLock lock(mutex_);
    if (Status queue = CheckIsNoQueue("compare and set", key); !queue.ok()) {
      return queue;
    }
    const auto found = values_.find(key);
    const bool exists = found != values_.end();
    if ((exists ? found->second.revision : 0) == expected_revision) {
      Put(key, desired, ++revision_);
      return CompareAndSetResult{.written = true, .revision = revision_};
    }
    if (!exists) return CompareAndSetResult{};
    return CompareAndSetResult{.revision = found->second.revision,
                               .present = found->second.value};
  }

  StatusOr<std::optional<StoreValue>> TryGet(std::string_view key) {
    MutexLock lock(mutex_);
    if (Status queue = CheckIsNoQueue("get", key); !queue.ok()) {
      return queue;
    }
    const auto found = values_.find(key);
    if (found == values_.end()) return std::nullopt;
    return found->second;
  }

  bool Delete(std::string_view key) {
    MutexLock lock(mutex_);
    const auto value = values_.find(key);
    if (value != values_.end()) {
      values_.erase(value);
      return true;
    }
    const auto queue = queues_.find(key);
    if (queue == queues_.end()) return false;
    queues_.erase(queue);
    return true;
  }

  int64_t DeletePrefix(std::string_view prefix) {
    MutexLock lock(mutex_);
    return ErasePrefix(values_, prefix) + ErasePrefix(queues_, prefix);
  }

  std::vector<std::string> ListKeys(std::string_view prefix) {
    MutexLock lock(mutex_);
    std::vector<std::string> keys;
    for (auto it = values_.lower_bound(prefix);
         it != values_.end() &&
         absl::StartsWith(it->first, base::ToAbsl(prefix));
         ++it) {
      keys.push_back(it->first);
    }
    internal::DropReservedKeys(base::ToAbsl(prefix), keys);
    return keys;
  }

  Status MultiSet(const std::vector<std::string>& keys,
                  const std::vector<std::string>& values) {
    MutexLock lock(mutex_);
    for (const std::string& key : keys) {
      if (Status queue = CheckIsNoQueue("multi set", key); !queue.ok()) {
        return queue;
      }
    }
    ++revision_;
    for (size_t i = 0; i < keys.size(); ++i) {
      Put(keys[i], values[i], revision_);
    }
    return OkStatus();
  }

  Status Push(std::string_view key, std::string_view item) {
    MutexLock lock(mutex_);
    if (Status value = CheckIsNoValue("queue push", key); !value.ok()) {
      return value;
    }
    ++revision_;
    // Gives the item to the QueuePop that has waited longest. In the queue,
    // another call could take it before that one runs.
    const auto waiting = poppers_.find(key);
    if (waiting != poppers_.end()) {
      Popper& popper = *waiting->second.front();
      popper.item = std::string(item);
      popper.ready.NotifyOne();
      Forget(waiting, popper);
      return OkStatus();
    }
    queues_[std::string(key)].emplace_back(item);
    appeared_.NotifyAll();
    return OkStatus();
  }

  StatusOr<std::string> Pop(std::string_view key, bool block,
                            const Deadline& deadline) {
    MutexLock lock(mutex_);
    if (Status value = CheckIsNoValue("queue pop", key); !value.ok()) {
      return value;
    }
    const auto queue = queues_.find(key);
    if (queue != queues_.end()) {
      ++revision_;
      std::string item = std::move(queue->second.front());
      queue->second.pop_front();
      if (queue->second.empty()) queues_.erase(queue);
      return item;
    }
    if (!block) {
      return NotFoundError(absl::StrCat("queue is empty, key: ",
                                        base::Excerpt(base::ToAbsl(key))));
    }
    Popper popper;
    poppers_[std::string(key)].push_back(&popper);
    while (!popper.item.has_value() && popper.failure.ok()) {
      if (popper.ready.WaitUntil(mutex_, deadline.at)) continue;
      if (popper.item.has_value() || !popper.failure.ok()) break;
      Forget(poppers_.find(key), popper);
      return internal::WaitTimeout({std::string(key)}, deadline);
    }
    if (!popper.failure.ok()) return popper.failure;
    return *std::move(popper.item);
  }

  StatusOr<int64_t> Length(std::string_view key) {
    MutexLock lock(mutex_);
    if (Status value = CheckIsNoValue("queue len", key); !value.ok()) {
      return value;
    }
    const auto queue = queues_.find(key);
    if (queue == queues_.end()) return 0;
    return static_cast<int64_t>(queue->second.size());
  }

 private:
  // A waiting QueuePop, on its stack. The thread that gives it an item or an
  // error removes it from the list.
  struct Popper {
    CondVar ready;
    std::optional<std::string> item;
    Status failure;
  };
  using Poppers = std::map<std::string, std::deque<Popper*>, std::less<>>;

  template <typename Container>
  static int64_t ErasePrefix(Container& container, std::string_view prefix) {
    const auto begin = container.lower_bound(prefix);
    auto end = begin;
    while (end != container.end() &&
           absl::StartsWith(end->first, base::ToAbsl(prefix))) {
      ++end;
    }
    const int64_t count = std::distance(begin, end);
    container.erase(begin, end);
    return count;
  }

  const std::string* Find(std::string_view key) const
      MUSTER_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    const auto found = values_.find(key);
    return found == values_.end() ? nullptr : &found->second.value;
  }

  Status CheckIsNoQueue(std::string_view verb, std::string_view key) const
      MUSTER_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    const auto queue = queues_.find(key);
    if (queue == queues_.end()) return OkStatus();
    return InvalidArgumentError(absl::StrCat(
        base::ToAbsl(verb), ": key ", base::Excerpt(base::ToAbsl(key)),
        " is a queue of ", queue->second.size(), " items, no value"));
  }

  Status CheckIsNoValue(std::string_view verb, std::string_view key) const
      MUSTER_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (Find(key) == nullptr) return OkStatus();
    return InvalidArgumentError(absl::StrCat(base::ToAbsl(verb), ": key ",
                                             base::Excerpt(base::ToAbsl(key)),
                                             " holds a value, no queue"));
  }

  void Put(std::string_view key, std::string_view value, int64_t revision)
      MUSTER_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    const auto found = values_.find(key);
    if (found != values_.end()) {
      found->second = {std::string(value), revision};
      return;
    }
    values_.emplace(key, StoreValue{std::string(value), revision});
    appeared_.NotifyAll();
    const auto waiting = poppers_.find(key);
    if (waiting == poppers_.end()) return;
    for (Popper* popper : waiting->second) {
      popper->failure = CheckIsNoValue("queue pop", key);
      popper->ready.NotifyOne();
    }
    poppers_.erase(waiting);
  }

  void Forget(Poppers::iterator waiting, const Popper& popper)
      MUSTER_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    std::deque<Popper*>& list = waiting->second;
    list.erase(std::find(list.begin(), list.end(), &popper));
    if (list.empty()) poppers_.erase(waiting);
  }

  std::vector<std::string> Missing(const std::vector<std::string>& keys) const
      MUSTER_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    std::vector<std::string> missing;
    for (const std::string& key : keys) {
      if (!values_.contains(key) && !queues_.contains(key)) {
        missing.push_back(key);
      }
    }
    return missing;
  }

  Status Await(const std::vector<std::string>& keys, const Deadline& deadline)
      MUSTER_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    for (;;) {
      const std::vector<std::string> missing = Missing(keys);
      if (missing.empty()) return OkStatus();
      if (deadline.Passed(Clock::now())) {
        return internal::WaitTimeout(missing, deadline);
      }
      appeared_.WaitUntil(mutex_, deadline.at);
    }
  }

  const internal::ForkGuard fork_guard_;
  Mutex mutex_;
  // Signals that a key has appeared.
  CondVar appeared_;
  std::map<std::string, StoreValue, std::less<>> values_
      MUSTER_GUARDED_BY(mutex_);
  std::map<std::string, std::deque<std::string>, std::less<>> queues_
      MUSTER_GUARDED_BY(mutex_);
  // In order of arrival; no key without a waiter.
  Poppers poppers_ MUSTER_GUARDED_BY(mutex_);
  int64_t revision_ MUSTER_GUARDED_BY(mutex_) = 0;
};

HashStore::HashStore() : map_(internal::MakeAtHome<Map>()) {}

HashStore::HashStore(std::shared_ptr<Map> map,
                     std::chrono::milliseconds timeout)
    : map_(std::move(map)), timeout_(timeout) {}

HashStore::~HashStore() = default;

void HashStore::Set(std::string_view key, std::string_view value) {
  ThrowIfFailed(ErrorSource::kStore, map_->Here().Set(key, value));
}

std::string HashStore::Get(std::string_view key) {
  return ValueOrThrow(ErrorSource::kStore,
                      map_->Here().GetAll({std::string(key)},
                                          internal::StoreDeadline(timeout())))
      .front();
}

int64_t HashStore::Add(std::string_view key, int64_t delta) {
  return ValueOrThrow(ErrorSource::kStore, map_->Here().Add(key, delta));
}

bool HashStore::Check(const std::vector<std::string>& keys) {
  return map_->Here().Check(keys);
}

std::string HashStore::CompareSet(std::string_view key,
                                  std::string_view expected,
                                  std::string_view desired) {
  return ValueOrThrow(ErrorSource::kStore,
                      map_->Here().CompareSet(key, expected, desired));
}

bool HashStore::DeleteKey(std::string_view key) {
  return map_->Here().Delete(key);
}

int64_t HashStore::NumKeys() {
  return static_cast<int64_t>(map_->Here().ListKeys("").size());
}

std::vector<std::string> HashStore::ListKeys(std::string_view prefix) {
  return map_->Here().ListKeys(prefix);
}

void HashStore::Wait(const std::vector<std::string>& keys,
                     std::chrono::milliseconds timeout) {
  if (!keys.empty()) {
    ThrowIfFailed(ErrorSource::kStore,
                  internal::CheckTimeout(timeout, "Store::Wait"));
  }
  ThrowIfFailed(ErrorSource::kStore,
                map_->Here().Wait(keys, internal::WaitDeadline(timeout)));
}

void HashStore::Append(std::string_view key, std::string_view value) {
  ThrowIfFailed(ErrorSource::kStore, map_->Here().Append(key, value));
}

std::vector<std::string> HashStore::MultiGet(
    const std::vector<std::string>& keys) {
  return ValueOrThrow(
      ErrorSource::kStore,
      map_->Here().GetAll(keys, internal::StoreDeadline(timeout())));
}

void HashStore::MultiSet(const std::vector<std::string>& keys,
                         const std::vector<std::string>& values) {
  ThrowIfFailed(ErrorSource::kStore, internal::CheckSameLength(keys, values));
  ThrowIfFailed(ErrorSource::kStore, map_->Here().MultiSet(keys, values));
}

std::optional<StoreValue> HashStore::TryGet(std::string_view key) {
  return ValueOrThrow(ErrorSource::kStore, map_->Here().TryGet(key));
}

CompareAndSetResult HashStore::CompareAndSet(std::string_view key,
                                             int64_t expected_revision,
                                             std::string_view desired,
                                             const SetOptions& options) {
  if (options.ttl.has_value() || options.ephemeral) {
    return Store::CompareAndSet(key, expected_revision, desired, options);
  }
  return ValueOrThrow(
      ErrorSource::kStore,
      map_->Here().CompareAndSet(key, expected_revision, desired));
}

int64_t HashStore::DeletePrefix(std::string_view prefix) {
  return map_->Here().DeletePrefix(prefix);
}

void HashStore::QueuePush(std::string_view key, std::string_view value) {
  ThrowIfFailed(ErrorSource::kStore, map_->Here().Push(key, value));
}

std::string HashStore::QueuePop(std::string_view key, bool block) {
  return internal::ItemOrThrow(
      map_->Here().Pop(key, block, internal::StoreDeadline(timeout())));
}

int64_t HashStore::QueueLen(std::string_view key) {
  return ValueOrThrow(ErrorSource::kStore, map_->Here().Length(key));
}

std::shared_ptr<Store> HashStore::Clone() {
  return std::shared_ptr<Store>(new HashStore(map_, timeout()));
}

void HashStore::SetTimeout(std::chrono::milliseconds timeout) {
  ThrowIfFailed(ErrorSource::kStore, internal::CheckTimeout(timeout));
  timeout_ = timeout;
}

std::chrono::milliseconds HashStore::timeout() const { return timeout_; }

}  // namespace muster
