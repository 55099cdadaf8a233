#include "coordinator/server/rpc/membership_service.h"

#include "coordinator/server/method.h"
#include "muster/v1/membership.pb.h"

namespace muster::coordinator {
namespace {

class MembershipService final : public UnaryService {
 public:
  explicit MembershipService(const ServiceContext& context)
      : UnaryService(context) {
    Add<v1::RegisterRequest, v1::RegisterResponse>(
        "/muster.v1.MembershipService/Register", Method::kRegister);
    Add<v1::HeartbeatRequest, v1::HeartbeatResponse>(
        "/muster.v1.MembershipService/Heartbeat", Method::kHeartbeat);
    Add<v1::LeaveRequest, v1::LeaveResponse>(
        "/muster.v1.MembershipService/Leave", Method::kLeave);
    Add<v1::ReportFailureRequest, v1::ReportFailureResponse>(
        "/muster.v1.MembershipService/ReportFailure", Method::kReportFailure);
    Add<v1::JoinRequest, v1::JoinResponse>("/muster.v1.MembershipService/Join",
                                           Method::kJoin);
    Add<v1::CloseRendezvousRequest, v1::CloseRendezvousResponse>(
        "/muster.v1.MembershipService/CloseRendezvous",
        Method::kCloseRendezvous);
    Add<v1::RegisterGroupsRequest, v1::RegisterGroupsResponse>(
        "/muster.v1.MembershipService/RegisterGroups", Method::kRegisterGroups);
  }
};

}  // namespace

std::unique_ptr<grpc::Service> MakeMembershipService(
    const ServiceContext& context) {
  return std::make_unique<MembershipService>(context);
}

}  // namespace muster::coordinator
