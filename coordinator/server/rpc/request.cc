#include "coordinator/server/rpc/request.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "google/protobuf/descriptor.h"
#include "google/protobuf/io/coded_stream.h"
#include "google/protobuf/wire_format_lite.h"
#include "grpcpp/impl/codegen/proto_utils.h"
#include "grpcpp/support/proto_buffer_reader.h"

namespace muster::coordinator {
namespace {

using google::protobuf::Descriptor;
using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using google::protobuf::MessageFactory;
using google::protobuf::internal::WireFormatLite;
using google::protobuf::io::CodedInputStream;

// The memory of a scalar, of a text, and of a message beside its fields (the
// pointer to it and the allocator's overhead).
constexpr int64_t kScalarBytes = 16;
constexpr int64_t kTextBytes = 56;
constexpr int64_t kPointerBytes = 24;
// The most memory for one received byte: two bytes can be an empty message, and
// none of ours is larger than 480 bytes.
constexpr int64_t kUnfoldingMax = 256;
// Longer names are refused later.
constexpr int kNameBytesMax = 1 << 10;
// The same as protobuf's own limit.
constexpr int kDepthMax = 100;

// Estimates the memory that parsing would take.
class ParsedBytes {
 public:
  explicit ParsedBytes(int64_t max) : max_(max) {}

  int64_t bytes() const { return bytes_; }
  bool passed() const { return bytes_ > max_; }

  // Scans a message of `type` up to the end of `in`, or until the sum exceeds
  // the maximum. Returns false if the message is broken.
  bool Add(CodedInputStream& in, const Descriptor& type, int depth) {
    if (depth > kDepthMax) return false;
    bytes_ += ComputeSize(type) + kPointerBytes;
    while (!passed()) {
      const uint32_t tag = in.ReadTag();
      if (tag == 0) return in.ConsumedEntireMessage();
      const bool known = AddField(in, type, tag, depth);
      if (!known) return false;
    }
    return true;
  }

 private:
  static int64_t ComputeSize(const Descriptor& type) {
    return static_cast<int64_t>(MessageFactory::generated_factory()
                                    ->GetPrototype(&type)
                                    ->SpaceUsedLong());
  }

  bool AddField(CodedInputStream& in, const Descriptor& type, uint32_t tag,
                int depth) {
    const WireFormatLite::WireType wire = WireFormatLite::GetTagWireType(tag);
    if (wire != WireFormatLite::WIRETYPE_LENGTH_DELIMITED) {
      bytes_ += kScalarBytes;
      // Our messages have no groups.
      return wire != WireFormatLite::WIRETYPE_START_GROUP &&
             WireFormatLite::SkipField(&in, tag);
    }
    int length = 0;
    if (!in.ReadVarintSizeAsInt(&length)) return false;
    const FieldDescriptor* const field =
        type.FindFieldByNumber(WireFormatLite::GetTagFieldNumber(tag));
    if (field == nullptr ||
        field->cpp_type() != FieldDescriptor::CPPTYPE_MESSAGE) {
      const bool packed = field != nullptr && field->is_packable();
      bytes_ += kTextBytes + (packed ? 8 : 1) * int64_t{length};
      return in.Skip(length);
    }
    const CodedInputStream::Limit limit = in.PushLimit(length);
    if (in.BytesUntilLimit() < length) return false;
    if (!Add(in, *field->message_type(), depth + 1)) return false;
    in.PopLimit(limit);
    return true;
  }

  const int64_t max_;
  int64_t bytes_ = 0;
};

Status BrokenError(const Message& request, size_t bytes) {
  return InvalidArgumentError(
      absl::StrCat("the ", bytes, " bytes of the message are no ",
                   request.GetDescriptor()->full_name(),
                   ": they are broken, or a text in it is not UTF-8"));
}

Status CheckParsedBytes(grpc::ByteBuffer* bytes, const Message& request) {
  const size_t length = bytes->Length();
  const int64_t max = ParsedBytesMax(length);
  if (static_cast<int64_t>(length) * kUnfoldingMax <= max) {
    return OkStatus();
  }
  ParsedBytes parsed(max);
  {
    grpc::ProtoBufferReader reader(bytes);
    CodedInputStream in(&reader);
    if (!parsed.Add(in, *request.GetDescriptor(), 0)) {
      return BrokenError(request, length);
    }
  }
  if (!parsed.passed()) return OkStatus();
  return ResourceExhaustedError(
      absl::StrCat("limit parsed_bytes is ", max, " for a message of ", length,
                   " bytes, and this ", request.GetDescriptor()->full_name(),
                   " would take more; send fewer empty fields"));
}

}  // namespace

Status ParseRequest(grpc::ByteBuffer* bytes, Message* request) {
  const size_t length = bytes->Length();
  Status status = CheckParsedBytes(bytes, *request);
  if (status.ok() &&
      !grpc::GenericDeserialize<grpc::ProtoBufferReader, Message>(bytes,
                                                                  request)
           .ok()) {
    status = BrokenError(*request, length);
  }
  bytes->Clear();
  return status;
}

v1::Caller ParseCaller(grpc::ByteBuffer* bytes) {
  constexpr auto kText = WireFormatLite::WIRETYPE_LENGTH_DELIMITED;
  grpc::ProtoBufferReader reader(bytes);
  CodedInputStream in(&reader);
  v1::Caller caller;
  int length = 0;
  if (in.ReadTag() != WireFormatLite::MakeTag(1, kText) ||
      !in.ReadVarintSizeAsInt(&length)) {
    return caller;
  }
  in.PushLimit(length);
  // At most two fields, even if they are repeated.
  for (int names = 0; names < 2; ++names) {
    const uint32_t tag = in.ReadTag();
    std::string* text = nullptr;
    if (tag == WireFormatLite::MakeTag(v1::Caller::kJobFieldNumber, kText)) {
      text = caller.mutable_job();
    } else if (tag ==
               WireFormatLite::MakeTag(v1::Caller::kMemberFieldNumber, kText)) {
      text = caller.mutable_member();
    }
    if (text == nullptr) break;
    if (!in.ReadVarintSizeAsInt(&length) || length > kNameBytesMax ||
        !in.ReadString(text, length)) {
      return v1::Caller();
    }
  }
  return caller;
}

}  // namespace muster::coordinator
