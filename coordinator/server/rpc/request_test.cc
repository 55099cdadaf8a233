#include "coordinator/server/rpc/request.h"

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "google/protobuf/descriptor.h"
#include "grpcpp/support/slice.h"
#include "gtest/gtest.h"
#include "muster/base/status.h"
#include "muster/v1/admin.pb.h"
#include "muster/v1/barrier.pb.h"
#include "muster/v1/membership.pb.h"
#include "muster/v1/session.pb.h"
#include "muster/v1/store.pb.h"

namespace muster::coordinator {
namespace {

using google::protobuf::Descriptor;
using testing::HasSubstr;

// Splits the bytes into pieces, as they come from a connection.
grpc::ByteBuffer Bytes(const std::string& text, size_t piece = 1 << 13) {
  std::vector<grpc::Slice> slices;
  for (size_t at = 0; at < text.size(); at += piece) {
    slices.emplace_back(text.substr(at, piece));
  }
  return grpc::ByteBuffer(slices.data(), slices.size());
}

Status Parse(const std::string& text, google::protobuf::Message* request) {
  grpc::ByteBuffer bytes = Bytes(text);
  Status status = ParseRequest(&bytes, request);
  EXPECT_EQ(bytes.Length(), 0);
  return status;
}

// Field `number` with `text`, as it is encoded.
std::string Field(int number, const std::string& text) {
  std::string field(1, static_cast<char>(number << 3 | 2));
  for (size_t left = text.size();; left >>= 7) {
    field.push_back(static_cast<char>((left & 127) | (left > 127 ? 128 : 0)));
    if (left <= 127) break;
  }
  return field + text;
}

std::string Repeated(const std::string& text, size_t count) {
  std::string all;
  for (size_t i = 0; i < count; ++i) all += text;
  return all;
}

TEST(RequestTest, TheCallerIsKnownBeforeTheRestIsParsed) {
  v1::SetRequest request;
  request.mutable_caller()->set_job("train");
  request.mutable_caller()->set_member("a");
  request.mutable_caller()->set_incarnation(7);
  request.set_value(std::string(100'000, 'v'));
  const std::string text = request.SerializeAsString();
  // Also if the bytes come in pieces and the end is missing.
  for (const size_t piece : {size_t{1}, size_t{5}, size_t{8192}}) {
    grpc::ByteBuffer bytes = Bytes(text.substr(0, 50'000), piece);
    EXPECT_EQ(ParseCaller(&bytes).job(), "train");
    EXPECT_EQ(ParseCaller(&bytes).member(), "a");
    EXPECT_EQ(bytes.Length(), 50'000);
  }
}

TEST(RequestTest, ACallerThatIsNotThereIsEmpty) {
  const std::string long_name(2000, 'x');
  for (const std::string& text :
       {std::string(), Field(2, "k"), std::string("\x0a"),
        Field(1, Field(3, "train")), std::string("\x0a\xff\xff\xff\xff\x7f"),
        std::string("\x0a\x7f\x0a\x7ftrain"), Field(1, Field(1, long_name))}) {
    grpc::ByteBuffer bytes = Bytes(text);
    EXPECT_EQ(ParseCaller(&bytes).job(), "") << text.size();
  }
}

TEST(RequestTest, GivesWhatWasSent) {
  v1::MultiSetRequest sent;
  sent.mutable_caller()->set_job("train");
  for (int i = 0; i < 5000; ++i) {
    v1::KeyValue* const entry = sent.add_entries();
    entry->set_key(absl::StrCat("key", i));
    entry->set_value(std::string(100, static_cast<char>(i)));
  }
  v1::MultiSetRequest request;
  ASSERT_EQ(Parse(sent.SerializeAsString(), &request), OkStatus());
  EXPECT_EQ(request.SerializeAsString(), sent.SerializeAsString());
  v1::SetRequest empty;
  EXPECT_EQ(Parse("", &empty), OkStatus());
}

// Real clients pack waiting operations together: many very small ones.
TEST(RequestTest, ManySmallOperationsAreWelcome) {
  v1::StreamRequest sent;
  for (int i = 0; i < 100'000; ++i) {
    v1::Operation* const operation = sent.add_operations();
    operation->set_id(i + 1);
    operation->mutable_get()->set_key("k");
  }
  v1::StreamRequest request;
  EXPECT_EQ(Parse(sent.SerializeAsString(), &request), OkStatus());
  EXPECT_EQ(request.operations_size(), 100'000);
}

TEST(RequestTest, WhatWouldUnfoldIsNotParsed) {
  // Both messages have fields of two bytes: Culprits.members and
  // StreamRequest.operations.
  const size_t kCount = 1 << 20;
  v1::ReportFailureRequest report;
  const Status status =
      Parse(Field(4, Repeated(Field(1, ""), kCount)), &report);
  EXPECT_EQ(status.code(), StatusCode::kResourceExhausted);
  EXPECT_EQ(
      status.message(),
      absl::StrCat("limit parsed_bytes is ", ParsedBytesMax(2 * kCount + 5),
                   " for a message of ", 2 * kCount + 5,
                   " bytes, and this muster.v1.ReportFailureRequest "
                   "would take more; send fewer empty fields"));
  EXPECT_EQ(report.culprits().members_size(), 0);
  v1::StreamRequest stream;
  EXPECT_EQ(Parse(Repeated(Field(v1::StreamRequest::kOperationsFieldNumber, ""),
                           kCount),
                  &stream)
                .code(),
            StatusCode::kResourceExhausted);
  // Unknown fields are kept, so they count, too.
  v1::SetRequest set;
  EXPECT_EQ(Parse(Repeated(Field(15, ""), kCount), &set).code(),
            StatusCode::kResourceExhausted);
}

TEST(RequestTest, ALargeValueIsNoUnfolding) {
  v1::SetRequest sent;
  sent.set_value(std::string(20 << 20, 'v'));
  v1::SetRequest request;
  ASSERT_EQ(Parse(sent.SerializeAsString(), &request), OkStatus());
  EXPECT_EQ(request.value().size(), sent.value().size());
}

TEST(RequestTest, WhatIsBrokenIsNamed) {
  v1::SetRequest request;
  for (const size_t size : {size_t{10}, size_t{100'000}}) {
    const std::string text = Repeated("\xff", size);
    const Status status = Parse(text, &request);
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
    EXPECT_EQ(status.message(),
              absl::StrCat("the ", size,
                           " bytes of the message are no muster.v1.SetRequest: "
                           "they are broken, or a text in it is not UTF-8"));
  }
  // A field that is longer than the message.
  EXPECT_EQ(
      Parse(Field(1, std::string(50'000, 'x')).substr(0, 40'000), &request)
          .code(),
      StatusCode::kInvalidArgument);
  v1::Caller caller;
  EXPECT_THAT(
      Parse(Field(v1::Caller::kJobFieldNumber, "\xc3\x28"), &caller).message(),
      HasSubstr("not UTF-8"));
}

// ParseRequest does not scan messages that are too small to unfold.
TEST(RequestTest, NoMessageIsLargerThanItSupposes) {
  int types = 0;
  for (const auto* const file :
       {v1::Caller::descriptor()->file(), v1::SetRequest::descriptor()->file(),
        v1::JoinRequest::descriptor()->file(),
        v1::AwaitBarrierRequest::descriptor()->file(),
        v1::ListJobsRequest::descriptor()->file(),
        v1::Hello::descriptor()->file()}) {
    for (int i = 0; i < file->message_type_count(); ++i) {
      const Descriptor* const type = file->message_type(i);
      EXPECT_LE(google::protobuf::MessageFactory::generated_factory()
                    ->GetPrototype(type)
                    ->SpaceUsedLong(),
                480)
          << type->full_name();
      ++types;
    }
  }
  EXPECT_GE(types, 60);
}

}  // namespace
}  // namespace muster::coordinator
