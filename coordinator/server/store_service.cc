#include "coordinator/server/store_service.h"

#include "coordinator/server/method.h"
#include "coordinator/server/watch_call.h"
#include "muster/v1/store.grpc.pb.h"

namespace muster::coordinator {
namespace {

using Context = grpc::CallbackServerContext;
using Reactor = grpc::ServerUnaryReactor;

class StoreService final : public v1::StoreService::CallbackService {
 public:
  explicit StoreService(const ServiceContext& context) : context_(context) {}

  Reactor* Set(Context* grpc, const v1::SetRequest* request,
               v1::SetResponse* response) override {
    return Unary(context_, Method::kSet, grpc, request, response);
  }
  Reactor* Get(Context* grpc, const v1::GetRequest* request,
               v1::GetResponse* response) override {
    return Unary(context_, Method::kGet, grpc, request, response);
  }
  Reactor* TryGet(Context* grpc, const v1::TryGetRequest* request,
                  v1::TryGetResponse* response) override {
    return Unary(context_, Method::kTryGet, grpc, request, response);
  }
  Reactor* Add(Context* grpc, const v1::AddRequest* request,
               v1::AddResponse* response) override {
    return Unary(context_, Method::kAdd, grpc, request, response);
  }
  Reactor* Append(Context* grpc, const v1::AppendRequest* request,
                  v1::AppendResponse* response) override {
    return Unary(context_, Method::kAppend, grpc, request, response);
  }
  Reactor* Check(Context* grpc, const v1::CheckRequest* request,
                 v1::CheckResponse* response) override {
    return Unary(context_, Method::kCheck, grpc, request, response);
  }
  Reactor* Wait(Context* grpc, const v1::WaitRequest* request,
                v1::WaitResponse* response) override {
    return Unary(context_, Method::kWait, grpc, request, response);
  }
  Reactor* CompareSet(Context* grpc, const v1::CompareSetRequest* request,
                      v1::CompareSetResponse* response) override {
    return Unary(context_, Method::kCompareSet, grpc, request, response);
  }
  Reactor* Delete(Context* grpc, const v1::DeleteRequest* request,
                  v1::DeleteResponse* response) override {
    return Unary(context_, Method::kDelete, grpc, request, response);
  }
  Reactor* NumKeys(Context* grpc, const v1::NumKeysRequest* request,
                   v1::NumKeysResponse* response) override {
    return Unary(context_, Method::kNumKeys, grpc, request, response);
  }
  Reactor* MultiGet(Context* grpc, const v1::MultiGetRequest* request,
                    v1::MultiGetResponse* response) override {
    return Unary(context_, Method::kMultiGet, grpc, request, response);
  }
  Reactor* MultiSet(Context* grpc, const v1::MultiSetRequest* request,
                    v1::MultiSetResponse* response) override {
    return Unary(context_, Method::kMultiSet, grpc, request, response);
  }
  Reactor* ListKeys(Context* grpc, const v1::ListKeysRequest* request,
                    v1::ListKeysResponse* response) override {
    return Unary(context_, Method::kListKeys, grpc, request, response);
  }
  Reactor* CompareAndSet(Context* grpc, const v1::CompareAndSetRequest* request,
                         v1::CompareAndSetResponse* response) override {
    return Unary(context_, Method::kCompareAndSet, grpc, request, response);
  }
  Reactor* DeletePrefix(Context* grpc, const v1::DeletePrefixRequest* request,
                        v1::DeletePrefixResponse* response) override {
    return Unary(context_, Method::kDeletePrefix, grpc, request, response);
  }
  Reactor* QueuePush(Context* grpc, const v1::QueuePushRequest* request,
                     v1::QueuePushResponse* response) override {
    return Unary(context_, Method::kQueuePush, grpc, request, response);
  }
  Reactor* QueuePop(Context* grpc, const v1::QueuePopRequest* request,
                    v1::QueuePopResponse* response) override {
    return Unary(context_, Method::kQueuePop, grpc, request, response);
  }
  Reactor* QueueLen(Context* grpc, const v1::QueueLenRequest* request,
                    v1::QueueLenResponse* response) override {
    return Unary(context_, Method::kQueueLen, grpc, request, response);
  }
  grpc::ServerWriteReactor<v1::WatchResponse>* Watch(
      Context* grpc, const v1::WatchRequest* request) override {
    return StartWatch(context_, grpc, *request);
  }

 private:
  const ServiceContext& context_;
};

}  // namespace

std::unique_ptr<grpc::Service> MakeStoreService(const ServiceContext& context) {
  return std::make_unique<StoreService>(context);
}

}  // namespace muster::coordinator
