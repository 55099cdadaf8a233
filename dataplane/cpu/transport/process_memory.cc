#include "dataplane/cpu/transport/process_memory.h"

#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "dataplane/culprit.h"

namespace muster::dataplane::cpu {
namespace {

void* ToPointer(uint64_t address) {
  // NOLINT: an address in another process
  return reinterpret_cast<void*>(address);
}

// The reason why `bytes` at `address` of `process` cannot be read; empty if
// they can.
std::string WhyUnreadable(pid_t process, uint64_t address, size_t bytes) {
  std::vector<std::byte> room(std::min<size_t>(bytes, 64 << 10));
  for (size_t done = 0; done < bytes;) {
    const iovec local = {room.data(), std::min(room.size(), bytes - done)};
    const iovec remote = {ToPointer(address + done), local.iov_len};
    const ssize_t read =
        process_vm_readv(process, &local, 1, &remote, 1, /*flags=*/0);
    if (read <= 0) {
      return absl::StrCat(bytes, " bytes at 0x", absl::Hex(address),
                          " cannot be read from byte ", done,
                          " on: ", std::strerror(errno));
    }
    done += read;
  }
  return "";
}

}  // namespace

MarkPlace Mark::place() const {
  return {.process = getpid(), .address = reinterpret_cast<uint64_t>(&value_)};
}

bool PeerMemory::Read(uint64_t from, void* to, size_t bytes) const {
  // The mark is read last: if it is valid, it was valid while the bytes were
  // read. Otherwise the process may have ended and another may have its number,
  // or the process may have reused its memory.
  uint64_t value = 0;
  const iovec local[] = {{to, bytes}, {&value, sizeof(value)}};
  const iovec remote[] = {{ToPointer(from), bytes},
                          {ToPointer(place_.address), sizeof(value)}};
  const ssize_t read =
      process_vm_readv(place_.process, local, 2, remote, 2, /*flags=*/0);
  return read == static_cast<ssize_t>(bytes + sizeof(value)) && value == value_;
}

Status PeerMemory::WhyUnread(int reader, int peer, uint64_t from, void* to,
                             size_t bytes) const {
  const std::string theirs = WhyUnreadable(place_.process, from, bytes);
  // A peer clears its mark before it reuses its memory.
  if (!IsReadable()) return OkStatus();
  return theirs.empty() ? BadOwnMemory(reader, to, bytes)
                        : BadMemory(peer, theirs);
}

Status BadMemory(int rank, absl::string_view why) {
  Status status =
      InvalidArgumentError(absl::StrCat("memory of rank ", rank, ": ", why));
  SetCulpritRank(status, rank);
  return status;
}

Status BadOwnMemory(int rank, const void* data, size_t bytes) {
  const auto address = reinterpret_cast<uint64_t>(data);
  const std::string unreadable = WhyUnreadable(getpid(), address, bytes);
  return BadMemory(rank,
                   unreadable.empty()
                       ? absl::StrCat(bytes, " bytes at 0x", absl::Hex(address),
                                      " cannot be written")
                       : unreadable);
}

bool CopyIfValid(void* to, const void* from, size_t bytes) {
  if (bytes == 0) return true;
  const iovec local = {to, bytes};
  const iovec remote = {const_cast<void*>(from), bytes};
  const ssize_t copied =
      process_vm_readv(getpid(), &local, 1, &remote, 1, /*flags=*/0);
  if (copied >= 0 || errno == EFAULT) {
    return copied == static_cast<ssize_t>(bytes);
  }
  std::memcpy(to, from, bytes);
  return true;
}

bool CanBeRead(const void* data, size_t bytes) {
  auto* const first = static_cast<std::byte*>(const_cast<void*>(data));
  std::byte ends[2];
  const iovec local = {ends, sizeof(ends)};
  const iovec remote[] = {{first, 1}, {first + bytes - 1, 1}};
  return process_vm_readv(getpid(), &local, 1, remote, 2, /*flags=*/0) ==
         sizeof(ends);
}

}  // namespace muster::dataplane::cpu
