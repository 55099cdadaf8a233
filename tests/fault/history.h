// What clients did to one store and what they saw, and whether a durable store
// can have shown it.

#ifndef MUSTER_TESTS_FAULT_HISTORY_H_
#define MUSTER_TESTS_FAULT_HISTORY_H_

#include <cstdint>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

namespace muster::fault {

// History takes notes of acknowledged operations from many threads and checks
// them against what the store holds at the end. Every operation is applied at
// some moment between its call and its answer, and exactly once:
//
//   registers  one writer each, which writes 1, 2, 3...; whoever reads must see
//              at least what was acknowledged before the read began, and at
//              most what was begun before it ended
//   counter    Add(1) by everybody: the sums that come back are all different,
//              no client's go back, and the last is how many there were
//   log        Append of distinct tokens by everybody: each is there once, and
//              those of one client in its order
//
// Thread-safe.
class History {
 public:
  // A write of `value` to the register begins, or is acknowledged.
  void WriteBegins(const std::string& reg, int64_t value);
  void WriteAcknowledged(const std::string& reg, int64_t value);

  // What a read that begins now must see at least; then what it saw.
  int64_t ReadBegins(const std::string& reg) const;
  void ReadEnded(const std::string& reg, int64_t at_least, int64_t seen);

  void Added(int client, int64_t sum);
  void Appended(int client, const std::string& token);

  // The first thing that is wrong: of the notes, or of what the store holds
  // now (the log's tokens end with ','). None: nothing.
  std::optional<std::string> Check(
      const std::map<std::string, int64_t>& registers, int64_t counter,
      const std::string& log) const;

  int64_t operations() const;

 private:
  void Fail(const std::string& what);

  mutable std::mutex mutex_;
  std::optional<std::string> failure_;
  int64_t operations_ = 0;
  std::map<std::string, int64_t> begun_;
  std::map<std::string, int64_t> acknowledged_;
  std::map<int, std::vector<int64_t>> sums_;
  std::map<int, std::vector<std::string>> tokens_;
};

}  // namespace muster::fault

#endif  // MUSTER_TESTS_FAULT_HISTORY_H_
