#include "tests/fault/history.h"

#include <set>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace muster::fault {
namespace {

int64_t FindValue(const std::map<std::string, int64_t>& values,
                  const std::string& name) {
  const auto it = values.find(name);
  return it == values.end() ? 0 : it->second;
}

// Each token must be there once, and those of a client in its order.
std::optional<std::string> CheckLog(
    const std::map<int, std::vector<std::string>>& tokens,
    const std::string& log) {
  std::map<std::string, size_t> place;
  size_t count = 0;
  const std::vector<std::string> entries = absl::StrSplit(log, ',');
  for (const std::string& entry : entries) {
    if (entry.empty()) continue;
    if (!place.emplace(entry, count++).second) {
      return absl::StrCat("log: \"", entry, "\" is there twice");
    }
  }
  size_t expected = 0;
  for (const auto& [client, own] : tokens) {
    std::optional<size_t> before;
    for (const std::string& token : own) {
      ++expected;
      const auto it = place.find(token);
      if (it == place.end()) {
        return absl::StrCat("log: \"", token, "\" of client ", client,
                            " was acknowledged and is lost");
      }
      if (before.has_value() && it->second < *before) {
        return absl::StrCat("log: \"", token, "\" of client ", client,
                            " stands before an earlier one");
      }
      before = it->second;
    }
  }
  if (count == expected) return std::nullopt;
  return absl::StrCat("log: holds ", count, " tokens, ", expected,
                      " were acknowledged");
}

}  // namespace

void History::Fail(const std::string& what) {
  if (!failure_.has_value()) failure_ = what;
}

void History::WriteBegins(const std::string& reg, int64_t value) {
  const std::lock_guard<std::mutex> lock(mutex_);
  begun_[reg] = value;
}

void History::WriteAcknowledged(const std::string& reg, int64_t value) {
  const std::lock_guard<std::mutex> lock(mutex_);
  acknowledged_[reg] = value;
  ++operations_;
}

int64_t History::ReadBegins(const std::string& reg) const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return FindValue(acknowledged_, reg);
}

void History::ReadEnded(const std::string& reg, int64_t at_least,
                        int64_t seen) {
  const std::lock_guard<std::mutex> lock(mutex_);
  ++operations_;
  if (seen < at_least) {
    Fail(absl::StrCat("register ", reg, ": a read saw ", seen, " after ",
                      at_least, " was acknowledged or seen"));
  }
  if (seen > FindValue(begun_, reg)) {
    Fail(absl::StrCat("register ", reg, ": a read saw ", seen, ", but only ",
                      FindValue(begun_, reg), " was written"));
  }
  // A value that was read counts as acknowledged: a later read must not go
  // back.
  int64_t& acknowledged = acknowledged_[reg];
  if (seen > acknowledged) acknowledged = seen;
}

void History::Added(int client, int64_t sum) {
  const std::lock_guard<std::mutex> lock(mutex_);
  ++operations_;
  std::vector<int64_t>& sums = sums_[client];
  if (!sums.empty() && sum <= sums.back()) {
    Fail(absl::StrCat("counter: client ", client, " got ", sum, " after ",
                      sums.back()));
  }
  sums.push_back(sum);
}

void History::Appended(int client, const std::string& token) {
  const std::lock_guard<std::mutex> lock(mutex_);
  ++operations_;
  tokens_[client].push_back(token);
}

std::optional<std::string> History::Check(
    const std::map<std::string, int64_t>& registers, int64_t counter,
    const std::string& log) const {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (failure_.has_value()) return failure_;
  for (const auto& [reg, acknowledged] : acknowledged_) {
    const int64_t held = FindValue(registers, reg);
    if (held != acknowledged) {
      return absl::StrCat("register ", reg, ": holds ", held,
                          ", the last acknowledged write is ", acknowledged);
    }
  }
  std::set<int64_t> all;
  for (const auto& [client, sums] : sums_) {
    for (const int64_t sum : sums) {
      if (!all.insert(sum).second) {
        return absl::StrCat("counter: two calls got ", sum);
      }
    }
  }
  if (counter != static_cast<int64_t>(all.size())) {
    return absl::StrCat("counter: holds ", counter, " after ", all.size(),
                        " additions of 1");
  }
  return CheckLog(tokens_, log);
}

int64_t History::operations() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return operations_;
}

}  // namespace muster::fault
