// Tensors of other libraries, and for them, by DLPack: of PyTorch, JAX, NumPy,
// TVM and others, without a copy.
//
//   // From a capsule of Python's "dltensor", for instance.
//   muster::dlpack::Imported gradients = muster::FromDLPack(managed);
//   muster::AllReduce(gradients.tensor());

#ifndef MUSTER_CLIENT_DLPACK_H_
#define MUSTER_CLIENT_DLPACK_H_

#include <memory>

#include "client/process_group.h"
#include "dataplane/dlpack.h"

namespace muster {

namespace dlpack = dataplane::dlpack;

namespace internal {
dlpack::Imported ImportOrThrow(dlpack::DLManagedTensor* managed);
}  // namespace internal

// Takes `managed` over, a DLManagedTensor: this library's or that of DLPack's
// header. The result is a view of its memory, and calls its deleter when it is
// destroyed: after every collective on it, and not while one runs.
// Throws DistError (kInvalidArgument: not contiguous, not aligned, or of a
// device or an element type that tensors do not have here; the text says
// which); then it is still the caller's.
template <dlpack::Managed T>
dlpack::Imported FromDLPack(T* managed) {
  return internal::ImportOrThrow(
      reinterpret_cast<dlpack::DLManagedTensor*>(managed));
}

// `tensor` for another library, which calls the deleter once when it is done
// with it, on any thread. Until then `owner` is kept, which keeps the memory;
// null if that lives long enough anyway.
// Throws DistError (kInvalidArgument): a bad tensor.
dlpack::DLManagedTensor* ToDLPack(const Tensor& tensor,
                                  std::shared_ptr<void> owner = nullptr);

}  // namespace muster

#endif  // MUSTER_CLIENT_DLPACK_H_
