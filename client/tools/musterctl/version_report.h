#ifndef MUSTER_CLIENT_TOOLS_MUSTERCTL_VERSION_REPORT_H_
#define MUSTER_CLIENT_TOOLS_MUSTERCTL_VERSION_REPORT_H_

#include <string>

namespace muster::tools {

// What `musterctl version` prints; with `verbose` also what of CUDA and NCCL
// this machine has, or why none of it can be used. Loads them.
std::string VersionReport(bool verbose);

}  // namespace muster::tools

#endif  // MUSTER_CLIENT_TOOLS_MUSTERCTL_VERSION_REPORT_H_
