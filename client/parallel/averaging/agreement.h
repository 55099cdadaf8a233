// Compares arguments over ranks.

#ifndef MUSTER_CLIENT_PARALLEL_AVERAGING_AGREEMENT_H_
#define MUSTER_CLIENT_PARALLEL_AVERAGING_AGREEMENT_H_

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "muster/base/status.h"
#include "muster/process_group.h"

namespace muster::internal {

// One rank's arguments.
class AgreedArguments {
 public:
  // `name` is that of the class.
  explicit AgreedArguments(std::string name) : name_(std::move(name)) {}

  // Adds an argument. Its texts must be equal on all ranks.
  void Add(std::string argument, std::string text) {
    texts_.push_back(std::move(argument));
    texts_.push_back(std::move(text));
  }

  // Adds a list of tensors of the types that the classes take; with `cpu_only`
  // they must be on the CPU.
  void AddTensors(const std::string& argument,
                  const std::vector<Tensor>& tensors, bool cpu_only);

  // Says that an argument is bad. The first fault counts.
  void SetFault(std::string fault,
                StatusCode code = StatusCode::kInvalidArgument) {
    if (!fault_.empty()) return;
    fault_ = std::move(fault);
    fault_code_ = code;
  }
  void CheckAtLeast(const std::string& argument, int64_t value, int64_t least);

  // Throws DistError on all ranks of the group if one has a fault, or if
  // arguments differ (kInvalidArgument). All of them make the call.
  void Agree(const std::shared_ptr<ProcessGroup>& group) const;

 private:
  const std::string name_;
  std::string fault_;
  StatusCode fault_code_ = StatusCode::kOk;
  // The names and the texts of the arguments, in turns.
  std::vector<std::string> texts_;
};

}  // namespace muster::internal

#endif  // MUSTER_CLIENT_PARALLEL_AVERAGING_AGREEMENT_H_
