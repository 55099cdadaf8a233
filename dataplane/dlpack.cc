#include "muster/dataplane/dlpack.h"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "muster/base/status.h"

namespace muster::dataplane::dlpack {
namespace {

static_assert(sizeof(void*) != 8 ||
              (sizeof(DLTensor) == 48 && offsetof(DLTensor, shape) == 24 &&
               offsetof(DLTensor, byte_offset) == 40 &&
               sizeof(DLManagedTensor) == 64 &&
               sizeof(DLManagedTensorVersioned) == 80 &&
               offsetof(DLManagedTensorVersioned, flags) == 24));

struct TypePair {
  DataType ours;
  DLDataType theirs;
};

constexpr TypePair kTypes[] = {
    {DataType::kUint8, {kDLUInt, 8, 1}},
    {DataType::kInt8, {kDLInt, 8, 1}},
    {DataType::kInt16, {kDLInt, 16, 1}},
    {DataType::kInt32, {kDLInt, 32, 1}},
    {DataType::kInt64, {kDLInt, 64, 1}},
    {DataType::kFloat16, {kDLFloat, 16, 1}},
    {DataType::kBfloat16, {kDLBfloat, 16, 1}},
    {DataType::kFloat32, {kDLFloat, 32, 1}},
    {DataType::kFloat64, {kDLFloat, 64, 1}},
    {DataType::kBool, {kDLBool, 8, 1}},
    {DataType::kComplex64, {kDLComplex, 64, 1}},
    {DataType::kComplex128, {kDLComplex, 128, 1}},
    {DataType::kFloat8E4m3fn, {kDLFloat8E4m3fn, 8, 1}},
    {DataType::kFloat8E5m2, {kDLFloat8E5m2, 8, 1}},
    {DataType::kUint16, {kDLUInt, 16, 1}},
    {DataType::kUint32, {kDLUInt, 32, 1}},
    {DataType::kUint64, {kDLUInt, 64, 1}},
};
// The types after these, opaque elements and pairs, have no counterpart.
static_assert(std::size(kTypes) == static_cast<size_t>(DataType::kOpaque));

template <typename... Pieces>
Status Invalid(const Pieces&... pieces) {
  return InvalidArgumentError(absl::StrCat("argument managed: ", pieces...));
}

std::string TypeName(DLDataType type) {
  const auto name = [&]() -> std::string {
    switch (type.code) {
      case kDLInt:
        return "int";
      case kDLUInt:
        return "uint";
      case kDLFloat:
        return "float";
      case kDLBfloat:
        return "bfloat";
      case kDLComplex:
        return "complex";
      case kDLBool:
        return "bool";
      default:
        return absl::StrCat("type code ", type.code, " of ");
    }
  }();
  return absl::StrCat(name, type.bits);
}

StatusOr<DataType> ToDataType(DLDataType type) {
  if (type.lanes != 1) {
    return Invalid("elements of ", type.lanes, " lanes, must be 1 (",
                   TypeName(type), ")");
  }
  for (const TypePair& pair : kTypes) {
    if (pair.theirs.code == type.code && pair.theirs.bits == type.bits) {
      return pair.ours;
    }
  }
  return Invalid("no tensor here has elements of ", TypeName(type));
}

StatusOr<Device> ToDevice(DLDevice device) {
  switch (device.device_type) {
    case kDLCPU:
    case kDLCUDAHost:
      return Device{};
    case kDLCUDA:
      return Device{DeviceType::kCuda, device.device_id};
    default:
      return Invalid("device type ", device.device_type,
                     ", must be 1 (CPU), 2 (CUDA) or 3 (CUDA's host memory)");
  }
}

Status CheckContiguous(const DLTensor& tensor, std::span<const int64_t> shape) {
  if (tensor.strides == nullptr) return OkStatus();
  for (const int64_t dimension : shape) {
    if (dimension == 0) return OkStatus();
  }
  const std::span<const int64_t> strides(tensor.strides, shape.size());
  int64_t expected = 1;
  for (size_t i = shape.size(); i-- > 0;) {
    if (shape[i] != 1 && strides[i] != expected) {
      return Invalid("tensors must be contiguous: dimension ", i, " of [",
                     absl::StrJoin(shape, ","), "] has stride ", strides[i],
                     ", must be ", expected);
    }
    expected *= shape[i];
  }
  return OkStatus();
}

StatusOr<Tensor> MakeView(const DLTensor& theirs) {
  const StatusOr<DataType> type = ToDataType(theirs.dtype);
  if (!type.ok()) return type.status();
  const StatusOr<Device> device = ToDevice(theirs.device);
  if (!device.ok()) return device.status();
  if (theirs.ndim < 0) return Invalid("ndim is negative: ", theirs.ndim);
  if (theirs.ndim > 0 && theirs.shape == nullptr) {
    return Invalid("shape is null, ndim is ", theirs.ndim);
  }
  const std::span<const int64_t> shape(theirs.shape,
                                       static_cast<size_t>(theirs.ndim));
  void* const data =
      theirs.data == nullptr
          ? nullptr
          : static_cast<std::byte*>(theirs.data) + theirs.byte_offset;
  Tensor tensor(data, *type, shape, *device);
  const Status valid = tensor.Validate();
  if (!valid.ok()) return Invalid(valid.message());
  Status contiguous = CheckContiguous(theirs, shape);
  if (!contiguous.ok()) return contiguous;
  return tensor;
}

// Owned by an exported tensor; deleted by its deleter.
template <typename M>
struct Exported {
  M managed = {};
  std::vector<int64_t> shape;
  std::vector<int64_t> strides;
  std::shared_ptr<void> owner;
};

template <typename M>
StatusOr<Exported<M>*> ExportAs(
    const Tensor& tensor,
    // NOLINTNEXTLINE(performance-unnecessary-value-param): it is moved.
    std::shared_ptr<void> owner) {
  const Status valid = tensor.Validate();
  if (!valid.ok()) {
    return InvalidArgumentError(
        absl::StrCat("argument tensor: ", valid.message()));
  }
  if (static_cast<size_t>(tensor.data_type()) >= std::size(kTypes)) {
    return InvalidArgumentError(
        absl::StrCat("argument tensor: DLPack has no type for the elements of ",
                     tensor.Describe()));
  }
  auto exported = std::make_unique<Exported<M>>();
  exported->shape.assign(tensor.shape().begin(), tensor.shape().end());
  exported->owner = std::move(owner);
  M& managed = exported->managed;
  DLTensor& theirs = managed.dl_tensor;
  theirs.data = tensor.data();
  theirs.device = tensor.device().type == DeviceType::kCpu
                      ? DLDevice{kDLCPU, 0}
                      : DLDevice{kDLCUDA, tensor.device().index};
  theirs.ndim = static_cast<int32_t>(exported->shape.size());
  theirs.dtype = kTypes[static_cast<size_t>(tensor.data_type())].theirs;
  theirs.shape = exported->shape.data();
  managed.manager_ctx = exported.get();
  managed.deleter = [](M* self) {
    delete static_cast<Exported<M>*>(self->manager_ctx);
  };
  return exported.release();
}

}  // namespace

template <typename M>
StatusOr<Imported> Imported::Import(M* managed) {
  StatusOr<Tensor> view = MakeView(managed->dl_tensor);
  if (!view.ok()) return view.status();
  Imported imported;
  imported.tensor_ = *std::move(view);
  const auto give_back = [](void* given) {
    M* const back = static_cast<M*>(given);
    if (back->deleter != nullptr) back->deleter(back);
  };
  imported.managed_ = decltype(imported.managed_)(managed, {give_back});
  return imported;
}

StatusOr<Imported> ImportManaged(DLManagedTensor* managed) {
  if (managed == nullptr) return Invalid("null");
  return Imported::Import(managed);
}

StatusOr<Imported> ImportManaged(DLManagedTensorVersioned* managed,
                                 const ImportOptions& options) {
  if (managed == nullptr) return Invalid("null");
  // Another major version may have another layout, so nothing else is read.
  if (managed->version.major != kMajorVersion) {
    return Invalid("DLPack ", managed->version.major, ".",
                   managed->version.minor, ", must be ", kMajorVersion, ".x");
  }
  if ((managed->flags & kReadOnly) != 0 && !options.allow_read_only) {
    return Invalid(
        "the tensor is read-only, and collectives may write to theirs: set "
        "allow_read_only for one that is only read");
  }
  return Imported::Import(managed);
}

StatusOr<DLManagedTensor*> Export(const Tensor& tensor,
                                  std::shared_ptr<void> owner) {
  const auto exported = ExportAs<DLManagedTensor>(tensor, std::move(owner));
  if (!exported.ok()) return exported.status();
  return &(*exported)->managed;
}

StatusOr<DLManagedTensorVersioned*> ExportVersioned(
    const Tensor& tensor, std::shared_ptr<void> owner) {
  const auto exported =
      ExportAs<DLManagedTensorVersioned>(tensor, std::move(owner));
  if (!exported.ok()) return exported.status();
  Exported<DLManagedTensorVersioned>& made = **exported;
  made.managed.version = {kMajorVersion, 0};
  // Later 1.x versions require strides.
  made.strides.assign(made.shape.size(), 1);
  for (size_t i = made.strides.size(); i-- > 1;) {
    made.strides[i - 1] = made.strides[i] * made.shape[i];
  }
  made.managed.dl_tensor.strides = made.strides.data();
  return &made.managed;
}

}  // namespace muster::dataplane::dlpack
