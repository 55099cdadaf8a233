#include "muster/dlpack.h"

#include <memory>
#include <utility>

#include "client/control/throw.h"

namespace muster {

dlpack::Imported internal::ImportOrThrow(dlpack::DLManagedTensor* managed) {
  return ValueOrThrow(ErrorSource::kControl, dlpack::ImportManaged(managed));
}

dlpack::Imported internal::ImportOrThrow(
    dlpack::DLManagedTensorVersioned* managed,
    const dlpack::ImportOptions& options) {
  return ValueOrThrow(ErrorSource::kControl,
                      dlpack::ImportManaged(managed, options));
}

dlpack::DLManagedTensor* ToDLPack(const Tensor& tensor,
                                  std::shared_ptr<void> owner) {
  return internal::ValueOrThrow(internal::ErrorSource::kControl,
                                dlpack::Export(tensor, std::move(owner)));
}

dlpack::DLManagedTensorVersioned* ToDLPackVersioned(
    const Tensor& tensor, std::shared_ptr<void> owner) {
  return internal::ValueOrThrow(
      internal::ErrorSource::kControl,
      dlpack::ExportVersioned(tensor, std::move(owner)));
}

}  // namespace muster
