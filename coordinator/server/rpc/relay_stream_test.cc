// Relays over real channels: their sessions, flow control, limits and ends.

#include "coordinator/server/rpc/relay_stream.h"

#include <chrono>
#include <deque>
#include <fstream>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "coordinator/core/limits.h"
#include "coordinator/server/auth/tokens.h"
#include "coordinator/server/test_server.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "muster/base/status.h"
#include "proto/muster/v1/relay_flow.h"
#include "proto/muster/v1/status_wire.h"

namespace muster::coordinator {
namespace {

using std::chrono::milliseconds;
using std::chrono::minutes;
using ::testing::AnyOf;
using ::testing::HasSubstr;

v1::StreamRequest Hello(const std::string& job, const std::string& member = "",
                        uint64_t incarnation = 0) {
  v1::StreamRequest request;
  *request.mutable_hello()->mutable_caller() =
      MakeCaller(job, member, incarnation);
  if (!member.empty()) {
    request.mutable_hello()->mutable_registration()->set_host("h-" + member);
  }
  return request;
}

v1::StreamRequest Message(const v1::Operation& operation) {
  v1::StreamRequest request;
  *request.add_operations() = operation;
  return request;
}

// One relay. Credits what it reads, except for sessions that it ignores.
class TestRelay {
 public:
  explicit TestRelay(std::shared_ptr<grpc::Channel> channel,
                     const std::string& token = "")
      : stub_(v1::SessionService::NewStub(std::move(channel))) {
    context_.set_deadline(std::chrono::system_clock::now() + kTestDeadline);
    if (!token.empty()) {
      context_.AddMetadata("authorization", "Bearer " + token);
    }
    stream_ = stub_->Relay(&context_);
  }
  ~TestRelay() { Break(); }

  bool Send(const v1::RelayRequest& request) { return stream_->Write(request); }
  bool SendFrame(uint64_t session,
                 const std::function<void(v1::RelayFrame&)>& fill) {
    v1::RelayRequest request;
    request.add_frames()->set_session(session);
    fill(*request.mutable_frames(0));
    return Send(request);
  }

  void Open(uint64_t session, const v1::StreamRequest& hello) {
    EXPECT_TRUE(
        SendFrame(session, [](v1::RelayFrame& f) { f.set_open(true); }));
    SendMessage(session, hello);
  }
  void SendMessage(uint64_t session, const v1::StreamRequest& message) {
    SendBytes(session, message.SerializeAsString());
  }
  // Reads while it waits for credit. With `incomplete` more of the message
  // should follow.
  void SendBytes(uint64_t session, const std::string& bytes,
                 bool incomplete = false) {
    v1::RelaySender& sender = senders_[session];
    sender.Begin(bytes);
    while (sender.sending()) {
      while (sender.ready()) {
        v1::RelayRequest request;
        request.add_frames()->set_session(session);
        v1::RelayFrame& frame = *request.mutable_frames(0);
        if (sender.MakePart(&frame) && incomplete) {
          frame.set_part(std::string(frame.last_part()));
        }
        if (!Send(request)) return;
      }
      if (sender.sending() && (ended(session) || !ReadOn())) return;
    }
  }
  void Ignore(uint64_t session) { ignored_ = session; }
  void EndSession(uint64_t session) {
    EXPECT_TRUE(SendFrame(session, [](v1::RelayFrame& f) { f.mutable_end(); }));
  }

