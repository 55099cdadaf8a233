#include "base/exception_guard.h"

#include <exception>
#include <new>
#include <system_error>

#include "absl/strings/str_cat.h"
#include "base/process_limits.h"
#include "muster/base/status.h"

namespace muster::base {

Status StatusOfCaught() {
  try {
    throw;
  } catch (const std::bad_alloc&) {
    return ResourceExhaustedError(
        absl::StrCat("had no memory left", AddressSpaceLimitText()));
  } catch (const std::system_error& error) {
    if (IsOfThread(error)) {
      return ResourceExhaustedError(DescribeSystemError(error));
    }
    if (error.code() == std::errc::too_many_files_open ||
        error.code() == std::errc::too_many_files_open_in_system) {
      return ResourceExhaustedError(
          absl::StrCat("had no descriptor left: ", error.what()));
    }
    return InternalError(absl::StrCat("threw: ", error.what()));
  } catch (const std::exception& error) {
    return InternalError(absl::StrCat("threw: ", error.what()));
  } catch (...) {
    return InternalError("threw something");
  }
}

}  // namespace muster::base
