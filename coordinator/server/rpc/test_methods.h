#ifndef MUSTER_COORDINATOR_SERVER_RPC_TEST_METHODS_H_
#define MUSTER_COORDINATOR_SERVER_RPC_TEST_METHODS_H_

#include <memory>
#include <string>
#include <vector>

#include "google/protobuf/descriptor.h"
#include "grpcpp/channel.h"
#include "grpcpp/support/byte_buffer.h"
#include "muster/base/status.h"

namespace muster::coordinator {

// Every method of every service of the protocol, streams included.
std::vector<const google::protobuf::MethodDescriptor*> AllMethods();

// `/muster.v1.StoreService/Set`.
std::string MakePath(const google::protobuf::MethodDescriptor& method);

grpc::ByteBuffer ToByteBuffer(const std::string& text);

// Makes one call of any method with any bytes as its request, and with
// `authorization` as the header of that name if it is not empty.
Status CallWithBytes(const std::shared_ptr<grpc::Channel>& channel,
                     const std::string& path, const std::string& request,
                     const std::string& authorization = "");

}  // namespace muster::coordinator

#endif  // MUSTER_COORDINATOR_SERVER_RPC_TEST_METHODS_H_
