#include "client/c/error.h"

#include <cstddef>
#include <cstdint>
#include <functional>
#include <new>
#include <stdexcept>
#include <string>
#include <utility>

#include "client/c/convert.h"
#include "muster/base/status.h"
#include "muster/errors.h"
#include "muster/launch.h"
#include "muster/muster_status.h"
#include "muster/version.h"

namespace muster::c {
namespace {

constexpr char kNoMemory[] = "there is not enough memory";

// The error of each thread. The slot is gone once the thread's objects have
// been destroyed; calls in destructors that run later leave no error.
class LastError {
 public:
  static muster_error* Get() {
    if (slot_ == nullptr && !is_over_) {
      thread_local Keeper keeper;
      slot_ = &keeper.error;
    }
    return slot_;
  }

 private:
  struct Keeper {
    muster_error error;
    ~Keeper() {
      slot_ = nullptr;
      is_over_ = true;
    }
  };

  static thread_local constinit muster_error* slot_;
  static thread_local constinit bool is_over_;
};

thread_local constinit muster_error* LastError::slot_ = nullptr;
thread_local constinit bool LastError::is_over_ = false;

const muster_error kNone;

muster_error_kind ToKind(const DistError& error) {
  if (dynamic_cast<const DistNetworkError*>(&error) != nullptr) {
    return MUSTER_ERROR_NETWORK;
  }
  if (dynamic_cast<const DistStoreError*>(&error) != nullptr) {
    return MUSTER_ERROR_STORE;
  }
  if (dynamic_cast<const DistBackendError*>(&error) != nullptr) {
    return MUSTER_ERROR_BACKEND;
  }
  return IsInvalidArgument(error.status()) || IsUnimplemented(error.status())
             ? MUSTER_ERROR_ARGUMENT
             : MUSTER_ERROR_CONTROL;
}

// Returns the exception that is being handled, with the function's name in the
// text of an ArgumentError.
std::exception_ptr CurrentException(const char* function) noexcept {
  try {
    throw;
  } catch (const ArgumentError& error) {
    try {
      return std::make_exception_ptr(DistError(InvalidArgumentError(
          std::string(function) + ": argument " + error.text)));
    } catch (...) {
      return std::current_exception();
    }
  } catch (...) {
    return std::current_exception();
  }
}

}  // namespace

void ThrowNull(const char* name) {
  throw ArgumentError{std::string(name) + " is NULL"};
}

void ThrowArgument(const char* name, const std::string& fault) {
  throw ArgumentError{std::string(name) + ": " + fault};
}

muster_error ToError(std::exception_ptr exception) noexcept {
  muster_error error;
  if (exception == nullptr) return error;
  error.exception = std::move(exception);
  error.kind = MUSTER_ERROR_INTERNAL;
  try {
    std::rethrow_exception(error.exception);
  } catch (const DistError& thrown) {
    error.status = static_cast<muster_status>(thrown.status().code());
    error.kind = ToKind(thrown);
    error.message = thrown.what();
    error.dist = &thrown;
  } catch (const std::bad_alloc&) {
    error.status = MUSTER_RESOURCE_EXHAUSTED;
    error.message = kNoMemory;
  } catch (const std::length_error&) {
    // A size that no memory has.
    error.status = MUSTER_RESOURCE_EXHAUSTED;
    error.message = kNoMemory;
  } catch (const std::exception& thrown) {
    error.status = MUSTER_INTERNAL;
    error.message = thrown.what();
  } catch (...) {
    error.status = MUSTER_UNKNOWN;
    error.message = "an exception of unknown type";
  }
  return error;
}

muster_status Remember(const char* function) noexcept {
  muster_error error = ToError(CurrentException(function));
  const muster_status status = error.status;
  muster_error* const slot = LastError::Get();
  // The old exception's destructor may call other code.
  if (slot != nullptr) std::swap(*slot, error);
  return status;
}

}  // namespace muster::c

using muster::c::Guard;
using muster::c::GuardHandle;
using muster::c::Need;

const char* muster_version(void) { return MUSTER_VERSION; }

uint32_t muster_abi_version(void) { return MUSTER_ABI_VERSION; }

const char* muster_status_name(muster_status status) {
  return muster::StatusCodeToString(static_cast<muster::StatusCode>(status));
}

const muster_error* muster_last_error(void) {
  const muster_error* const error = muster::c::LastError::Get();
  return error == nullptr ? &muster::c::kNone : error;
}

muster_status muster_error_status(const muster_error* error) {
  return error == nullptr ? MUSTER_OK : error->status;
}

muster_error_kind muster_error_get_kind(const muster_error* error) {
  return error == nullptr ? MUSTER_ERROR_NONE : error->kind;
}

const char* muster_error_message(const muster_error* error) {
  return error == nullptr ? "" : error->message;
}

const int32_t* muster_error_culprit_ranks(const muster_error* error,
                                          size_t* count) {
  const bool has_any = error != nullptr && error->dist != nullptr;
  if (count != nullptr) {
    *count = has_any ? error->dist->culprit_ranks().size() : 0;
  }
  return has_any ? error->dist->culprit_ranks().data() : nullptr;
}

size_t muster_error_culprit_count(const muster_error* error) {
  if (error == nullptr || error->dist == nullptr) return 0;
  return error->dist->culprits().size();
}

muster_status muster_error_culprit(const muster_error* error, size_t index,
                                   muster_member_info* member) {
  return Guard(__func__, [&] {
    Need(error, "error");
    const size_t count = muster_error_culprit_count(error);
    if (index >= count) {
      muster::c::ThrowArgument(
          "index", std::to_string(index) + " of " + std::to_string(count));
    }
    muster::c::Fill(muster::c::ToMemberInfo(error->dist->culprits()[index]),
                    member, "member");
  });
}

muster_status muster_error_copy(const muster_error* error,
                                muster_error** copy) {
  return GuardHandle(__func__, copy, "copy",
                     [&] { return new muster_error(Need(error, "error")); });
}

void muster_error_release(muster_error* error) { delete error; }

muster_status muster_record_error(const muster_error* error,
                                  int32_t* exit_status) {
  return Guard(__func__, [&] {
    const muster_error& recorded = Need(error, "error");
    int32_t& status = Need(exit_status, "exit_status");
    if (recorded.exception == nullptr) {
      muster::c::ThrowArgument("error", "it is no error");
    }
    status = muster::Record(
        [&recorded]() -> int { std::rethrow_exception(recorded.exception); });
  });
}
