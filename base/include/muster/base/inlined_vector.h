// A vector that stores its first elements without an allocation.

#ifndef MUSTER_BASE_INLINED_VECTOR_H_
#define MUSTER_BASE_INLINED_VECTOR_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <iterator>
#include <memory>
#include <new>
#include <utility>

#include "muster/base/export.h"

namespace MUSTER_EXPORT muster {
namespace base {

// Like std::vector, but up to `kInline` elements need no allocation. Moving a
// vector without an allocation moves its elements. Provides only the functions
// that are in use.
template <typename T, size_t kInline>
class InlinedVector {
 public:
  using value_type = T;
  using iterator = T*;
  using const_iterator = const T*;

  // Not defaulted: value-initialization would write zeros to inline_.
  InlinedVector() {}
  explicit InlinedVector(size_t count) : InlinedVector() { resize(count); }
  InlinedVector(std::initializer_list<T> values)
      : InlinedVector(values.begin(), values.end()) {}
  template <std::input_iterator Iterator>
  InlinedVector(Iterator begin, Iterator end) : InlinedVector() {
    assign(begin, end);
  }
  InlinedVector(const InlinedVector& other)
      : InlinedVector(other.begin(), other.end()) {}
  InlinedVector(InlinedVector&& other) noexcept { TakeFrom(other); }
  InlinedVector& operator=(const InlinedVector& other) {
    if (this != &other) assign(other.begin(), other.end());
    return *this;
  }
  InlinedVector& operator=(InlinedVector&& other) noexcept {
    if (this != &other) {
      Destroy();
      TakeFrom(other);
    }
    return *this;
  }
  ~InlinedVector() { Destroy(); }

  T* data() { return data_; }
  const T* data() const { return data_; }
  size_t size() const { return size_; }
  bool empty() const { return size_ == 0; }
  T* begin() { return data_; }
  T* end() { return data_ + size_; }
  const T* begin() const { return data_; }
  const T* end() const { return data_ + size_; }
  T& front() { return data_[0]; }
  const T& front() const { return data_[0]; }
  T& back() { return data_[size_ - 1]; }
  const T& back() const { return data_[size_ - 1]; }
  T& operator[](size_t index) { return data_[index]; }
  const T& operator[](size_t index) const { return data_[index]; }

  void reserve(size_t capacity) {
    if (capacity > capacity_) Grow(capacity);
  }
  template <typename... Arguments>
  T& emplace_back(Arguments&&... arguments) {
    if (size_ == capacity_) [[unlikely]] {
      // An argument may refer to an element of this vector.
      T value(std::forward<Arguments>(arguments)...);
      Grow(2 * size_t{capacity_});
      T* const added = std::construct_at(end(), std::move(value));
      ++size_;
      return *added;
    }
    // Counts the element after its constructor, which may throw.
    T* const added =
        std::construct_at(end(), std::forward<Arguments>(arguments)...);
    ++size_;
    return *added;
  }
  void push_back(const T& value) { emplace_back(value); }
  void push_back(T&& value) { emplace_back(std::move(value)); }
  void pop_back() { std::destroy_at(data_ + --size_); }
  void resize(size_t size) {
    reserve(size);
    while (size_ > size) std::destroy_at(data_ + --size_);
    for (; size_ < size; ++size_) std::construct_at(end());
  }
  // The range must not lie in this vector.
  template <std::input_iterator Iterator>
  void assign(Iterator begin, Iterator end) {
    clear();
    if constexpr (std::forward_iterator<Iterator>) {
      reserve(static_cast<size_t>(std::distance(begin, end)));
    }
    for (; begin != end; ++begin) emplace_back(*begin);
  }
  void clear() {
    std::destroy_n(data_, size_);
    size_ = 0;
  }

  friend bool operator==(const InlinedVector& a, const InlinedVector& b) {
    return std::equal(a.begin(), a.end(), b.begin(), b.end());
  }

 private:
  T* Inline() { return reinterpret_cast<T*>(inline_); }
  bool is_inline() const {
    return data_ == reinterpret_cast<const T*>(inline_);
  }

  void Grow(size_t capacity) {
    T* const larger = std::allocator<T>().allocate(capacity);
    std::uninitialized_move_n(data_, size_, larger);
    std::destroy_n(data_, size_);
    Free();
    data_ = larger;
    capacity_ = static_cast<uint32_t>(capacity);
  }
  void Free() {
    if (!is_inline()) std::allocator<T>().deallocate(data_, capacity_);
  }
  void Destroy() {
    std::destroy_n(data_, size_);
    Free();
  }
  // Precondition: this vector has no elements and no allocation. Afterwards
  // `other` has none.
  void TakeFrom(InlinedVector& other) noexcept {
    size_ = other.size_;
    if (other.is_inline()) {
      data_ = Inline();
      capacity_ = kInline;
      std::uninitialized_move_n(other.data_, size_, data_);
      other.clear();
    } else {
      data_ = std::exchange(other.data_, other.Inline());
      capacity_ = std::exchange(other.capacity_, kInline);
      other.size_ = 0;
    }
  }

  alignas(T) std::byte inline_[kInline * sizeof(T)];
  T* data_ = Inline();
  uint32_t size_ = 0;
  uint32_t capacity_ = kInline;
};

}  // namespace base
}  // namespace muster

#endif  // MUSTER_BASE_INLINED_VECTOR_H_
