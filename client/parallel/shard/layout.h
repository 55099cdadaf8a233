// Where the rows of the parameters of one group are: on which rank, in a rank's
// block, and in the memory of whole parameters.

#ifndef MUSTER_CLIENT_PARALLEL_SHARD_LAYOUT_H_
#define MUSTER_CLIENT_PARALLEL_SHARD_LAYOUT_H_

#include <cstddef>
#include <cstdint>
#include <vector>

namespace muster::internal {

// A parameter in a group's layout. Counts and offsets are in elements, except
// `rows` and `rows_per_rank`.
struct ParameterLayout {
  std::vector<int64_t> shape;
  int64_t rows = 0;
  int64_t row_elements = 0;
  // As torch.chunk: ceil(rows / ranks).
  int64_t rows_per_rank = 0;
  // In each rank's block.
  int64_t block_offset = 0;
  // In the memory of whole parameters.
  int64_t whole_offset = 0;

  int64_t elements() const { return rows * row_elements; }
  // The rows of a rank: the last ranks have fewer, or none.
  int64_t FirstRow(int rank) const;
  int64_t RowCount(int rank) const;
};

// Each rank has a block of the same size: of each parameter rows_per_rank rows,
// of which some may be padding.
struct GroupLayout {
  GroupLayout(const std::vector<std::vector<int64_t>>& shapes, int ranks);

  std::vector<ParameterLayout> parameters;
  int ranks;
  int64_t block_elements = 0;
  // With gaps: every parameter begins at a multiple of kAlignedElements.
  int64_t whole_elements = 0;
};

// 64 bytes in every type.
inline constexpr int64_t kAlignedElements = 32;

}  // namespace muster::internal

#endif  // MUSTER_CLIENT_PARALLEL_SHARD_LAYOUT_H_
