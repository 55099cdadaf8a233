#ifndef MUSTER_COORDINATOR_SERVER_RPC_MEMBERSHIP_SERVICE_H_
#define MUSTER_COORDINATOR_SERVER_RPC_MEMBERSHIP_SERVICE_H_

#include <memory>

#include "coordinator/server/rpc/unary.h"
#include "grpcpp/impl/codegen/service_type.h"

namespace muster::coordinator {

// muster.v1.MembershipService. `context` outlives the service.
std::unique_ptr<grpc::Service> MakeMembershipService(
    const ServiceContext& context);

}  // namespace muster::coordinator

#endif  // MUSTER_COORDINATOR_SERVER_RPC_MEMBERSHIP_SERVICE_H_
