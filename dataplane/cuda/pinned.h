// Pinned host memory, to and from which CUDA copies without an intermediate
// copy.

#ifndef MUSTER_DATAPLANE_CUDA_PINNED_H_
#define MUSTER_DATAPLANE_CUDA_PINNED_H_

#include <cstddef>

#include "dataplane/cuda/api.h"
#include "muster/base/status.h"

namespace muster::dataplane::cuda {

// One block of pinned memory. It grows by reallocation. Used by one thread at a
// time. No copy may be running when it is destroyed.
class Pinned {
 public:
  // `api` must outlive it.
  explicit Pinned(const Api& api) : api_(api) {}
  ~Pinned() { Free(); }

  Pinned(const Pinned&) = delete;
  Pinned& operator=(const Pinned&) = delete;

  // Makes the block at least `bytes` long. If it grows, its contents are lost.
  // Errors: kInternal, with CUDA's text.
  Status Reserve(size_t bytes) {
    if (bytes <= bytes_) return OkStatus();
    Free();
    Status status =
        ToStatus(api_, api_.HostAlloc(&data_, bytes, kHostAllocPortable),
                 "cudaHostAlloc");
    if (status.ok()) bytes_ = bytes;
    return status;
  }
  void Free() {
    if (bytes_ > 0) api_.FreeHost(data_);
    bytes_ = 0;
  }
  char* data() const { return static_cast<char*>(data_); }
  size_t bytes() const { return bytes_; }

 private:
  const Api& api_;
  void* data_ = nullptr;
  size_t bytes_ = 0;
};

}  // namespace muster::dataplane::cuda

#endif  // MUSTER_DATAPLANE_CUDA_PINNED_H_
