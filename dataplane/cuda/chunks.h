// Cuts a collective into chunks that move one after the other.

#ifndef MUSTER_DATAPLANE_CUDA_CHUNKS_H_
#define MUSTER_DATAPLANE_CUDA_CHUNKS_H_

#include <cstddef>

#include "muster/dataplane/collective.h"
#include "muster/dataplane/tensor.h"

namespace muster::dataplane::cuda {

// Cuts `tensor` into equal parts.
Collective::Tensors Rows(const Tensor& tensor, int count);

// Returns the same collective with whole tensors cut into one tensor per rank,
// so that all ranks can cut their chunks at the same elements.
Collective CutAlike(const Collective& collective, int world_size);

// How the tensors of a collective are cut into chunks.
struct Cut {
  size_t chunks = 1;
  // Elements of each tensor in each chunk; 0: equal parts.
  size_t elements = 0;

  // The part of `tensor` that is in chunk number `chunk`, from 0.
  Tensor GetPart(const Tensor& tensor, size_t chunk) const;
};

// Cuts `alike`, a result of CutAlike that has tensors, into chunks of about
// `chunk_bytes`. The result is the same on all ranks, except the number of
// chunks of an all_to_all: there a rank knows only its own parts, of any sizes.
Cut MakeCut(const Collective& alike, int world_size, size_t chunk_bytes);

}  // namespace muster::dataplane::cuda

#endif  // MUSTER_DATAPLANE_CUDA_CHUNKS_H_
