#ifndef MUSTER_DATAPLANE_CPU_TRANSPORT_TRANSPORT_H_
#define MUSTER_DATAPLANE_CPU_TRANSPORT_TRANSPORT_H_

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <memory>
#include <optional>
#include <vector>

#include "dataplane/cpu/transport/p2p_connections.h"
#include "dataplane/cpu/transport/process_memory.h"
#include "muster/base/status.h"

namespace muster::dataplane::cpu {

class Transport;

// Memory from and to which a Transport moves data. Several sends and receives
// may be in progress; those with one peer complete in the order in which they
// were posted. Used by one thread at a time. After its destruction nothing
// writes to its memory any more.
class Buffer {
 public:
  virtual ~Buffer() = default;

  // Posts a receive of the next `bytes` from `peer` to [offset, offset +
  // bytes), or a send. Both sides must give the same size.
  virtual Status Receive(int peer, size_t offset, size_t bytes) = 0;
  virtual Status Send(int peer, size_t offset, size_t bytes) = 0;

  // Waits until the oldest receive or send under way is done. Errors: the cause
  // given to Transport::Abort; kUnavailable naming the rank that is gone;
  // kInvalidArgument naming the rank whose memory cannot be used.
  virtual Status WaitReceive(int peer) = 0;
  virtual Status WaitSend(int peer) = 0;
};

// Transport is one rank's connections to all other ranks of its group: one
// connection each for collectives, one for a goodbye, and one to each peer with
// which this rank exchanges sends and receives.
//
// A rank sends each peer at most one goodbye. With it a rank that ends because
// of an error tells its peers the culprit, and a rank that leaves in peace is
// not mistaken for dead.
class Transport {
 public:
  virtual ~Transport() = default;

  // Makes a buffer for collectives. One thread at a time may use these buffers,
  // Write and Read. Their bytes travel in one order per peer. waiting_for()
  // shows the rank they wait for.
  virtual std::unique_ptr<Buffer> CreateBuffer(void* data, size_t bytes) = 0;

  // The connections for sends and receives, or null if there are none.
  virtual P2pConnections* p2p_connections() { return nullptr; }

  // Writes `head` and then `body`, or waits until `bytes` have arrived, in one
  // order with the buffers. Errors: as in Buffer's waits.
  virtual Status Write(int peer, const void* head, size_t head_bytes,
                       const void* body, size_t body_bytes) = 0;
  virtual Status Read(int peer, void* data, size_t bytes) = 0;

  // Makes every current and later wait return `cause`. From any thread; does
  // not block. Only the first call counts.
  virtual void Abort(const Status& cause) = 0;

  // OK, or the cause of the abort.
  virtual Status abort_cause() const = 0;

  // Checks whether a peer is gone that did not leave in peace. (A peer that
  // left in peace may have sent everything that is needed.) Returns OK, or the
  // first such peer's end: kUnavailable or the error in its goodbye. From any
  // thread.
  virtual Status CheckPeers() = 0;

  // Returns the error with which a wait for `peer`, which must be gone, would
  // fail. Waits for its goodbye.
  virtual Status Gone(int peer) = 0;

  // Sends `goodbye` (an error, or kCancelled to leave in peace) to all peers
  // and closes the connections. No thread may call a Buffer meanwhile or later.
  virtual void Close(const Status& goodbye) = 0;

  // Returns the memory of `peer`, or null if this rank cannot read it. It can
  // be read until that peer has closed its connections. Two ranks are near each
  // other if each reads the other's memory.
  const PeerMemory* FindMemory(int peer) const {
    return memories_[peer].has_value() ? &*memories_[peer] : nullptr;
  }

  // Whether this rank is near all others.
  bool is_near_all() const {
    return std::count_if(memories_.begin(), memories_.end(),
                         [](const auto& memory) {
                           return memory.has_value();
                         }) == world_size_ - 1;
  }

  // The rank for which the thread of a collective waits, or -1. After a failed
  // wait it remains the rank of that wait.
  int waiting_for() const {
    const int rank = waiting_for_.load();
    return rank >= 0 ? rank : waiting_beside_for_.load();
  }
  // For waits that do not use this object, on any thread.
  void set_waiting_for(int rank) { waiting_beside_for_.store(rank); }

  // The algorithm of this rank's last collective; empty before the first.
  // `name` must live for ever.
  const char* algorithm() const {
    return algorithm_.load(std::memory_order_relaxed);
  }
  void set_algorithm(const char* name) {
    algorithm_.store(name, std::memory_order_relaxed);
  }

  // The number of `rank` in the group, for texts. It differs from `rank` if
  // this transport is a SubsetTransport.
  virtual int RankInGroup(int rank) const { return rank; }

  int rank() const { return rank_; }
  int world_size() const { return world_size_; }

 protected:
  Transport(int rank, int world_size)
      : memories_(world_size), rank_(rank), world_size_(world_size) {}

  std::atomic<int> waiting_for_{-1};
  std::vector<std::optional<PeerMemory>> memories_;

 private:
  std::atomic<int> waiting_beside_for_{-1};
  std::atomic<const char*> algorithm_{""};

  const int rank_;
  const int world_size_;
};

}  // namespace muster::dataplane::cpu

#endif  // MUSTER_DATAPLANE_CPU_TRANSPORT_TRANSPORT_H_
