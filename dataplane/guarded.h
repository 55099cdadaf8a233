#ifndef MUSTER_DATAPLANE_GUARDED_H_
#define MUSTER_DATAPLANE_GUARDED_H_

#include <exception>
#include <new>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace muster::dataplane {

// What `call`, which returns a status, returns; or, as one, what it throws:
// kResourceExhausted if no memory was left, else kInternal.
template <typename Call>
absl::Status Guarded(const Call& call) {
  try {
    return call();
  } catch (const std::bad_alloc&) {
    return absl::ResourceExhaustedError("no memory left for it");
  } catch (const std::exception& error) {
    return absl::InternalError(absl::StrCat("threw: ", error.what()));
  } catch (...) {
    return absl::InternalError("threw something");
  }
}

}  // namespace muster::dataplane

#endif  // MUSTER_DATAPLANE_GUARDED_H_
