#ifndef MUSTER_COORDINATOR_SERVER_OPS_VERSION_H_
#define MUSTER_COORDINATOR_SERVER_OPS_VERSION_H_

namespace muster::coordinator {

inline constexpr char kVersion[] = "0.1.0";

}  // namespace muster::coordinator

#endif  // MUSTER_COORDINATOR_SERVER_OPS_VERSION_H_
