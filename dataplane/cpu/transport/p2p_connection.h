#ifndef MUSTER_DATAPLANE_CPU_TRANSPORT_P2P_CONNECTION_H_
#define MUSTER_DATAPLANE_CPU_TRANSPORT_P2P_CONNECTION_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <thread>
#include <vector>

#include "base/mutex.h"
#include "base/status.h"
#include "base/thread_annotations.h"
#include "dataplane/cpu/transport/transport.h"

namespace muster::dataplane::cpu {

// The largest payload of a message, in bytes.
inline constexpr size_t kMessagePayloadBytesMax = 32 << 10;

// The header of a message about sends and receives: see PointToPoint.
struct Message {
  enum Type : uint32_t {
    kEager = 1,
    kRequest,
    kClear,
    kDone,
    kTaken,
    kCredit,
    kReads
  };

  uint32_t type = 0;
  int32_t tag = 0;
  // kEager, kRequest: the tensor's elements. kCredit: the number of credits.
  uint64_t count = 0;
  // All but kCredit: the number of the tensor among the sender's, from 1.
  uint64_t id = 0;
  // kRequest: the tensor's address in the sender's memory if the receiver may
  // read it there; else 0.
  uint64_t address = 0;
  uint8_t data_type = 0;
  uint8_t padding[7] = {};
};
static_assert(sizeof(Message) == 40);

// P2pConnection carries messages between this rank and one peer, in both
// directions and in order, and tensors that the peer waits for. One thread
// receives; another waits until posted data has left, and runs tasks. So posted
// data never keeps this rank from receiving, and two ranks cannot block each
// other.
class P2pConnection {
 public:
  // Called by the connection's threads, without locks.
  struct Receiver {
    // A message came. The payload is valid until the call returns.
    std::function<void(const Message&, const std::byte* payload)> received;
    // The message that was posted with `ticket` has left.
    std::function<void(uint64_t ticket)> sent;
    // The last call: no more messages come, for the given reason.
    std::function<void(const Status&)> ended;
  };

  P2pConnection(Transport& transport, int peer, Receiver listener);

  // Destroy it after Join and after the transport is closed.
  ~P2pConnection() = default;

  P2pConnection(const P2pConnection&) = delete;
  P2pConnection& operator=(const P2pConnection&) = delete;

  // Posts a message; `payload` is copied. `ticket` 0: `sent` is not called.
  // Does not block: a message posted before the reader thread has made the
  // connection leaves after that. Do not call it after Join.
  Status Post(const Message& message, const void* payload, size_t bytes,
              uint64_t ticket);

  // Posts a tensor on `slot`, on which the peer has announced its receive.
  Status PostTensor(uint64_t slot, void* data, size_t bytes);

  // Has a thread of the connection call `task`, unless Join comes first. Does
  // not block. Do not call it after Join.
  void Run(std::function<void()> task);

  // Ends the threads. Abort the transport first.
  void Join();

 private:
  // Receives announced ahead.
  static constexpr int kDepth = 4;
  static constexpr size_t kSlotBytes =
      sizeof(Message) + kMessagePayloadBytesMax;

  struct Posted {
    std::vector<std::byte> memory;
    std::unique_ptr<Buffer> buffer;
    uint64_t slot = 0;
    size_t bytes = 0;
    uint64_t ticket = 0;
  };

  Status PostBuffer(Posted posted);
  // Makes the connection and sends what was posted before.
  Status Open();
  Status Announce(int slot);
  void RunReader();
  void RunReaper();

  // Constant after construction.
  Transport& transport_;
  const int peer_;
  const Receiver listener_;

  // Used only by the reader thread.
  std::vector<std::byte> inbox_;
  const std::unique_ptr<Buffer> inbox_buffer_;

  Mutex mutex_;
  CondVar changed_;
  std::deque<Posted> posted_ MUSTER_GUARDED_BY(mutex_);
  std::deque<std::function<void()>> tasks_ MUSTER_GUARDED_BY(mutex_);
  bool open_ MUSTER_GUARDED_BY(mutex_) = false;
  bool joining_ MUSTER_GUARDED_BY(mutex_) = false;

  // Declared last: the threads use the other members.
  std::thread reader_;
  std::thread reaper_;
};

}  // namespace muster::dataplane::cpu

#endif  // MUSTER_DATAPLANE_CPU_TRANSPORT_P2P_CONNECTION_H_
