#ifndef MUSTER_DATAPLANE_BACKENDS_SHM_REHEARSAL_H_
#define MUSTER_DATAPLANE_BACKENDS_SHM_REHEARSAL_H_

#include "absl/status/status.h"
#include "dataplane/backends/shm/council.h"
#include "dataplane/backends/shm/host_collectives.h"

namespace muster::dataplane::shm_internal {

// The two ranks of a new group, which read each other's memory and have a
// processor each, try out what takes less time: to read there what is not
// small, or to have it copied twice. That depends on how far apart the caches
// of their processors are, and on how fast the system finds pages, and differs
// by a factor of three between machines. It takes some 2 ms, and both come to
// the same. `collectives` are the shortcut of the council's engine, and nothing
// else runs on it; the table says what goes which way, before and after.
// Errors: see Council.
absl::Status Rehearse(Council& council, HostCollectives& collectives);

}  // namespace muster::dataplane::shm_internal

#endif  // MUSTER_DATAPLANE_BACKENDS_SHM_REHEARSAL_H_
