#include "client/tools/musterctl/version_report.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "dataplane/cuda/api.h"
#include "dataplane/nccl/api.h"
#include "muster/version.h"

namespace muster::tools {
namespace {

std::string CudaLine() {
  const auto& runtime = dataplane::cuda::TheRuntime();
  if (!runtime.ok()) return runtime.status().message();
  return absl::StrCat("CUDA ",
                      dataplane::cuda::VersionText(runtime->runtime_version),
                      " (", runtime->path, "), the driver is for CUDA ",
                      dataplane::cuda::VersionText(runtime->driver_version),
                      ", devices: ", runtime->devices);
}

std::string NcclLine() {
  const auto library = dataplane::nccl::Load();
  if (!library.ok()) return library.status().message();
  return absl::StrCat("NCCL ", dataplane::nccl::VersionText(library->version),
                      " (", library->path, ")",
                      dataplane::cuda::TheRuntime().ok()
                          ? ""
                          : ", which cannot be used without CUDA");
}

}  // namespace

std::string VersionReport(bool verbose) {
  std::string report = absl::StrCat("musterctl ", MUSTER_VERSION, "\n");
  if (verbose) {
    absl::StrAppend(&report, "cuda: ", CudaLine(), "\nnccl: ", NcclLine(),
                    "\n");
  }
  return report;
}

}  // namespace muster::tools
