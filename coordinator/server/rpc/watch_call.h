#ifndef MUSTER_COORDINATOR_SERVER_RPC_WATCH_CALL_H_
#define MUSTER_COORDINATOR_SERVER_RPC_WATCH_CALL_H_

#include "coordinator/server/rpc/unary.h"
#include "grpcpp/server_context.h"
#include "grpcpp/support/byte_buffer.h"
#include "grpcpp/support/server_callback.h"
#include "muster/v1/store.pb.h"

namespace muster::coordinator {

// Answers StoreService.Watch: asks the job for the next changes, writes them,
// and asks again from there. So a slow client costs one message and no queue,
// until the job's history no longer reaches back to it.
grpc::ServerWriteReactor<v1::WatchResponse>* StartWatch(
    const ServiceContext& context, const grpc::CallbackServerContext* grpc,
    grpc::ByteBuffer* request);

}  // namespace muster::coordinator

#endif  // MUSTER_COORDINATOR_SERVER_RPC_WATCH_CALL_H_
