#ifndef MUSTER_DATAPLANE_CPU_P2P_POINT_TO_POINT_FIXTURE_H_
#define MUSTER_DATAPLANE_CPU_P2P_POINT_TO_POINT_FIXTURE_H_

// A fixture for tests of the messages that two ranks exchange about sends and
// receives: this rank is 0, and the test plays rank 1, over a transport without
// a network.

#include <cstring>
#include <deque>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/mutex.h"
#include "base/status.h"
#include "base/thread_annotations.h"
#include "dataplane/collective.h"
#include "dataplane/cpu/p2p/point_to_point.h"
#include "dataplane/cpu/transport/p2p_connection.h"
#include "dataplane/cpu/transport/process_memory.h"
#include "dataplane/cpu/transport/transport.h"
#include "dataplane/work.h"
#include "gtest/gtest.h"

namespace muster::dataplane::cpu {

inline constexpr size_t kLarge = kMessagePayloadBytesMax / sizeof(float) + 1;

// A transport whose peer is scripted by the test.
class ScriptTransport : public Transport {
 public:
  ScriptTransport() : Transport(/*rank=*/0, /*world_size=*/2) {}

  std::unique_ptr<Buffer> CreateBuffer(void* data, size_t bytes) override {
    return std::make_unique<ScriptBuffer>(*this, static_cast<std::byte*>(data));
  }
  std::unique_ptr<Buffer> CreateGlooBuffer(void* data, size_t bytes) override {
    return CreateBuffer(data, bytes);
  }
  std::unique_ptr<Buffer> CreateQuietBuffer(void* data, size_t bytes) override {
    return CreateBuffer(data, bytes);
  }
  Status OpenQuiet(int) override { return OkStatus(); }
  Status Write(int, const void*, size_t, const void*, size_t) override {
    return UnimplementedError("no collectives here");
  }
  Status Read(int, void*, size_t) override {
    return UnimplementedError("no collectives here");
  }
  void Abort(const Status& cause) override {
    MutexLock lock(mutex_);
    if (cause_.ok()) cause_ = cause;
    changed_.NotifyAll();
  }
  Status abort_cause() const override {
    MutexLock lock(mutex_);
    return cause_;
  }
  Status CheckPeers() override { return OkStatus(); }
  Status Gone(int) override { return OkStatus(); }
  void Close(const Status&) override {}

  // Delivers a message from the peer.
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

  // Returns the next message that this rank sends.
  Message TakeSent() {
    MutexLock lock(mutex_);
    while (sent_.empty()) changed_.Wait(mutex_);
    const Message message = sent_.front();
    sent_.pop_front();
    return message;
  }

  // Lets this rank read the peer's memory: that of the process with `mark`.
  void MakeNear(const Mark& mark, uint64_t value) {
    memories_[1].emplace(mark.place(), value);
  }

  // The peer leaves in peace. Posted sends do not leave.
  void Leave() {
    MutexLock lock(mutex_);
    gone_ = true;
    changed_.NotifyAll();
  }

  // Posted sends do not leave from now on.
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
    ScriptBuffer(ScriptTransport& transport, std::byte* data)
        : transport_(transport), data_(data) {}

    Status Receive(int, uint64_t slot, size_t offset, size_t) override {
      MutexLock lock(transport_.mutex_);
      if (slot == kPointToPointSlot) {
        transport_.announced_.push_back({this, data_ + offset});
        transport_.changed_.NotifyAll();
      } else {
        ++received_;  // A tensor has come when its kDone has.
      }
      return OkStatus();
    }
    Status Send(int, uint64_t slot, size_t offset, size_t) override {
      MutexLock lock(transport_.mutex_);
      if (slot == kPointToPointSlot) {
        Message& message = transport_.sent_.emplace_back();
        std::memcpy(&message, data_ + offset, sizeof(message));
      } else {
        ++transport_.tensors_sent_;
      }
      transport_.changed_.NotifyAll();
      return OkStatus();
    }
    Status WaitReceive(int) override {
      MutexLock lock(transport_.mutex_);
      while (received_ == 0 && transport_.cause_.ok() && !transport_.gone_) {
        transport_.changed_.Wait(transport_.mutex_);
      }
      if (received_ > 0) {
        --received_;
        return OkStatus();
      }
      if (!transport_.cause_.ok()) return transport_.cause_;
      return UnavailableError("rank 1 left the group");
    }
    Status WaitSend(int) override {
      MutexLock lock(transport_.mutex_);
      while (transport_.holds_sends_ && transport_.cause_.ok()) {
        transport_.changed_.Wait(transport_.mutex_);
      }
      return transport_.cause_;
    }

    ScriptTransport& transport_;
    std::byte* const data_;
    int received_ = 0;
  };
  struct Announced {
    ScriptBuffer* buffer;
    std::byte* at;
  };

  mutable Mutex mutex_;
  CondVar changed_;
  Status cause_ MUSTER_GUARDED_BY(mutex_);
  bool gone_ MUSTER_GUARDED_BY(mutex_) = false;
  bool holds_sends_ MUSTER_GUARDED_BY(mutex_) = false;
  std::deque<Announced> announced_ MUSTER_GUARDED_BY(mutex_);
  std::deque<Message> sent_ MUSTER_GUARDED_BY(mutex_);
  int tensors_sent_ MUSTER_GUARDED_BY(mutex_) = 0;
};

class PointToPointTest : public ::testing::Test {
 protected:
  ~PointToPointTest() override { End(CancelledError("over")); }

  void End(const Status& cause) {
    if (ended_) return;
    ended_ = true;
    transport_.Abort(cause);
    point_to_point_->Quiesce();
    point_to_point_->Close(cause);
  }

  std::shared_ptr<Work> Send(std::vector<float>& values, int tag = 0) {
    return point_to_point_->Start({.kind = CollectiveKind::kSend,
                                   .inputs = {Tensor(values)},
                                   .peer = 1,
                                   .tag = tag,
                                   .sequence = ++sequence_});
  }
  std::shared_ptr<Work> Receive(std::vector<float>& values, int tag = 0) {
    return point_to_point_->Start({.kind = CollectiveKind::kRecv,
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

  static Message Credit(uint64_t count) {
    Message message;
    message.type = Message::kCredit;
    message.count = count;
    return message;
  }

  // Waits until the group has failed, and returns the error.
  Status Failure() {
    MutexLock lock(mutex_);
    while (failure_.ok()) failed_.Wait(mutex_);
    return failure_;
  }

  Mutex mutex_;
  CondVar failed_;
  Status failure_ MUSTER_GUARDED_BY(mutex_);
  ScriptTransport transport_;
  std::shared_ptr<PointToPoint> point_to_point_ =
      std::make_shared<PointToPoint>("g", transport_,
                                     [this](const Status& why) {
                                       MutexLock lock(mutex_);
                                       if (failure_.ok()) failure_ = why;
                                       failed_.NotifyAll();
                                     });
  uint64_t sequence_ = 0;
  bool ended_ = false;
};

}  // namespace muster::dataplane::cpu

#endif  // MUSTER_DATAPLANE_CPU_P2P_POINT_TO_POINT_FIXTURE_H_
