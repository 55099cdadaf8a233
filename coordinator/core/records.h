// The state of a job that survives a restart of the coordinator.
//
// The state of a job is a set of records. Each has a name (its kind and the
// fields marked "name") and contents; every state machine defines the records
// of its own state. The changes of a step are the records that it wrote or
// erased. Applied in order to an empty set they give the state.
//
// Not in records, because their owners supply them again: parked calls, leases
// and times to live (each starts afresh), progress, and arrivals at undecided
// barriers. The history of changes for watches has records only while watches
// use it.

#ifndef MUSTER_COORDINATOR_CORE_RECORDS_H_
#define MUSTER_COORDINATOR_CORE_RECORDS_H_

#include <variant>

#include "coordinator/core/barriers.h"
#include "coordinator/core/group_failures.h"
#include "coordinator/core/groups.h"
#include "coordinator/core/ids.h"
#include "coordinator/core/membership.h"
#include "coordinator/core/rendezvous.h"
#include "coordinator/core/store.h"

namespace muster::coordinator::core {

// Identifies the life of the job to which the other records belong. One per
// job.
struct JobRecord {
  JobEpoch epoch;
};

using Record =
    std::variant<JobRecord, EntryRecord, ItemRecord, StoreRecord, MemberRecord,
                 ReplyRecord, GenerationRecord, SeriesRecord, DecisionRecord,
                 TakenRecord, GroupRecord, GroupRankRecord, GroupFailureRecord,
                 ChangeRecord>;

// Whether a change erases the record.
inline bool IsErased(const Record& record) {
  struct Visitor {
    bool operator()(const JobRecord&) { return false; }
    bool operator()(const EntryRecord& of) { return of.value == nullptr; }
    bool operator()(const ItemRecord& of) { return of.value == nullptr; }
    bool operator()(const StoreRecord&) { return false; }
    bool operator()(const ChangeRecord& of) { return of.erased; }
    bool operator()(const MemberRecord& of) { return of.erased; }
    bool operator()(const ReplyRecord& of) { return of.erased; }
    bool operator()(const GenerationRecord&) { return false; }
    bool operator()(const SeriesRecord& of) { return of.erased; }
    bool operator()(const DecisionRecord& of) { return of.erased; }
    bool operator()(const TakenRecord& of) { return of.erased; }
    bool operator()(const GroupRecord& of) { return of.erased; }
    bool operator()(const GroupRankRecord& of) { return of.erased; }
    bool operator()(const GroupFailureRecord& of) { return of.erased; }
  };
  return std::visit(Visitor(), record);
}

}  // namespace muster::coordinator::core

#endif  // MUSTER_COORDINATOR_CORE_RECORDS_H_
