#include "tests/fault/linearizability.h"

#include <algorithm>
#include <cstddef>
#include <cstdlib>
#include <map>
#include <unordered_set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace muster::fault {
namespace {

// The contents of a key; none: there is no such key. Each item of a queue ends
// with a comma.
using State = std::optional<std::string>;

// Applies the operation to `state` and returns its result.
std::string Apply(const Operation& operation, State& state) {
  const std::string& verb = operation.verb;
  const auto argument = [&](size_t i) { return operation.arguments.at(i); };
  if (verb == "get") return state.value_or("absent");
  if (verb == "set") {
    state = argument(0);
  } else if (verb == "append") {
    state = state.value_or("") + argument(0);
  } else if (verb == "push") {
    state = state.value_or("") + argument(0) + ",";
  } else if (verb == "add") {
    const int64_t sum = std::atoll(state.value_or("0").c_str()) +
                        std::atoll(argument(0).c_str());
    state = std::to_string(sum);
    return *state;
  } else if (verb == "cas") {
    const std::string expected = argument(0);
    if (!state.has_value() && !expected.empty()) return expected;
    if (state.has_value() && *state != expected) return *state;
    state = argument(1);
    return *state;
  } else if (verb == "delete") {
    const std::string was_there = state.has_value() ? "1" : "0";
    state.reset();
    return was_there;
  } else if (verb == "pop") {
    if (!state.has_value()) return "empty";
    const size_t comma = state->find(',');
    const std::string item = state->substr(0, comma);
    state->erase(0, comma + 1);
    if (state->empty()) state.reset();
    return item;
  } else {
    std::abort();
  }
  return "-";
}

std::string Describe(const Operation& operation) {
  return absl::StrCat("client ", operation.client, ": ", operation.verb, "(",
                      absl::StrJoin(operation.arguments, ", "),
                      ") = ", operation.result.value_or("no answer"));
}

// Searches for an order of the operations of one key.
class Search {
 public:
  explicit Search(std::vector<const Operation*> operations)
      : operations_(std::move(operations)),
        placed_(operations_.size(), '0'),
        answers_(operations_.size()) {
    events_.push_back({});  // stands for both ends of the ring
    for (size_t i = 0; i < operations_.size(); ++i) {
      events_.push_back({operations_[i]->called, i, false});
      events_.push_back({operations_[i]->answered, i, true});
    }
    // A call at the time of an answer may have been before the answer.
    std::stable_sort(events_.begin() + 1, events_.end(),
                     [](const Event& a, const Event& b) {
                       return std::pair(a.time, a.is_answer) <
                              std::pair(b.time, b.is_answer);
                     });
    for (size_t i = 0; i < events_.size(); ++i) {
      events_[i].next = (i + 1) % events_.size();
      events_[i].previous = (i + events_.size() - 1) % events_.size();
      if (events_[i].is_answer) answers_[events_[i].operation] = i;
    }
  }

  // The operation whose answer fits into no order; null: all fit.
  const Operation* Run() {
    size_t event = First();
    while (First() != kEnd) {
      if (!events_[event].is_answer) {
        event = PlaceNext(event) ? First() : events_[event].next;
        continue;
      }
      // The answered operation has found no place before its answer.
      if (steps_.size() >= furthest_) {
        furthest_ = steps_.size();
        stuck_ = operations_[events_[event].operation];
      }
      if (steps_.empty()) return stuck_;
      event = events_[TakeBack()].next;
    }
    return nullptr;
  }

 private:
  static constexpr size_t kEnd = 0;

  // Calls and answers without a place form a ring, in order of time.
  struct Event {
    int64_t time = 0;
    size_t operation = 0;
    bool is_answer = false;
    size_t next = kEnd;
    size_t previous = kEnd;
  };

  // An operation with a place, and the state before it.
  struct Step {
    size_t call;
    State before;
  };

  size_t First() const { return events_[kEnd].next; }

  void Unlink(size_t i) {
    events_[events_[i].previous].next = events_[i].next;
    events_[events_[i].next].previous = events_[i].previous;
  }
  // Undoes Unlink. The last one that was unlinked must be linked first.
  void Link(size_t i) {
    events_[events_[i].previous].next = i;
    events_[events_[i].next].previous = i;
  }

  // Gives the called operation the next place, if its result allows that.
  bool PlaceNext(size_t call) {
    const size_t i = events_[call].operation;
    State after = state_;
    const std::string result = Apply(*operations_[i], after);
    const std::optional<std::string>& seen = operations_[i]->result;
    if (seen.has_value() && *seen != result) return false;
    placed_[i] = '1';
    const bool is_new =
        tried_
            .insert(absl::StrCat(placed_, after.has_value() ? "=" : "",
                                 after.value_or("")))
            .second;
    if (!is_new) {
      placed_[i] = '0';
      return false;
    }
    steps_.push_back({call, std::exchange(state_, std::move(after))});
    Unlink(call);
    Unlink(answers_[i]);
    return true;
  }

  // Takes back the last placed operation. Returns its call.
  size_t TakeBack() {
    const size_t call = steps_.back().call;
    const size_t i = events_[call].operation;
    state_ = std::move(steps_.back().before);
    steps_.pop_back();
    placed_[i] = '0';
    Link(answers_[i]);
    Link(call);
    return call;
  }

  const std::vector<const Operation*> operations_;
  std::vector<Event> events_;
  State state_;
  std::string placed_;           // by operation: '1' if it has a place
  std::vector<size_t> answers_;  // by operation
  std::vector<Step> steps_;
  // Sets of placed operations that were tried, with the state after them.
  std::unordered_set<std::string> tried_;
  size_t furthest_ = 0;
  const Operation* stuck_ = nullptr;
};

}  // namespace

std::optional<std::string> FindViolation(
    const std::vector<Operation>& operations) {
  std::map<std::string, std::vector<const Operation*>> by_key;
  for (const Operation& operation : operations) {
    by_key[operation.key].push_back(&operation);
  }
  for (const auto& [key, of_key] : by_key) {
    const Operation* const stuck = Search(of_key).Run();
    if (stuck == nullptr) continue;
    return absl::StrCat("key ", key, ", ", of_key.size(),
                        " operations: no order explains ", Describe(*stuck));
  }
  return std::nullopt;
}

}  // namespace muster::fault
