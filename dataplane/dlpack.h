// Tensors of other libraries, and for them: DLPack, an agreement on how a
// tensor looks in memory (https://dmlc.github.io/dlpack). The client exports
// these names as muster::dlpack, and has functions that throw.
//
// A managed tensor is a DLManagedTensor, as it has been since DLPack 0.2, or a
// DLManagedTensorVersioned, which came with 1.0. They are declared here so that
// nobody needs DLPack's header, and the functions take those of that header as
// well.

#ifndef MUSTER_DATAPLANE_DLPACK_H_
#define MUSTER_DATAPLANE_DLPACK_H_

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <type_traits>
#include <utility>

#include "base/status.h"
#include "dataplane/tensor.h"

namespace muster::dataplane::dlpack {

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
  // Numbers in an element of a vector type; 1 of all others.
  uint16_t lanes;
};

struct DLTensor {
  void* data;
  DLDevice device;
  int32_t ndim;
  DLDataType dtype;
  const int64_t* shape;
  // In elements; null: contiguous, row-major.
  const int64_t* strides;
  // From `data` to the first element.
  uint64_t byte_offset;
};

// A tensor, and how to give it back.
struct DLManagedTensor {
  DLTensor dl_tensor;
  void* manager_ctx;
  // Called once by whoever uses it last. May be null.
  void (*deleter)(DLManagedTensor* self);
};

struct DLPackVersion {
  uint32_t major;
  uint32_t minor;
};

// The only one that is known: another one may be laid out otherwise.
inline constexpr uint32_t kMajorVersion = 1;

// Of DLManagedTensorVersioned::flags: nobody may write to the tensor.
inline constexpr uint64_t kReadOnly = 1;

// The same with what it is. In capsules of Python: "dltensor_versioned".
struct DLManagedTensorVersioned {
  DLPackVersion version;
  void* manager_ctx;
  // Called once by whoever uses it last. May be null.
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

// Calls a managed tensor's deleter, whichever structure it is.
struct GiveBack {
  void operator()(void* managed) const { call(managed); }
  void (*call)(void* managed) = nullptr;
};
}  // namespace dlpack_internal

// DLManagedTensor, this one or that of DLPack's header.
template <typename T>
concept Managed = dlpack_internal::AnyManaged<T> &&
                  sizeof(T) == sizeof(DLManagedTensor);

// DLManagedTensorVersioned, this one or that of DLPack's header.
template <typename T>
concept ManagedVersioned = dlpack_internal::AnyManaged<T> &&
    requires(T managed) {
  managed.version.major;
  managed.flags;
} && sizeof(T) == sizeof(DLManagedTensorVersioned);

struct ImportOptions {
  // Also takes a tensor that must not be written, as JAX's. Use it for what a
  // collective reads alone: nothing here keeps one from writing to it.
  bool allow_read_only = false;
};

// Imported holds a tensor of another library, and gives it back by calling the
// deleter when it is destroyed. Movable.
class Imported {
 public:
  Imported() = default;
  // What was moved from has no tensor any more.
  Imported(Imported&& other) noexcept
      : tensor_(std::exchange(other.tensor_, Tensor())),
        managed_(std::move(other.managed_)) {}
  Imported& operator=(Imported&& other) noexcept {
    tensor_ = std::exchange(other.tensor_, Tensor());
    managed_ = std::move(other.managed_);
    return *this;
  }

  // A view of its memory, which lives as long as this object does: longer than
  // the Work of every collective on it.
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

// Takes `managed` over. It must be contiguous and row-major (strides of
// dimensions of one element do not matter), on the CPU or a CUDA device (CUDA's
// host memory counts as the CPU), aligned to its elements, and of a type that
// tensors have here, with one lane; with a version it must be 1, and the tensor
// may be written unless `options` say otherwise.
// Errors: kInvalidArgument, saying which of this it is not; then it is still
// the caller's, and its deleter was not called.
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

// `tensor` for another library, which calls the deleter once when it is done
// with it, on any thread. Until then `owner` is kept, which keeps the memory;
// null if that lives long enough anyway.
// Errors: kInvalidArgument (Tensor::Validate).
StatusOr<DLManagedTensor*> Export(const Tensor& tensor,
                                  std::shared_ptr<void> owner = nullptr);

// The same for who wants DLPack 1.0 or a later 1.x.
StatusOr<DLManagedTensorVersioned*> ExportVersioned(
    const Tensor& tensor, std::shared_ptr<void> owner = nullptr);

}  // namespace muster::dataplane::dlpack

#endif  // MUSTER_DATAPLANE_DLPACK_H_
