#include "dataplane/nccl/api.h"

#include <cstdlib>
#include <string>

#include "absl/strings/str_cat.h"
#include "dataplane/cuda/library.h"

namespace muster::dataplane::nccl {
namespace {

constexpr char kVariable[] = "MUSTER_NCCL_LIBRARY";

void Fill(cuda::Library& library, Api& api) {
  library.Need("ncclGetVersion", &api.GetVersion);
  library.Need("ncclGetErrorString", &api.GetErrorString);
  library.Need("ncclGetLastError", &api.GetLastError);
  library.Need("ncclGetUniqueId", &api.GetUniqueId);
  library.Need("ncclCommInitRankConfig", &api.CommInitRankConfig);
  library.Need("ncclCommSplit", &api.CommSplit);
  library.Need("ncclCommFinalize", &api.CommFinalize);
  library.Need("ncclCommDestroy", &api.CommDestroy);
  library.Need("ncclCommAbort", &api.CommAbort);
  library.Need("ncclCommGetAsyncError", &api.CommGetAsyncError);
  library.Need("ncclRedOpCreatePreMulSum", &api.RedOpCreatePreMulSum);
  library.Need("ncclRedOpDestroy", &api.RedOpDestroy);
  library.Need("ncclGroupStart", &api.GroupStart);
  library.Need("ncclGroupEnd", &api.GroupEnd);
  library.Need("ncclAllReduce", &api.AllReduce);
  library.Need("ncclBroadcast", &api.Broadcast);
  library.Need("ncclReduce", &api.Reduce);
  library.Need("ncclAllGather", &api.AllGather);
  library.Need("ncclReduceScatter", &api.ReduceScatter);
  library.Need("ncclSend", &api.Send);
  library.Need("ncclRecv", &api.Recv);
  library.Find("ncclCommShrink", &api.CommShrink);
  library.Find("ncclMemAlloc", &api.MemAlloc);
  library.Find("ncclMemFree", &api.MemFree);
  library.Find("ncclCommWindowRegister", &api.CommWindowRegister);
  library.Find("ncclCommWindowDeregister", &api.CommWindowDeregister);
  library.Find("ncclAlltoAll", &api.AlltoAll);
  library.Find("ncclScatter", &api.Scatter);
}

StatusOr<cuda::Library> LoadLibrary() {
  const char* const named = std::getenv(kVariable);
  if (named != nullptr && *named != '\0') {
    StatusOr<cuda::Library> library = cuda::Library::Load({named}, {});
    if (library.ok()) return library;
    return NotFoundError(absl::StrCat("no NCCL: environment variable ",
                                      kVariable, ": ",
                                      library.status().message()));
  }
  const char* const home = std::getenv("CUDA_HOME");
  StatusOr<cuda::Library> library = cuda::Library::Load(
      {"libnccl.so.2"},
      {absl::StrCat(home == nullptr ? "/usr/local/cuda" : home, "/lib64")});
  if (library.ok()) return library;
  return NotFoundError(absl::StrCat("no NCCL: ", library.status().message(),
                                    " (", kVariable, " may name the file)"));
}

Status Look() {
  const StatusOr<Library> library = Load();
  if (!library.ok()) return library.status();
  return cuda::TheRuntime().status();
}

}  // namespace

std::string VersionText(int version) {
  return absl::StrCat(version / 10000, ".", version % 10000 / 100, ".",
                      version % 100);
}

StatusOr<Library> Load() {
  StatusOr<cuda::Library> found = LoadLibrary();
  if (!found.ok()) return found.status();
  Library library;
  library.path = found->path();
  Fill(*found, library.api);
  if (library.api.GetVersion != nullptr) {
    library.api.GetVersion(&library.version);
    if (library.version < kOldestVersion) {
      return FailedPreconditionError(absl::StrCat(
          "NCCL ", VersionText(library.version), " (", library.path,
          ") is too old: ", VersionText(kOldestVersion), " is needed"));
    }
  }
  if (Status missing = found->Check(); !missing.ok()) return missing;
  return library;
}

const Status& Available() {
  static const auto* const available = new Status(Look());
  return *available;
}

}  // namespace muster::dataplane::nccl
