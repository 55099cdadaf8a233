#ifndef MUSTER_BASE_VERSION_H_
#define MUSTER_BASE_VERSION_H_

namespace muster {

// The version of all programs: --version, build_info in /metrics, the status
// page.
inline constexpr char kVersion[] = "0.1.0";

}  // namespace muster

#endif  // MUSTER_BASE_VERSION_H_
