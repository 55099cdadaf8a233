// What is said between two ranks about sends and receives: this rank is 0, and
// the test speaks for rank 1, over a mesh without a network.

#include "dataplane/backends/gloo/point_to_point.h"

#include <chrono>
#include <cstring>
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "dataplane/backends/gloo/channel.h"
#include "dataplane/backends/gloo/peer_memory.h"
#include "gtest/gtest.h"

namespace muster::dataplane::gloo_internal {
namespace {

constexpr size_t kLarge = kMessagePayloadBytesMax / sizeof(float) + 1;

class ScriptMesh : public Mesh {
 public:
  ScriptMesh() : Mesh(/*rank=*/0, /*world_size=*/2) {}

  std::unique_ptr<Buffer> CreateBuffer(void* data, size_t bytes) override {
    return std::make_unique<ScriptBuffer>(*this, static_cast<std::byte*>(data));
  }
  std::unique_ptr<Buffer> CreateGlooBuffer(void* data, size_t bytes) override {
    return CreateBuffer(data, bytes);
  }
  std::unique_ptr<Buffer> CreateQuietBuffer(void* data, size_t bytes) override {
    return CreateBuffer(data, bytes);
  }
  absl::Status OpenQuiet(int) override { return absl::OkStatus(); }
  absl::Status Write(int, const void*, size_t, const void*, size_t) override {
    return absl::UnimplementedError("no collectives here");
  }
  absl::Status Read(int, void*, size_t) override {
    return absl::UnimplementedError("no collectives here");
  }
  void Abort(const absl::Status& cause) override {
    MutexLock lock(mutex_);
    if (cause_.ok()) cause_ = cause;
    changed_.NotifyAll();
  }
  absl::Status abort_cause() const override {
    MutexLock lock(mutex_);
    return cause_;
  }
  absl::Status CheckPeers() override { return absl::OkStatus(); }
  absl::Status Gone(int) override { return absl::OkStatus(); }
  void Close(const absl::Status&) override {}

  // A message of the peer comes.
  void Deliver(const Message& message, const std::vector<float>& payload = {}) {
    MutexLock lock(mutex_);
    while (announced_.empty()) changed_.Wait(mutex_);
    const auto [buffer, at] = announced_.front();
    announced_.pop_front();
    std::memcpy(at, &message, sizeof(message));
    if (!payload.empty()) {
      std::memcpy(at + sizeof(message), payload.data(),
                  payload.size() * sizeof(float));
    }
    ++buffer->received_;
    changed_.NotifyAll();
  }

  // The next message that this rank sends.
  Message TakeSent() {
    MutexLock lock(mutex_);
    while (sent_.empty()) changed_.Wait(mutex_);
    const Message message = sent_.front();
    sent_.pop_front();
    return message;
  }

  // The peer's memory is that of who has `mark`, which is `value`.
  void MakeNear(const Mark& mark, uint64_t value) {
    memories_[1].emplace(mark.place(), value);
  }

  // The peer leaves in peace; what this rank has posted does not leave.
  void Leave() {
    MutexLock lock(mutex_);
    gone_ = true;
    changed_.NotifyAll();
  }

  // From now on nothing that is posted leaves.
  void HoldSends() {
    MutexLock lock(mutex_);
    holds_sends_ = true;
  }

  int tensors_sent() const {
    MutexLock lock(mutex_);
    return tensors_sent_;
  }

 private:
  struct ScriptBuffer : public Buffer {
    ScriptBuffer(ScriptMesh& mesh, std::byte* data)
        : mesh_(mesh), data_(data) {}

    absl::Status Receive(int, uint64_t slot, size_t offset, size_t) override {
      MutexLock lock(mesh_.mutex_);
      if (slot == kPointToPointSlot) {
        mesh_.announced_.push_back({this, data_ + offset});
        mesh_.changed_.NotifyAll();
      } else {
        ++received_;  // A tensor is there when its kDone is.
      }
      return absl::OkStatus();
    }
    absl::Status Send(int, uint64_t slot, size_t offset, size_t) override {
      MutexLock lock(mesh_.mutex_);
      if (slot == kPointToPointSlot) {
        Message& message = mesh_.sent_.emplace_back();
        std::memcpy(&message, data_ + offset, sizeof(message));
      } else {
        ++mesh_.tensors_sent_;
      }
      mesh_.changed_.NotifyAll();
      return absl::OkStatus();
    }
    absl::Status WaitReceive(int) override {
      MutexLock lock(mesh_.mutex_);
      while (received_ == 0 && mesh_.cause_.ok() && !mesh_.gone_) {
        mesh_.changed_.Wait(mesh_.mutex_);
      }
      if (received_ > 0) {
        --received_;
        return absl::OkStatus();
      }
      if (!mesh_.cause_.ok()) return mesh_.cause_;
      return absl::UnavailableError("rank 1 left the group");
    }
    absl::Status WaitSend(int) override {
      MutexLock lock(mesh_.mutex_);
      while (mesh_.holds_sends_ && mesh_.cause_.ok()) {
        mesh_.changed_.Wait(mesh_.mutex_);
      }
      return mesh_.cause_;
    }

