#ifndef MUSTER_BASE_VERSION_H_
#define MUSTER_BASE_VERSION_H_

namespace muster {

// The coordinator's (coordinator/server/ops/version.h), which this part must
// not include; tests/golden compares them.
inline constexpr char kVersion[] = "0.1.0";

}  // namespace muster

#endif  // MUSTER_BASE_VERSION_H_
