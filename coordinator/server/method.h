#ifndef MUSTER_COORDINATOR_SERVER_METHOD_H_
#define MUSTER_COORDINATOR_SERVER_METHOD_H_

#include <cstdint>

namespace muster::coordinator {

// What a client can ask for, by unary call or in a stream.
enum class Method : uint8_t {
  kSet,
  kGet,
  kTryGet,
  kAdd,
  kAppend,
  kCheck,
  kWait,
  kCompareSet,
  kDelete,
  kNumKeys,
  kMultiGet,
  kMultiSet,
  kListKeys,
  kCompareAndSet,
  kDeletePrefix,
  kQueuePush,
  kQueuePop,
  kQueueLen,
  kWatch,
  kRegister,
  kHeartbeat,
  kLeave,
  kReportFailure,
  kJoin,
  kAwaitBarrier,
  kCloseRendezvous,
  kRegisterGroups,
  kListJobs,
  kGetJob,
  kDrain,
  kStream,
};

inline constexpr int kMethodCount = static_cast<int>(Method::kStream) + 1;

// Names of the protocol, as metrics show them.
inline constexpr const char* kMethodNames[kMethodCount] = {
    "Set",
    "Get",
    "TryGet",
    "Add",
    "Append",
    "Check",
    "Wait",
    "CompareSet",
    "Delete",
    "NumKeys",
    "MultiGet",
    "MultiSet",
    "ListKeys",
    "CompareAndSet",
    "DeletePrefix",
    "QueuePush",
    "QueuePop",
    "QueueLen",
    "Watch",
    "Register",
    "Heartbeat",
    "Leave",
    "ReportFailure",
    "Join",
    "AwaitBarrier",
    "CloseRendezvous",
    "RegisterGroups",
    "ListJobs",
    "GetJob",
    "Drain",
    "Stream",
};

inline const char* MethodName(Method method) {
  return kMethodNames[static_cast<int>(method)];
}

}  // namespace muster::coordinator

#endif  // MUSTER_COORDINATOR_SERVER_METHOD_H_
