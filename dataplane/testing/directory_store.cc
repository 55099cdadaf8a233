#include "dataplane/testing/directory_store.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <fstream>
#include <optional>
#include <sstream>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "muster/base/status.h"

namespace muster::dataplane::testing {
namespace {

std::optional<std::string> ReadFile(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) return std::nullopt;
  std::ostringstream content;
  content << file.rdbuf();
  return content.str();
}

}  // namespace

DirectoryStore::DirectoryStore(std::string directory)
    : directory_(std::move(directory)) {}

std::string DirectoryStore::MakePath(const std::string& key) const {
  return absl::StrCat(directory_, "/", absl::StrReplaceAll(key, {{"/", "_"}}));
}

Status DirectoryStore::Set(const std::string& key, const std::string& value) {
  // Renamed into place, so that no reader sees half of it.
  const std::string path = MakePath(key);
  const std::string temporary = absl::StrCat(path, ".", getpid());
  {
    std::ofstream file(temporary, std::ios::binary);
    file << value;
    if (!file.flush()) {
      return InternalError(absl::StrCat("cannot write ", temporary));
    }
  }
  if (std::rename(temporary.c_str(), path.c_str()) != 0) {
    return InternalError(absl::StrCat("cannot rename to ", path));
  }
  return OkStatus();
}

StatusOr<std::vector<std::string>> DirectoryStore::Get(
    const std::vector<std::string>& keys, Instant deadline) {
  std::vector<std::string> values;
  for (const std::string& key : keys) {
    std::optional<std::string> value;
    while (!(value = ReadFile(MakePath(key))).has_value()) {
      if (Clock::now() >= deadline) {
        return DeadlineExceededError(
            absl::StrCat("key \"", key, "\" was not set in time"));
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    values.push_back(*std::move(value));
  }
  return values;
}

StatusOr<int64_t> DirectoryStore::Add(const std::string& key, int64_t delta) {
  const int lock = open(absl::StrCat(directory_, "/.lock").c_str(),
                        O_CREAT | O_RDWR | O_CLOEXEC, 0600);
  if (lock < 0 || flock(lock, LOCK_EX) != 0) {
    return InternalError(absl::StrCat("cannot lock ", directory_));
  }
  int64_t value = 0;
  const std::optional<std::string> old = ReadFile(MakePath(key));
  Status status;
  if (old.has_value() && !absl::SimpleAtoi(*old, &value)) {
    status =
        InvalidArgumentError(absl::StrCat("key \"", key, "\" holds no number"));
  }
  value += delta;
  if (status.ok()) status = Set(key, absl::StrCat(value));
  close(lock);
  if (!status.ok()) return status;
  return value;
}

}  // namespace muster::dataplane::testing
