// Queues, lifetimes, compare-and-set and watches, over real channels: by unary
// call, by the streaming Watch, and as operations of a session.

#include <chrono>
#include <future>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "coordinator/server/rpc/unary.h"
#include "coordinator/server/test_server.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "muster/base/status.h"
#include "proto/muster/v1/status_wire.h"

namespace muster::coordinator {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using Store = v1::StoreService::Stub;

// `1 put k=v`.
std::vector<std::string> Texts(const v1::WatchResponse& response) {
  std::vector<std::string> texts;
  for (const v1::KeyChange& change : response.changes()) {
    std::string text = std::to_string(change.revision()) + " ";
    switch (change.kind()) {
      case v1::CHANGE_KIND_PUT:
        text += "put " + change.key() + "=" + change.value();
        break;
      case v1::CHANGE_KIND_DELETED:
        text += "deleted " + change.key();
        break;
      case v1::CHANGE_KIND_EXPIRED:
        text += "expired " + change.key();
        break;
      case v1::CHANGE_KIND_ORPHANED:
        text += "orphaned " + change.key();
        break;
      default:
        text += "? " + change.key();
    }
    texts.push_back(text);
  }
  return texts;
}

// An open call of Watch.
class Watching {
 public:
  Watching(Store& store, const v1::WatchRequest& request) {
    context_.set_deadline(std::chrono::system_clock::now() + kTestDeadline);
    reader_ = store.Watch(&context_, request);
  }

  // Returns the changes of the next message; fails if the call has ended.
  std::vector<std::string> Next() {
    if (!reader_->Read(&response_)) return {"the watch has ended"};
    return Texts(response_);
  }
  int64_t revision() const { return response_.revision(); }

  void Cancel() { context_.TryCancel(); }
  Status Finish() {
    while (reader_->Read(&response_)) {
    }
    return v1::FromGrpc(reader_->Finish());
  }

 private:
  grpc::ClientContext context_;
  std::unique_ptr<grpc::ClientReader<v1::WatchResponse>> reader_;
  v1::WatchResponse response_;
};

class StoreCallsTest : public ::testing::Test {
 protected:
  template <typename Request>
  static Request Plain(const std::string& key) {
    Request request;
    *request.mutable_caller() = MakeCaller("j");
    request.set_key(key);
    return request;
  }

  template <typename Request, typename Response>
  Status Call(grpc::Status (Store::*method)(grpc::ClientContext*,
                                            const Request&, Response*),
              const Request& request, Response* response) {
    Status status =
        v1::FromGrpc(CallGrpc(server_.store(), method, request, response));
    if (status.ok()) {
      EXPECT_EQ(response->coordinator_epoch(), server_.server().epoch());
    }
    return status;
  }

  void Set(const std::string& key, const std::string& value) {
    auto request = Plain<v1::SetRequest>(key);
    request.set_value(value);
    v1::SetResponse response;
    ASSERT_TRUE(Call(&Store::Set, request, &response).ok());
  }

  Status Push(const std::string& key, const std::string& value) {
    auto request = Plain<v1::QueuePushRequest>(key);
    request.set_value(value);
    v1::QueuePushResponse response;
    return Call(&Store::QueuePush, request, &response);
  }

  // Returns the item or the error.
  std::string Pop(const v1::QueuePopRequest& request) {
    v1::QueuePopResponse response;
    const Status status = Call(&Store::QueuePop, request, &response);
    return status.ok() ? response.value() : status.ToString();
  }

  void Register(const std::string& member) {
    v1::RegisterRequest request;
    *request.mutable_caller() = MakeCaller("j", member, 1);
    v1::RegisterResponse response;
    ASSERT_TRUE(CallGrpc(server_.membership(),
                         &v1::MembershipService::Stub::Register, request,
                         &response)
                    .ok());
  }

