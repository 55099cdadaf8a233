#include "client/c/reduction.h"

#include <cstddef>
#include <memory>
#include <stdexcept>
#include <string>

#include "client/c/convert.h"
#include "client/c/error.h"
#include "client/c/owned_context.h"
#include "muster/muster.h"
#include "muster/process_group.h"

namespace muster::c {
namespace {

static_assert(MUSTER_SUM == static_cast<int>(ReduceOp::kSum));
static_assert(MUSTER_AVG == static_cast<int>(ReduceOp::kAvg));
static_assert(MUSTER_MIN == static_cast<int>(ReduceOp::kMin));
static_assert(MUSTER_MAX == static_cast<int>(ReduceOp::kMax));
static_assert(MUSTER_PRODUCT == static_cast<int>(ReduceOp::kProduct));
static_assert(MUSTER_BAND == static_cast<int>(ReduceOp::kBand));
static_assert(MUSTER_BOR == static_cast<int>(ReduceOp::kBor));
static_assert(MUSTER_BXOR == static_cast<int>(ReduceOp::kBxor));
static_assert(MUSTER_PREMUL_SUM == static_cast<int>(ReduceOp::kPremulSum));
static_assert(MUSTER_MINLOC == static_cast<int>(ReduceOp::kMinloc));
static_assert(MUSTER_MAXLOC == static_cast<int>(ReduceOp::kMaxloc));
static_assert(MUSTER_USER_OP == static_cast<int>(ReduceOp::kUser));

}  // namespace

ReduceOperator ToReduceOperator(muster_reduce_op op,
                                const muster_reduction_options& options) {
  if (op == MUSTER_USER_OP) {
    return Need(options.user_op, "options.user_op").function;
  }
  if (op < 0 || op >= dataplane::kReduceOpCount) [[unlikely]] {
    ThrowArgument("op", std::to_string(op) + " does not exist");
  }
  if (options.user_op != nullptr) [[unlikely]] {
    ThrowArgument("options", "user_op is for MUSTER_USER_OP");
  }
  return static_cast<ReduceOp>(op);
}

}  // namespace muster::c

muster_status muster_op_create(muster_op_function function, void* context,
                               const muster_op_options* options,
                               muster_op** op) {
  return muster::c::GuardHandle(__func__, op, "op", [&] {
    muster::c::Need(function, "function");
    const muster_op_options from = muster::c::ReadOptions(options);
    const auto owner = std::make_shared<muster::c::OwnedContext>(
        context, from.release_context);
    muster::ReduceFunctionOptions to;
    to.is_commutative = from.not_commutative == 0;
    to.element_bytes = from.element_size;
    if (from.name != nullptr) to.name = from.name;
    auto made = std::make_unique<muster_op>();
    made->function = muster::ReduceFunction(
        [function, owner](const void* in, void* inout, size_t count) {
          const muster_status status =
              function(in, inout, count, owner->context());
          if (status == MUSTER_OK) return;
          throw std::runtime_error(std::string("the function returned ") +
                                   muster_status_name(status) + " (" +
                                   std::to_string(status) + ")");
        },
        std::move(to));
    owner->Take();
    return made.release();
  });
}

void muster_op_release(muster_op* op) { delete op; }
