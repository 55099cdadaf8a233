#include "dataplane/testing/in_memory_store.h"

#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "muster/base/status.h"

namespace muster::dataplane::testing {

Status InMemoryStore::Set(const std::string& key, const std::string& value) {
  ++sets_;
  MutexLock lock(mutex_);
  values_[key] = value;
  changed_.NotifyAll();
  return OkStatus();
}

StatusOr<std::vector<std::string>> InMemoryStore::Get(
    const std::vector<std::string>& keys, Instant deadline) {
  ++gets_;
  MutexLock lock(mutex_);
  std::vector<std::string> values;
  for (const std::string& key : keys) {
    while (!values_.contains(key)) {
      if (deadline == Instant::max()) {
        changed_.Wait(mutex_);
      } else if (!changed_.WaitUntil(mutex_, deadline) &&
                 !values_.contains(key)) {
        return DeadlineExceededError(
            absl::StrCat("key \"", key, "\" was not set in time"));
      }
    }
    values.push_back(values_[key]);
  }
  return values;
}

StatusOr<int64_t> InMemoryStore::Add(const std::string& key, int64_t delta) {
  MutexLock lock(mutex_);
  int64_t value = 0;
  const auto found = values_.find(key);
  if (found != values_.end() && !absl::SimpleAtoi(found->second, &value)) {
    return InvalidArgumentError(
        absl::StrCat("key \"", key, "\" holds no number"));
  }
  value += delta;
  values_[key] = absl::StrCat(value);
  changed_.NotifyAll();
  return value;
}

void InMemoryStore::Forget(const std::string& key, Instant) {
  MutexLock lock(mutex_);
  values_.erase(key);
}

size_t InMemoryStore::size() const {
  MutexLock lock(mutex_);
  return values_.size();
}

}  // namespace muster::dataplane::testing
