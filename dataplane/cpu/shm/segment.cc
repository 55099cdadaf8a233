#include "dataplane/cpu/shm/segment.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <fstream>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/string_view.h"
#include "base/process_limits.h"
#include "dataplane/cpu/shm/available_memory.h"
#include "muster/base/status.h"

namespace muster::dataplane::shm {
namespace {

std::string MakeName(uint64_t nonce) {
  return absl::StrFormat("muster-%016x", nonce);
}

std::string ErrorText(int error) {
  return std::error_code(error, std::generic_category()).message();
}

Status Failed(absl::string_view what, size_t bytes, int error) {
  const std::string text =
      absl::StrCat("shared memory of ", bytes, " bytes: ", what, ": ");
  switch (error) {
    case EACCES:
    case EPERM:
      return PermissionDeniedError(absl::StrCat(
          text, ErrorText(error), ": are the ranks of this host one user's?"));
    case ENOENT:
      return NotFoundError(absl::StrCat(text, "not there"));
    case ENOMEM:
      return ResourceExhaustedError(
          absl::StrCat(text, ErrorText(error), AddressSpaceLimitText()));
    default:
      return ResourceExhaustedError(absl::StrCat(text, ErrorText(error)));
  }
}

// Checks that `bytes` are available. The system does not: it would give its
// last page and then kill a process to get more.
Status CheckAvailable(size_t bytes) {
  const MemoryLeft left = FindMemoryLeft();
  if (bytes <= left.bytes) return OkStatus();
  return ResourceExhaustedError(
      absl::StrCat("shared memory of ", bytes, " bytes: ", left.Describe()));
}

// The file size limit applies to this memory, too. A process that exceeds it is
// killed (SIGXFSZ).
Status CheckFileLimit(size_t offset, size_t bytes) {
  rlimit limit = {};
  if (getrlimit(RLIMIT_FSIZE, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY ||
      offset + bytes <= limit.rlim_cur) {
    return OkStatus();
  }
  return ResourceExhaustedError(absl::StrCat(
      "shared memory of ", bytes, " bytes",
      offset == 0 ? "" : absl::StrCat(" behind ", offset, " others"),
      ": RLIMIT_FSIZE (ulimit -f) is ", limit.rlim_cur, " bytes"));
}

void PunchHole(const SegmentFile& file, size_t offset, size_t bytes) {
  fallocate(file.descriptor, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
            static_cast<off_t>(offset), static_cast<off_t>(bytes));
}

// The number of segments of this process.
std::atomic<int64_t> segments_count{0};

Status CheckMappings(size_t bytes) {
  constexpr char kName[] = "vm.max_map_count";
  static const int64_t most = [] {
    int64_t value = 65'530;
    std::ifstream("/proc/sys/vm/max_map_count") >> value;
    return value;
  }();
  const int64_t count = segments_count.load(std::memory_order_relaxed);
  if ((count + 1) * Segment::kMappings <= most / 2) return OkStatus();
  return ResourceExhaustedError(absl::StrCat(
      "shared memory of ", bytes, " bytes: this process has ", count,
      " pieces of it, whose mappings are half of those that it may have (",
      kName, " is ", most, "): free some, or have that raised"));
}

// Whether pages can be allocated later without a SIGBUS on failure.
bool CanReserveLater() {
  static const bool can = [] {
    const auto page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
    void* const memory = mmap(nullptr, page, PROT_READ | PROT_WRITE,
                              MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) return false;
    const bool populates = madvise(memory, page, MADV_POPULATE_WRITE) == 0;
    munmap(memory, page);
    return populates;
  }();
  return can;
}

}  // namespace

SegmentFile::~SegmentFile() { close(descriptor); }

StatusOr<std::unique_ptr<Segment>> Segment::Create(
    size_t bytes, std::shared_ptr<SegmentFile> file,
    std::optional<size_t> reserved) {
  if (Status left = CheckAvailable(bytes); !left.ok()) return left;
  if (file == nullptr) {
    std::random_device random;
    const uint64_t nonce = (uint64_t{random()} << 32) | random();
    const int descriptor = memfd_create(MakeName(nonce).c_str(), MFD_CLOEXEC);
    if (descriptor < 0) return Failed("memfd_create", bytes, errno);
    file = std::make_shared<SegmentFile>(descriptor, nonce);
  }
  const size_t offset = file->bytes;
  if (Status allowed = CheckFileLimit(offset, bytes); !allowed.ok()) {
    return allowed;
  }
  // Touching a page that cannot be allocated later would raise SIGBUS.
  const size_t there = CanReserveLater() ? reserved.value_or(bytes) : bytes;
  if (ftruncate(file->descriptor, static_cast<off_t>(offset + bytes)) != 0) {
    return Failed("ftruncate", bytes, errno);
  }
  const int error = posix_fallocate(
      file->descriptor, static_cast<off_t>(offset), static_cast<off_t>(there));
  if (error != 0) return Failed("posix_fallocate", bytes, error);
  file->bytes += bytes;
  auto segment = Map(file, offset, bytes);
  // The file may outlive the segment.
  if (!segment.ok()) PunchHole(*file, offset, bytes);
  return segment;
}

StatusOr<std::unique_ptr<Segment>> Segment::Open(
    const Location& place, size_t bytes, std::shared_ptr<SegmentFile> file) {
  const std::string path =
      absl::StrCat("/proc/", place.process, "/fd/", place.descriptor);
  if (file == nullptr) {
    // Check the name before opening: the descriptor may be anything.
    std::array<char, 64> name;
    const ssize_t length = readlink(path.c_str(), name.data(), name.size());
    if (length < 0) return Failed(absl::StrCat("look at ", path), bytes, errno);
    if (absl::string_view(name.data(), static_cast<size_t>(length)) !=
        absl::StrCat("/memfd:", MakeName(place.nonce), " (deleted)")) {
      return Failed(absl::StrCat("look at ", path), bytes, ENOENT);
    }
    const int descriptor = open(path.c_str(), O_RDWR | O_CLOEXEC);
    if (descriptor < 0) {
      return Failed(absl::StrCat("open ", path), bytes, errno);
    }
    file = std::make_shared<SegmentFile>(descriptor, place.nonce);
  }
  struct stat state = {};
  if (file->nonce != place.nonce || fstat(file->descriptor, &state) != 0 ||
      static_cast<size_t>(state.st_size) != place.offset + bytes) {
    return Failed(absl::StrCat("size of ", path), bytes, ENOENT);
  }
  return Map(std::move(file), place.offset, bytes);
}

StatusOr<std::unique_ptr<Segment>> Segment::Map(
    std::shared_ptr<SegmentFile> file, size_t offset, size_t bytes) {
  if (Status few = CheckMappings(bytes); !few.ok()) return few;
  void* const memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED,
                            file->descriptor, static_cast<off_t>(offset));
  if (memory == MAP_FAILED) return Failed("mmap", bytes, errno);
  return std::unique_ptr<Segment>(
      new Segment(std::move(file), offset, bytes, memory));
}

Segment::Segment(std::shared_ptr<SegmentFile> file, size_t offset, size_t bytes,
                 void* memory)
    : file_(std::move(file)), offset_(offset), bytes_(bytes), memory_(memory) {
  segments_count.fetch_add(1, std::memory_order_relaxed);
}

Status Segment::Withdraw(size_t offset, size_t bytes) {
  std::byte* const begin = static_cast<std::byte*>(memory_) + offset;
  // Steps that can fail come first. Then one step replaces the mapping: the
  // memory is mapped at every moment.
  void* const mapped =
      mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE,
           file_->descriptor, static_cast<off_t>(offset_ + offset));
  if (mapped == MAP_FAILED) return Failed("mmap", bytes, errno);
  if (mremap(mapped, bytes, bytes, MREMAP_MAYMOVE | MREMAP_FIXED, begin) ==
      MAP_FAILED) {
    const int error = errno;
    munmap(mapped, bytes);
    return Failed("mremap", bytes, error);
  }
  // Pages are shared until they are written to.
  if (madvise(begin, bytes, MADV_POPULATE_WRITE) == 0) return OkStatus();
  if (errno != EINVAL) return Failed("MADV_POPULATE_WRITE", bytes, errno);
  // Linux before 5.14: write to each page.
  const auto page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  for (size_t at = 0; at < bytes; at += page) {
    std::atomic_ref<uint64_t> word(*reinterpret_cast<uint64_t*>(begin + at));
    uint64_t value = word.load(std::memory_order_relaxed);
    while (!word.compare_exchange_weak(value, value)) {
    }
  }
  return OkStatus();
}

