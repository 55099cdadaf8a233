// ReduceFunction, a reduction that the user defines. Part of the public API:
// the client exports it as muster::ReduceFunction.

#ifndef MUSTER_DATAPLANE_REDUCE_FUNCTION_H_
#define MUSTER_DATAPLANE_REDUCE_FUNCTION_H_

#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>

#include "muster/base/export.h"
#include "muster/dataplane/tensor.h"

namespace MUSTER_EXPORT muster {
namespace dataplane {

struct ReduceFunctionOptions {
  // Whether a op b is b op a. Equal on all ranks, which the library checks. The
  // operands are combined in the order of the ranks in any case.
  bool is_commutative = true;
  // The size of the elements that the function works on. Zero: of any size. A
  // collective on tensors of another size is refused.
  size_t element_bytes = 0;
  // For error texts; need not be equal on all ranks.
  std::string name = "user";
};

// ReduceFunction is an associative operation of the user on elements of a
// tensor, as MPI_Op_create makes one. Use it as the `op` of a reduction:
//
//   // Keeps the larger of two records.
//   const muster::ReduceFunction larger(
//       [](const void* in, void* inout, size_t count) {
//         const auto* a = static_cast<const Record*>(in);
//         auto* b = static_cast<Record*>(inout);
//         for (size_t i = 0; i < count; ++i) {
//           if (b[i].score < a[i].score) b[i] = a[i];
//         }
//       },
//       {.element_bytes = sizeof(Record)});
//   auto all = muster::Tensor::Opaque(records.data(), sizeof(Record), {count});
//   muster::AllReduce(all, {.op = larger});
//
// The tensors may have any type. All ranks must give the same function; the
// library compares whether it is commutative, and the sizes.
//
// Copies share the function, and are cheap. A collective keeps it until it is
// complete, and may keep it longer: any thread of the library may destroy it,
// as late as when the group ends.
class ReduceFunction {
 public:
  // inout[i] = in[i] op inout[i] for `count` elements, at least one. The
  // elements of `in` are from lower ranks than those of `inout`. The two do not
  // overlap, and are aligned to the largest power of two that divides the
  // element's size, at most 64.
  //
  // `count` may be any part of a tensor: an element must not depend on the
  // others. It is called from the thread that runs the collective, which may be
  // one of the library's; collectives of several groups may call it at the same
  // time. It must not call the group. If it throws, the collective fails on
  // this rank and ends the group; the error has this rank as the culprit, and
  // the exception's text.
  using Function =
      std::function<void(const void* in, void* inout, size_t count)>;

  // No function.
  ReduceFunction() = default;
  // An empty `function` is no function.
  explicit ReduceFunction(Function function, ReduceFunctionOptions options = {})
      : ReduceFunction(std::move(function), std::move(options), std::nullopt) {}

  // A function from one of two elements: combine(a, b) is a op b, where `a` is
  // from lower ranks. If T is the type of a tensor's elements, as int64_t is,
  // tensors of other types are refused, except opaque ones.
  //
  //   ReduceFunction::ForElements<double>(
  //       [](double a, double b) { return std::hypot(a, b); });
  template <typename T, typename Combine>
  static ReduceFunction ForElements(Combine combine,
                                    ReduceFunctionOptions options = {}) {
    static_assert(std::is_trivially_copyable_v<T>,
                  "elements are moved as bytes");
    static_assert(alignof(T) <= 64, "elements are aligned to 64 bytes at most");
    options.element_bytes = sizeof(T);
    std::optional<DataType> type;
    if constexpr (Element<T>) type = kDataTypeOf<T>;
    return ReduceFunction(
        [combine = std::move(combine)](const void* in, void* inout,
                                       size_t count) {
          const T* const a = static_cast<const T*>(in);
          T* const b = static_cast<T*>(inout);
          for (size_t i = 0; i < count; ++i) b[i] = combine(a[i], b[i]);
        },
        std::move(options), type);
  }

  explicit operator bool() const { return state_ != nullptr; }

  // The options; without a function, the defaults.
  const ReduceFunctionOptions& options() const {
    static const ReduceFunctionOptions kDefaults;
    return state_ == nullptr ? kDefaults : state_->options;
  }

  // The only type of tensors that are not opaque; nullopt: any.
  std::optional<DataType> data_type() const {
    return state_ == nullptr ? std::nullopt : state_->data_type;
  }

  // Needs a function.
  void operator()(const void* in, void* inout, size_t count) const {
    state_->function(in, inout, count);
  }

  // Whether they are copies of one object.
  friend bool operator==(const ReduceFunction&,
                         const ReduceFunction&) = default;

 private:
  struct State {
    Function function;
    ReduceFunctionOptions options;
    std::optional<DataType> data_type;
  };

  ReduceFunction(Function function, ReduceFunctionOptions options,
                 std::optional<DataType> data_type) {
    if (function == nullptr) return;
    state_ = std::make_shared<const State>(
        State{std::move(function), std::move(options), data_type});
  }

  std::shared_ptr<const State> state_;
};

}  // namespace dataplane
}  // namespace muster

#endif  // MUSTER_DATAPLANE_REDUCE_FUNCTION_H_
