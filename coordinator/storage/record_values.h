#ifndef MUSTER_COORDINATOR_STORAGE_RECORD_VALUES_H_
#define MUSTER_COORDINATOR_STORAGE_RECORD_VALUES_H_

#include "coordinator/core/payload.h"
#include "coordinator/storage/records.pb.h"
#include "muster/base/status.h"

// Encodes and decodes the values that several kinds of records contain.
namespace muster::coordinator {

void FillStatus(const Status& status, storage::v1::Status* message);
Status ToStatus(const storage::v1::Status& message);

void FillBarrier(const core::BarrierResult& result,
                 storage::v1::Barrier* message);
core::BarrierReply ToBarrierReply(const storage::v1::Barrier& message);

// Encode and decode a stored answer. A formation is stored as its number;
// core::Coordinator::Restore replaces it with the newest one.
void FillPayload(const core::Payload& payload, storage::v1::Reply* message);
core::Payload ToPayload(const storage::v1::Reply& message);

}  // namespace muster::coordinator

#endif  // MUSTER_COORDINATOR_STORAGE_RECORD_VALUES_H_
