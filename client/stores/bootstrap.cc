#include "client/stores/bootstrap.h"

#include <algorithm>
#include <chrono>
#include <memory>
#include <stop_token>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "client/control/canceller.h"
#include "client/control/deadline.h"
#include "client/control/verbs.h"

namespace muster::internal {
namespace {

using std::chrono::milliseconds;

// How often a wait checks whether it is in vain: the interval in the first
// seconds, when ranks come together, and later.
constexpr milliseconds kFirstSlice{300};
constexpr int kFirstSlices = 10;
constexpr milliseconds kSlice = std::chrono::seconds(1);
constexpr milliseconds kCallTimeout = std::chrono::seconds(30);

Deadline CallDeadline() {
  return Deadline::After(kCallTimeout,
                         "30s for one store call while a group "
                         "forms");
}

Deadline Until(Instant deadline) {
  return Deadline::After(
      std::max(milliseconds(1),
               std::chrono::ceil<milliseconds>(deadline - Clock::now())),
      "what was left for a store call of the group");
}

Deadline TidyDeadline() {
  return Deadline::After(std::chrono::seconds(2), "2s for tidying up");
}

bool DeleteKeys(Session& session, const std::vector<std::string>& keys,
                const Deadline& deadline) {
  for (const std::string& key : keys) {
    // A key that stays does no harm.
    if (!DeleteKey(session.stream(), key, deadline).ok()) return false;
  }
  return true;
}

std::vector<std::string> Prefixed(const std::string& prefix,
                                  const std::vector<std::string>& keys) {
  std::vector<std::string> prefixed;
  prefixed.reserve(keys.size());
  for (const std::string& key : keys) {
    prefixed.push_back(absl::StrCat(prefix, key));
  }
  return prefixed;
}

}  // namespace

SessionBootstrap::SessionBootstrap(std::shared_ptr<Session> session,
                                   std::string prefix, Broken broken)
    : session_(std::move(session)),
      prefix_(std::move(prefix)),
      broken_(std::move(broken)) {}

Status SessionBootstrap::Set(const std::string& key, const std::string& value) {
  const std::string full = absl::StrCat(prefix_, key);
  {
    MutexLock lock(mutex_);
    own_keys_.push_back(full);
  }
  return SetKey(session_->stream(), full, value, CallDeadline());
}

Status SessionBootstrap::SetBy(const std::string& key, const std::string& value,
                               Instant deadline) {
  const std::string full = absl::StrCat(prefix_, key);
  {
    MutexLock lock(mutex_);
    if (own_keys_.empty() || own_keys_.back() != full) {
      own_keys_.push_back(full);
    }
  }
  return SetKey(session_->stream(), full, value, Until(deadline));
}

// Only now and then, and not in the first interval, so that a group that forms
// normally asks nothing.
bool SessionBootstrap::IsTimeToAsk() {
  MutexLock lock(mutex_);
  const Instant now = Clock::now();
  const bool is_time = next_ask_ != Instant::min() && now >= next_ask_;
  if (is_time || next_ask_ == Instant::min()) {
    next_ask_ = now + (slices_++ < kFirstSlices ? kFirstSlice : kSlice);
  }
  return is_time;
}

milliseconds SessionBootstrap::Slice() {
  MutexLock lock(mutex_);
  return slices_ <= kFirstSlices ? kFirstSlice : kSlice;
}

StatusOr<std::vector<std::string>> SessionBootstrap::Get(
    const std::vector<std::string>& keys, Instant deadline) {
  const std::vector<std::string> full = Prefixed(prefix_, keys);
  const auto interrupted = [this] {
    Status why = interruption_.status();
    return IsCancelled(why) ? OkStatus() : why;
  };
  Canceller canceller;
  const std::stop_callback wake(interruption_.token(), [&] {
    if (!interrupted().ok()) canceller.Cancel();
  });
  for (;;) {
    if (Status broken = broken_(IsTimeToAsk()); !broken.ok()) {
      return broken;
    }
    if (Status why = interrupted(); !why.ok()) return why;
    const Instant now = Clock::now();
    const milliseconds slice = Slice();
    const milliseconds left = std::max(
        milliseconds(1), deadline - now > slice
                             ? slice
                             : std::chrono::ceil<milliseconds>(deadline - now));
    auto values =
        GetKeys(session_->stream(), full,
                Deadline::After(left, "while a group forms"), &canceller);
    if (canceller.cancelled() && !values.ok()) continue;
    if (!IsDeadlineExceeded(values.status()) || Clock::now() >= deadline) {
      return values;
    }
  }
}

StatusOr<int64_t> SessionBootstrap::Add(const std::string& key, int64_t delta) {
  const std::string full = absl::StrCat(prefix_, key);
  {
    MutexLock lock(mutex_);
    own_keys_.push_back(full);
  }
  return AddToKey(session_->stream(), full, delta, CallDeadline());
}

void SessionBootstrap::Forget(const std::string& key, Instant deadline) {
  const std::string full = absl::StrCat(prefix_, key);
  {
    MutexLock lock(mutex_);
    const auto found = std::find(own_keys_.begin(), own_keys_.end(), full);
    if (found == own_keys_.end()) return;
    own_keys_.erase(found);
  }
  DeleteKeys(*session_, {full}, Until(deadline));
}

bool SessionBootstrap::DeleteOwnKeys() {
  std::vector<std::string> keys;
  {
    MutexLock lock(mutex_);
    keys.swap(own_keys_);
  }
  return DeleteKeys(*session_, keys, TidyDeadline());
}

void DeleteStaleKeys(Session& session, const std::string& prefix,
                     int64_t current) {
  const Deadline deadline = TidyDeadline();
  const auto keys = ListKeys(session.stream(), prefix, deadline);
  if (!keys.ok()) return;
  std::vector<std::string> stale;
  for (const std::string& key : *keys) {
    const absl::string_view rest = absl::string_view(key).substr(prefix.size());
    int64_t generation = 0;
    if (absl::SimpleAtoi(rest.substr(0, rest.find('/')), &generation) &&
        generation < current) {
      stale.push_back(key);
    }
  }
  DeleteKeys(session, stale, deadline);
}

}  // namespace muster::internal
