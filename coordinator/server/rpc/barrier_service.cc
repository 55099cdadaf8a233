#include "coordinator/server/rpc/barrier_service.h"

#include "coordinator/server/method.h"
#include "muster/v1/barrier.pb.h"

namespace muster::coordinator {
namespace {

class BarrierService final : public UnaryService {
 public:
  explicit BarrierService(const ServiceContext& context)
      : UnaryService(context) {
    Add<v1::AwaitBarrierRequest, v1::AwaitBarrierResponse>(
        "/muster.v1.BarrierService/AwaitBarrier", Method::kAwaitBarrier);
  }
};

}  // namespace

std::unique_ptr<grpc::Service> MakeBarrierService(
    const ServiceContext& context) {
  return std::make_unique<BarrierService>(context);
}

}  // namespace muster::coordinator
