#include <map>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "google/protobuf/descriptor.h"
#include "gtest/gtest.h"
#include "muster/v1/admin.pb.h"
#include "muster/v1/barrier.pb.h"
#include "muster/v1/membership.pb.h"
#include "muster/v1/session.pb.h"
#include "muster/v1/store.pb.h"

namespace muster::v1 {
namespace {

using google::protobuf::Descriptor;
using google::protobuf::FileDescriptor;
using ::testing::UnorderedElementsAreArray;

// An operation of the table, with the messages of its field in C++.
struct Operation {
  std::string name;
  const Descriptor* request;
  const Descriptor* response;
  bool mutates;
  bool may_wait;
};

std::vector<Operation> Operations() {
  const v1::Operation operation;
  const Result result;
  return {
#define MUSTER_OPERATION(service, name, field, role, mutates, may_wait, ...) \
  {#name, operation.field().GetDescriptor(), result.field().GetDescriptor(), \
   mutates, may_wait},
#include "proto/muster/v1/verbs.inc"
  };
}

TEST(VerbsTest, TheTableHasEveryRpcOfTheProtocolAndNoOther) {
  const std::vector<std::string> table = {
#define MUSTER_OPERATION(service, name, ...) #service "Service." #name,
#define MUSTER_RPC(service, name, role) #service "Service." #name,
#include "proto/muster/v1/verbs.inc"
  };
  std::vector<std::string> rpcs;
  for (const Descriptor* const message :
       {SetRequest::descriptor(), JoinRequest::descriptor(),
        AwaitBarrierRequest::descriptor(), ListJobsRequest::descriptor(),
        Hello::descriptor()}) {
    const FileDescriptor* const file = message->file();
    for (int s = 0; s < file->service_count(); ++s) {
      for (int m = 0; m < file->service(s)->method_count(); ++m) {
        const auto* const rpc = file->service(s)->method(m);
        rpcs.push_back(file->service(s)->name() + "." + rpc->name());
        EXPECT_EQ(rpc->input_type()->name(), rpc->name() + "Request");
        EXPECT_EQ(rpc->output_type()->name(), rpc->name() + "Response");
      }
    }
  }
  EXPECT_THAT(table, UnorderedElementsAreArray(rpcs));
}

TEST(VerbsTest, TheTableHasEveryOperationOfASession) {
  std::map<std::string, int> missing;
  for (const auto* const oneof :
       {v1::Operation::descriptor()->FindOneofByName("request"),
        Result::descriptor()->FindOneofByName("response")}) {
    for (int i = 0; i < oneof->field_count(); ++i) {
      const std::string name = oneof->field(i)->message_type()->name();
      if (name != "CancelRequest") ++missing[name];
    }
  }
  for (const Operation& operation : Operations()) {
    EXPECT_EQ(operation.request->name(), operation.name + "Request");
    EXPECT_EQ(operation.response->name(), operation.name + "Response");
    --missing[operation.request->name()];
    --missing[operation.response->name()];
  }
  for (const auto& [name, count] : missing) EXPECT_EQ(count, 0) << name;
}

TEST(VerbsTest, AMutationHasASequenceAndWhatMayWaitHasATimeout) {
  for (const Operation& operation : Operations()) {
    EXPECT_EQ(operation.request->FindFieldByName("sequence") != nullptr,
              operation.mutates)
        << operation.name;
    EXPECT_EQ(operation.request->FindFieldByName("timeout") != nullptr,
              operation.may_wait)
        << operation.name;
  }
}

}  // namespace
}  // namespace muster::v1
