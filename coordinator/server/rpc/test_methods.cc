#include "coordinator/server/rpc/test_methods.h"

#include <chrono>

#include "absl/strings/str_cat.h"
#include "coordinator/server/test_server.h"
#include "grpcpp/generic/generic_stub.h"
#include "grpcpp/grpcpp.h"
#include "proto/muster/v1/status_wire.h"

namespace muster::coordinator {

std::vector<const google::protobuf::MethodDescriptor*> AllMethods() {
  std::vector<const google::protobuf::MethodDescriptor*> methods;
  for (const google::protobuf::FileDescriptor* const file :
       {v1::SetRequest::descriptor()->file(),
        v1::JoinRequest::descriptor()->file(),
        v1::AwaitBarrierRequest::descriptor()->file(),
        v1::ListJobsRequest::descriptor()->file(),
        v1::Hello::descriptor()->file()}) {
    for (int s = 0; s < file->service_count(); ++s) {
      const auto* const service = file->service(s);
      for (int m = 0; m < service->method_count(); ++m) {
        methods.push_back(service->method(m));
      }
    }
  }
  return methods;
}

std::string MakePath(const google::protobuf::MethodDescriptor& method) {
  return absl::StrCat("/", method.service()->full_name(), "/", method.name());
}

grpc::ByteBuffer ToByteBuffer(const std::string& text) {
  const grpc::Slice slice(text);
  return {&slice, 1};
}

Status CallWithBytes(const std::shared_ptr<grpc::Channel>& channel,
                     const std::string& path, const std::string& request,
                     const std::string& authorization) {
  grpc::GenericStub stub(channel);
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + kTestDeadline);
  if (!authorization.empty()) {
    context.AddMetadata("authorization", authorization);
  }
  grpc::CompletionQueue queue;
  const auto call =
      stub.PrepareUnaryCall(&context, path, ToByteBuffer(request), &queue);
  call->StartCall();
  grpc::ByteBuffer response;
  grpc::Status status;
  call->Finish(&response, &status, nullptr);
  void* tag = nullptr;
  bool ok = false;
  queue.Next(&tag, &ok);
  return v1::FromGrpc(status);
}

}  // namespace muster::coordinator
