// Reads from a job's snapshot what its ranks wait for at the coordinator, and
// the state of the job there.

#ifndef MUSTER_CLIENT_TOOLS_DIAGNOSE_SNAPSHOT_H_
#define MUSTER_CLIENT_TOOLS_DIAGNOSE_SNAPSHOT_H_

#include <chrono>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "client/tools/diagnose/diagnosis.h"
#include "client/tools/diagnose/diagnosis_rules.h"
#include "muster/v1/admin.pb.h"

namespace muster::tools {

// Of a barrier that is open.
StuckGroup LookAtBarrier(const v1::GetJobResponse& job,
                         const v1::OpenBarrier& barrier,
                         const DiagnosisRules& rules);

// Of a group that forms; nothing when all that have registered it are in it:
// who is missing has left it then.
std::optional<StuckGroup> LookAtForming(const v1::GetJobResponse& job,
                                        const v1::RegisteredGroup& forming,
                                        const DiagnosisRules& rules);

// The keys that members have waited for since `stuck_after`. Not those of a
// rank that goes on in its groups since `earlier`, which may be null: another
// thread of it waits.
std::vector<AwaitedKey> KeysAwaited(const v1::GetJobResponse& job,
                                    const v1::GetJobResponse* earlier,
                                    std::chrono::milliseconds stuck_after);

// The end of the generation, the rendezvous, and what the coordinator does not
// know since it was started: a line each.
std::vector<std::string> StandingOf(const v1::GetJobResponse& job);

// Whom the rendezvous in progress waits for. `hosts`: of ranks that nobody has
// registered.
std::vector<Culprit> AbsentFrom(const v1::GetJobResponse& job,
                                const std::map<int, std::string>& hosts);

}  // namespace muster::tools

#endif  // MUSTER_CLIENT_TOOLS_DIAGNOSE_SNAPSHOT_H_
