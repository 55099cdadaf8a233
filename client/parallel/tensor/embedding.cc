#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "client/control/throw.h"
#include "client/parallel/tensor/arguments.h"
#include "dataplane/reduction.h"
#include "muster/placement.h"
#include "muster/tensor_parallel.h"

namespace muster {
namespace {

VocabularyRange ComputeRange(int64_t vocabulary, const ProcessGroup& group) {
  if (vocabulary < 0) {
    internal::Invalid(
        absl::StrCat("argument vocabulary: ", vocabulary, " is negative"));
  }
  const ShardBox box =
      ComputeShardBox({vocabulary}, {Shard(0)}, {group.size()}, {group.rank()});
  return {.first = box.offsets[0], .count = box.lengths[0]};
}

// Calls `use` with the index of each id and, for an id in the range, the index
// of its row; otherwise -1. `rows` is the tensor with a row for each id.
template <typename Use>
void ForEachId(const char* table_name, const Tensor& table,
               const char* rows_name, const Tensor& rows, const Tensor& ids,
               int64_t vocabulary, const ProcessGroup& group, Use use) {
  internal::CheckFloats(table_name, table);
  internal::CheckFloats(rows_name, rows);
  internal::CheckSameType(rows_name, rows, table_name, table);
  const VocabularyRange range = ComputeRange(vocabulary, group);
  const auto all = internal::CheckIds("ids", ids, vocabulary);
  const int64_t width = table.shape().size() == 2 ? table.shape()[1] : 0;
  internal::CheckShape(table_name, table, {}, {range.count, width});
  internal::CheckShape(rows_name, rows, ids.shape(), {width});
  for (size_t i = 0; i < all.size(); ++i) {
    const int64_t row = all[i] - range.first;
    use(i, row < 0 || row >= range.count ? -1 : row,
        static_cast<size_t>(width));
  }
}

}  // namespace

VocabularyRange GetVocabularyRange(int64_t vocabulary,
                                   const TensorParallelOptions& options) {
  const auto group = internal::FindGroup(options, "GetVocabularyRange");
  return group == nullptr ? VocabularyRange()
                          : ComputeRange(vocabulary, *group);
}

void ParallelEmbeddingForward(const Tensor& output, const Tensor& table,
                              const Tensor& ids, int64_t vocabulary,
                              const TensorParallelOptions& options) {
  const auto group = internal::FindGroup(options, "ParallelEmbeddingForward");
  if (group == nullptr) return;
  auto* const to = static_cast<std::byte*>(output.data());
  const auto* const from = static_cast<const std::byte*>(table.data());
  ForEachId("table", table, "output", output, ids, vocabulary, *group,
            [&](size_t i, int64_t row, size_t width) {
              const size_t bytes = width * table.element_bytes();
              if (bytes == 0) return;
              if (row < 0) {
                std::memset(to + i * bytes, 0, bytes);
              } else {
                std::memcpy(to + i * bytes,
                            from + static_cast<size_t>(row) * bytes, bytes);
              }
            });
}

void ParallelEmbeddingBackward(const Tensor& table_gradient,
                               const Tensor& output_gradient, const Tensor& ids,
                               int64_t vocabulary,
                               const TensorParallelOptions& options) {
  const auto group = internal::FindGroup(options, "ParallelEmbeddingBackward");
  if (group == nullptr) return;
  internal::CheckFloats("table_gradient", table_gradient);
  const auto& sum =
      dataplane::Reduction::Of(table_gradient.data_type(), ReduceOp::kSum);
  auto* const to = static_cast<std::byte*>(table_gradient.data());
  const auto* const from =
      static_cast<const std::byte*>(output_gradient.data());
  // The rows, and the indices of their ids.
  std::vector<std::pair<int64_t, size_t>> tokens;
  ForEachId("table_gradient", table_gradient, "output_gradient",
            output_gradient, ids, vocabulary, *group,
            [&](size_t i, int64_t row, size_t) {
              if (row >= 0) tokens.emplace_back(row, i);
            });
  std::sort(tokens.begin(), tokens.end());
  const auto width = static_cast<size_t>(table_gradient.shape()[1]);
  const size_t bytes = width * table_gradient.element_bytes();
  if (bytes == 0) return;
  std::vector<const void*> operands;
  for (size_t i = 0; i < tokens.size();) {
    const int64_t row = tokens[i].first;
    std::byte* const total = to + static_cast<size_t>(row) * bytes;
    operands.assign({total});
    for (; i < tokens.size() && tokens[i].first == row; ++i) {
      operands.push_back(from + tokens[i].second * bytes);
    }
    // All at once, so that the sum is rounded once.
    sum.CombineAll(total, operands, {}, width, 1);
  }
}

}  // namespace muster
