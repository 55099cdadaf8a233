#include "coordinator/server/rpc/call_service.h"

#include <memory>
#include <type_traits>

#include "coordinator/server/method.h"
#include "coordinator/server/rpc/service.h"
#include "coordinator/server/rpc/watch_call.h"
#include "muster/v1/barrier.pb.h"
#include "muster/v1/membership.pb.h"
#include "muster/v1/store.pb.h"

namespace muster::coordinator {
namespace {

class CallService final : public Service {
 public:
  CallService(absl::string_view service, const ServiceContext& context)
      : context_(context) {
#define MUSTER_OPERATION(of_service, name, ...)                       \
  if (service == #of_service) {                                       \
    Add<v1::name##Request, v1::name##Response>(                       \
        "/muster.v1." #of_service "Service/" #name, Method::k##name); \
  }
#include "proto/muster/v1/verbs.inc"
    // These two have no place in streams: a session begins with the first, and
    // its messages carry the second.
    if (service == "Membership") {
      Add<v1::RegisterRequest, v1::RegisterResponse>(
          "/muster.v1.MembershipService/Register", Method::kRegister);
      Add<v1::HeartbeatRequest, v1::HeartbeatResponse>(
          "/muster.v1.MembershipService/Heartbeat", Method::kHeartbeat);
    }
  }

 private:
  template <typename Request, typename Response>
  void Add(const char* name, Method method) {
    if constexpr (std::is_same_v<Request, v1::WatchRequest>) {
      AddServerStream<Response>(
          name, [this](Context* grpc, grpc::ByteBuffer* request) {
            return StartWatch(context_, grpc, request);
          });
    } else {
      AddUnary<Response>(
          name, [this, method](Context* grpc, grpc::ByteBuffer* request,
                               Response* response) {
            auto call = std::make_shared<UnaryCall<Request, Response>>(
                context_, method, grpc, response);
            grpc::ServerUnaryReactor* reactor = call.get();
            call->Start(request);
            return reactor;
          });
    }
  }

  const ServiceContext& context_;
};

}  // namespace

std::unique_ptr<grpc::Service> MakeCallService(absl::string_view service,
                                               const ServiceContext& context) {
  return std::make_unique<CallService>(service, context);
}

}  // namespace muster::coordinator
