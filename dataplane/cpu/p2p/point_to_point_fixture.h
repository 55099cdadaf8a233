#ifndef MUSTER_DATAPLANE_CPU_P2P_POINT_TO_POINT_FIXTURE_H_
#define MUSTER_DATAPLANE_CPU_P2P_POINT_TO_POINT_FIXTURE_H_

// A fixture for tests of the messages that two ranks exchange about sends and
// receives: this rank is 0, and the test plays rank 1, over a transport without
// a network.

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "base/serial_executor.h"
#include "dataplane/cpu/p2p/point_to_point.h"
#include "dataplane/cpu/transport/fake_transport.h"
#include "dataplane/cpu/transport/p2p_connections.h"
#include "dataplane/cpu/transport/process_memory.h"
#include "gtest/gtest.h"
#include "muster/base/mutex.h"
#include "muster/base/status.h"
#include "muster/base/thread_annotations.h"
#include "muster/dataplane/collective.h"
#include "muster/dataplane/work.h"

namespace muster::dataplane::cpu {

inline constexpr size_t kLarge = kMessagePayloadBytesMax / sizeof(float) + 1;

// A transport whose peer is scripted by the test.
class ScriptTransport : public FakeTransport, private P2pConnections {
 public:
  ScriptTransport() : FakeTransport(/*rank=*/0, /*world_size=*/2) {}

  P2pConnections* p2p_connections() override { return this; }
  Status Write(int, const void*, size_t, const void*, size_t) override {
    return UnimplementedError("no collectives here");
  }
  Status Read(int, void*, size_t) override {
    return UnimplementedError("no collectives here");
  }
  void Abort(const Status& cause) override {
    MutexLock lock(mutex_);
    if (cause_.ok()) cause_ = cause;
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
    const size_t bytes = payload.size() * sizeof(float);
    RunOnThread([this, message, payload, bytes] {
      if (message.type == Message::kTensor) {
        void* const memory = callbacks_.find_memory(1, message, bytes);
        if (memory == nullptr) return;
        std::ranges::copy(payload, static_cast<float*>(memory));
        callbacks_.received(1, message, {});
        return;
      }
      callbacks_.received(1, message, std::as_bytes(std::span(payload)));
    });
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
    RunOnThread([this] {
      callbacks_.ended(1, UnavailableError("rank 1 left the group"));
    });
  }

  // Posted sends do not leave from now on.
  void HoldSends() {
    MutexLock lock(mutex_);
    holds_sends_ = true;
  }

  // The posted sends leave.
  void LetSendsLeave() {
    std::vector<uint64_t> tickets;
    {
      MutexLock lock(mutex_);
      holds_sends_ = false;
      tickets.swap(held_);
    }
    for (const uint64_t ticket : tickets) {
      RunOnThread([this, ticket] { callbacks_.sent(1, ticket); });
    }
  }

  // Nothing can be opened or posted from now on: no thread is left.
  void LackThreads() { lacks_threads_ = true; }

  // The number of tensors that this rank has sent.
  int tensors_sent() const {
    MutexLock lock(mutex_);
    return tensors_sent_;
  }

 private:
  void SetCallbacks(Callbacks callbacks) override {
    callbacks_ = std::move(callbacks);
  }
  void Open(int) override {
    if (lacks_threads_) {
      throw std::system_error(EAGAIN, std::generic_category());
    }
  }
  bool Post(int, const Message& message, const void*, size_t,
            uint64_t ticket) override {
    if (lacks_threads_) {
      throw std::system_error(EAGAIN, std::generic_category());
    }
    MutexLock lock(mutex_);
    AddSent(message, ticket);
    return false;
  }
  void PostTensor(int, const Message& message, const void*, size_t,
                  uint64_t ticket) override {
    MutexLock lock(mutex_);
    ++tensors_sent_;
    AddSent(message, ticket);
  }
  void AddSent(const Message& message, uint64_t ticket)
      MUSTER_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    sent_.push_back(message);
    changed_.NotifyAll();
    if (ticket == 0 || thread_ == nullptr) return;
    if (holds_sends_) {
      held_.push_back(ticket);
      return;
    }
    thread_->Post([this, ticket] {
      callbacks_.sent(1, ticket);
      return OkStatus();
    });
  }
  void Run(std::function<bool()> step) override {
    RunOnThread([step = std::move(step)] {
      while (!step()) {
      }
    });
  }
  void Join() override {
    std::unique_ptr<SerialExecutor> thread;
    {
      MutexLock lock(mutex_);
      thread = std::move(thread_);
    }
  }

  void RunOnThread(std::function<void()> task) {
    MutexLock lock(mutex_);
    if (thread_ == nullptr) return;
    thread_->Post([task = std::move(task)] {
      task();
      return OkStatus();
    });
  }

  Callbacks callbacks_;
  bool lacks_threads_ = false;
  mutable Mutex mutex_;
  CondVar changed_;
  Status cause_ MUSTER_GUARDED_BY(mutex_);
  bool holds_sends_ MUSTER_GUARDED_BY(mutex_) = false;
  std::vector<uint64_t> held_ MUSTER_GUARDED_BY(mutex_);
  std::deque<Message> sent_ MUSTER_GUARDED_BY(mutex_);
  int tensors_sent_ MUSTER_GUARDED_BY(mutex_) = 0;
  // The progress thread. Null after Join.
  std::unique_ptr<SerialExecutor> thread_ MUSTER_GUARDED_BY(mutex_) =
      std::make_unique<SerialExecutor>();
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
