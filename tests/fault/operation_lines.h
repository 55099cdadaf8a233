// Reads what a store_client prints.

#ifndef MUSTER_TESTS_FAULT_OPERATION_LINES_H_
#define MUSTER_TESTS_FAULT_OPERATION_LINES_H_

#include <optional>
#include <string>

#include "tests/fault/linearizability.h"

namespace muster::fault {

// OperationLines makes operations of one store_client's lines.
class OperationLines {
 public:
  explicit OperationLines(int client) : client_(client) {}

  // Takes the next line. Returns false if it is not one of an operation, or
  // out of turn. Sets `ended` if the line ends an operation.
  bool Take(const std::string& line, std::optional<Operation>* ended);

  // Returns the operation that was called and has no answer, if there is one,
  // and forgets it: the next line begins another client's life.
  std::optional<Operation> TakeOpen();

 private:
  const int client_;
  std::optional<Operation> open_;
};

}  // namespace muster::fault

#endif  // MUSTER_TESTS_FAULT_OPERATION_LINES_H_