  TestServer server_;
};

TEST_F(StoreCallsTest, AQueueIsFirstInFirstOut) {
  ASSERT_TRUE(Push("q", std::string("\0a", 2)).ok());
  ASSERT_TRUE(Push("q", "b").ok());
  v1::QueueLenResponse length;
  ASSERT_TRUE(
      Call(&Store::QueueLen, Plain<v1::QueueLenRequest>("q"), &length).ok());
  EXPECT_EQ(length.length(), 2);
  auto pop = Plain<v1::QueuePopRequest>("q");
  EXPECT_EQ(Pop(pop), std::string("\0a", 2));
  pop.set_no_wait(true);
  EXPECT_EQ(Pop(pop), "b");
  EXPECT_EQ(Pop(pop), "NOT_FOUND: queue is empty, key: \"q\"");
  pop.set_no_wait(false);
  pop.mutable_timeout()->set_nanos(20'000'000);
  EXPECT_THAT(Pop(pop), HasSubstr("wait timeout after 20ms, keys: q"));
  Set("k", "v");
  EXPECT_THAT(std::string(Push("k", "").message()),
              HasSubstr("key \"k\" holds a value"));
}

TEST_F(StoreCallsTest, AnItemGoesToOneOfThoseThatWaitAndToNobodyWhoLeft) {
  grpc::ClientContext gone;
  auto lost = std::async(std::launch::async, [&] {
    v1::QueuePopResponse response;
    return server_.store()
        .QueuePop(&gone, Plain<v1::QueuePopRequest>("q"), &response)
        .ok();
  });
  server_.AwaitWaiters("j", 1);
  std::vector<std::future<std::string>> pops;
  for (int64_t i = 0; i < 3; ++i) {
    pops.push_back(std::async(std::launch::async, [&] {
      return Pop(Plain<v1::QueuePopRequest>("q"));
    }));
    server_.AwaitWaiters("j", i + 2);
  }
  gone.TryCancel();
  EXPECT_FALSE(lost.get());
  server_.AwaitWaiters("j", 3);
  for (int i = 0; i < 3; ++i) {
    ASSERT_TRUE(Push("q", std::to_string(i)).ok());
    EXPECT_EQ(pops[i].get(), std::to_string(i));
  }
}

TEST_F(StoreCallsTest, ARetriedPopGetsTheSameItem) {
  Register("a");
  ASSERT_TRUE(Push("q", "1").ok());
  ASSERT_TRUE(Push("q", "2").ok());
  auto pop = Plain<v1::QueuePopRequest>("q");
  *pop.mutable_caller() = MakeCaller("j", "a", 1);
  pop.set_sequence(1);
  EXPECT_EQ(Pop(pop), "1");
  EXPECT_EQ(Pop(pop), "1");
  pop.set_sequence(2);
  EXPECT_EQ(Pop(pop), "2");
}

TEST_F(StoreCallsTest, CompareAndSetTellsWhatIsThere) {
  auto request = Plain<v1::CompareAndSetRequest>("k");
  request.set_value("1");
  v1::CompareAndSetResponse response;
  ASSERT_TRUE(Call(&Store::CompareAndSet, request, &response).ok());
  EXPECT_TRUE(response.written());
  EXPECT_EQ(response.revision(), 1);
  EXPECT_FALSE(response.has_present());
  request.set_value("2");
  ASSERT_TRUE(Call(&Store::CompareAndSet, request, &response).ok());
  EXPECT_FALSE(response.written());
  EXPECT_EQ(response.present(), "1");
  EXPECT_EQ(response.revision(), 1);
  request.set_expected_revision(1);
  ASSERT_TRUE(Call(&Store::CompareAndSet, request, &response).ok());
  EXPECT_TRUE(response.written());
  request.set_expected_revision(-1);
  EXPECT_EQ(Call(&Store::CompareAndSet, request, &response).code(),
            StatusCode::kInvalidArgument);
}

TEST_F(StoreCallsTest, DeletePrefixCounts) {
  Set("a/1", "");
  Set("b", "");
  ASSERT_TRUE(Push("a/q", "").ok());
  v1::DeletePrefixRequest request;
  *request.mutable_caller() = MakeCaller("j");
  request.set_prefix("a/");
  v1::DeletePrefixResponse response;
  ASSERT_TRUE(Call(&Store::DeletePrefix, request, &response).ok());
  EXPECT_EQ(response.deleted(), 2);
  EXPECT_EQ(response.revision(), 5);
}

TEST_F(StoreCallsTest, AWatchTellsWhyKeysGo) {
  Register("a");
  auto watch = Plain<v1::WatchRequest>("k/");
  watch.set_prefix(true);
  Watching watching(server_.store(), watch);
  // A watch that begins now first returns the revision.
  EXPECT_THAT(watching.Next(), IsEmpty());
  EXPECT_EQ(watching.revision(), 0);

  auto set = Plain<v1::SetRequest>("k/ttl");
  set.mutable_ttl()->set_nanos(10'000'000);
  v1::SetResponse response;
  ASSERT_TRUE(Call(&Store::Set, set, &response).ok());
  EXPECT_THAT(watching.Next(), ElementsAre("1 put k/ttl="));
  EXPECT_THAT(watching.Next(), ElementsAre("2 expired k/ttl"));

  set = Plain<v1::SetRequest>("k/mine");
  *set.mutable_caller() = MakeCaller("j", "a", 1);
  set.set_ephemeral(true);
  ASSERT_TRUE(Call(&Store::Set, set, &response).ok());
  EXPECT_THAT(watching.Next(), ElementsAre("3 put k/mine="));
  v1::LeaveRequest leave;
  *leave.mutable_caller() = MakeCaller("j", "a", 1);
  v1::LeaveResponse left;
  ASSERT_TRUE(CallGrpc(server_.membership(),
                       &v1::MembershipService::Stub::Leave, leave, &left)
                  .ok());
  EXPECT_THAT(watching.Next(), ElementsAre("4 orphaned k/mine"));

  Set("other", "");
  Set("k/1", "v");
  EXPECT_THAT(watching.Next(), ElementsAre("6 put k/1=v"));
  EXPECT_EQ(watching.revision(), 6);
  watching.Cancel();
  EXPECT_EQ(watching.Finish().code(), StatusCode::kCancelled);
  server_.AwaitWaiters("j", 0);
}

TEST_F(StoreCallsTest, AWatchGoesOnFromARevision) {
  for (const char* value : {"1", "2", "3"}) Set("k", value);
  auto watch = Plain<v1::WatchRequest>("k");
  watch.set_after_revision(1);
  watch.mutable_timeout()->set_nanos(20'000'000);
  Watching watching(server_.store(), watch);
  EXPECT_THAT(watching.Next(), ElementsAre("2 put k=2", "3 put k=3"));
  // While the key is quiet, the watch sends empty messages with revisions.
  Set("other", "");
  do {
    EXPECT_THAT(watching.Next(), IsEmpty());
  } while (watching.revision() < 4 && !::testing::Test::HasFailure());
  watching.Cancel();
  EXPECT_EQ(watching.Finish().code(), StatusCode::kCancelled);

  watch.set_after_revision(99);
  EXPECT_EQ(Watching(server_.store(), watch).Finish(),
            OutOfRangeError(
                "watch: revision 99 is ahead of the store, which is at 4"));
}

TEST(WatchLimitTest, AWatchThatIsTooFarBehindIsTold) {
  ServerOptions options;
  options.limits.watch_history_changes = 2;
  TestServer server(options);
  v1::SetRequest set;
  *set.mutable_caller() = MakeCaller("j");
  v1::SetResponse response;
  for (int i = 0; i < 5; ++i) {
    ASSERT_TRUE(CallGrpc(server.store(), &Store::Set, set, &response).ok());
  }
  v1::WatchRequest watch;
  *watch.mutable_caller() = MakeCaller("j");
  watch.set_after_revision(1);
  EXPECT_EQ(Watching(server.store(), watch).Finish(),
            OutOfRangeError("watch: revision 1 is no longer in the "
                            "history, the oldest to go on from is 3"));
}

TEST_F(StoreCallsTest, AWatchEndsWithTheCoordinator) {
  Watching watching(server_.store(), Plain<v1::WatchRequest>("k"));
  EXPECT_THAT(watching.Next(), IsEmpty());
  server_.AwaitWaiters("j", 1);
  server_.server().Drain(kTestDeadline);
  EXPECT_EQ(watching.Finish(), UnavailableError("the coordinator drains"));
}

TEST_F(StoreCallsTest, AStreamHasThemAllAsOperations) {
  TestStream stream(server_.NewChannel());
  stream.Hello("j");
  v1::Operation operation;
  operation.set_id(1);
  operation.mutable_queue_pop()->set_key("q");
  stream.SendOperation(operation);
  operation.set_id(2);
  operation.mutable_watch()->set_prefix(true);
  operation.mutable_watch()->set_after_revision(0);
  stream.SendOperation(operation);
  operation.set_id(3);
  operation.mutable_queue_push()->set_key("q");
  operation.mutable_queue_push()->set_value("x");
  EXPECT_EQ(stream.Call(operation).queue_push().revision(), 1);
  EXPECT_EQ(stream.Await(1).queue_pop().value(), "x");
  operation.set_id(4);
  operation.mutable_queue_len()->set_key("q");
  EXPECT_EQ(stream.Call(operation).queue_len().length(), 0);
  operation.set_id(5);
  operation.mutable_compare_and_set()->set_key("k");
  EXPECT_TRUE(stream.Call(operation).compare_and_set().written());
  const v1::Result watched = stream.Await(2);
  EXPECT_THAT(Texts(watched.watch()), ElementsAre("3 put k="));
  EXPECT_EQ(watched.watch().revision(), 3);
  operation.set_id(6);
  operation.mutable_delete_prefix()->set_prefix("k");
  EXPECT_EQ(stream.Call(operation).delete_prefix().deleted(), 1);
}

}  // namespace
}  // namespace muster::coordinator
