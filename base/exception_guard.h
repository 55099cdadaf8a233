#ifndef MUSTER_BASE_EXCEPTION_GUARD_H_
#define MUSTER_BASE_EXCEPTION_GUARD_H_

#include "muster/base/status.h"
#include "muster/base/thread_annotations.h"

namespace muster::base {

// Call it in a catch handler. Converts the caught exception to a status:
// kResourceExhausted if memory, a thread or a file descriptor was lacking (for
// memory and threads the text names this process's limits), else kInternal. The
// text is written to follow a subject: "threw: no licence". Not inlined,
// because code that formats texts slows its caller even when nothing is thrown.
[[gnu::noinline, gnu::cold]] Status StatusOfCaught();

// Returns the status that `call` returns, or converts the exception that it
// throws. `call` may require locks that its caller holds.
template <typename Call>
[[gnu::always_inline]] inline Status Guarded(const Call& call)
    MUSTER_NO_THREAD_SAFETY_ANALYSIS {
  try {
    return call();
  } catch (...) {
    return StatusOfCaught();
  }
}

}  // namespace muster::base

namespace muster {

// Used so often that they need no prefix.
using base::Guarded;
using base::StatusOfCaught;

}  // namespace muster

#endif  // MUSTER_BASE_EXCEPTION_GUARD_H_
