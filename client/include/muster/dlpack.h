// Exchanges tensors with PyTorch, JAX, NumPy, TVM and other libraries without a
// copy, by DLPack.
//
//   // `managed` comes from a Python capsule, for instance ("dltensor" or
//   // "dltensor_versioned").
//   muster::dlpack::Imported gradients = muster::FromDLPack(managed);
//   muster::AllReduce(gradients.tensor());

#ifndef MUSTER_DLPACK_H_
#define MUSTER_DLPACK_H_

#include <memory>

#include "muster/base/export.h"
#include "muster/dataplane/dlpack.h"
#include "muster/process_group.h"

namespace MUSTER_EXPORT muster {

namespace dlpack = dataplane::dlpack;

namespace internal {
dlpack::Imported ImportOrThrow(dlpack::DLManagedTensor* managed);
dlpack::Imported ImportOrThrow(dlpack::DLManagedTensorVersioned* managed,
                               const dlpack::ImportOptions& options);
}  // namespace internal

// Takes over `managed`, a DLManagedTensor or, for DLPack 1.x, a
// DLManagedTensorVersioned; the types may be this library's or those of
// DLPack's header. The result is a view of the memory and calls the deleter
// when it is destroyed. It must outlive the Work of every collective on the
// tensor.
// Throws DistError (kInvalidArgument) if the tensor is not contiguous, not
// aligned, of a device or an element type that Tensor does not have, of another
// version of DLPack, or read-only unless `options` allow that; the text says
// which. Then the caller still owns `managed`.
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

// Exports `tensor` to another library, which calls the deleter once, on any
// thread, when it no longer needs it. Until then `owner` is kept, which keeps
// the memory alive; null if the memory lives long enough anyway.
// Throws DistError (kInvalidArgument) for a bad tensor.
dlpack::DLManagedTensor* ToDLPack(const Tensor& tensor,
                                  std::shared_ptr<void> owner = nullptr);

// Does the same for a library that wants DLPack 1.0 or a later 1.x.
dlpack::DLManagedTensorVersioned* ToDLPackVersioned(
    const Tensor& tensor, std::shared_ptr<void> owner = nullptr);

}  // namespace muster

#endif  // MUSTER_DLPACK_H_
