#ifndef MUSTER_DATAPLANE_BACKENDS_SHM_REHEARSAL_H_
#define MUSTER_DATAPLANE_BACKENDS_SHM_REHEARSAL_H_

#include "absl/status/statusor.h"
#include "dataplane/backends/shm/rounds.h"
#include "dataplane/backends/shm/selection.h"

namespace muster::dataplane::shm_internal {

// The ranks of a group, which read each other's memory and have a processor
// each, try out what takes less time: to read there what is not small, or to
// have it copied twice. That depends on how far apart the caches of their
// processors are, and on how fast the system finds pages: it differs by a
// factor of ten between machines, and on one of them from second to second if
// ranks are moved. It takes some 0.3 ms, and all come to the same. All call it
// between the same two collectives. Errors: as those of algorithms.h.
absl::StatusOr<Reading> TryReading(Workshop& shop);

}  // namespace muster::dataplane::shm_internal

#endif  // MUSTER_DATAPLANE_BACKENDS_SHM_REHEARSAL_H_
