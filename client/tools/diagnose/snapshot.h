// Extracts from a job's snapshot the waits of ranks at the coordinator, and the
// state of the job there.

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

// The entry for an open barrier.
StuckGroup LookAtBarrier(const v1::GetJobResponse& job,
                         const v1::OpenBarrier& barrier,
                         const DiagnosisRules& rules);

// The entry for a group that forms; nullopt if all ranks that registered it are
// in it: the missing ranks have left it again.
std::optional<StuckGroup> LookAtForming(const v1::GetJobResponse& job,
                                        const v1::RegisteredGroup& forming,
                                        const DiagnosisRules& rules);

// The keys for which members have waited for `stuck_after`. Omits a rank that
// goes on in its groups since `earlier` (may be null): another of its threads
// waits.
std::vector<AwaitedKey> KeysAwaited(const v1::GetJobResponse& job,
                                    const v1::GetJobResponse* earlier,
                                    std::chrono::milliseconds stuck_after);

// One line each about the end of the generation, the rendezvous, and what the
// coordinator does not know since its restart.
std::vector<std::string> DescribeStanding(const v1::GetJobResponse& job);

// The ranks that are missing in the rendezvous in progress. `hosts` has the
// hosts of ranks that have not registered.
std::vector<Culprit> AbsentFrom(const v1::GetJobResponse& job,
                                const std::map<int, std::string>& hosts);

}  // namespace muster::tools

#endif  // MUSTER_CLIENT_TOOLS_DIAGNOSE_SNAPSHOT_H_
