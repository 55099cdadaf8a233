#ifndef MUSTER_DATAPLANE_GUARDED_H_
#define MUSTER_DATAPLANE_GUARDED_H_

#include <exception>
#include <new>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace muster::dataplane {

// What is caught, in a handler, as a status: kResourceExhausted if no memory
// was left, else kInternal. Not inlined: a caller in whose way texts are made
// is slower also when nothing is thrown.
[[gnu::noinline, gnu::cold]] inline absl::Status StatusOfCaught() {
  try {
    throw;
  } catch (const std::bad_alloc&) {
    return absl::ResourceExhaustedError("no memory left for it");
  } catch (const std::exception& error) {
    return absl::InternalError(absl::StrCat("threw: ", error.what()));
  } catch (...) {
    return absl::InternalError("threw something");
  }
}

// What `call`, which returns a status, returns; or, as one, what it throws.
template <typename Call>
[[gnu::always_inline]] inline absl::Status Guarded(const Call& call) {
  try {
    return call();
  } catch (...) {
    return StatusOfCaught();
  }
}

}  // namespace muster::dataplane

#endif  // MUSTER_DATAPLANE_GUARDED_H_
