#ifndef MUSTER_COORDINATOR_SERVER_RPC_BARRIER_SERVICE_H_
#define MUSTER_COORDINATOR_SERVER_RPC_BARRIER_SERVICE_H_

#include <memory>

#include "coordinator/server/rpc/unary.h"
#include "grpcpp/impl/codegen/service_type.h"

namespace muster::coordinator {

// muster.v1.BarrierService. `context` outlives the service.
std::unique_ptr<grpc::Service> MakeBarrierService(
    const ServiceContext& context);

}  // namespace muster::coordinator

#endif  // MUSTER_COORDINATOR_SERVER_RPC_BARRIER_SERVICE_H_
