#ifndef MUSTER_COORDINATOR_SERVER_RPC_CALL_SERVICE_H_
#define MUSTER_COORDINATOR_SERVER_RPC_CALL_SERVICE_H_

#include <memory>

#include "absl/strings/string_view.h"
#include "coordinator/server/rpc/unary.h"
#include "grpcpp/impl/codegen/service_type.h"

namespace muster::coordinator {

// Makes a service whose calls a job answers: `service` is "Store", "Membership"
// or "Barrier". `context` outlives the service.
std::unique_ptr<grpc::Service> MakeCallService(absl::string_view service,
                                               const ServiceContext& context);

}  // namespace muster::coordinator

#endif  // MUSTER_COORDINATOR_SERVER_RPC_CALL_SERVICE_H_