  // Returns the next message of the session.
  v1::StreamResponse Read(uint64_t session) {
    std::deque<v1::StreamResponse>& messages = messages_[session];
    while (messages.empty() && !ended(session) && ReadOn()) {
    }
    if (messages.empty()) {
      ADD_FAILURE() << "no message of session " << session;
      return {};
    }
    v1::StreamResponse message = std::move(messages.front());
    messages.pop_front();
    return message;
  }
  // Returns the next result of the session.
  v1::Result NextResult(uint64_t session) {
    v1::StreamResponse message;
    while (message.results_size() == 0) {
      message = Read(session);
      if (::testing::Test::HasFailure()) return {};
    }
    EXPECT_EQ(message.results_size(), 1);
    return message.results(0);
  }
  v1::Result Call(uint64_t session, const v1::Operation& operation) {
    SendMessage(session, Message(operation));
    return NextResult(session);
  }
  // Reads until the session has ended.
  Status End(uint64_t session) {
    while (!ended(session) && ReadOn()) {
    }
    if (ended(session)) return ends_[session];
    ADD_FAILURE() << "session " << session << " did not end";
    return OkStatus();
  }
  bool ended(uint64_t session) const { return ends_.count(session) > 0; }

  void HalfClose() { stream_->WritesDone(); }
  // Reads to the end of the call.
  Status Finish() {
    while (ReadOn()) {
    }
    if (!status_.has_value()) status_ = v1::FromGrpc(stream_->Finish());
    return *status_;
  }
  void Break() {
    if (status_.has_value()) return;
    context_.TryCancel();
    Finish().IgnoreError();
  }

 private:
  bool ReadOn() {
    v1::RelayResponse response;
    if (!stream_->Read(&response)) return false;
    v1::RelayRequest credits;
    for (v1::RelayFrame& frame : *response.mutable_frames()) {
      const uint64_t session = frame.session();
      if (frame.has_end()) ends_[session] = v1::FromWire(frame.end());
      if (frame.has_credit()) {
        EXPECT_TRUE(senders_[session].AddCredit(frame.credit()).ok());
      }
      const bool last = frame.has_last_part();
      if (!last && !frame.has_part()) continue;
      v1::RelayReceiver& receiver = receivers_[session];
      if (session != ignored_) receiver.Read();
      const Status added =
          receiver.Add(last ? frame.last_part() : frame.part(), last);
      EXPECT_TRUE(added.ok()) << added;
      if (receiver.complete()) {
        EXPECT_TRUE(messages_[session].emplace_back().ParseFromString(
            receiver.TakeMessage()));
      }
      if (const int64_t credit = receiver.TakeCredit(); credit > 0) {
        v1::RelayFrame* const out = credits.add_frames();
        out->set_session(session);
        out->set_credit(static_cast<uint32_t>(credit));
      }
    }
    if (credits.frames_size() > 0) Send(credits);
    return true;
  }

