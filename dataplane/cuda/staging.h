// A backend of CUDA tensors, made of one of CPU tensors.

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

// Collectives of tensors on any CUDA device, through pinned memory of the host
// and `inner`, which belongs to this group alone: in chunks, of which at the
// same time one is copied from the device, one is with `inner`, one is copied
// back, and one has been. Before an all_to_all the ranks tell each other, by a
// small all_to_all of `inner`, how much they give and how many chunks they
// need. Sends and receives go as a whole, beside the collectives
// (staged_messages.h).
//
// They begin after what the calling thread's current stream has been given, one
// after the other, and are over when their results are on the device.
// Work::Synchronize waits until the last copy has been given to a stream, and
// lets the current stream wait for that.
//
// A thread does the collectives, and another one the sends and receives.
std::unique_ptr<Backend> CreateStaging(const Api& api,
                                       std::unique_ptr<Backend> inner,
                                       const StagingOptions& options);

}  // namespace muster::dataplane::cuda

#endif  // MUSTER_DATAPLANE_CUDA_STAGING_H_
