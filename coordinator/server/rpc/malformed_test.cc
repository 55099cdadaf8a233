// Sends malformed messages, and ones that would unfold to far more memory than
// their size, over real channels. Each method refuses them, and the connection
// stays usable.

#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "coordinator/server/rpc/test_methods.h"
#include "coordinator/server/test_server.h"
#include "gmock/gmock.h"
#include "google/protobuf/descriptor.h"
#include "grpcpp/generic/generic_stub.h"
#include "gtest/gtest.h"
#include "muster/base/status.h"
#include "muster/v1/admin.pb.h"
#include "muster/v1/barrier.pb.h"
#include "muster/v1/membership.pb.h"
#include "muster/v1/session.pb.h"
#include "muster/v1/store.pb.h"
#include "proto/muster/v1/status_wire.h"

namespace muster::coordinator {
namespace {

using ::testing::HasSubstr;

// Sends a hello and then `message`. Returns the status of the stream.
Status EndOfStream(const std::shared_ptr<grpc::Channel>& channel,
                   const std::string& message) {
  grpc::GenericStub stub(channel);
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + kTestDeadline);
  grpc::CompletionQueue queue;
  const auto call =
      stub.PrepareCall(&context, "/muster.v1.SessionService/Stream", &queue);
  void* tag = nullptr;
  bool ok = false;
  call->StartCall(nullptr);
  queue.Next(&tag, &ok);
  v1::StreamRequest hello;
  *hello.mutable_hello()->mutable_caller() = MakeCaller("j");
  for (const std::string& text : {hello.SerializeAsString(), message}) {
    call->Write(ToByteBuffer(text), nullptr);
    queue.Next(&tag, &ok);
  }
  do {
    grpc::ByteBuffer answer;
    call->Read(&answer, nullptr);
    queue.Next(&tag, &ok);
  } while (ok);
  grpc::Status status;
  call->Finish(&status, nullptr);
  queue.Next(&tag, &ok);
  return v1::FromGrpc(status);
}

TEST(MalformedTest, EveryMethodNamesWhatItCannotParse) {
  TestServer server;
  const auto channel = server.NewChannel();
  const auto methods = AllMethods();
  for (const google::protobuf::MethodDescriptor* const method : methods) {
    EXPECT_EQ(CallWithBytes(channel, MakePath(*method), "\xff\xff"),
              InvalidArgumentError(absl::StrCat(
                  "the 2 bytes of the message are no ",
                  method->input_type()->full_name(),
                  ": they are broken, or a text in it is not UTF-8")))
        << MakePath(*method);
  }
  EXPECT_GE(methods.size(), 30);
}

TEST(MalformedTest, AStreamEndsWithWhatIsWrongWithItsMessage) {
  TestServer server;
  const auto channel = server.NewChannel();
  EXPECT_EQ(EndOfStream(channel, "\xff\xff"),
            InvalidArgumentError(
                "the 2 bytes of the message are no muster.v1.StreamRequest: "
                "they are broken, or a text in it is not UTF-8"));
  // The connection stays usable.
  TestStream stream(channel);
  stream.Hello("j");
  EXPECT_TRUE(stream.Call(SetOperation(1, "k", "v")).has_set());
}

TEST(MalformedTest, WhatWouldUnfoldIsRefused) {
  TestServer server;
  const auto channel = server.NewChannel();
  // Both have StreamRequest.operations and MultiSetRequest.entries of two
  // bytes.
  std::string operations;
  std::string entries;
  for (int i = 0; i < 1 << 20; ++i) {
    operations += {v1::StreamRequest::kOperationsFieldNumber << 3 | 2, 0};
    entries += {v1::MultiSetRequest::kEntriesFieldNumber << 3 | 2, 0};
  }
  Status status = EndOfStream(channel, operations);
  EXPECT_EQ(status.code(), StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(status.message()), HasSubstr("limit parsed_bytes"));
  status = CallWithBytes(channel, "/muster.v1.StoreService/MultiSet", entries);
  EXPECT_EQ(status.code(), StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(status.message()), HasSubstr("limit parsed_bytes"));
  TestStream stream(channel);
  stream.Hello("j");
  EXPECT_TRUE(stream.Call(SetOperation(1, "k", "v")).has_set());
}

}  // namespace
}  // namespace muster::coordinator
