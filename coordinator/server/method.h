#ifndef MUSTER_COORDINATOR_SERVER_METHOD_H_
#define MUSTER_COORDINATOR_SERVER_METHOD_H_

#include <cstdint>
#include <iterator>

namespace muster::coordinator {

// The calls that a client can make, unary or in a stream.
enum class Method : uint8_t {
#define MUSTER_OPERATION(service, name, ...) k##name,
#define MUSTER_RPC(service, name, role) k##name,
#include "proto/muster/v1/verbs.inc"
};

// The protocol's names, as metrics show them.
inline constexpr const char* kMethodNames[] = {
#define MUSTER_OPERATION(service, name, ...) #name,
#define MUSTER_RPC(service, name, role) #name,
#include "proto/muster/v1/verbs.inc"
};

inline constexpr int kMethodCount = static_cast<int>(std::size(kMethodNames));

inline const char* MethodName(Method method) {
  return kMethodNames[static_cast<int>(method)];
}

// Whether a call may take long although its request is small.
inline bool MayTakeLong(Method method) {
  static constexpr bool kTakesLong[kMethodCount] = {
#define MUSTER_OPERATION(service, name, field, role, mutates, may_wait, \
                         takes_long)                                    \
  takes_long,
#define MUSTER_RPC(service, name, role) false,
#include "proto/muster/v1/verbs.inc"
  };
  return kTakesLong[static_cast<int>(method)];
}

// Whether a token for reading is enough for the call.
inline bool IsRead(Method method) {
  enum { kRead, kMember, kAdmin };
  static constexpr bool kReads[kMethodCount] = {
#define MUSTER_OPERATION(service, name, field, role, ...) role == kRead,
#define MUSTER_RPC(service, name, role) role == kRead,
#include "proto/muster/v1/verbs.inc"
  };
  return kReads[static_cast<int>(method)];
}

}  // namespace muster::coordinator

#endif  // MUSTER_COORDINATOR_SERVER_METHOD_H_
