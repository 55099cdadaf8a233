#include "client/parallel/shard/layout.h"

#include <algorithm>

namespace muster::internal {

int64_t ParameterLayout::FirstRow(int rank) const {
  return std::min(rows, rank * rows_per_rank);
}

int64_t ParameterLayout::RowCount(int rank) const {
  return std::min(rows - FirstRow(rank), rows_per_rank);
}

GroupLayout::GroupLayout(const std::vector<std::vector<int64_t>>& shapes,
                         int ranks)
    : ranks(ranks) {
  for (const std::vector<int64_t>& shape : shapes) {
    ParameterLayout& parameter = parameters.emplace_back();
    parameter.shape = shape;
    parameter.rows = shape[0];
    parameter.row_elements = 1;
    for (size_t i = 1; i < shape.size(); ++i) {
      parameter.row_elements *= shape[i];
    }
    parameter.rows_per_rank = (parameter.rows + ranks - 1) / ranks;
    parameter.block_offset = block_elements;
    parameter.whole_offset = whole_elements;
    block_elements += parameter.rows_per_rank * parameter.row_elements;
    whole_elements += (parameter.elements() + kAlignedElements - 1) /
                      kAlignedElements * kAlignedElements;
  }
}

}  // namespace muster::internal