    ScriptMesh& mesh_;
    std::byte* const data_;
    int received_ = 0;
  };
  struct Announced {
    ScriptBuffer* buffer;
    std::byte* at;
  };

  mutable Mutex mutex_;
  CondVar changed_;
  absl::Status cause_ ABSL_GUARDED_BY(mutex_);
  bool gone_ ABSL_GUARDED_BY(mutex_) = false;
  bool holds_sends_ ABSL_GUARDED_BY(mutex_) = false;
  std::deque<Announced> announced_ ABSL_GUARDED_BY(mutex_);
  std::deque<Message> sent_ ABSL_GUARDED_BY(mutex_);
  int tensors_sent_ ABSL_GUARDED_BY(mutex_) = 0;
};

class PointToPointTest : public ::testing::Test {
 protected:
  ~PointToPointTest() override { End(absl::CancelledError("over")); }

  void End(const absl::Status& cause) {
    if (ended_) return;
    ended_ = true;
    mesh_.Abort(cause);
    point_to_point_.Quiesce();
    point_to_point_.Close(cause);
  }

  std::shared_ptr<Work> Send(std::vector<float>& values, int tag = 0) {
    return point_to_point_.Start({.kind = CollectiveKind::kSend,
                                  .inputs = {Tensor(values)},
                                  .peer = 1,
                                  .tag = tag,
                                  .sequence = ++sequence_});
  }
  std::shared_ptr<Work> Receive(std::vector<float>& values, int tag = 0) {
    return point_to_point_.Start({.kind = CollectiveKind::kRecv,
                                  .outputs = {Tensor(values)},
                                  .peer = 1,
                                  .tag = tag,
                                  .sequence = ++sequence_});
  }

  static Message Offer(Message::Type type, size_t count, uint64_t id = 0) {
    Message message;
    message.type = type;
    message.count = count;
    message.id = id;
    message.data_type = static_cast<uint8_t>(DataType::kFloat32);
    return message;
  }

  // How the group has failed, once it has.
  absl::Status Failure() {
    MutexLock lock(mutex_);
    while (failure_.ok()) failed_.Wait(mutex_);
    return failure_;
  }

  Mutex mutex_;
  CondVar failed_;
  absl::Status failure_ ABSL_GUARDED_BY(mutex_);
  ScriptMesh mesh_;
  PointToPoint point_to_point_{"g", mesh_, [this](const absl::Status& why) {
                                 MutexLock lock(mutex_);
                                 if (failure_.ok()) failure_ = why;
                                 failed_.NotifyAll();
                               }};
  uint64_t sequence_ = 0;
  bool ended_ = false;
};

TEST_F(PointToPointTest, LargeTensorIsRequestedClearedSentAndTaken) {
  std::vector<float> values(kLarge);
  const auto work = Send(values);
  const Message request = mesh_.TakeSent();
  EXPECT_EQ(request.type, Message::kRequest);
  EXPECT_EQ(request.count, kLarge);
  EXPECT_EQ(mesh_.tensors_sent(), 0);
  mesh_.Deliver(Offer(Message::kClear, 0, request.id));
  EXPECT_EQ(mesh_.TakeSent().type, Message::kDone);
  EXPECT_EQ(mesh_.tensors_sent(), 1);
  EXPECT_FALSE(work->IsCompleted());
  mesh_.Deliver(Offer(Message::kTaken, 0, request.id));
  EXPECT_TRUE(work->Wait().ok());
}

TEST_F(PointToPointTest, RequestIsClearedOnceAReceiveWantsIt) {
  std::vector<float> values(kLarge);
  std::vector<float> small(1);
  const auto first = Receive(small, /*tag=*/9);
  mesh_.Deliver(Offer(Message::kRequest, kLarge, 7));
  const auto work = Receive(values);
  const Message clear = mesh_.TakeSent();
  EXPECT_EQ(clear.type, Message::kClear);
  EXPECT_EQ(clear.id, 7u);
  EXPECT_FALSE(work->IsCompleted());
  mesh_.Deliver(Offer(Message::kDone, 0, 7));
  EXPECT_TRUE(work->Wait().ok());
  EXPECT_EQ(work->source_rank(), 1);
  EXPECT_EQ(mesh_.TakeSent().type, Message::kTaken);
  EXPECT_FALSE(first->IsCompleted());
}

// The test's memory is the peer's.
class NearPointToPointTest : public PointToPointTest {
 protected:
  static constexpr uint64_t kValue = 0x1234567;

