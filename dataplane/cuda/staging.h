// Makes a backend for CUDA tensors out of one for CPU tensors.

#ifndef MUSTER_DATAPLANE_CUDA_STAGING_H_
#define MUSTER_DATAPLANE_CUDA_STAGING_H_

#include <cstddef>
#include <memory>
#include <string>

#include "dataplane/cuda/api.h"
#include "muster/dataplane/backend.h"

namespace muster::dataplane::cuda {

struct StagingOptions {
  // In the group.
  int rank = 0;
  int world_size = 1;
  std::string group_name = {};
  // Bytes of the tensors that move at a time. Uses four times as much pinned
  // memory.
  size_t chunk_bytes = 4 << 20;
};

// Makes a backend that runs collectives of tensors on any CUDA device through
// pinned host memory and `inner`, which must belong to this group alone. A
// tensor moves in chunks, in a pipeline: while one chunk is copied from the
// device, another is with `inner`, and a third is copied back. Before an
// all_to_all the ranks exchange their element counts and chunk counts with a
// small all_to_all of `inner`. Sends and receives move as a whole, in parallel
// to the collectives (staged_messages.h).
//
// Collectives begin after the work that is on the calling thread's current
// stream when they are started, run one after the other, and are complete when
// their results are on the device. Work::Synchronize waits until the last copy
// is enqueued and makes the current stream wait for it.
//
// One thread runs the collectives, another one the sends and receives.
std::unique_ptr<Backend> CreateStaging(const Api& api,
                                       std::unique_ptr<Backend> inner,
                                       const StagingOptions& options);

}  // namespace muster::dataplane::cuda

#endif  // MUSTER_DATAPLANE_CUDA_STAGING_H_
