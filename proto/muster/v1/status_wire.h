#ifndef MUSTER_PROTO_MUSTER_V1_STATUS_WIRE_H_
#define MUSTER_PROTO_MUSTER_V1_STATUS_WIRE_H_

#include <cstddef>

#include "absl/types/optional.h"
#include "base/status.h"
#include "grpcpp/support/status.h"
#include "muster/v1/common.pb.h"

// How an Status with its payloads travels: as a WireStatus inside a
// stream's result, and as a grpc::Status, whose binary details hold the same
// WireStatus, for a unary call.
namespace muster::v1 {

// A message that is not UTF-8 arrives with its odd bytes as \x escapes: the
// other side could not parse it at all.
WireStatus ToWire(const Status& status);

// A code that absl does not know becomes kUnknown.
Status FromWire(const WireStatus& wire);

// Keeps within the 8 KiB of trailing metadata that gRPC clients accept by
// default: a longer message is cut at its end, of Culprits' last members only
// the ranks are left (FitCulprits), other payloads that do not fit are left
// out.
grpc::Status ToGrpc(const Status& status);

// Details that do not parse, or that belong to another code, are ignored: then
// code and message are all there is.
Status FromGrpc(const grpc::Status& status);

// As many of the first members as serialize within `bytes_max` together with
// the ranks of all others; where these need more than three quarters of it, as
// many of the lowest as fit, and the number of the rest. Ranges come out in
// order, and nonsense among them is left out. `bytes_max` is at least 64. Takes
// time in proportion to what came and to `bytes_max`.
Culprits FitCulprits(const Culprits& culprits, size_t bytes_max);

// The Culprits payload. `status` must not be OK.
void SetCulprits(const Culprits& culprits, Status* status);
absl::optional<Culprits> GetCulprits(const Status& status);

}  // namespace muster::v1

#endif  // MUSTER_PROTO_MUSTER_V1_STATUS_WIRE_H_
