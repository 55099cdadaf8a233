// The store as documented, without the engine's optimisations.

#ifndef MUSTER_TESTS_SIMULATION_REFERENCE_STORE_H_
#define MUSTER_TESTS_SIMULATION_REFERENCE_STORE_H_

#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "coordinator/core/payload.h"
#include "tests/simulation/sim_message.h"

namespace muster::simulation {

class ReferenceStore {
 public:
  struct Change {
    core::ChangeKind kind;
    std::string key;
    std::string value;
    int64_t revision;
  };

  // Applies a mutation. Returns the expected answer: the number, the value or
  // the flag.
  std::string Apply(const Request& request, core::Instant now) {
    const std::string& key = request.key;
    const auto it = values_.find(key);
    const bool present = it != values_.end();
    switch (request.verb) {
      case Verb::kSet:
        Replace(request, now);
        return "";
      case Verb::kAppend:
        Write(key, (present ? it->second : "") + request.value);
        return "";
      case Verb::kAdd: {
        int64_t number = 0;
        if (present) (void)absl::SimpleAtoi(it->second, &number);
        Write(key, absl::StrCat(number + request.delta));
        return values_[key];
      }
      case Verb::kCompareSet: {
        if (present && it->second != request.expected) return it->second;
        if (!present && !request.expected.empty()) return request.expected;
        Write(key, request.value);
        return request.value;
      }
      case Verb::kCompareAndSet: {
        const int64_t revision = present ? revisions_[key] : 0;
        if (revision != request.expected_revision) {
          return present ? it->second : "(absent)";
        }
        Replace(request, now);
        return "stored";
      }
      case Verb::kDelete: {
        if (present) Erase(key, core::ChangeKind::kDeleted);
        return present ? "true" : "false";
      }
      case Verb::kDeletePrefix: {
        int64_t deleted = 0;
        for (auto next = values_.lower_bound(key);
             next != values_.end() && absl::StartsWith(next->first, key);
             next = values_.lower_bound(key)) {
          Erase(std::string(next->first), core::ChangeKind::kDeleted);
          ++deleted;
        }
        return absl::StrCat(deleted);
      }
      case Verb::kMultiSet: {
        // In ascending order, all in one revision.
        const int64_t revision = revision_ + 1;
        for (const std::string& each : request.keys) {
          revision_ = revision - 1;
          Write(each, request.value);
        }
        return "";
      }
      case Verb::kQueuePush:
        ++revision_;
        queues_[key].push_back(request.value);
        return "";
      default:
        return "";
    }
  }

  // Takes the first item, if there is one.
  std::optional<std::string> Pop(const std::string& key) {
    std::deque<std::string>& queue = queues_[key];
    if (queue.empty()) return std::nullopt;
    ++revision_;
    std::string item = queue.front();
    queue.pop_front();
    return item;
  }

  // Returns the number of expired keys.
  int64_t Expire(core::Instant now) {
    std::map<std::pair<core::Instant, std::string>, int> due;
    for (const auto& [key, at] : expires_at_) {
      if (at <= now) due.emplace(std::make_pair(at, key), 0);
    }
    for (const auto& [at, none] : due) {
      Erase(at.second, core::ChangeKind::kExpired);
    }
    return static_cast<int64_t>(due.size());
  }
  int64_t Departed(const core::MemberId& member) {
    std::vector<std::string> orphans;
    for (const auto& [key, owner] : owners_) {
      if (owner == member) orphans.push_back(key);
    }
    for (const std::string& key : orphans) {
      Erase(key, core::ChangeKind::kOrphaned);
    }
    return static_cast<int64_t>(orphans.size());
  }

  // The coordinator was down, so every time to live begins anew.
  void Resume(core::Instant now) {
    for (auto& [key, at] : expires_at_) at = now + ttls_.at(key);
  }

  const std::map<std::string, std::string>& values() const { return values_; }
  const std::map<std::string, std::deque<std::string>>& queues() const {
    return queues_;
  }
  const std::vector<Change>& changes() const { return changes_; }
  int64_t revision() const { return revision_; }

  // The revision in which the key was last written; 0: never.
  int64_t GetRevision(const std::string& key) const {
    const auto it = revisions_.find(key);
    return it == revisions_.end() ? 0 : it->second;
  }

  core::Instant GetExpiry(const std::string& key) const {
    const auto it = expires_at_.find(key);
    return it == expires_at_.end() ? core::Instant::max() : it->second;
  }

 private:
  void Write(const std::string& key, std::string value) {
    revisions_[key] = ++revision_;
    changes_.push_back({core::ChangeKind::kPut, key, value, revision_});
    values_[key] = std::move(value);
  }

  void Forget(const std::string& key) {
    expires_at_.erase(key);
    ttls_.erase(key);
    owners_.erase(key);
  }

  void Replace(const Request& request, core::Instant now) {
    Forget(request.key);
    Write(request.key, request.value);
    if (request.options.ttl.has_value()) {
      ttls_[request.key] = *request.options.ttl;
      expires_at_[request.key] = now + *request.options.ttl;
    }
    if (request.options.ephemeral) {
      owners_.insert_or_assign(request.key, request.call.member);
    }
  }

  void Erase(const std::string& key, core::ChangeKind why) {
    changes_.push_back({why, key, "", ++revision_});
    values_.erase(key);
    Forget(key);
  }

  std::map<std::string, std::string> values_;
  std::map<std::string, int64_t> revisions_;
  std::map<std::string, core::Duration> ttls_;
  std::map<std::string, core::Instant> expires_at_;
  std::map<std::string, core::MemberId> owners_;
  std::map<std::string, std::deque<std::string>> queues_;
  std::vector<Change> changes_;
  int64_t revision_ = 0;
};

}  // namespace muster::simulation

#endif  // MUSTER_TESTS_SIMULATION_REFERENCE_STORE_H_
