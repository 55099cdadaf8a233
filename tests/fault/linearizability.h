// Checks whether several clients' observations of a store can be explained by
// operations that happen one after another, each between its call and its
// answer.

#ifndef MUSTER_TESTS_FAULT_LINEARIZABILITY_H_
#define MUSTER_TESTS_FAULT_LINEARIZABILITY_H_

#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <vector>

namespace muster::fault {

// One operation on one key, as its caller saw it.
//   verb    arguments         result
//   set     the value         -
//   get                       the value, or "absent"
//   add     the number        the sum
//   append  the bytes         -
//   cas     expected, desired the value returned (c10d's compare_set)
//   delete                    "1": there was such a key, "0"
//   push    the item          -
//   pop                       the item, or "empty"
struct Operation {
  int client = 0;
  std::string verb;
  std::string key;
  std::vector<std::string> arguments;
  // Nanoseconds of one clock for all clients.
  int64_t called = 0;
  // An operation without an answer may take effect at any later time, or never.
  int64_t answered = std::numeric_limits<int64_t>::max();
  std::optional<std::string> result;
};

// None: every key has such an order. Else the key, and an operation that fits
// into no order of those before it. A key is used either with the verbs of
// values or with those of queues.
//
// Wing and Gong's search ("Testing and Verifying Concurrent Objects", 1993)
// with Lowe's memory of the states already seen ("Testing for Linearizability",
// 2016); keys are independent of each other, so each is searched alone.
std::optional<std::string> FindViolation(
    const std::vector<Operation>& operations);

}  // namespace muster::fault

#endif  // MUSTER_TESTS_FAULT_LINEARIZABILITY_H_
