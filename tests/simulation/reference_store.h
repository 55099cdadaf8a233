// The store as its documentation says, with none of the engine's machinery.

#ifndef MUSTER_TESTS_SIMULATION_REFERENCE_STORE_H_
#define MUSTER_TESTS_SIMULATION_REFERENCE_STORE_H_

#include <cstdint>
#include <map>
#include <string>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "tests/simulation/sim_message.h"

namespace muster::simulation {

class ReferenceStore {
 public:
  // Applies a mutation; returns what its answer should say: the number, the
  // value or the flag.
  std::string Apply(const Request& request) {
    switch (request.verb) {
      case Verb::kSet:
        Write(request.key, request.value);
        return "";
      case Verb::kAppend:
        Write(request.key, values_[request.key] + request.value);
        return "";
      case Verb::kAdd: {
        int64_t number = 0;
        (void)absl::SimpleAtoi(values_[request.key], &number);
        Write(request.key, absl::StrCat(number + request.delta));
        return values_[request.key];
      }
      case Verb::kCompareSet: {
        const auto it = values_.find(request.key);
        const bool present = it != values_.end();
        if (present && it->second != request.expected) return it->second;
        if (!present && !request.expected.empty()) return request.expected;
        Write(request.key, request.value);
        return request.value;
      }
      case Verb::kDelete: {
        const bool deleted = values_.erase(request.key) > 0;
        if (deleted) ++revision_;
        return deleted ? "true" : "false";
      }
      default:
        return "";
    }
  }

  const std::map<std::string, std::string>& values() const { return values_; }
  int64_t revision() const { return revision_; }

  // The revision in which the key was last written; 0: never.
  int64_t RevisionOf(const std::string& key) const {
    const auto it = revisions_.find(key);
    return it == revisions_.end() ? 0 : it->second;
  }

 private:
  void Write(const std::string& key, std::string value) {
    values_[key] = std::move(value);
    revisions_[key] = ++revision_;
  }

  std::map<std::string, std::string> values_;
  std::map<std::string, int64_t> revisions_;
  int64_t revision_ = 0;
};

}  // namespace muster::simulation

#endif  // MUSTER_TESTS_SIMULATION_REFERENCE_STORE_H_
