#ifndef MUSTER_DATAPLANE_CPU_TRANSPORT_P2P_CONNECTIONS_H_
#define MUSTER_DATAPLANE_CPU_TRANSPORT_P2P_CONNECTIONS_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>

#include "muster/base/status.h"

namespace muster::dataplane::cpu {

// The largest tensor that is sent before a receive asks for it, in bytes.
inline constexpr size_t kMessagePayloadBytesMax = 32 << 10;

// The header of a message about sends and receives: see PointToPoint.
struct Message {
  enum Type : uint32_t {
    kEager = 1,
    kRequest,
    kClear,
    kTensor,
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

// P2pConnections carry messages about sends and receives, and the tensors,
// between this rank and its peers: in both directions and, for each peer, in
// order. One thread, the progress thread, moves what cannot be moved at once,
// for all peers. It starts at the first Open or Run, or when a peer connects:
// messages are taken at once, so that a rank may leave after its sends.
// Thread-safe.
class P2pConnections {
 public:
  // Called by the progress thread, without locks.
  struct Callbacks {
    // A message came. The payload is valid until the call returns; that of
    // kTensor is where find_memory said.
    std::function<void(int peer, const Message&,
                       std::span<const std::byte> payload)>
        received;
    // Returns the memory for the payload of a kTensor message, or null if no
    // tensor of `bytes` is awaited. `received` ends the use of the memory.
    std::function<void*(int peer, const Message&, size_t bytes)> find_memory;
    // The message that was posted with `ticket` has left.
    std::function<void(int peer, uint64_t ticket)> sent;
    // The last call for `peer`: no more messages come, for the given reason.
    std::function<void(int peer, const Status&)> ended;
  };

  virtual ~P2pConnections() = default;

  // Call it first, before a peer can send anything.
  virtual void SetCallbacks(Callbacks callbacks) = 0;

  // Connects to `peer`. Does not block: messages posted before the connection
  // is made leave after that. Throws std::system_error if the process has no
  // thread left.
  virtual void Open(int peer) = 0;

  // Posts a message to an open peer. Returns true if it has left at once.
  // Otherwise `payload` is copied, and `sent` is called for a `ticket` other
  // than 0.
  virtual bool Post(int peer, const Message& message, const void* payload,
                    size_t bytes, uint64_t ticket) = 0;

  // Posts a message whose payload stays where it is until `sent` is called for
  // `ticket`, or Join.
  virtual void PostTensor(int peer, const Message& message, const void* data,
                          size_t bytes, uint64_t ticket) = 0;

  // Has the progress thread call `step` until it returns true, unless Join or
  // an abort of the transport comes first. Other work goes on between two
  // calls. Throws as Open.
  virtual void Run(std::function<bool()> step) = 0;

  // Ends the thread. Afterwards nothing is called, and no memory of a tensor is
  // used. Call nothing else afterwards.
  virtual void Join() = 0;
};

}  // namespace muster::dataplane::cpu

#endif  // MUSTER_DATAPLANE_CPU_TRANSPORT_P2P_CONNECTIONS_H_
