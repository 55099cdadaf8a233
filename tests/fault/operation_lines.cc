#include "tests/fault/operation_lines.h"

#include <cstddef>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"

namespace muster::fault {

bool OperationLines::Take(const std::string& line,
                          std::optional<Operation>* ended) {
  const std::vector<std::string> words =
      absl::StrSplit(line, ' ', absl::SkipEmpty());
  if (words.size() >= 4 && words[0] == "call" && !open_.has_value()) {
    Operation& operation = open_.emplace();
    operation.client = client_;
    operation.verb = words[2];
    operation.key = words[3];
    for (size_t i = 4; i < words.size(); ++i) {
      operation.arguments.push_back(words[i].substr(1));
    }
    return absl::SimpleAtoi(words[1], &operation.called);
  }
  if (words.size() >= 2 && words[0] == "answer" && open_.has_value()) {
    if (!absl::SimpleAtoi(words[1], &open_->answered)) return false;
    open_->result = words.size() > 2 ? words[2] : "";
    *ended = std::exchange(open_, std::nullopt);
    return true;
  }
  return false;
}

std::optional<Operation> OperationLines::TakeOpen() {
  return std::exchange(open_, std::nullopt);
}

}  // namespace muster::fault
