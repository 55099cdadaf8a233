#include "muster/symmetric.h"

#include <cstdint>
#include <utility>

#include "client/c/convert.h"
#include "client/c/error.h"
#include "client/c/handles.h"
#include "muster/muster.h"

struct muster_symmetric {
  muster::SymmetricTensor memory;
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
    return new muster_symmetric{muster::AllocateSymmetric(
        muster::c::ToGroup(group), muster::c::ToDataType(dtype, "dtype"),
        {count}, to)};
  });
}

void muster_symmetric_release(muster_symmetric* memory) { delete memory; }

muster_status muster_symmetric_tensor(muster_symmetric* memory,
                                      muster_tensor* tensor) {
  return Guard(__func__, [&] {
    const muster::Tensor& from = Need(memory, "memory").memory.tensor();
    Need(tensor, "tensor") = muster::c::FromTensor(from);
  });
}
