#include "client/parallel/shard/sharded_group.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "client/parallel/elements/float_conversion.h"

namespace muster::internal {
namespace {

std::vector<std::vector<int64_t>> Shapes(const ShardGroup& group) {
  std::vector<std::vector<int64_t>> shapes;
  for (const FullParameter& parameter : group.parameters) {
    const auto shape = parameter.value.shape();
    shapes.emplace_back(shape.begin(), shape.end());
  }
  return shapes;
}

int64_t TypeBytes(DataType type) {
  return static_cast<int64_t>(dataplane::DataTypeBytes(type));
}

void Zero(const CountedMemory& memory) {
  if (memory.bytes() > 0) {
    std::memset(memory.data(), 0, static_cast<size_t>(memory.bytes()));
  }
}

}  // namespace

ShardedGroup::ShardedGroup(const ShardGroup& group, const ShardTypes& types,
                           int rank, int ranks, MemoryCounter& counter,
                           const AllocateFunction& allocate)
    : name_(group.name),
      types_(types),
      rank_(rank),
      layout_(Shapes(group), ranks),
      counter_(counter) {
  const int64_t bytes = layout_.block_elements * TypeBytes(types_.shard);
  shards_ = {counter, &MemoryStats::shards, bytes, allocate};
  shard_gradients_ = {counter, &MemoryStats::gradient_shards, bytes, allocate};
  Zero(shards_);
  Zero(shard_gradients_);
  for (size_t i = 0; i < group.parameters.size(); ++i) {
    names_.push_back(group.parameters[i].name);
    const auto* const value =
        static_cast<const std::byte*>(group.parameters[i].value.data());
    if (value == nullptr) continue;
    const ParameterLayout& parameter = layout_.parameters[i];
    const Tensor shard = ShardView(shards_, i);
    Convert(shard.data(), types_.shard,
            value + parameter.FirstRow(rank) * parameter.row_elements *
                        TypeBytes(types_.shard),
            types_.shard, shard.element_count());
  }
}

int64_t ShardedGroup::gather_block_bytes() const {
  return static_cast<int64_t>(sizeof(CallHeader)) +
         layout_.block_elements * TypeBytes(types_.compute);
}

int64_t ShardedGroup::reduce_block_bytes() const {
  return layout_.block_elements * TypeBytes(types_.reduce);
}

Tensor ShardedGroup::ShardBlock() const {
  return {shards_.data(), types_.shard, {layout_.block_elements}};
}

Tensor ShardedGroup::GradientBlock() const {
  return {shard_gradients_.data(), types_.shard, {layout_.block_elements}};
}

Tensor ShardedGroup::ShardView(const CountedMemory& memory,
                               size_t parameter) const {
  const ParameterLayout& layout = layout_.parameters[parameter];
  std::vector<int64_t> shape = layout.shape;
  shape[0] = layout.RowCount(rank_);
  return {memory.data() + layout.block_offset * TypeBytes(types_.shard),
          types_.shard, shape};
}

ParameterShard ShardedGroup::Shard(size_t parameter) const {
  const ParameterLayout& layout = layout_.parameters[parameter];
  ParameterShard shard;
  shard.name = names_[parameter];
  shard.global_shape = layout.shape;
  shard.offsets.assign(layout.shape.size(), 0);
  shard.offsets[0] = layout.FirstRow(rank_);
  shard.lengths = layout.shape;
  shard.lengths[0] = layout.RowCount(rank_);
  shard.value = ShardView(shards_, parameter);
  shard.gradient = ShardView(shard_gradients_, parameter);
  return shard;
}

void ShardedGroup::WriteBlock(const CallHeader& header,
                              std::byte* buffer) const {
  std::byte* const block = buffer + rank_ * gather_block_bytes();
  std::memcpy(block, &header, sizeof(header));
  Convert(block + sizeof(header), types_.compute, shards_.data(), types_.shard,
          layout_.block_elements);
}

std::vector<CallHeader> ShardedGroup::ReadHeaders(
    const std::byte* buffer) const {
  std::vector<CallHeader> headers(static_cast<size_t>(layout_.ranks));
  for (int rank = 0; rank < layout_.ranks; ++rank) {
    std::memcpy(&headers[static_cast<size_t>(rank)],
                buffer + rank * gather_block_bytes(), sizeof(CallHeader));
  }
  return headers;
}

void ShardedGroup::CopyValues(const std::byte* buffer) {
  const int64_t element = TypeBytes(types_.compute);
  values_ = {counter_, &MemoryStats::values, layout_.whole_elements * element};
  for (int rank = 0; rank < layout_.ranks; ++rank) {
    const std::byte* const block =
        buffer + rank * gather_block_bytes() + sizeof(CallHeader);
    for (const ParameterLayout& parameter : layout_.parameters) {
      const int64_t first = parameter.FirstRow(rank) * parameter.row_elements;
      Convert(values_.data() + (parameter.whole_offset + first) * element,
              types_.compute, block + parameter.block_offset * element,
              types_.compute,
              parameter.RowCount(rank) * parameter.row_elements);
    }
  }
}

bool ShardedGroup::ValuesAreCurrent() const {
  const int64_t element = TypeBytes(types_.compute);
  constexpr int64_t kPiece = 1024;
  std::array<std::byte, kPiece * sizeof(double)> staged;
  for (size_t i = 0; i < names_.size(); ++i) {
    const ParameterLayout& parameter = layout_.parameters[i];
    const Tensor shard = ShardView(shards_, i);
    const std::byte* const values =
        values_.data() + (parameter.whole_offset +
                          parameter.FirstRow(rank_) * parameter.row_elements) *
                             element;
    for (int64_t first = 0; first < shard.element_count(); first += kPiece) {
      const int64_t count = std::min(kPiece, shard.element_count() - first);
      Convert(staged.data(), types_.compute,
              static_cast<const std::byte*>(shard.data()) +
                  first * TypeBytes(types_.shard),
              types_.shard, count);
      if (std::memcmp(staged.data(), values + first * element,
                      static_cast<size_t>(count * element)) != 0) {
        return false;
      }
    }
  }
  return true;
}

Tensor ShardedGroup::Whole(const CountedMemory& memory,
                           size_t parameter) const {
  const ParameterLayout& layout = layout_.parameters[parameter];
  return {memory.data() + layout.whole_offset * TypeBytes(types_.compute),
          types_.compute, layout.shape};
}

Tensor ShardedGroup::Gradient(size_t parameter) {
  if (gradients_.empty()) {
    gradients_ = {counter_, &MemoryStats::gradients,
                  layout_.whole_elements * TypeBytes(types_.compute)};
    Zero(gradients_);
  }
  return Whole(gradients_, parameter);
}

void ShardedGroup::MoveGradients(std::byte* buffer, bool add) {
  const int64_t element = TypeBytes(types_.reduce);
  for (int rank = 0; rank < layout_.ranks; ++rank) {
    std::byte* const block = buffer + rank * reduce_block_bytes();
    for (size_t i = 0; i < layout_.parameters.size(); ++i) {
      const ParameterLayout& parameter = layout_.parameters[i];
      std::byte* const rows = block + parameter.block_offset * element;
      const int64_t count = parameter.RowCount(rank) * parameter.row_elements;
      const int64_t room = parameter.rows_per_rank * parameter.row_elements;
      if (!add) {
        const int64_t zeros = gradients_.empty() ? room : room - count;
        if (zeros > 0) {
          std::memset(rows + (room - zeros) * element, 0,
                      static_cast<size_t>(zeros * element));
        }
      }
      if (gradients_.empty()) continue;
      const int64_t first = parameter.whole_offset +
                            parameter.FirstRow(rank) * parameter.row_elements;
      const std::byte* const from =
          gradients_.data() + first * TypeBytes(types_.compute);
      if (add) {
        AddConverted(rows, types_.reduce, from, types_.compute, count);
      } else {
        Convert(rows, types_.reduce, from, types_.compute, count);
      }
    }
  }
  gradients_.Free();
}

void ShardedGroup::AddReduced(const std::byte* block) {
  AddConverted(shard_gradients_.data(), types_.shard, block, types_.reduce,
               layout_.block_elements);
}

}  // namespace muster::internal
