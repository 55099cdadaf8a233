// Checks whether some order of operations explains what the store_clients of
// one job saw.
//
//   check_history FILE...
//
// Each file has the lines of one client. Prints the number of operations, and
// ends with status 0; or prints what no order explains, and ends with status 1.

#include <cstdio>
#include <fstream>
#include <optional>
#include <string>
#include <vector>

#include "tests/fault/linearizability.h"
#include "tests/fault/operation_lines.h"

namespace muster::fault {
namespace {

int Check(const std::vector<std::string>& files) {
  std::vector<Operation> operations;
  for (size_t i = 0; i < files.size(); ++i) {
    OperationLines lines(static_cast<int>(i));
    std::ifstream file(files[i]);
    if (!file.is_open()) {
      fprintf(stderr, "cannot read %s\n", files[i].c_str());
      return 2;
    }
    for (std::string line; std::getline(file, line);) {
      std::optional<Operation> ended;
      if (!lines.Take(line, &ended)) {
        printf("%s: %s\n", files[i].c_str(), line.c_str());
        return 1;
      }
      if (ended.has_value()) operations.push_back(*std::move(ended));
    }
    if (std::optional<Operation> open = lines.TakeOpen()) {
      operations.push_back(*std::move(open));
    }
  }
  const std::optional<std::string> violation = FindViolation(operations);
  if (violation.has_value()) {
    printf("%s\n", violation->c_str());
    return 1;
  }
  printf("%zu\n", operations.size());
  return 0;
}

}  // namespace
}  // namespace muster::fault

int main(int argc, char** argv) {
  if (argc < 2) {
    fprintf(stderr, "usage: check_history FILE...\n");
    return 2;
  }
  return muster::fault::Check({argv + 1, argv + argc});
}
