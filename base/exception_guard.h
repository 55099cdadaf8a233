#ifndef MUSTER_BASE_EXCEPTION_GUARD_H_
#define MUSTER_BASE_EXCEPTION_GUARD_H_

#include "base/status.h"

namespace muster::base {

// What is caught, in a handler, as a status: kResourceExhausted if there was no
// memory, or no thread, with the limits of this process; else kInternal. The
// text may stand behind who did it: "threw: no licence". Not
// inlined: a caller in whose way texts are made is slower also when nothing is
// thrown.
[[gnu::noinline, gnu::cold]] Status StatusOfCaught();

// What `call`, which returns a status, returns; or, as one, what it throws.
template <typename Call>
[[gnu::always_inline]] inline Status Guarded(const Call& call) {
  try {
    return call();
  } catch (...) {
    return StatusOfCaught();
  }
}

}  // namespace muster::base

namespace muster {

// So common that they go without the prefix.
using base::Guarded;
using base::StatusOfCaught;

}  // namespace muster

#endif  // MUSTER_BASE_EXCEPTION_GUARD_H_
