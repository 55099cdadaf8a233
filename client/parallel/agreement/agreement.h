// Compares what the ranks pass to one call.

#ifndef MUSTER_CLIENT_PARALLEL_AGREEMENT_AGREEMENT_H_
#define MUSTER_CLIENT_PARALLEL_AGREEMENT_AGREEMENT_H_

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "muster/base/status.h"
#include "muster/process_group.h"

namespace muster::internal {

// One rank's arguments of a call that all ranks make.
class Agreement {
 public:
  // `call` is the name of the function or the class.
  explicit Agreement(std::string call) : call_(std::move(call)) {}

  // Adds an argument. Its value must be equal on all ranks. Both texts are for
  // people.
  void Add(std::string argument, std::string value) {
    arguments_.push_back({std::move(argument), std::move(value)});
  }
  // All digits are compared.
  void AddNumber(std::string argument, double value);
  // Must also be at least `least`.
  void AddAtLeast(const std::string& argument, int64_t value, int64_t least);

  // Says what is wrong with this rank's arguments. The first fault counts.
  void AddFault(Status fault) { fault_.Update(std::move(fault)); }

  // Throws DistError, the same on all ranks and with the culprit, if a rank has
  // a fault (then with its code), or if calls or arguments differ
  // (kInvalidArgument):
  //
  //   CALL: rank 3: FAULT
  //   CALL: ARGUMENT: rank 3 has 5, rank 0 has 7
  //
  // The groups go on. All ranks make the call: `groups` has the group of this
  // rank along each dimension of a mesh, or one group. Throws what a collective
  // throws.
  //
  // If all agree, that is one all_reduce of 16 bytes in each group. Otherwise a
  // rank also gets 32 bytes of each rank of its groups, the arguments of the
  // lowest rank, and the error of the rank that is to blame: the lowest one
  // with a fault, else the lowest one that differs from the lowest of all.
  void Check(const std::vector<std::shared_ptr<ProcessGroup>>& groups) const;

  // Equal if and, almost certainly, only if the call and the arguments are.
  uint64_t ComputeHash() const;

 private:
  struct Argument {
    std::string name;
    std::string value;
  };

  // The call and the arguments as one text.
  std::string ToText() const;

  const std::string call_;
  Status fault_ = OkStatus();
  std::vector<Argument> arguments_;
};

}  // namespace muster::internal

#endif  // MUSTER_CLIENT_PARALLEL_AGREEMENT_AGREEMENT_H_
