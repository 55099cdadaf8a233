#ifndef MUSTER_TESTS_BENCH_FOLDER_H_
#define MUSTER_TESTS_BENCH_FOLDER_H_

#include <cstdlib>
#include <filesystem>
#include <stdexcept>
#include <string>
#include <system_error>

namespace muster::bench {

// A new folder in `parent`, removed with its contents at the end.
class Folder {
 public:
  explicit Folder(const std::string& parent) : path_(parent + "/bench.XXXXXX") {
    if (mkdtemp(path_.data()) == nullptr) {
      throw std::runtime_error("cannot make a folder in " + parent);
    }
  }
  ~Folder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;

  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

}  // namespace muster::bench

#endif  // MUSTER_TESTS_BENCH_FOLDER_H_
