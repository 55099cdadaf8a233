// The order in which a FullyShard starts collectives, which must be the same on
// all ranks.

#ifndef MUSTER_CLIENT_PARALLEL_SHARD_CALL_ORDER_H_
#define MUSTER_CLIENT_PARALLEL_SHARD_CALL_ORDER_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace muster::internal {

enum class CallKind : uint8_t { kGather, kReduce };

// Each rank sends this with its block at an all-gather: which group it gathers,
// and all that it has called before. Ranks whose calls were the same have the
// same bytes.
struct CallHeader {
  // A hash of all calls up to this one.
  uint64_t digest = 0;
  // The number of this call, from 1 on.
  uint32_t number = 0;
  int32_t group = 0;

  friend bool operator==(const CallHeader&, const CallHeader&) = default;
};
static_assert(sizeof(CallHeader) == 16);

class CallOrder {
 public:
  // Notes a call and returns its header.
  CallHeader Add(CallKind kind, int group);

  uint64_t digest() const { return last_.digest; }
  // The calls since BeginStep, for error texts: "gathers \"layer0\"".
  std::vector<std::string> ToText(
      const std::vector<std::string>& group_names) const;
  void BeginStep() { step_.clear(); }

 private:
  struct Call {
    CallKind kind;
    int group;
  };

  CallHeader last_;
  // At most kStepCallsMax.
  std::vector<Call> step_;
};

// Returns the error of headers of which not all are equal: the first rank that
// differs from rank 0. `ranks` are global ranks.
std::string DescribeDifference(const std::vector<CallHeader>& headers,
                               const std::vector<int>& ranks,
                               const std::vector<std::string>& group_names);

}  // namespace muster::internal

#endif  // MUSTER_CLIENT_PARALLEL_SHARD_CALL_ORDER_H_
