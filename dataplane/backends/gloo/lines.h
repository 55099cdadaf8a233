#ifndef MUSTER_DATAPLANE_BACKENDS_GLOO_LINES_H_
#define MUSTER_DATAPLANE_BACKENDS_GLOO_LINES_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "dataplane/backends/gloo/rendezvous.h"
#include "dataplane/instant.h"

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

  Lines(int rank, int world_size);
  ~Lines();

  Lines(const Lines&) = delete;
  Lines& operator=(const Lines&) = delete;

  // Listens at the host of `address`, and returns that with the port. Errors:
  // kResourceExhausted (this process has no descriptor or memory left),
  // kUnavailable.
  absl::StatusOr<LineAddress> Listen(AddressBytes address);

  // Connects to all peers: `addresses[r]` is where rank r listens. Both sides
  // of each have seen then that the other one is of this group. One that is
  // gone meanwhile, as `is_gone` says, is no error: its line is broken. Errors:
  // kDeadlineExceeded, naming the ranks that did not connect; kUnavailable,
  // naming one that refuses this rank; kResourceExhausted as of Listen.
  absl::Status Connect(const std::vector<LineAddress>& addresses,
                       Instant deadline,
                       const std::function<bool(int peer)>& is_gone);

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

  enum class State {
    kAwaited,     // the peer will connect
    kConnecting,  // to the peer
    kGreeted,     // its answer is awaited
    kRefused,     // the peer has closed it, or does not listen
    kSettled,     // it is known whether there is one
  };

  struct Line {
    int socket = -1;  // -1: broken, or not there yet
    State state = State::kAwaited;
    std::deque<Part> sends;
    std::deque<Part> receives;
    // How many are done.
    uint64_t sent = 0;
    uint64_t received = 0;
  };

  enum class Progress { kMoved, kNothing, kBroken };

  // A socket that somebody has connected to this rank, not knowing yet who.
  // Returns whether that is known now, or will never be.
  bool TakeHello(int socket, const std::vector<LineAddress>& addresses);
  absl::Status StartConnecting(int peer, const AddressBytes& address);
  // What comes next on a socket to `peer` that is ready for it: greets it, or
  // reads its answer.
  void Greet(int peer, uint64_t nonce);
  void Refused(int peer);
  absl::Status Accept(std::vector<int>& strangers);
  // Waits until something happens to a connection that is being made, or
  // `until`.
  absl::Status AwaitGreetings(const std::vector<LineAddress>& addresses,
                              Instant until, std::vector<int>& strangers);
  std::vector<int> MissingRanks() const;
  // Whether Connect may go on waiting.
  absl::Status CheckMissing(const std::vector<int>& missing, Instant deadline);

  void Activate(int peer);
  Progress Send(Line& line);
  Progress Receive(Line& line);
  // Moves what can be moved without waiting, on all lines.
  Progress MoveAll();
  // Moves until `counter` is beyond `number`.
  Outcome AwaitCounter(int peer, const uint64_t& counter, uint64_t number);

  const int rank_;
  const int woken_;  // an eventfd
  // errno of it.
  const int woken_error_;
  const uint64_t nonce_;
  int listener_ = -1;
  // When a peer first refused this rank.
  Instant refused_at_ = Instant::max();
  std::vector<Line> lines_;
  // Peers with which something is under way.
  std::vector<int> active_;
  int broken_peer_ = -1;
};

}  // namespace muster::dataplane::gloo_internal

#endif  // MUSTER_DATAPLANE_BACKENDS_GLOO_LINES_H_
