#ifndef MUSTER_COORDINATOR_SERVER_RPC_ADMIN_SERVICE_H_
#define MUSTER_COORDINATOR_SERVER_RPC_ADMIN_SERVICE_H_

#include <cstdint>
#include <functional>
#include <memory>

#include "coordinator/server/rpc/unary.h"
#include "coordinator/storage/fleet.h"
#include "grpcpp/impl/codegen/service_type.h"

namespace muster::coordinator {

// The service's access to the server. Called from several threads.
struct AdminHooks {
  std::function<int64_t()> sessions;
  std::function<bool()> draining;
  bool durable = false;
  // Null: the server refuses requests to drain.
  std::function<void()> request_drain;
  // Null while the server shares its jobs with no others.
  std::function<std::shared_ptr<Fleet>()> fleet;
  // The server itself, as a member of a fleet.
  std::function<FleetMember()> self;
  // OK, or why the server is not ready.
  std::function<Status()> check_ready;
  std::function<int64_t()> uncommitted_steps;
};

// Makes muster.v1.AdminService. `context` outlives the service.
std::unique_ptr<grpc::Service> MakeAdminService(const ServiceContext& context,
                                                AdminHooks hooks);

}  // namespace muster::coordinator

#endif  // MUSTER_COORDINATOR_SERVER_RPC_ADMIN_SERVICE_H_
