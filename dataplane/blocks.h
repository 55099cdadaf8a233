// How a buffer is cut into pieces: into even parts, or into chunks of a fixed
// size. Ranks that pass the same numbers get the same pieces. Where the caller
// chooses the sizes, PartCounts (dataplane/collective.h) has them. A loop that
// only limits how much it does at once needs none of this.

#ifndef MUSTER_DATAPLANE_BLOCKS_H_
#define MUSTER_DATAPLANE_BLOCKS_H_

#include <algorithm>
#include <cstddef>

namespace muster::dataplane {

// Units [first, first + count) of a buffer. The caller decides whether a unit
// is an element or a byte. Counts up to the largest int64_t do not overflow.
struct Range {
  size_t first = 0;
  size_t count = 0;

  bool operator==(const Range&) const = default;
};

// Elements in memory; `data` may be null where only the count is used.
struct Block {
  std::byte* data = nullptr;
  size_t count = 0;

  Block Slice(Range range, size_t element_bytes) const {
    return {data + range.first * element_bytes, range.count};
  }
};

// Part `index` of `parts` even ones. It begins at count * index / parts,
// rounded down. So it has count / parts units, rounded down or up, and the
// longer parts are spread over the buffer. If there are fewer units than parts,
// some parts are empty.
inline Range CutPart(size_t count, size_t index, size_t parts) {
  const size_t each = count / parts;
  const size_t rest = count % parts;
  // How far the part begins behind each * index, in units / parts. The end
  // needs no third division.
  const size_t spread = rest * index;
  return {each * index + spread / parts,
          each + (spread % parts + rest >= parts ? 1 : 0)};
}

inline Block CutPart(const Block& whole, size_t index, size_t parts,
                     size_t element_bytes) {
  return whole.Slice(CutPart(whole.count, index, parts), element_bytes);
}

// How many chunks of `per_chunk` units hold `count` units: at least one, which
// is empty if there are none. The last chunk may be shorter.
inline size_t ChunksFor(size_t count, size_t per_chunk) {
  // A small collective has one chunk, and no division.
  return count <= per_chunk ? 1 : (count - 1) / per_chunk + 1;
}

// Chunk `index`: `per_chunk` units, or as many as are left. Chunk ChunksFor()
// and those after it are empty and begin at `count`.
inline Range CutChunk(size_t count, size_t index, size_t per_chunk) {
  if (index == 0 && count <= per_chunk) return {0, count};
  const size_t first = std::min(count, index * per_chunk);
  return {first, std::min(count - first, per_chunk)};
}

inline Block CutChunk(const Block& whole, size_t index, size_t per_chunk,
                      size_t element_bytes) {
  return whole.Slice(CutChunk(whole.count, index, per_chunk), element_bytes);
}

}  // namespace muster::dataplane

#endif  // MUSTER_DATAPLANE_BLOCKS_H_
