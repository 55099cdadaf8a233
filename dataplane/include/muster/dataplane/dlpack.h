// Exchange of tensors with other libraries by DLPack, a convention on how a
// tensor is laid out in memory (https://dmlc.github.io/dlpack). The client
// exports these names as muster::dlpack and adds functions that throw.
//
// A managed tensor is a DLManagedTensor, the form since DLPack 0.2, or a
// DLManagedTensorVersioned, the form since 1.0. This header declares both, so
// that nobody needs DLPack's header; the functions also take the types of that
// header.

#ifndef MUSTER_DATAPLANE_DLPACK_H_
#define MUSTER_DATAPLANE_DLPACK_H_

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <type_traits>
#include <utility>

#include "muster/base/export.h"
#include "muster/base/status.h"
#include "muster/dataplane/tensor.h"

namespace MUSTER_EXPORT muster {
namespace dataplane::dlpack {

enum DeviceCode : int32_t {
  kDLCPU = 1,
  kDLCUDA = 2,
  kDLCUDAHost = 3,
};

enum TypeCode : uint8_t {
  kDLInt = 0,
  kDLUInt = 1,
  kDLFloat = 2,
  kDLBfloat = 4,
  kDLComplex = 5,
  kDLBool = 6,
  // Since 1.1.
  kDLFloat8E4m3fn = 10,
  kDLFloat8E5m2 = 12,
};

struct DLDevice {
  int32_t device_type;
  int32_t device_id;
};

struct DLDataType {
  uint8_t code;
  uint8_t bits;
  // The number of values in an element of a vector type; 1 for all others.
  uint16_t lanes;
};

struct DLTensor {
  void* data;
  DLDevice device;
  int32_t ndim;
  DLDataType dtype;
  const int64_t* shape;
  // Counted in elements. Null: contiguous, row-major.
  const int64_t* strides;
  // Bytes from `data` to the first element.
  uint64_t byte_offset;
};

// A tensor with the function that frees it.
struct DLManagedTensor {
  DLTensor dl_tensor;
  void* manager_ctx;
  // The last user calls it, once. May be null.
  void (*deleter)(DLManagedTensor* self);
};

struct DLPackVersion {
  uint32_t major;
  uint32_t minor;
};

// The only major version known here: another one may have another layout.
inline constexpr uint32_t kMajorVersion = 1;

// A bit of DLManagedTensorVersioned::flags: the tensor must not be written.
inline constexpr uint64_t kReadOnly = 1;

// DLManagedTensor with a version and flags. Python capsules name it
// "dltensor_versioned".
struct DLManagedTensorVersioned {
  DLPackVersion version;
  void* manager_ctx;
  // The last user calls it, once. May be null.
  void (*deleter)(DLManagedTensorVersioned* self);
  uint64_t flags;
  DLTensor dl_tensor;
};

namespace dlpack_internal {
template <typename T>
concept AnyManaged = std::is_standard_layout_v<T> && requires(T managed) {
  managed.dl_tensor.byte_offset;
  managed.manager_ctx;
  managed.deleter(&managed);
};

// Calls the deleter of a managed tensor of either form.
struct GiveBack {
  void operator()(void* managed) const { call(managed); }
  void (*call)(void* managed) = nullptr;
};
}  // namespace dlpack_internal

// This header's DLManagedTensor or that of DLPack's header.
template <typename T>
concept Managed = dlpack_internal::AnyManaged<T> &&
                  sizeof(T) == sizeof(DLManagedTensor);

// This header's DLManagedTensorVersioned or that of DLPack's header.
template <typename T>
concept ManagedVersioned = dlpack_internal::AnyManaged<T> &&
    requires(T managed) {
  managed.version.major;
  managed.flags;
} && sizeof(T) == sizeof(DLManagedTensorVersioned);

struct ImportOptions {
  // Also accepts a read-only tensor, for instance one of JAX. Pass such a
  // tensor only as an input that a collective does not write: nothing here
  // prevents writing to it.
  bool allow_read_only = false;
};

// Imported owns a tensor of another library. Its destructor calls the tensor's
// deleter. Movable.
class Imported {
 public:
  Imported() = default;
  // A moved-from object has no tensor.
  Imported(Imported&& other) noexcept
      : tensor_(std::exchange(other.tensor_, Tensor())),
        managed_(std::move(other.managed_)) {}
  Imported& operator=(Imported&& other) noexcept {
    tensor_ = std::exchange(other.tensor_, Tensor());
    managed_ = std::move(other.managed_);
    return *this;
  }

  // A view of the imported memory, valid as long as this object. Keep the
  // object until the Work of every collective on the view is complete.
  const Tensor& tensor() const { return tensor_; }

 private:
  friend StatusOr<Imported> ImportManaged(DLManagedTensor* managed);
  friend StatusOr<Imported> ImportManaged(DLManagedTensorVersioned* managed,
                                          const ImportOptions& options);

  template <typename M>
  static StatusOr<Imported> Import(M* managed);

  Tensor tensor_;
  std::unique_ptr<void, dlpack_internal::GiveBack> managed_;
};

// Takes ownership of `managed`. The tensor must be contiguous and row-major
// (strides of dimensions of size 1 do not matter), on the CPU or a CUDA device
// (CUDA's host memory counts as the CPU), aligned to its elements, and of a
// type in DataType, with one lane. A versioned tensor must have major version 1
// and be writable unless `options` allow otherwise.
// Errors: kInvalidArgument, naming the violated condition; then the caller
// still owns `managed`, and its deleter was not called.
StatusOr<Imported> ImportManaged(DLManagedTensor* managed);
StatusOr<Imported> ImportManaged(DLManagedTensorVersioned* managed,
                                 const ImportOptions& options = {});

template <Managed T>
StatusOr<Imported> Import(T* managed) {
  return ImportManaged(reinterpret_cast<DLManagedTensor*>(managed));
}

template <ManagedVersioned T>
StatusOr<Imported> Import(T* managed, const ImportOptions& options = {}) {
  return ImportManaged(reinterpret_cast<DLManagedTensorVersioned*>(managed),
                       options);
}

// Makes a managed tensor of `tensor` for another library, which calls the
// deleter once, on any thread, when it is done. Until then the managed tensor
// holds `owner`, which keeps the memory alive; null if the memory lives long
// enough anyway.
// Errors: kInvalidArgument (Tensor::Validate).
StatusOr<DLManagedTensor*> Export(const Tensor& tensor,
                                  std::shared_ptr<void> owner = nullptr);

// As Export, for a library that wants DLPack 1.0 or a later 1.x.
StatusOr<DLManagedTensorVersioned*> ExportVersioned(
    const Tensor& tensor, std::shared_ptr<void> owner = nullptr);

}  // namespace dataplane::dlpack
}  // namespace muster

#endif  // MUSTER_DATAPLANE_DLPACK_H_
