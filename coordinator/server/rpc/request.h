#ifndef MUSTER_COORDINATOR_SERVER_RPC_REQUEST_H_
#define MUSTER_COORDINATOR_SERVER_RPC_REQUEST_H_

#include <cstddef>
#include <cstdint>

#include "base/status.h"
#include "google/protobuf/message.h"
#include "grpcpp/support/byte_buffer.h"
#include "muster/v1/common.pb.h"

namespace muster::coordinator {

// What a message of `bytes` may take up when it is parsed. Two bytes can be an
// empty message of 200, so a limit of the bytes that arrive bounds no memory.
// What honest clients send, many small operations, comes to about ten times
// its bytes.
inline int64_t ParsedBytesMax(size_t bytes) {
  return (int64_t{4} << 20) + 16 * static_cast<int64_t>(bytes);
}

// Parses `bytes`, which it clears, into `request`; the services get their
// requests as bytes, because gRPC would parse anything that anybody sends, and
// answer what it cannot parse with UNIMPLEMENTED and no text.
// Errors: INVALID_ARGUMENT (broken), RESOURCE_EXHAUSTED (limit parsed_bytes).
Status ParseRequest(grpc::ByteBuffer* bytes,
                    google::protobuf::Message* request);

// The job and the member that a request names, before it is parsed: the caller
// is field 1 of all requests, and muster's clients put it first, as they do
// with those two in it. What stands elsewhere is not found, and empty. Leaves
// `bytes` as they are.
v1::Caller CallerOf(grpc::ByteBuffer* bytes);

}  // namespace muster::coordinator

#endif  // MUSTER_COORDINATOR_SERVER_RPC_REQUEST_H_
