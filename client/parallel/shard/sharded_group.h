// One group of parameters on one rank: its shard, and what is whole of it for a
// while. Moves data within the rank; runs no collectives.

#ifndef MUSTER_CLIENT_PARALLEL_SHARD_SHARDED_GROUP_H_
#define MUSTER_CLIENT_PARALLEL_SHARD_SHARDED_GROUP_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "client/parallel/shard/call_order.h"
#include "client/parallel/shard/counted_memory.h"
#include "client/parallel/shard/layout.h"
#include "muster/fully_shard.h"

namespace muster::internal {

// The types of a group: of the shards, of what is computed with, and of what is
// reduced.
struct ShardTypes {
  DataType shard = DataType::kFloat32;
  DataType compute = DataType::kFloat32;
  DataType reduce = DataType::kFloat32;
};

class ShardedGroup {
 public:
  // Copies this rank's rows of the values.
  ShardedGroup(const ShardGroup& group, const ShardTypes& types, int rank,
               int ranks, MemoryCounter& counter,
               const AllocateFunction& allocate);

  const std::string& name() const { return name_; }
  const GroupLayout& layout() const { return layout_; }
  const ShardTypes& types() const { return types_; }
  const std::vector<std::string>& parameter_names() const { return names_; }

  // A rank's block of an all-gather: a CallHeader and its shards.
  int64_t gather_block_bytes() const;
  // A rank's block of a reduce-scatter.
  int64_t reduce_block_bytes() const;

  // This rank's shards, and their gradients, as one tensor, with padding.
  Tensor ShardBlock() const;
  Tensor GradientBlock() const;
  ParameterShard Shard(size_t parameter) const;

  // Writes this rank's block into the buffer of an all-gather.
  void WriteBlock(const CallHeader& header, std::byte* buffer) const;
  std::vector<CallHeader> ReadHeaders(const std::byte* buffer) const;
  // Copies the values out of the gathered blocks.
  void CopyValues(const std::byte* buffer);
  bool is_whole() const { return !values_.empty(); }
  // Whether this rank's part of the values is that of its shards. The group is
  // whole.
  bool ValuesAreCurrent() const;
  void FreeValues() { values_.Free(); }
  Tensor Value(size_t parameter) const { return Whole(values_, parameter); }

  // The first call allocates the gradients and makes them zero.
  Tensor Gradient(size_t parameter);
  // Writes the gradients into all blocks of a reduce-scatter, or adds them
  // there, and frees them.
  void MoveGradients(std::byte* buffer, bool add);
  // Adds a reduced block to the shards' gradients.
  void AddReduced(const std::byte* block);

 private:
  Tensor Whole(const CountedMemory& memory, size_t parameter) const;
  Tensor ShardView(const CountedMemory& memory, size_t parameter) const;

  const std::string name_;
  std::vector<std::string> names_;
  const ShardTypes types_;
  const int rank_;
  const GroupLayout layout_;
  MemoryCounter& counter_;
  CountedMemory shards_;
  CountedMemory shard_gradients_;
  CountedMemory values_;
  CountedMemory gradients_;
};

}  // namespace muster::internal

#endif  // MUSTER_CLIENT_PARALLEL_SHARD_SHARDED_GROUP_H_
