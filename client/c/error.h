// Converts exceptions to status codes: no exception leaves a C function.

#ifndef MUSTER_CLIENT_C_ERROR_H_
#define MUSTER_CLIENT_C_ERROR_H_

#include <exception>
#include <string>
#include <utility>

#include "muster/errors.h"
#include "muster/muster_status.h"

// Holds the exception itself, so that making one allocates nothing.
struct muster_error {
  // Null: no error.
  std::exception_ptr exception;
  muster_status status = MUSTER_OK;
  muster_error_kind kind = MUSTER_ERROR_NONE;
  const char* message = "";
  // Null unless the exception is one.
  const muster::DistError* dist = nullptr;
};

namespace muster::c {

// An argument of the C function is wrong. The text begins with its name.
struct ArgumentError {
  std::string text;
};

[[noreturn]] void ThrowNull(const char* name);
[[noreturn]] void ThrowArgument(const char* name, const std::string& fault);

// Returns the value. Throws ArgumentError if `pointer` is null.
template <typename T>
T& Need(T* pointer, const char* name) {
  if (pointer == nullptr) [[unlikely]]
    ThrowNull(name);
  return *pointer;
}

muster_error ToError(std::exception_ptr exception) noexcept;

// Makes the exception that is being handled the thread's last error, and
// returns its status. `function` is the C function that fails.
muster_status Remember(const char* function) noexcept;

// Runs the body of a C function.
template <typename Body>
muster_status Guard(const char* function, Body&& body) noexcept {
  try {
    std::forward<Body>(body)();
    return MUSTER_OK;
  } catch (...) {
    return Remember(function);
  }
}

// As Guard, for a function that returns a handle in `out`.
template <typename Handle, typename Body>
muster_status GuardHandle(const char* function, Handle** out, const char* name,
                          Body&& body) noexcept {
  return Guard(function, [&] {
    Need(out, name) = nullptr;
    *out = std::forward<Body>(body)();
  });
}

}  // namespace muster::c

#endif  // MUSTER_CLIENT_C_ERROR_H_
