#ifndef MUSTER_COORDINATOR_SERVER_RPC_SERVICE_H_
#define MUSTER_COORDINATOR_SERVER_RPC_SERVICE_H_

#include <functional>
#include <utility>

#include "grpcpp/impl/codegen/proto_utils.h"  // writes the answers
#include "grpcpp/impl/codegen/server_callback_handlers.h"
#include "grpcpp/impl/rpc_method.h"
#include "grpcpp/impl/rpc_service_method.h"
#include "grpcpp/impl/service_type.h"
#include "grpcpp/support/byte_buffer.h"
#include "grpcpp/support/server_callback.h"

namespace muster::coordinator {

// Service is a gRPC service whose methods get their requests as bytes
// (ParseRequest says why) and answer with messages. The generated classes have
// bytes or messages for both, so the methods are added by their full names. A
// name must outlive the service. Reactors follow gRPC's documentation.
class Service : public grpc::Service {
 protected:
  using Context = grpc::CallbackServerContext;

  // The bytes live as long as the call; the reactor may clear them.
  template <typename Response>
  void AddUnary(const char* name, std::function<grpc::ServerUnaryReactor*(
                                      Context*, grpc::ByteBuffer*, Response*)>
                                      start) {
    Add(name, grpc::internal::RpcMethod::NORMAL_RPC,
        new grpc::internal::CallbackUnaryHandler<grpc::ByteBuffer, Response>(
            [start = std::move(start)](Context* grpc,
                                       const grpc::ByteBuffer* request,
                                       Response* response) {
              return start(grpc, const_cast<grpc::ByteBuffer*>(request),
                           response);
            }));
  }

  // Adds a method with many answers.
  template <typename Response>
  void AddServerStream(const char* name,
                       std::function<grpc::ServerWriteReactor<Response>*(
                           Context*, grpc::ByteBuffer*)>
                           start) {
    Add(name, grpc::internal::RpcMethod::SERVER_STREAMING,
        new grpc::internal::CallbackServerStreamingHandler<grpc::ByteBuffer,
                                                           Response>(
            [start = std::move(start)](Context* grpc,
                                       const grpc::ByteBuffer* request) {
              return start(grpc, const_cast<grpc::ByteBuffer*>(request));
            }));
  }

  template <typename Response>
  void AddStream(const char* name,
                 std::function<grpc::ServerBidiReactor<grpc::ByteBuffer,
                                                       Response>*(Context*)>
                     start) {
    Add(name, grpc::internal::RpcMethod::BIDI_STREAMING,
        new grpc::internal::CallbackBidiHandler<grpc::ByteBuffer, Response>(
            std::move(start)));
  }

 private:
  void Add(const char* name, grpc::internal::RpcMethod::RpcType type,
           grpc::internal::MethodHandler* handler) {
    AddMethod(new grpc::internal::RpcServiceMethod(name, type, nullptr));
    MarkMethodCallback(methods_++, handler);
  }

  int methods_ = 0;
};

}  // namespace muster::coordinator

#endif  // MUSTER_COORDINATOR_SERVER_RPC_SERVICE_H_
