// Checks the operations and observations of a durable store's clients.

#ifndef MUSTER_TESTS_FAULT_HISTORY_H_
#define MUSTER_TESTS_FAULT_HISTORY_H_

#include <cstdint>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

namespace muster::fault {

// History records acknowledged operations from many threads and checks them
// against the store's contents at the end. Every operation is applied exactly
// once, between its call and its answer:
//
//   registers  one writer each, which writes 1, 2, 3...; a read must return at
//              least the last value that was acknowledged before it began, and
//              at most the last one that was begun before it ended
//   counter    Add(1) by every client: all returned sums differ, each client's
//              sums ascend, and the last is the number of calls
//   log        Append of distinct tokens by every client: each is there once,
//              and those of one client are in its order
//
// Thread-safe.
class History {
 public:
  // A write of `value` to the register begins, or is acknowledged.
  void WriteBegins(const std::string& reg, int64_t value);
  void WriteAcknowledged(const std::string& reg, int64_t value);

  // The smallest value that a read beginning now may return; then its result.
  int64_t ReadBegins(const std::string& reg) const;
  void ReadEnded(const std::string& reg, int64_t at_least, int64_t seen);

  void Added(int client, int64_t sum);
  void Appended(int client, const std::string& token);

  // The first violation in the notes or in the store's present contents (the
  // log's tokens end with ','); none: all is correct.
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
