#include "muster/symmetric.h"

#include <cstdint>
#include <memory>

#include "client/c/convert.h"
#include "client/c/error.h"
#include "client/c/handles.h"
#include "muster/muster.h"

struct muster_symmetric {
  muster::SymmetricTensor memory;
  // The memory as the caller's elements.
  muster::Tensor tensor;
};

using muster::c::Guard;
using muster::c::GuardHandle;
using muster::c::Need;

muster_status muster_allocate_symmetric(muster_group* group, muster_dtype dtype,
                                        uint64_t element_size, int64_t count,
                                        const muster_symmetric_options* options,
                                        muster_symmetric** memory) {
  return GuardHandle(__func__, memory, "memory", [&] {
    const muster_symmetric_options from = muster::c::ReadOptions(options);
    muster::AllocateSymmetricOptions to;
    to.timeout = muster::c::ToMilliseconds(from.timeout_ms);
    if (from.has_device_type != 0) {
      to.device = muster::c::ToDeviceType(from.device_type, "options");
    }
    const auto type = muster::c::ToDataType(dtype, "dtype");
    auto made = std::make_unique<muster_symmetric>();
    if (type != muster::DataType::kOpaque) {
      made->memory = muster::AllocateSymmetric(muster::c::ToGroup(group), type,
                                               {count}, to);
      made->tensor = made->memory.tensor();
      return made.release();
    }
    // As bytes, one row for each element.
    made->memory = muster::AllocateSymmetric(
        muster::c::ToGroup(group), muster::DataType::kUint8,
        {count, static_cast<int64_t>(element_size)}, to);
    const muster::Tensor& bytes = made->memory.tensor();
    const int64_t elements = bytes.element_count() == 0 ? 0 : count;
    made->tensor = muster::Tensor::Opaque(bytes.data(), element_size,
                                          {elements}, bytes.device());
    return made.release();
  });
}

void muster_symmetric_release(muster_symmetric* memory) { delete memory; }

muster_status muster_symmetric_tensor(muster_symmetric* memory,
                                      muster_tensor* tensor) {
  return Guard(__func__, [&] {
    const muster::Tensor& from = Need(memory, "memory").tensor;
    Need(tensor, "tensor") = muster::c::FromTensor(from);
  });
}
