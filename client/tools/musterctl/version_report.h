#ifndef MUSTER_CLIENT_TOOLS_MUSTERCTL_VERSION_REPORT_H_
#define MUSTER_CLIENT_TOOLS_MUSTERCTL_VERSION_REPORT_H_

#include <string>

namespace muster::tools {

// The output of `musterctl version`. With `verbose` it also names the CUDA and
// NCCL of this machine, or why they cannot be used; it loads them to find out.
std::string VersionReport(bool verbose);

}  // namespace muster::tools

#endif  // MUSTER_CLIENT_TOOLS_MUSTERCTL_VERSION_REPORT_H_
