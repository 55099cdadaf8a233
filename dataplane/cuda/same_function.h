// Checks at compile time that two C function types can be called the same way.

#ifndef MUSTER_DATAPLANE_CUDA_SAME_FUNCTION_H_
#define MUSTER_DATAPLANE_CUDA_SAME_FUNCTION_H_

#include <type_traits>

namespace muster::dataplane::cuda {

// Whether the ABI passes the two types alike: both are pointers, or integers or
// enumerators of one size, or structures of one size.
template <typename A, typename B>
inline constexpr bool kPassedAlike =
    sizeof(A) == sizeof(B) && std::is_pointer_v<A> == std::is_pointer_v<B> &&
    (std::is_integral_v<A> || std::is_enum_v<A>) ==
        (std::is_integral_v<B> ||
         std::is_enum_v<B>)&&std::is_class_v<A> == std::is_class_v<B>;

template <typename A, typename B>
inline constexpr bool kSameFunction = false;

template <typename A, typename... As, typename B, typename... Bs>
inline constexpr bool kSameFunction<A (*)(As...), B (*)(Bs...)> = [] {
  if constexpr (sizeof...(As) != sizeof...(Bs)) {
    return false;
  } else {
    return kPassedAlike<A, B> && (kPassedAlike<As, Bs> && ...);
  }
}();

}  // namespace muster::dataplane::cuda

#endif  // MUSTER_DATAPLANE_CUDA_SAME_FUNCTION_H_
