#include "dataplane/backends/shm/segment.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <fstream>
#include <limits>
#include <memory>
#include <optional>
#include <random>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/string_view.h"

namespace muster::dataplane::shm_internal {
namespace {

std::string NameOf(uint64_t nonce) {
  return absl::StrFormat("muster-%016x", nonce);
}

absl::Status Failed(absl::string_view what, size_t bytes, int error) {
  const std::string text =
      absl::StrCat("shared memory of ", bytes, " bytes: ", what, ": ");
  switch (error) {
    case EACCES:
    case EPERM:
      return absl::PermissionDeniedError(
          absl::StrCat(text, absl::ErrnoToStatus(error, "").message()));
    case ENOENT:
      return absl::NotFoundError(absl::StrCat(text, "not there"));
    default:
      return absl::ResourceExhaustedError(
          absl::StrCat(text, absl::ErrnoToStatus(error, "").message()));
  }
}

// The number in `file` that comes first, or after `name`; nothing if there is
// none.
std::optional<uint64_t> NumberIn(const char* file, const std::string& name) {
  std::ifstream in(file);
  std::string word;
  while (!name.empty() && in >> word && word != name) {
  }
  uint64_t number = 0;
  return in >> number ? std::optional<uint64_t>(number) : std::nullopt;
}

// What the system has left, and the container that this process is in. Nobody
// else asks: it would give its last page, and then end a process to have more.
absl::Status CheckAvailable(size_t bytes) {
  uint64_t available = std::numeric_limits<uint64_t>::max();
  if (const auto kib = NumberIn("/proc/meminfo", "MemAvailable:")) {
    available = *kib << 10;
  }
  const auto limit = NumberIn("/sys/fs/cgroup/memory.max", "");
  const auto used = NumberIn("/sys/fs/cgroup/memory.current", "");
  if (limit.has_value() && used.has_value()) {
    available = std::min(available, *limit - std::min(*limit, *used));
  }
  if (bytes <= available) return absl::OkStatus();
  return absl::ResourceExhaustedError(absl::StrCat(
      "shared memory of ", bytes, " bytes: there are ", available, " left"));
}

}  // namespace

absl::StatusOr<std::unique_ptr<Segment>> Segment::Create(size_t bytes) {
  if (absl::Status left = CheckAvailable(bytes); !left.ok()) return left;
  std::random_device random;
  const uint64_t nonce = (uint64_t{random()} << 32) | random();
  const int descriptor = memfd_create(NameOf(nonce).c_str(), MFD_CLOEXEC);
  if (descriptor < 0) return Failed("memfd_create", bytes, errno);
  std::unique_ptr<Segment> segment(new Segment(descriptor, nonce, bytes));
  // Reserved now: a page that cannot be had later would be a SIGBUS.
  const int error = posix_fallocate(descriptor, 0, static_cast<off_t>(bytes));
  if (error != 0) return Failed("posix_fallocate", bytes, error);
  absl::Status mapped = segment->Map();
  if (!mapped.ok()) return mapped;
  return segment;
}

absl::StatusOr<std::unique_ptr<Segment>> Segment::Open(const Place& place,
                                                       size_t bytes) {
  const std::string path =
      absl::StrCat("/proc/", place.process, "/fd/", place.descriptor);
  // Before it is opened: it may be anything.
  std::array<char, 64> name;
  const ssize_t length = readlink(path.c_str(), name.data(), name.size());
  if (length < 0) return Failed(absl::StrCat("look at ", path), bytes, errno);
  if (absl::string_view(name.data(), static_cast<size_t>(length)) !=
      absl::StrCat("/memfd:", NameOf(place.nonce), " (deleted)")) {
    return Failed(absl::StrCat("look at ", path), bytes, ENOENT);
  }
  const int descriptor = open(path.c_str(), O_RDWR | O_CLOEXEC);
  if (descriptor < 0) return Failed(absl::StrCat("open ", path), bytes, errno);
  std::unique_ptr<Segment> segment(new Segment(descriptor, place.nonce, bytes));
  struct stat state = {};
  if (fstat(descriptor, &state) != 0 ||
      static_cast<size_t>(state.st_size) != bytes) {
    return Failed(absl::StrCat("size of ", path), bytes, ENOENT);
  }
  absl::Status mapped = segment->Map();
  if (!mapped.ok()) return mapped;
  return segment;
}

absl::Status Segment::Map() {
  void* const memory =
      mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor_, 0);
  if (memory == MAP_FAILED) return Failed("mmap", bytes_, errno);
  memory_ = memory;
  return absl::OkStatus();
}

absl::Status Segment::Withdraw(size_t offset, size_t bytes) {
  std::byte* const begin = static_cast<std::byte*>(memory_) + offset;
  // In one step: there is no moment in which nothing is there.
  void* const mapped =
      mmap(begin, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_FIXED,
           descriptor_, static_cast<off_t>(offset));
  if (mapped == MAP_FAILED) return Failed("mmap", bytes, errno);
  // A page is shared until it is written to.
  if (madvise(begin, bytes, MADV_POPULATE_WRITE) == 0) return absl::OkStatus();
  if (errno != EINVAL) return Failed("MADV_POPULATE_WRITE", bytes, errno);
  // A system before 5.14.
  const auto page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  for (size_t at = 0; at < bytes; at += page) {
    std::atomic_ref<uint64_t> word(*reinterpret_cast<uint64_t*>(begin + at));
    uint64_t value = word.load(std::memory_order_relaxed);
    while (!word.compare_exchange_weak(value, value)) {
    }
  }
  return absl::OkStatus();
}

void Segment::GiveBack(size_t offset, size_t bytes) {
  // Copies that were withdrawn.
  madvise(static_cast<std::byte*>(memory_) + offset, bytes, MADV_DONTNEED);
  fallocate(descriptor_, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
            static_cast<off_t>(offset), static_cast<off_t>(bytes));
}

Segment::Place Segment::place() const {
  return {.process = static_cast<uint64_t>(getpid()),
          .descriptor = static_cast<uint64_t>(descriptor_),
          .nonce = nonce_};
}

void Segment::CloseDescriptor() {
  if (descriptor_ >= 0) close(descriptor_);
  descriptor_ = -1;
}

Segment::~Segment() {
  if (memory_ != nullptr) munmap(memory_, bytes_);
  CloseDescriptor();
}

}  // namespace muster::dataplane::shm_internal