void Segment::GiveBack(size_t offset, size_t bytes) {
  // Drops copies made by Withdraw.
  madvise(static_cast<std::byte*>(memory_) + offset, bytes, MADV_DONTNEED);
  PunchHole(*file_, offset_ + offset, bytes);
}

void Segment::MapPages(size_t bytes) {
  madvise(memory_, bytes, MADV_POPULATE_WRITE);
}

Status Segment::Reserve(size_t offset, size_t bytes) {
  if (!CanReserveLater()) return OkStatus();
  if (Status left = CheckAvailable(bytes); !left.ok()) return left;
  const auto page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  const size_t begin = offset / page * page;
  const size_t end = (offset + bytes + page - 1) / page * page;
  if (madvise(static_cast<std::byte*>(memory_) + begin, end - begin,
              MADV_POPULATE_WRITE) == 0) {
    return OkStatus();
  }
  return Failed("MADV_POPULATE_WRITE", bytes, errno);
}

Segment::Location Segment::place() const {
  return {.process = static_cast<uint64_t>(getpid()),
          .descriptor = static_cast<uint64_t>(file_->descriptor),
          .nonce = file_->nonce,
          .offset = offset_};
}

Segment::~Segment() {
  munmap(memory_, bytes_);
  segments_count.fetch_sub(1, std::memory_order_relaxed);
}

}  // namespace muster::dataplane::shm
