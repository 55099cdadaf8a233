#ifndef MUSTER_COORDINATOR_SERVER_ADMIN_SERVICE_H_
#define MUSTER_COORDINATOR_SERVER_ADMIN_SERVICE_H_

#include <memory>

#include "coordinator/server/unary.h"
#include "grpcpp/impl/codegen/service_type.h"

namespace muster::coordinator {

// muster.v1.AdminService. `context` outlives the service.
std::unique_ptr<grpc::Service> MakeAdminService(const ServiceContext& context);

}  // namespace muster::coordinator

#endif  // MUSTER_COORDINATOR_SERVER_ADMIN_SERVICE_H_