  NearPointToPointTest() { mesh_.MakeNear(mark_, kValue); }

  static Message RequestOf(const std::vector<float>& values, uint64_t id) {
    Message request = Offer(Message::kRequest, values.size(), id);
    request.address = reinterpret_cast<uint64_t>(values.data());
    return request;
  }
  void ExpectSent(Message::Type type, uint64_t id) {
    const Message message = mesh_.TakeSent();
    EXPECT_EQ(message.type, type);
    EXPECT_EQ(message.id, id);
  }

  Mark mark_{kValue};
};

TEST_F(NearPointToPointTest, LargeTensorIsReadWhereItIs) {
  // More than is read at once.
  std::vector<float> theirs(3'000'000);
  for (size_t i = 0; i < theirs.size(); ++i) theirs[i] = static_cast<float>(i);
  std::vector<float> first(theirs.size());
  const auto waiting = Receive(first);
  mesh_.Deliver(RequestOf(theirs, 7));
  EXPECT_TRUE(waiting->Wait().ok());
  EXPECT_EQ(waiting->source_rank(), 1);
  EXPECT_TRUE(first == theirs);
  ExpectSent(Message::kReads, 7);
  ExpectSent(Message::kTaken, 7);
  // The same of one that is wanted later.
  std::vector<float> small(1);
  const auto other = Receive(small, /*tag=*/9);
  mesh_.Deliver(RequestOf(theirs, 8));
  Message last = Offer(Message::kEager, 1);
  last.tag = 9;
  mesh_.Deliver(last, {5});
  EXPECT_TRUE(other->Wait().ok());
  std::vector<float> second(theirs.size());
  EXPECT_TRUE(Receive(second)->Wait().ok());
  EXPECT_TRUE(second == theirs);
  ExpectSent(Message::kReads, 8);
  ExpectSent(Message::kTaken, 8);
}

TEST_F(NearPointToPointTest, WhatCannotBeReadIsSent) {
  std::vector<float> theirs(kLarge, 3);
  std::vector<float> mine(kLarge);
  // As of a peer that has taken its memory back.
  mark_.Clear();
  const auto work = Receive(mine);
  mesh_.Deliver(RequestOf(theirs, 7));
  ExpectSent(Message::kReads, 7);
  ExpectSent(Message::kClear, 7);
  EXPECT_FALSE(work->IsCompleted());
  mesh_.Deliver(Offer(Message::kDone, 0, 7));
  EXPECT_TRUE(work->Wait().ok());
  ExpectSent(Message::kTaken, 7);
}

TEST_F(NearPointToPointTest, SenderSaysWhereItsTensorIs) {
  std::vector<float> values(kLarge);
  const auto work = Send(values);
  const Message request = mesh_.TakeSent();
  EXPECT_EQ(request.type, Message::kRequest);
  EXPECT_EQ(request.address, reinterpret_cast<uint64_t>(values.data()));
  mesh_.Deliver(Offer(Message::kReads, 0, request.id));
  mesh_.Deliver(Offer(Message::kTaken, 0, request.id));
  EXPECT_TRUE(work->Wait().ok());
  EXPECT_EQ(mesh_.tensors_sent(), 0);
}

TEST_F(NearPointToPointTest, ASendThatIsBeingReadIsCompleteWhenThePeerLeaves) {
  std::vector<float> values(kLarge);
  const auto work = Send(values);
  const Message request = mesh_.TakeSent();
  std::vector<float> small(1);
  const auto other = Receive(small);
  mesh_.Deliver(Offer(Message::kReads, 0, request.id));
  // Messages are taken in their order.
  mesh_.Deliver(Offer(Message::kEager, 1), {5});
  EXPECT_TRUE(other->Wait().ok());
  mesh_.Leave();
  EXPECT_TRUE(work->Wait().ok());
}

TEST_F(NearPointToPointTest, ASendThatNobodyReadsFailsWhenThePeerLeaves) {
  std::vector<float> values(kLarge);
  const auto work = Send(values);
  mesh_.Leave();
  EXPECT_EQ(Failure(), absl::UnavailableError(
                           "send #1 on group \"g\": rank 1 left the group"));
}

TEST_F(PointToPointTest, MoreSmallOnesThanTheReceiverClaimsBecomeRequests) {
  std::vector<float> values(3);
  for (int i = 0; i < 64; ++i) {
    EXPECT_TRUE(Send(values)->Wait().ok());
    EXPECT_EQ(mesh_.TakeSent().type, Message::kEager);
  }
  const auto waiting = Send(values);
  EXPECT_EQ(mesh_.TakeSent().type, Message::kRequest);
  EXPECT_FALSE(waiting->IsCompleted());
  mesh_.Deliver(Offer(Message::kCredit, 1));
  // Messages are taken in their order, so this one is when its answer comes.
  std::vector<float> other(1);
  const auto received = Receive(other);
  mesh_.Deliver(Offer(Message::kEager, 1), {5});
  EXPECT_TRUE(received->Wait().ok());
  EXPECT_EQ(other[0], 5);
  EXPECT_TRUE(Send(values)->Wait().ok());
  EXPECT_EQ(mesh_.TakeSent().type, Message::kEager);
  (void)Send(values);
  EXPECT_EQ(mesh_.TakeSent().type, Message::kRequest);
}

TEST_F(PointToPointTest, SenderIsToldOfEvery32SmallOnesThatWereClaimed) {
  std::vector<float> values(1);
  for (int i = 0; i < 32; ++i) {
    const auto work = Receive(values);
    mesh_.Deliver(Offer(Message::kEager, 1), {static_cast<float>(i)});
    EXPECT_TRUE(work->Wait().ok());
    EXPECT_EQ(values[0], static_cast<float>(i));
  }
  const Message credit = mesh_.TakeSent();
  EXPECT_EQ(credit.type, Message::kCredit);
  EXPECT_EQ(credit.count, 32u);
}

TEST_F(PointToPointTest, SmallSendThatHasNotLeftIsCompleteWhenThePeerLeaves) {
  mesh_.HoldSends();
  std::vector<float> values(3);
  const auto work = Send(values);
  EXPECT_FALSE(work->IsCompleted());
  mesh_.Leave();
  EXPECT_TRUE(work->Wait().ok());
  // But the next one needs it.
  (void)Send(values);
  EXPECT_EQ(Failure(), absl::UnavailableError(
                           "send #2 on group \"g\": rank 1 left the group"));
}

TEST_F(PointToPointTest, ReceiveAndLargeSendFailWhenThePeerLeaves) {
  std::vector<float> values(kLarge);
  const auto work = Send(values);
  mesh_.Leave();
  EXPECT_EQ(Failure(), absl::UnavailableError(
                           "send #1 on group \"g\": rank 1 left the group"));
  End(absl::AbortedError("the group failed"));
  EXPECT_EQ(work->Wait(), absl::AbortedError("the group failed"));
}

TEST_F(PointToPointTest, RubbishFromThePeerEndsTheGroup) {
  struct Case {
    Message message;
    const char* text;
  };
  Message type = Offer(Message::kEager, 1);
  type.data_type = 99;
  const Case cases[] = {
      {Offer(static_cast<Message::Type>(55), 0),
       "rank 1 sent a message of unknown type 55"},
      {type, "rank 1 sent a message of 1 elements of type 99"},
      {Offer(Message::kEager, kLarge),
       "rank 1 sent a message of 8193 elements of type 7"},
      {Offer(Message::kClear, 0, 3), "rank 1 cleared a send that is not there"},
      {Offer(Message::kDone, 0, 3), "rank 1 sent a tensor that nobody awaits"},
  };
  std::vector<float> values(1);
  (void)Receive(values, /*tag=*/9);
  for (const Case& c : cases) {
    mesh_.Deliver(c.message);
    EXPECT_EQ(Failure(), absl::InternalError(c.text));
    MutexLock lock(mutex_);
    failure_ = absl::OkStatus();
  }
}

}  // namespace
}  // namespace muster::dataplane::gloo_internal
