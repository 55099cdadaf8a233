// Conversions between the types of the C interface and those of the C++ one.

#ifndef MUSTER_CLIENT_C_CONVERT_H_
#define MUSTER_CLIENT_C_CONVERT_H_

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "client/c/error.h"
#include "muster/errors.h"
#include "muster/muster_status.h"

// The results that the library returns.
struct muster_strings {
  std::vector<std::string> items;
};

namespace muster::c {

// Copies the caller's options, of `size` bytes, to a struct of `known` bytes
// that is zero. Throws ArgumentError if options that this library does not know
// are set.
void ReadOptionsOfOtherSize(const void* options, size_t size, size_t known,
                            const char* name, void* read);
[[noreturn]] void ThrowReserved(const char* name);

// Returns the caller's options; null: the defaults, which are all zero. Throws
// ArgumentError as above.
template <typename T>
T ReadOptions(const T* options, const char* name = "options") {
  T read = {};
  if (options == nullptr) return read;
  if (options->size == sizeof(T)) [[likely]] {
    read = *options;
  } else {
    ReadOptionsOfOtherSize(options, options->size, sizeof(T), name, &read);
  }
  if constexpr (requires { read.reserved; }) {
    if (read.reserved != 0) ThrowReserved(name);
  }
  return read;
}

// Throws ArgumentError if a field of a struct without `size` is set that only
// later versions use.
template <typename T>
void CheckReserved(const T& given, const char* name) {
  if ((given.reserved | given.reserved_2) != 0) ThrowReserved(name);
}

// Throws ArgumentError if the caller has not set `size` of a struct that the
// library fills.
template <typename T>
void CheckSize(T* out, const char* name) {
  if (Need(out, name).size >= sizeof(size_t)) return;
  ThrowArgument(name, "size is " + std::to_string(out->size) +
                          "; set it to sizeof the struct");
}

// Fills as much of the caller's struct as it has, and sets its `size` to that.
template <typename T>
void Fill(T value, T* out, const char* name) {
  CheckSize(out, name);
  value.size = std::min(out->size, sizeof(T));
  std::memcpy(out, &value, value.size);
}

// Null is the empty string.
inline std::string ToString(const char* text) {
  return text == nullptr ? std::string() : std::string(text);
}

inline std::chrono::milliseconds ToMilliseconds(int64_t count) {
  return std::chrono::milliseconds(count);
}
// Returns `fallback` for 0.
inline std::chrono::milliseconds ToMilliseconds(
    int64_t count, std::chrono::milliseconds fallback) {
  return count == 0 ? fallback : ToMilliseconds(count);
}

// Returns the bytes of an argument. Throws ArgumentError if they are null and
// not empty.
inline std::string_view ToView(const void* data, size_t size,
                               const char* name) {
  if (data == nullptr && size != 0) [[unlikely]]
    ThrowNull(name);
  return {static_cast<const char*>(data), size};
}

// Returns the elements of an array argument. Throws ArgumentError as ToView.
template <typename T>
std::span<const T> ToSpan(const T* data, size_t count, const char* name) {
  if (data == nullptr && count != 0) [[unlikely]]
    ThrowNull(name);
  return {data, count};
}
template <typename T>
std::vector<T> ToVector(const T* data, size_t count, const char* name) {
  const std::span<const T> items = ToSpan(data, count, name);
  return {items.begin(), items.end()};
}

std::vector<std::string> ToStrings(const muster_bytes* items, size_t count,
                                   const char* name);

// Makes a result of one string, or of several.
muster_strings* MakeStrings(std::string item);
muster_strings* MakeStrings(std::vector<std::string> items);

// Writes at most `capacity` items to the argument `name`, and their number to
// `count`.
template <typename From, typename To>
void WriteArray(const From& items, To* out, const char* name, size_t capacity,
                size_t* count) {
  if (capacity != 0) Need(out, name);
  Need(count, "count") = items.size();
  const size_t written = std::min(capacity, items.size());
  for (size_t i = 0; i < written; ++i) out[i] = static_cast<To>(items[i]);
}

// The strings are those of `member`.
muster_member_info ToMemberInfo(const MemberInfo& member);

}  // namespace muster::c

#endif  // MUSTER_CLIENT_C_CONVERT_H_
