// Tensors of other libraries, and for them, by DLPack: of PyTorch, JAX, NumPy,
// TVM and others, without a copy.
//
//   // From a capsule of Python's "dltensor" or "dltensor_versioned", for
//   // instance.
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
dlpack::Imported ImportOrThrow(dlpack::DLManagedTensorVersioned* managed,
                               const dlpack::ImportOptions& options);
}  // namespace internal

// Takes `managed` over, a DLManagedTensor or, of DLPack 1.x, a
// DLManagedTensorVersioned: this library's or that of DLPack's header. The
// result is a view of its memory, and calls its deleter when it is destroyed:
// after every collective on it, and not while one runs.
// Throws DistError (kInvalidArgument: not contiguous, not aligned, of a device
// or an element type that tensors do not have here, of another version, or
// read-only unless `options` allow that; the text says which); then it is still
// the caller's.
template <dlpack::Managed T>
dlpack::Imported FromDLPack(T* managed) {
  return internal::ImportOrThrow(
      reinterpret_cast<dlpack::DLManagedTensor*>(managed));
}
template <dlpack::ManagedVersioned T>
dlpack::Imported FromDLPack(T* managed,
                            const dlpack::ImportOptions& options = {}) {
  return internal::ImportOrThrow(
      reinterpret_cast<dlpack::DLManagedTensorVersioned*>(managed), options);
}

// `tensor` for another library, which calls the deleter once when it is done
// with it, on any thread. Until then `owner` is kept, which keeps the memory;
// null if that lives long enough anyway.
// Throws DistError (kInvalidArgument): a bad tensor.
dlpack::DLManagedTensor* ToDLPack(const Tensor& tensor,
                                  std::shared_ptr<void> owner = nullptr);

// The same for who wants DLPack 1.0 or a later 1.x.
dlpack::DLManagedTensorVersioned* ToDLPackVersioned(
    const Tensor& tensor, std::shared_ptr<void> owner = nullptr);

}  // namespace muster

#endif  // MUSTER_CLIENT_DLPACK_H_
