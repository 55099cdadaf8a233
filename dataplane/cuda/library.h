// Loads shared libraries that a machine may lack.

#ifndef MUSTER_DATAPLANE_CUDA_LIBRARY_H_
#define MUSTER_DATAPLANE_CUDA_LIBRARY_H_

#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "muster/base/status.h"

namespace muster::dataplane::cuda {

// Library is a shared library that stays loaded until the process ends, because
// threads that it has started may outlive everything else.
class Library {
 public:
  // Loads the first of `names` that exists, where dlopen searches and then in
  // `folders`. Errors: kNotFound, with the system's text for each name.
  static StatusOr<Library> Load(const std::vector<std::string>& names,
                                const std::vector<std::string>& folders);

  // Sets `function` to the function `name`, or to null.
  template <typename Function>
  void Find(const char* name, Function** function) {
    *function = reinterpret_cast<Function*>(Symbol(name));
  }

  // As Find, and remembers a missing function for Check.
  template <typename Function>
  void Need(const char* name, Function** function) {
    Find(name, function);
    if (*function == nullptr) missing_.emplace_back(name);
  }

  // kFailedPrecondition if functions of Need are missing; names them.
  Status Check() const;

  // The library's file if the system tells it; otherwise its name.
  const std::string& path() const { return path_; }

 private:
  Library(void* handle, std::string path)
      : handle_(handle), path_(std::move(path)) {}

  void* Symbol(const char* name) const;

  void* handle_;
  std::string path_;
  std::vector<std::string> missing_;
};

}  // namespace muster::dataplane::cuda

#endif  // MUSTER_DATAPLANE_CUDA_LIBRARY_H_
