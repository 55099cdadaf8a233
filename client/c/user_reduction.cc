// Functions whose C++ counterparts are not there yet.

#include "client/c/error.h"
#include "client/control/throw.h"
#include "muster/base/status.h"
#include "muster/muster.h"

namespace {
muster_status NotYet(const char* function) {
  return muster::c::Guard(function, [&] {
    muster::internal::Throw(muster::internal::ErrorSource::kControl,
                            muster::UnimplementedError(function));
  });
}
}  // namespace

muster_status muster_op_create(muster_op_function, void*,
                               const muster_op_options*, muster_op**) {
  return NotYet(__func__);
}
void muster_op_release(muster_op*) {}
muster_status muster_all_gather_v(const muster_tensor*, const int64_t*,
                                  const int64_t*, size_t, const muster_tensor*,
                                  muster_group*,
                                  const muster_collective_options*) {
  return NotYet(__func__);
}
muster_status muster_all_gather_v_async(const muster_tensor*, const int64_t*,
                                        const int64_t*, size_t,
                                        const muster_tensor*, muster_group*,
                                        const muster_collective_options*,
                                        muster_work**) {
  return NotYet(__func__);
}
muster_status muster_prepare_all_gather_v(const muster_tensor*, const int64_t*,
                                          const int64_t*, size_t,
                                          const muster_tensor*, muster_group*,
                                          const muster_collective_options*,
                                          muster_prepared**) {
  return NotYet(__func__);
}
muster_status muster_reduce_scatter_v(const muster_tensor*,
                                      const muster_tensor*, const int64_t*,
                                      const int64_t*, size_t, muster_reduce_op,
                                      muster_group*,
                                      const muster_reduction_options*) {
  return NotYet(__func__);
}
muster_status muster_reduce_scatter_v_async(
    const muster_tensor*, const muster_tensor*, const int64_t*, const int64_t*,
    size_t, muster_reduce_op, muster_group*, const muster_reduction_options*,
    muster_work**) {
  return NotYet(__func__);
}
muster_status muster_prepare_reduce_scatter_v(
    const muster_tensor*, const muster_tensor*, const int64_t*, const int64_t*,
    size_t, muster_reduce_op, muster_group*, const muster_reduction_options*,
    muster_prepared**) {
  return NotYet(__func__);
}
