#ifndef MUSTER_COORDINATOR_STORAGE_RECORD_VALUES_H_
#define MUSTER_COORDINATOR_STORAGE_RECORD_VALUES_H_

#include "base/status.h"
#include "coordinator/core/payload.h"
#include "coordinator/storage/records.pb.h"

// The values that several kinds of records are made of.
namespace muster::coordinator {

void FillStatus(const Status& status, storage::v1::Status* message);
Status StatusOf(const storage::v1::Status& message);

void FillBarrier(const core::BarrierResult& result,
                 storage::v1::Barrier* message);
core::BarrierReply BarrierOf(const storage::v1::Barrier& message);

// Of an answer that is kept. A formation is by its number:
// core::Coordinator::Restore puts the newest one in its place.
void FillPayload(const core::Payload& payload, storage::v1::Reply* message);
core::Payload PayloadOf(const storage::v1::Reply& message);

}  // namespace muster::coordinator

#endif  // MUSTER_COORDINATOR_STORAGE_RECORD_VALUES_H_
