#ifndef MUSTER_PROTO_MUSTER_V1_STATUS_WIRE_H_
#define MUSTER_PROTO_MUSTER_V1_STATUS_WIRE_H_

#include <cstddef>

#include "absl/types/optional.h"
#include "grpcpp/support/status.h"
#include "muster/base/status.h"
#include "muster/v1/common.pb.h"

// Encodes a Status with its payloads: as a WireStatus inside a stream's result,
// and for a unary call as a grpc::Status, whose binary details hold the same
// WireStatus.
namespace muster::v1 {

// Bytes of the message that are not UTF-8 become \x escapes, because the other
// side could not parse them.
WireStatus ToWire(const Status& status);

// An unknown code becomes kUnknown.
Status FromWire(const WireStatus& wire);

// Keeps within the 8 KiB of trailing metadata that gRPC clients accept by
// default: cuts a long message at its end, reduces the last members of Culprits
// to their ranks (FitCulprits), and drops other payloads that do not fit.
grpc::Status ToGrpc(const Status& status);

// Ignores details that do not parse or that belong to another code; the result
// then has only code and message.
Status FromGrpc(const grpc::Status& status);

// Keeps as many of the first members as serialize within `bytes_max` together
// with the ranks of all others. If these ranks need more than three quarters of
// it, keeps as many of the lowest as fit, and the number of the rest. Sorts the
// ranges and drops invalid ones. `bytes_max` is at least 64. Takes time in
// proportion to the input and to `bytes_max`.
Culprits FitCulprits(const Culprits& culprits, size_t bytes_max);

// Sets or returns the Culprits payload. `status` must not be OK when it is set.
void SetCulprits(const Culprits& culprits, Status* status);
absl::optional<Culprits> GetCulprits(const Status& status);

// Sets or returns the JobOwner payload. `status` must not be OK when it is set.
void SetJobOwner(const JobOwner& owner, Status* status);
absl::optional<JobOwner> GetJobOwner(const Status& status);

}  // namespace muster::v1

#endif  // MUSTER_PROTO_MUSTER_V1_STATUS_WIRE_H_
