#include "dataplane/backends/gloo/peer_memory.h"

#include <sys/uio.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <string>

#include "absl/strings/str_cat.h"
#include "dataplane/culprit.h"

namespace muster::dataplane::gloo_internal {
namespace {

void* AddressOf(uint64_t address) {
  return reinterpret_cast<void*>(address);  // NOLINT: another process's
}

// `done`: what the system says, a number of bytes, or -1 and an errno.
std::string DescribeEnd(absl::string_view what, const void* data, size_t bytes,
                        ssize_t done) {
  std::string text =
      done < 0 ? std::strerror(errno) : absl::StrCat("only ", done, " can be");
  return absl::StrCat(bytes, " bytes at 0x",
                      absl::Hex(reinterpret_cast<uint64_t>(data)),
                      " cannot be ", what, ": ", text);
}

}  // namespace

MarkPlace Mark::place() const {
  return {.process = getpid(), .address = reinterpret_cast<uint64_t>(&value_)};
}

bool PeerMemory::Read(uint64_t from, void* to, size_t bytes) const {
  // The mark comes last: if it is there, it was when the bytes were read. By
  // then a process that has ended may have left its number to another one, or
  // one that goes on may have taken its memory back.
  uint64_t value = 0;
  const iovec local[] = {{to, bytes}, {&value, sizeof(value)}};
  const iovec remote[] = {{AddressOf(from), bytes},
                          {AddressOf(place_.address), sizeof(value)}};
  const ssize_t read =
      process_vm_readv(place_.process, local, 2, remote, 2, /*flags=*/0);
  return read == static_cast<ssize_t>(bytes + sizeof(value)) && value == value_;
}

absl::Status PeerMemory::WhyUnread(int reader, int peer, uint64_t from,
                                   void* to, size_t bytes) const {
  // A peer clears its mark before it takes its memory back.
  if (!IsReadable()) return absl::OkStatus();
  const iovec local = {to, bytes};
  const iovec remote = {AddressOf(from), bytes};
  // Onto itself: what can be both read and written.
  const ssize_t own =
      process_vm_readv(getpid(), &local, 1, &local, 1, /*flags=*/0);
  if (own != static_cast<ssize_t>(bytes)) {
    return BadMemory(reader, DescribeEnd("written", to, bytes, own));
  }
  const ssize_t read =
      process_vm_readv(place_.process, &local, 1, &remote, 1, /*flags=*/0);
  return BadMemory(peer, DescribeEnd("read", AddressOf(from), bytes, read));
}

absl::Status BadMemory(int rank, absl::string_view why) {
  absl::Status status = absl::FailedPreconditionError(
      absl::StrCat("memory of rank ", rank, ": ", why));
  SetCulpritRank(status, rank);
  return status;
}

bool CanBeRead(const void* data, size_t bytes) {
  auto* const first = static_cast<std::byte*>(const_cast<void*>(data));
  std::byte ends[2];
  const iovec local = {ends, sizeof(ends)};
  const iovec remote[] = {{first, 1}, {first + bytes - 1, 1}};
  return process_vm_readv(getpid(), &local, 1, remote, 2, /*flags=*/0) ==
         sizeof(ends);
}

}  // namespace muster::dataplane::gloo_internal
