// Makes a backend for CUDA tensors out of one for CPU tensors.

#ifndef MUSTER_DATAPLANE_CUDA_STAGING_H_
#define MUSTER_DATAPLANE_CUDA_STAGING_H_

#include <cstddef>
#include <memory>
#include <string>

#include "dataplane/backend.h"
#include "dataplane/cuda/api.h"

namespace muster::dataplane::cuda {

struct StagingOptions {
  // In the group.
  int rank = 0;
  int world_size = 1;
  std::string group_name = {};
  // How much of the tensors is on its way at a time, in bytes. Four times as
  // much of pinned memory is kept.
  size_t chunk_bytes = 4 << 20;
};

// Runs collectives of tensors on any CUDA device through pinned host memory and
// `inner`, which must belong to this group alone. A tensor moves in chunks, in
// a pipeline: while one chunk is copied from the device, another is with
// `inner`, a third is copied back, and a fourth has been. Before an all_to_all
// the ranks tell each other, by a small all_to_all of `inner`, how much they
// give and how many chunks they need. Sends and receives move as a whole, in
// parallel to the collectives (staged_messages.h).
//
// Collectives begin after the work that the calling thread's current stream has
// been given, run one after the other, and are complete when their results are
// on the device. Work::Synchronize waits until the last copy has been enqueued
// in a stream, and makes the current stream wait for that.
//
// One thread runs the collectives, another one the sends and receives.
std::unique_ptr<Backend> CreateStaging(const Api& api,
                                       std::unique_ptr<Backend> inner,
                                       const StagingOptions& options);

}  // namespace muster::dataplane::cuda

#endif  // MUSTER_DATAPLANE_CUDA_STAGING_H_
