#include "dataplane/cuda/library.h"

#include <dlfcn.h>
#include <link.h>

#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace muster::dataplane::cuda {
namespace {

std::string FindPath(void* handle, const std::string& name) {
  const link_map* map = nullptr;
  if (dlinfo(handle, RTLD_DI_LINKMAP, &map) != 0 || map == nullptr ||
      map->l_name == nullptr || *map->l_name == '\0') {
    return name;
  }
  return map->l_name;
}

}  // namespace

StatusOr<Library> Library::Load(const std::vector<std::string>& names,
                                const std::vector<std::string>& folders) {
  std::vector<std::string> places = names;
  for (const std::string& folder : folders) {
    for (const std::string& name : names) {
      places.push_back(absl::StrCat(folder, "/", name));
    }
  }
  std::vector<std::string> reasons;
  for (const std::string& place : places) {
    void* const handle = dlopen(place.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (handle != nullptr) return Library(handle, FindPath(handle, place));
    const char* const why = dlerror();
    reasons.emplace_back(why == nullptr ? place : why);
  }
  return NotFoundError(absl::StrJoin(reasons, "; "));
}

void* Library::Symbol(const char* name) const { return dlsym(handle_, name); }

Status Library::Check() const {
  if (missing_.empty()) return OkStatus();
  return FailedPreconditionError(
      absl::StrCat(path_, " has no ", absl::StrJoin(missing_, ", ")));
}

}  // namespace muster::dataplane::cuda
