#include "coordinator/server/membership_service.h"

#include "coordinator/server/method.h"
#include "muster/v1/membership.grpc.pb.h"

namespace muster::coordinator {
namespace {

using Context = grpc::CallbackServerContext;
using Reactor = grpc::ServerUnaryReactor;

class MembershipService final : public v1::MembershipService::CallbackService {
 public:
  explicit MembershipService(const ServiceContext& context)
      : context_(context) {}

  Reactor* Register(Context* grpc, const v1::RegisterRequest* request,
                    v1::RegisterResponse* response) override {
    return Unary(context_, Method::kRegister, grpc, request, response);
  }
  Reactor* Heartbeat(Context* grpc, const v1::HeartbeatRequest* request,
                     v1::HeartbeatResponse* response) override {
    return Unary(context_, Method::kHeartbeat, grpc, request, response);
  }
  Reactor* Leave(Context* grpc, const v1::LeaveRequest* request,
                 v1::LeaveResponse* response) override {
    return Unary(context_, Method::kLeave, grpc, request, response);
  }
  Reactor* ReportFailure(Context* grpc, const v1::ReportFailureRequest* request,
                         v1::ReportFailureResponse* response) override {
    return Unary(context_, Method::kReportFailure, grpc, request, response);
  }
  Reactor* Join(Context* grpc, const v1::JoinRequest* request,
                v1::JoinResponse* response) override {
    return Unary(context_, Method::kJoin, grpc, request, response);
  }
  Reactor* CloseRendezvous(Context* grpc,
                           const v1::CloseRendezvousRequest* request,
                           v1::CloseRendezvousResponse* response) override {
    return Unary(context_, Method::kCloseRendezvous, grpc, request, response);
  }
  Reactor* RegisterGroups(Context* grpc,
                          const v1::RegisterGroupsRequest* request,
                          v1::RegisterGroupsResponse* response) override {
    return Unary(context_, Method::kRegisterGroups, grpc, request, response);
  }

 private:
  const ServiceContext& context_;
};

}  // namespace

std::unique_ptr<grpc::Service> MakeMembershipService(
    const ServiceContext& context) {
  return std::make_unique<MembershipService>(context);
}

}  // namespace muster::coordinator
