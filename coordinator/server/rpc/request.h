#ifndef MUSTER_COORDINATOR_SERVER_RPC_REQUEST_H_
#define MUSTER_COORDINATOR_SERVER_RPC_REQUEST_H_

#include <cstddef>
#include <cstdint>

#include "google/protobuf/message.h"
#include "grpcpp/support/byte_buffer.h"
#include "muster/base/status.h"
#include "muster/v1/common.pb.h"

namespace muster::coordinator {

// The most memory that a message of `bytes` may take when it is parsed. Two
// bytes can be an empty message of 200 bytes, so a limit on received bytes does
// not bound memory. Real clients send many small operations, which take about
// ten times their bytes.
inline int64_t ParsedBytesMax(size_t bytes) {
  return (int64_t{4} << 20) + 16 * static_cast<int64_t>(bytes);
}

// Parses `bytes`, which it clears, into `request`. The services get their
// requests as bytes, because gRPC would parse anything from anybody, and would
// answer a malformed request with UNIMPLEMENTED and no text.
// Errors: INVALID_ARGUMENT (broken), RESOURCE_EXHAUSTED (limit parsed_bytes).
Status ParseRequest(grpc::ByteBuffer* bytes,
                    google::protobuf::Message* request);

// The job and the member that an unparsed request names. The caller is field 1
// of all requests, and muster's clients send it first, and job and member first
// in it. Empty if they are elsewhere. Does not change `bytes`.
v1::Caller ParseCaller(grpc::ByteBuffer* bytes);

}  // namespace muster::coordinator

#endif  // MUSTER_COORDINATOR_SERVER_RPC_REQUEST_H_