  grpc::ClientContext context_;
  std::unique_ptr<v1::SessionService::Stub> stub_;
  std::unique_ptr<grpc::ClientReaderWriter<v1::RelayRequest, v1::RelayResponse>>
      stream_;
  std::optional<Status> status_;
  uint64_t ignored_ = 0;
  std::map<uint64_t, v1::RelaySender> senders_;
  std::map<uint64_t, v1::RelayReceiver> receivers_;
  std::map<uint64_t, std::deque<v1::StreamResponse>> messages_;
  std::map<uint64_t, Status> ends_;
};

bool HasMember(const v1::GetJobResponse& job, const std::string& member,
               v1::MemberState state) {
  for (const v1::MemberInfo& info : job.members()) {
    if (info.member() == member && info.state() == state) return true;
  }
  return false;
}

void AwaitMember(TestServer& server, const std::string& member,
                 v1::MemberState state) {
  server.Await("j", [&](const v1::GetJobResponse& job) {
    return HasMember(job, member, state);
  });
}

TEST(RelayTest, ItsSessionsAnswerLikeStreams) {
  TestServer server;
  TestRelay relay(server.NewChannel());
  relay.Open(1, Hello("j", "a", 1));
  relay.Open(2, Hello("j", "b", 1));
  EXPECT_TRUE(relay.Read(1).welcome().has_registration());
  EXPECT_TRUE(relay.Read(2).welcome().has_registration());
  // One waits for the other.
  relay.SendMessage(1, Message(GetOperation(7, "k")));
  server.AwaitWaiters("j", 1);
  EXPECT_TRUE(relay.Call(2, SetOperation(1, "k", "v")).has_set());
  const v1::Result got = relay.NextResult(1);
  EXPECT_EQ(got.id(), 7);
  EXPECT_EQ(got.get().value(), "v");
  // And for a stream of its own.
  TestStream stream(server.NewChannel());
  stream.Hello("j");
  EXPECT_EQ(stream.Call(GetOperation(1, "k")).get().value(), "v");
}

TEST(RelayTest, ASessionsAnswersComeInOneMessageAndInOrder) {
  TestServer server;
  TestRelay relay(server.NewChannel());
  v1::StreamRequest request = Hello("j");
  relay.Open(1, request);
  relay.Read(1);
  v1::StreamRequest batch;
  for (uint64_t id = 1; id <= 100; ++id) {
    *batch.add_operations() = SetOperation(id, "k", std::to_string(id));
  }
  relay.SendMessage(1, batch);
  const v1::StreamResponse answer = relay.Read(1);
  ASSERT_EQ(answer.results_size(), 100);
  for (int i = 0; i < 100; ++i) {
    EXPECT_EQ(answer.results(i).set().revision(), i + 1);
  }
}

TEST(RelayTest, MessagesSentTogetherAreAllAppliedInOrder) {
  TestServer server;
  TestRelay relay(server.NewChannel());
  relay.Open(1, Hello("j"));
  v1::Operation append;
  append.mutable_append()->set_key("k");
  std::string expected;
  v1::RelayRequest together;
  for (uint64_t id = 1; id <= 200; ++id) {
    append.set_id(id);
    append.mutable_append()->set_value(std::to_string(id));
    expected += std::to_string(id);
    together.add_frames()->set_session(1);
    together.mutable_frames()->rbegin()->set_last_part(
        Message(append).SerializeAsString());
  }
  together.add_frames()->set_session(1);
  together.mutable_frames()->rbegin()->set_half_close(true);
  ASSERT_TRUE(relay.Send(together));
  EXPECT_EQ(relay.End(1), OkStatus());
  relay.Open(2, Hello("j"));
  EXPECT_EQ(relay.Call(2, GetOperation(1, "k")).get().value(), expected);
}

TEST(RelayTest, LargeMessagesArriveInBothDirections) {
  TestServer server;
  TestRelay relay(server.NewChannel());
  relay.Open(1, Hello("j"));
  std::string value(5 << 20, 'v');
  value.back() = 'w';
  relay.SendMessage(1, Message(SetOperation(1, "big", value)));
  EXPECT_TRUE(relay.NextResult(1).has_set());
  EXPECT_TRUE(relay.Call(1, GetOperation(2, "big")).get().value() == value);
}

TEST(RelayTest, AHalfClosedSessionStillGetsItsAnswers) {
  TestServer server;
  TestRelay relay(server.NewChannel());
  relay.Open(1, Hello("j"));
  relay.SendMessage(1, Message(GetOperation(1, "k")));
  ASSERT_TRUE(
      relay.SendFrame(1, [](v1::RelayFrame& f) { f.set_half_close(true); }));
  server.AwaitWaiters("j", 1);
  relay.Open(2, Hello("j"));
  relay.Call(2, SetOperation(1, "k", "v"));
  EXPECT_EQ(relay.NextResult(1).get().value(), "v");
  EXPECT_EQ(relay.End(1), OkStatus());
  EXPECT_FALSE(relay.Call(2, SetOperation(2, "k", "v")).has_status());
}

TEST(RelayTest, AProcessThatIsGoneIsLostAfterTheGraceAndTheOthersGoOn) {
  ServerOptions options;
  options.reconnect_grace = milliseconds(100);
  TestServer server(options);
  TestRelay relay(server.NewChannel());
  relay.Open(1, Hello("j", "a", 1));
  relay.Open(2, Hello("j", "b", 1));
  v1::Operation join;
  join.mutable_join()->set_world_size(2);
  for (const uint64_t rank : {0, 1}) {
    join.set_id(1);
    join.mutable_join()->set_rank(static_cast<int>(rank));
    relay.SendMessage(rank + 1, Message(join));
  }
  EXPECT_TRUE(relay.NextResult(1).has_join());
  EXPECT_TRUE(relay.NextResult(2).has_join());
  relay.SendMessage(2, Message(GetOperation(2, "never")));
  server.AwaitWaiters("j", 1);
  relay.EndSession(2);
  v1::StreamResponse message;
  while (message.events_size() == 0 && !HasFailure()) message = relay.Read(1);
  ASSERT_EQ(message.events_size(), 1);
  EXPECT_EQ(message.events(0).member().member(), "b");
  EXPECT_EQ(message.events(0).member().state(), v1::MEMBER_STATE_LOST);
  EXPECT_EQ(message.events(0).member().cause(),
            "connection closed, not restored within 100ms");
  server.AwaitWaiters("j", 0);
  EXPECT_FALSE(relay.Call(1, SetOperation(3, "k", "v")).has_status());
}

TEST(RelayTest, ABrokenRelayLeavesItsMembersTheirWholeLease) {
  ServerOptions options;
  options.reconnect_grace = milliseconds(1);
  options.lease = minutes(5);
  TestServer server(options);
  TestRelay relay(server.NewChannel());
  for (const uint64_t n : {1, 2}) {
    relay.Open(n, Hello("j", absl::StrCat("m", n), 1));
    relay.Read(n);
  }
  v1::Operation add;
  add.set_id(1);
  add.mutable_add()->set_key("n");
  add.mutable_add()->set_delta(1);
  add.mutable_add()->set_sequence(1);
  EXPECT_EQ(relay.Call(1, add).add().value(), 1);
  // A member whose own connection breaks is lost at once.
  {
    TestStream own(server.NewChannel());
    own.HelloMember("j", "own", 1);
    relay.Break();
  }
  AwaitMember(server, "own", v1::MEMBER_STATE_LOST);
  AwaitMember(server, "m1", v1::MEMBER_STATE_DISCONNECTED);
  AwaitMember(server, "m2", v1::MEMBER_STATE_DISCONNECTED);
  // It goes on by itself; what it repeats is applied once.
  TestStream stream(server.NewChannel());
  stream.HelloMember("j", "m1", 1);
  EXPECT_EQ(stream.Call(add).add().value(), 1);
  EXPECT_TRUE(HasMember(server.Job("j"), "m1", v1::MEMBER_STATE_ALIVE));
  EXPECT_TRUE(HasMember(server.Job("j"), "m2", v1::MEMBER_STATE_DISCONNECTED));
}

TEST(RelayTest, AMemberThatDoesNotComeBackIsLostAndItsRelayIsNamed) {
  ServerOptions options;
  options.lease = milliseconds(500);
  TestServer server(options);
  TestRelay relay(server.NewChannel());
  relay.Open(1, Hello("j", "m", 1));
  relay.Read(1);
  relay.Break();
  AwaitMember(server, "m", v1::MEMBER_STATE_LOST);
  EXPECT_THAT(server.Job("j").members(0).cause(),
              HasSubstr(", since the relay of its host went away"));
}

TEST(RelayTest, ARelayThatClosesItsCallInOrderEndsWithOk) {
  TestServer server;
  TestRelay relay(server.NewChannel());
  relay.Open(1, Hello("j"));
  relay.Read(1);
  relay.EndSession(1);
  relay.HalfClose();
  EXPECT_EQ(relay.Finish(), OkStatus());
}

TEST(RelayTest, ARelayThatClosesItsCallWithSessionsCountsAsBroken) {
  ServerOptions options;
  options.reconnect_grace = milliseconds(1);
  options.lease = minutes(5);
  TestServer server(options);
  TestRelay relay(server.NewChannel());
  relay.Open(1, Hello("j", "m", 1));
  relay.Read(1);
  relay.HalfClose();
  EXPECT_EQ(relay.Finish(), UnavailableError("the relay has closed its call"));
  AwaitMember(server, "m", v1::MEMBER_STATE_DISCONNECTED);
}

TEST(RelayTest, AnotherStreamOfTheMemberEndsItsRelayedSession) {
  TestServer server;
  TestRelay relay(server.NewChannel());
  relay.Open(1, Hello("j", "a", 1));
  relay.Read(1);
  TestStream stream(server.NewChannel());
  stream.HelloMember("j", "a", 1);
  EXPECT_EQ(relay.End(1),
            AbortedError("another stream of member \"a\" took over"));
  EXPECT_TRUE(HasMember(server.Job("j"), "a", v1::MEMBER_STATE_ALIVE));
  // Late frames of the ended session have no effect.
  relay.SendMessage(1, Message(SetOperation(1, "k", "v")));
  relay.EndSession(1);
  relay.Open(2, Hello("j"));
  EXPECT_FALSE(relay.Call(2, SetOperation(1, "k", "v")).has_status());
}

// A process that requests far more than it reads must not hold up the others of
// its host, must not grow the coordinator, and must not keep its session.
TEST(RelayTest, AProcessThatNeverReadsHoldsUpNobodyAndIsCutOff) {
  ServerOptions options;
  options.stalled_reader_timeout = milliseconds(500);
  TestServer server(options);
  TestRelay relay(server.NewChannel());
  relay.Open(1, Hello("j"));
  relay.Open(2, Hello("j"));
  relay.Read(1);
  relay.Read(2);
  relay.SendMessage(1,
                    Message(SetOperation(1, "big", std::string(1 << 20, 'v'))));
  EXPECT_TRUE(relay.NextResult(1).has_set());
  relay.Ignore(1);
  v1::StreamRequest batch;
  for (uint64_t id = 2; id <= 65; ++id) {
    *batch.add_operations() = GetOperation(id, "big");
  }
  relay.SendMessage(1, batch);
  for (uint64_t id = 1; id <= 50; ++id) {
    EXPECT_FALSE(relay.Call(2, SetOperation(id, "k", "v")).has_status());
  }
  const Status end = relay.End(1);
  EXPECT_EQ(end.code(), StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(end.message()),
              HasSubstr("the client does not read its stream"));
  EXPECT_FALSE(relay.Call(2, SetOperation(51, "k", "v")).has_status());
}

TEST(RelayTest, ARelayThatNeverReadsIsCutOffAndItsMembersMayReturn) {
  ServerOptions options;
  options.stalled_reader_timeout = milliseconds(500);
  options.reconnect_grace = milliseconds(1);
  options.lease = minutes(5);
  TestServer server(options);
  TestRelay relay(server.NewChannel());
  TestStream other(server.NewChannel());
  other.Hello("j");
  other.Call(SetOperation(1, "some", std::string(48 << 10, 'v')));
  // Each may send a window; together they fill the transport's.
  for (uint64_t n = 1; n <= 400; ++n) {
    relay.Open(n, Hello("j", absl::StrCat("m", n), 1));
    relay.SendMessage(n, Message(GetOperation(1, "some")));
  }
  AwaitMember(server, "m1", v1::MEMBER_STATE_DISCONNECTED);
  AwaitMember(server, "m400", v1::MEMBER_STATE_DISCONNECTED);
  EXPECT_THAT(relay.Finish().code(),
              AnyOf(StatusCode::kResourceExhausted, StatusCode::kCancelled));
}

TEST(RelayTest, ARelayWithoutSessionsIsCutOff) {
  ServerOptions options;
  options.stalled_reader_timeout = milliseconds(300);
  TestServer server(options);
  TestRelay relay(server.NewChannel());
  EXPECT_EQ(relay.Finish(),
            DeadlineExceededError("no session was open for 300ms"));
}

TEST(RelayTest, ASessionWithoutAHelloIsCutOff) {
  ServerOptions options;
  options.stalled_reader_timeout = milliseconds(300);
  TestServer server(options);
  TestRelay relay(server.NewChannel());
  ASSERT_TRUE(relay.SendFrame(1, [](v1::RelayFrame& f) { f.set_open(true); }));
  EXPECT_EQ(relay.End(1), DeadlineExceededError("no hello came for 300ms"));
}

TEST(RelayTest, ItsSessionsCountForTheLimitOfSessions) {
  ServerOptions options;
  options.sessions_max = 3;
  TestServer server(options);
  TestRelay relay(server.NewChannel());
  for (const uint64_t n : {1, 2, 3}) relay.Open(n, Hello("j"));
  relay.Read(1);
  relay.Read(2);
  EXPECT_EQ(relay.End(3),
            ResourceExhaustedError("limit sessions is 3, offered 4" +
                                   core::LimitAdvice("sessions")));
  TestRelay second(server.NewChannel());
  EXPECT_EQ(second.Finish().code(), StatusCode::kResourceExhausted);
  relay.EndSession(1);
  // When that one is gone, there is room.
  for (uint64_t n = 4;; ++n) {
    relay.Open(n, Hello("j"));
    relay.SendMessage(n, Message(SetOperation(1, "k", "v")));
    ASSERT_TRUE(
        relay.SendFrame(n, [](v1::RelayFrame& f) { f.set_half_close(true); }));
    if (relay.End(n).ok()) break;
  }
}

TEST(RelayTest, AMessageThatIsTooLargeEndsItsSessionAlone) {
  ServerOptions options;
  options.message_bytes_max = 200'000;
  TestServer server(options);
  TestRelay relay(server.NewChannel());
  relay.Open(1, Hello("j"));
  relay.Open(2, Hello("j"));
  relay.SendBytes(1, std::string(1 << 20, 'x'));
  const Status end = relay.End(1);
  EXPECT_EQ(end.code(), StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(end.message()), HasSubstr("vs. 200000"));
  EXPECT_FALSE(relay.Call(2, SetOperation(1, "k", "v")).has_status());
}

TEST(RelayTest, IncompleteMessagesTakeNoMoreThanTheLimit) {
  ServerOptions options;
  options.inbound_bytes_max = 32 << 20;
  TestServer server(options);
  TestRelay relay(server.NewChannel());
  constexpr uint64_t kSessions = 20;
  constexpr size_t kBytes = 3 << 20;
  for (uint64_t n = 1; n <= kSessions; ++n) {
    const uint64_t large = 2 * n - 1;
    relay.Open(large, Hello("j"));
    relay.SendBytes(large, std::string(kBytes, 'x'), /*incomplete=*/true);
    // The hello of this one is accepted after all of the large message.
    const uint64_t next = 2 * n;
    relay.Open(next, Hello("j"));
    relay.Read(next);
    relay.EndSession(next);
    // Ten of them fit.
    EXPECT_EQ(relay.ended(large), n * kBytes > size_t{32 << 20}) << n;
  }
  EXPECT_THAT(std::string(relay.End(2 * kSessions - 1).message()),
              HasSubstr("limit inbound_bytes is 33554432"));
  relay.Open(1000, Hello("j"));
  EXPECT_FALSE(relay.Call(1000, SetOperation(1, "k", "v")).has_status());
}

TEST(RelayTest, MalformedFramesEndTheCallAndSayWhy) {
  TestServer server;
  const auto channel = server.NewChannel();
  using Fill = std::function<void(v1::RelayFrame&)>;
  const std::pair<Fill, std::string> kCases[] = {
      {[](v1::RelayFrame&) {}, "a frame of session 1 has no content"},
      {[](v1::RelayFrame& f) { f.set_open(true); },
       "session 1 begins after session 1: numbers must grow"},
      {[](v1::RelayFrame& f) {
         f.set_session(9);
         f.set_part("x");
       },
       "a frame of session 9, which was never open"},
      {[](v1::RelayFrame& f) {
         f.set_session(0);
         f.mutable_end();
       },
       "a frame of session 0, which was never open"},
      {[](v1::RelayFrame& f) { f.set_part(std::string(70'000, 'x')); },
       "session 1: a part of 70000 bytes, with credit for "},
      {[](v1::RelayFrame& f) { f.set_credit(1 << 20); },
       "session 1: a credit of 1048576 bytes, of which "}};
  for (const auto& [fill, text] : kCases) {
    TestRelay relay(channel);
    relay.Open(1, Hello("j"));
    relay.Read(1);
    ASSERT_TRUE(relay.SendFrame(1, fill));
    const Status status = relay.Finish();
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << text;
    EXPECT_THAT(std::string(status.message()), HasSubstr(text));
  }
  for (const bool inside : {false, true}) {
    TestRelay relay(channel);
    relay.Open(1, Hello("j"));
    // The session waits for an answer, so the half-close does not end it.
    v1::Operation waiting = GetOperation(1, "never");
    waiting.mutable_get()->mutable_timeout()->set_seconds(60);
    relay.SendMessage(1, Message(waiting));
    server.AwaitWaiters("j", 1);
    v1::RelayRequest request;
    for (int i = 0; i < 2; ++i) request.add_frames()->set_session(1);
    request.mutable_frames(inside ? 1 : 0)->set_half_close(true);
    request.mutable_frames(inside ? 0 : 1)->set_part("x");
    ASSERT_TRUE(relay.Send(request));
    EXPECT_EQ(relay.Finish(),
              InvalidArgumentError(
                  inside ? "a half-close of session 1 inside a message"
                         : "a message of session 1 after its half-close"));
  }
  TestRelay relay(channel);
  relay.Open(1, Hello("j"));
  EXPECT_FALSE(relay.Call(1, SetOperation(1, "k", "v")).has_status());
}

TEST(RelayTest, AMalformedMessageEndsItsSessionAlone) {
  TestServer server;
  TestRelay relay(server.NewChannel());
  relay.Open(1, Hello("j"));
  relay.Open(2, Hello("j"));
  relay.SendBytes(1, "\xff\xff");
  EXPECT_EQ(relay.End(1),
            InvalidArgumentError(
                "the 2 bytes of the message are no muster.v1.StreamRequest: "
                "they are broken, or a text in it is not UTF-8"));
  relay.Open(3, Message(SetOperation(1, "k", "v")));
  EXPECT_EQ(
      relay.End(3),
      InvalidArgumentError("the first message of a stream must carry a hello"));
  EXPECT_FALSE(relay.Call(2, SetOperation(1, "k", "v")).has_status());
}

TEST(RelayTest, ADrainAnswersEndsTheSessionsAndThenTheCall) {
  TestServer server;
  TestRelay relay(server.NewChannel());
  relay.Open(1, Hello("j", "a", 1));
  relay.Open(2, Hello("j"));
  relay.Read(1);
  EXPECT_FALSE(relay.Call(2, SetOperation(1, "k", "v")).has_status());
  relay.SendMessage(1, Message(GetOperation(1, "never")));
  server.AwaitWaiters("j", 1);
  server.server().Drain(kTestDeadline);
  const Status drains = UnavailableError("the coordinator drains");
  EXPECT_EQ(relay.End(1), drains);
  EXPECT_EQ(relay.End(2), drains);
  EXPECT_EQ(relay.Finish(), drains);
}

TEST(RelayTest, TokensAreCheckedForTheCallAndForEachSession) {
  const std::string path = ::testing::TempDir() + "/relay_tokens";
  const auto write = [&](const std::string& jobs) {
    const TokenDigest digest = ComputeDigest("good");
    std::ofstream(path) << absl::BytesToHexString(absl::string_view(
                               reinterpret_cast<const char*>(digest.data()),
                               digest.size()))
                        << " member " << jobs << "\n";
  };
  write("j*");
  ServerOptions options;
  options.token_file = path;
  options.reconnect_grace = milliseconds(1);
  options.lease = minutes(5);
  TestServer server(options);
  EXPECT_EQ(TestRelay(server.NewChannel()).Finish().code(),
            StatusCode::kUnauthenticated);
  EXPECT_EQ(TestRelay(server.NewChannel(), "bad").Finish().code(),
            StatusCode::kUnauthenticated);
  TestRelay relay(server.NewChannel(), "good");
  relay.Open(1, Hello("j", "a", 1));
  relay.Open(2, Hello("other"));
  EXPECT_TRUE(relay.Read(1).has_welcome());
  EXPECT_EQ(relay.End(2).code(), StatusCode::kPermissionDenied);
  // The token is no longer for the job.
  write("k*");
  EXPECT_EQ(relay.End(1).code(), StatusCode::kPermissionDenied);
  relay.Open(3, Hello("k"));
  EXPECT_TRUE(relay.Read(3).has_welcome());
}

TEST(RelayTest, TheMetricsCountRelaysAndTheirSessions) {
  ServerOptions options;
  options.http_listen = "127.0.0.1:0";
  TestServer server(options);
  TestRelay relay(server.NewChannel());
  for (const uint64_t n : {1, 2, 3}) {
    relay.Open(n, Hello("j"));
    relay.Read(n);
  }
  const std::string metrics = server.Http("/metrics");
  EXPECT_THAT(metrics, HasSubstr("\nmuster_coordinator_relays 1\n"));
  EXPECT_THAT(metrics, HasSubstr("\nmuster_coordinator_sessions 3\n"));
}

// Anything that a relay may send leaves the coordinator and its other clients
// alone.
TEST(RelayTest, RandomFramesHarmNobodyElse) {
  TestServer server;
  TestStream other(server.NewChannel());
  other.Hello("j");
  const auto channel = server.NewChannel();
  for (uint64_t seed = 1; seed <= 30; ++seed) {
    std::mt19937_64 random(seed);
    TestRelay relay(channel);
    uint64_t opened = 0;
    for (int messages = 0; messages < 20; ++messages) {
      v1::RelayRequest request;
      for (uint64_t frames = random() % 8; frames > 0; --frames) {
        v1::RelayFrame& frame = *request.add_frames();
        frame.set_session(opened == 0 ? 1 : 1 + random() % opened);
        switch (random() % 12) {
          case 0:
          case 1:
          case 2:
            frame.set_session(++opened);
            frame.set_open(true);
            break;
          case 3:
          case 4:
          case 5:
            frame.set_last_part(
                Hello("j", random() % 2 == 0 ? "m" : "", random() % 3)
                    .SerializeAsString());
            break;
          case 6:
          case 7:
            frame.set_last_part(
                Message(random() % 2 == 0 ? GetOperation(random() % 4, "k")
                                          : SetOperation(random() % 4, "k", ""))
                    .SerializeAsString());
            break;
          case 8:
            frame.set_part(std::string(random() % 100, 'x'));
            break;
          case 9:
            frame.set_half_close(true);
            break;
          case 10:
            frame.mutable_end();
            break;
          default:
            frame.set_credit(random() % 8 == 0 ? 1000 : 0);
            break;
        }
      }
      if (!relay.Send(request)) break;
    }
    if (random() % 2 == 0) relay.HalfClose();
    if (random() % 2 == 0) relay.Finish().IgnoreError();
  }
  EXPECT_FALSE(other.Call(SetOperation(1, "free", "v")).has_status());
  server.AwaitWaiters("j", 0);
}

}  // namespace
}  // namespace muster::coordinator
