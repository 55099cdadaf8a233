#include "coordinator/server/barrier_service.h"

#include "coordinator/server/method.h"
#include "muster/v1/barrier.grpc.pb.h"

namespace muster::coordinator {
namespace {

using Context = grpc::CallbackServerContext;
using Reactor = grpc::ServerUnaryReactor;

class BarrierService final : public v1::BarrierService::CallbackService {
 public:
  explicit BarrierService(const ServiceContext& context) : context_(context) {}

  Reactor* AwaitBarrier(Context* grpc, const v1::AwaitBarrierRequest* request,
                        v1::AwaitBarrierResponse* response) override {
    return Unary(context_, Method::kAwaitBarrier, grpc, request, response);
  }

 private:
  const ServiceContext& context_;
};

}  // namespace

std::unique_ptr<grpc::Service> MakeBarrierService(
    const ServiceContext& context) {
  return std::make_unique<BarrierService>(context);
}

}  // namespace muster::coordinator
