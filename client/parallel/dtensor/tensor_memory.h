// Tensors that own memory, parts of tensors, and elements as numbers.

#ifndef MUSTER_CLIENT_PARALLEL_DTENSOR_TENSOR_MEMORY_H_
#define MUSTER_CLIENT_PARALLEL_DTENSOR_TENSOR_MEMORY_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "client/parallel/elements/float_conversion.h"
#include "muster/dataplane/tensor.h"
#include "muster/placement.h"
#include "muster/process_group.h"

namespace muster::internal {

// A tensor, and its memory. Copies share the memory.
struct OwnedTensor {
  Tensor tensor = {};
  // Null: a view of memory that somebody else owns.
  std::shared_ptr<void> memory = nullptr;
};

// Allocates memory on the CPU, uninitialized, aligned to 64 bytes. Throws
// DistError (kResourceExhausted).
OwnedTensor AllocateTensor(DataType type, const std::vector<int64_t>& shape);

// The elements that are in both boxes, which have as many dimensions.
ShardBox Intersect(const ShardBox& a, const ShardBox& b);

// If the elements of `part` lie one after the other in a tensor of the elements
// of `whole`, which contains it, the index of the first of them. Zero if there
// are none.
std::optional<int64_t> FindContiguous(const ShardBox& whole,
                                      const ShardBox& part);

// Copies the elements of `part`, which is in both boxes, from memory that has
// the elements of `from_box` to memory that has those of `to_box`.
void CopyBox(const void* from, const ShardBox& from_box, void* to,
             const ShardBox& to_box, const ShardBox& part,
             size_t element_bytes);

// Writes the neutral element of a Partial placement's operation to all
// elements. Throws DistError (kUnimplemented) for a type that cannot be
// Partial.
void FillPartial(const Tensor& tensor, ReduceOp op);

// Converts `count` elements of a floating-point type from and to double.
inline void ToDoubles(DataType type, const void* elements, int64_t count,
                      double* doubles) {
  Convert(doubles, DataType::kFloat64, elements, type, count);
}
inline void FromDoubles(DataType type, const double* doubles, int64_t count,
                        void* elements) {
  Convert(elements, type, doubles, DataType::kFloat64, count);
}

}  // namespace muster::internal

#endif  // MUSTER_CLIENT_PARALLEL_DTENSOR_TENSOR_MEMORY_H_
