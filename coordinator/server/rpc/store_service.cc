#include "coordinator/server/rpc/store_service.h"

#include "coordinator/server/method.h"
#include "coordinator/server/rpc/watch_call.h"
#include "muster/v1/store.pb.h"

namespace muster::coordinator {
namespace {

class StoreService final : public UnaryService {
 public:
  explicit StoreService(const ServiceContext& context) : UnaryService(context) {
    Add<v1::SetRequest, v1::SetResponse>("/muster.v1.StoreService/Set",
                                         Method::kSet);
    Add<v1::GetRequest, v1::GetResponse>("/muster.v1.StoreService/Get",
                                         Method::kGet);
    Add<v1::TryGetRequest, v1::TryGetResponse>("/muster.v1.StoreService/TryGet",
                                               Method::kTryGet);
    Add<v1::AddRequest, v1::AddResponse>("/muster.v1.StoreService/Add",
                                         Method::kAdd);
    Add<v1::AppendRequest, v1::AppendResponse>("/muster.v1.StoreService/Append",
                                               Method::kAppend);
    Add<v1::CheckRequest, v1::CheckResponse>("/muster.v1.StoreService/Check",
                                             Method::kCheck);
    Add<v1::WaitRequest, v1::WaitResponse>("/muster.v1.StoreService/Wait",
                                           Method::kWait);
    Add<v1::CompareSetRequest, v1::CompareSetResponse>(
        "/muster.v1.StoreService/CompareSet", Method::kCompareSet);
    Add<v1::DeleteRequest, v1::DeleteResponse>("/muster.v1.StoreService/Delete",
                                               Method::kDelete);
    Add<v1::NumKeysRequest, v1::NumKeysResponse>(
        "/muster.v1.StoreService/NumKeys", Method::kNumKeys);
    Add<v1::MultiGetRequest, v1::MultiGetResponse>(
        "/muster.v1.StoreService/MultiGet", Method::kMultiGet);
    Add<v1::MultiSetRequest, v1::MultiSetResponse>(
        "/muster.v1.StoreService/MultiSet", Method::kMultiSet);
    Add<v1::ListKeysRequest, v1::ListKeysResponse>(
        "/muster.v1.StoreService/ListKeys", Method::kListKeys);
    Add<v1::CompareAndSetRequest, v1::CompareAndSetResponse>(
        "/muster.v1.StoreService/CompareAndSet", Method::kCompareAndSet);
    Add<v1::DeletePrefixRequest, v1::DeletePrefixResponse>(
        "/muster.v1.StoreService/DeletePrefix", Method::kDeletePrefix);
    Add<v1::QueuePushRequest, v1::QueuePushResponse>(
        "/muster.v1.StoreService/QueuePush", Method::kQueuePush);
    Add<v1::QueuePopRequest, v1::QueuePopResponse>(
        "/muster.v1.StoreService/QueuePop", Method::kQueuePop);
    Add<v1::QueueLenRequest, v1::QueueLenResponse>(
        "/muster.v1.StoreService/QueueLen", Method::kQueueLen);
    AddServerStream<v1::WatchResponse>(
        "/muster.v1.StoreService/Watch",
        [&context](Context* grpc, grpc::ByteBuffer* request) {
          return StartWatch(context, grpc, request);
        });
  }
};

}  // namespace

std::unique_ptr<grpc::Service> MakeStoreService(const ServiceContext& context) {
  return std::make_unique<StoreService>(context);
}

}  // namespace muster::coordinator
