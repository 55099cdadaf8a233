// How a collective is cut into chunks that go one after the other.

#ifndef MUSTER_DATAPLANE_CUDA_CHUNKS_H_
#define MUSTER_DATAPLANE_CUDA_CHUNKS_H_

#include <cstddef>

#include "dataplane/collective.h"
#include "dataplane/tensor.h"

namespace muster::dataplane::cuda {

// `tensor` cut into equal parts.
Collective::Tensors Rows(const Tensor& tensor, int count);

// The same collective, of tensors of which every rank can take the same
// elements at a time.
Collective CutAlike(const Collective& collective, int world_size);

// Which part of a collective's tensors goes at a time.
struct Cut {
  size_t chunks = 1;
  // Of each tensor in each chunk; 0: equal parts.
  size_t elements = 0;

  // What of `tensor` goes in a chunk, from 0.
  Tensor PartOf(const Tensor& tensor, size_t chunk) const;
};

// Of one that is cut alike and has tensors, in chunks of about `chunk_bytes`.
// The same on all ranks, but for an all_to_all's number of chunks: each rank
// knows its own parts alone, which may be of any lengths.
Cut CutOf(const Collective& alike, int world_size, size_t chunk_bytes);

}  // namespace muster::dataplane::cuda

#endif  // MUSTER_DATAPLANE_CUDA_CHUNKS_H_
