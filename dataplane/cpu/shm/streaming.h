// Copies for data that is larger than the caches.

#ifndef MUSTER_DATAPLANE_CPU_SHM_STREAMING_H_
#define MUSTER_DATAPLANE_CPU_SHM_STREAMING_H_

#include <cstddef>
#include <cstdint>
#include <cstring>

#if defined(__x86_64__)
#include <emmintrin.h>
#endif

namespace muster::dataplane::shm {

// Collectives that write so many bytes on a rank, or more, write past the
// caches: most lines would leave the caches before they are read, and a cached
// write first reads the line from memory, a third of all traffic.
inline constexpr size_t kPastCachesBytes = size_t{16} << 20;

// As memcpy, past the caches if the processor can do that. Memory ordering is
// that of memcpy.
inline void CopyPastCaches(void* to, const void* from, size_t bytes) {
#if defined(__x86_64__)
  constexpr size_t kLine = 64;
  auto* target = static_cast<std::byte*>(to);
  const auto* source = static_cast<const std::byte*>(from);
  const size_t head =
      (kLine - reinterpret_cast<uintptr_t>(target) % kLine) % kLine;
  if (bytes < head + kLine) {
    std::memcpy(to, from, bytes);
    return;
  }
  std::memcpy(target, source, head);
  target += head;
  source += head;
  bytes -= head;
  for (; bytes >= kLine; bytes -= kLine) {
    for (size_t i = 0; i < kLine; i += sizeof(__m128i)) {
      _mm_stream_si128(
          reinterpret_cast<__m128i*>(target + i),
          _mm_loadu_si128(reinterpret_cast<const __m128i*>(source + i)));
    }
    target += kLine;
    source += kLine;
  }
  std::memcpy(target, source, bytes);
  // Orders these stores before later ones, such as a release.
  _mm_sfence();
#else
  std::memcpy(to, from, bytes);
#endif
}

// As memcpy, without a call for a few elements.
inline void CopyShort(void* to, const void* from, size_t bytes) {
  constexpr size_t kPiece = 16;
  if (bytes == 4) {
    std::memcpy(to, from, 4);
  } else if (bytes == 8) {
    std::memcpy(to, from, 8);
  } else if (bytes >= kPiece && bytes <= 4 * kPiece) {
    // In pieces, of which the last ones overlap earlier ones.
    auto* const target = static_cast<std::byte*>(to);
    const auto* const source = static_cast<const std::byte*>(from);
    const auto copy = [&](size_t offset) {
      std::memcpy(target + offset, source + offset, kPiece);
    };
    copy(0);
    if (bytes > 2 * kPiece) {
      copy(kPiece);
      copy(bytes - 2 * kPiece);
    }
    copy(bytes - kPiece);
  } else {
    std::memcpy(to, from, bytes);
  }
}

// Calls one of these, for a collective that writes `all_bytes` on this rank.
inline void CopyOut(void* to, const void* from, size_t bytes,
                    size_t all_bytes) {
  if (bytes == 0 || to == from) return;
  if (all_bytes >= kPastCachesBytes) {
    CopyPastCaches(to, from, bytes);
  } else {
    CopyShort(to, from, bytes);
  }
}

}  // namespace muster::dataplane::shm

#endif  // MUSTER_DATAPLANE_CPU_SHM_STREAMING_H_
