#ifndef MUSTER_DATAPLANE_BACKENDS_GLOO_LINES_H_
#define MUSTER_DATAPLANE_BACKENDS_GLOO_LINES_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <vector>

#include "absl/status/status.h"

namespace muster::dataplane::gloo_internal {

// Lines are connections of their own beside Gloo's, one to each peer, for the
// collectives. The thread that waits for something reads and writes the sockets
// itself, all of those on which something is under way: one write and one
// wake-up for each message. Gloo has a thread of its own read every socket,
// announces each send and each receive in a message, and so takes three writes
// and up to four wake-ups.
//
// They carry bytes, both ways and in their order. Used by one thread at a time,
// but for Wake.
class Lines {
 public:
  enum class Outcome {
    kDone,
    // Wake was called.
    kWoken,
    // The connection has ended.
    kBroken,
  };

  explicit Lines(int world_size);
  ~Lines();

  Lines(const Lines&) = delete;
  Lines& operator=(const Lines&) = delete;

  // Before anything else: the connected sockets, by rank; -1 at this one. Owns
  // them from now on. kResourceExhausted: no descriptor is left for Wake.
  absl::Status Take(const std::vector<int>& sockets);

  // Queues `bytes` to be sent to `peer`, or to be received from it. Returns the
  // number of this send, or receive: those with one peer end in their order.
  // Neither blocks, nor moves anything yet.
  uint64_t PostSend(int peer, const void* data, size_t bytes);
  uint64_t PostReceive(int peer, void* data, size_t bytes);

  // Waits until that one is done: the system has the bytes, or they have come.
  // Meanwhile everything moves that is under way. What came before a connection
  // ended can be received to the end.
  Outcome AwaitSend(int peer, uint64_t number);
  Outcome AwaitReceive(int peer, uint64_t number);

  // Sends `head` and then `body`, and waits for that. kBroken also when the
  // peer alone has closed its end.
  Outcome Write(int peer, const void* head, size_t head_bytes, const void* body,
                size_t body_bytes);
  Outcome Read(int peer, void* data, size_t bytes);

  // After kBroken: whose connection has ended.
  int broken_peer() const { return broken_peer_; }

  // Ends what waits, and everything later. From any thread.
  void Wake();

  // Closes all of them, and forgets what is under way.
  void Close();

 private:
  // What is left of a send or a receive.
  struct Part {
    std::byte* data;
    size_t bytes;
  };

  struct Line {
    int socket = -1;  // -1: not there
    std::deque<Part> sends;
    std::deque<Part> receives;
    // How many are done.
    uint64_t sent = 0;
    uint64_t received = 0;
  };

  enum class Progress { kMoved, kNothing, kBroken };

  void Activate(int peer);
  Progress Send(Line& line);
  Progress Receive(Line& line);
  // Moves what can be moved without waiting, on all lines.
  Progress MoveAll();
  // Moves until `counter` is beyond `number`.
  Outcome AwaitCounter(int peer, const uint64_t& counter, uint64_t number);

  const int woken_;  // an eventfd
  // errno of it.
  const int woken_error_;
  std::vector<Line> lines_;
  // Peers with which something is under way.
  std::vector<int> active_;
  int broken_peer_ = -1;
};

}  // namespace muster::dataplane::gloo_internal

#endif  // MUSTER_DATAPLANE_BACKENDS_GLOO_LINES_H_
