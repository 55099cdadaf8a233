#ifndef MUSTER_DATAPLANE_CPU_TRANSPORT_LISTENER_H_
#define MUSTER_DATAPLANE_CPU_TRANSPORT_LISTENER_H_

#include <cstdint>
#include <functional>
#include <optional>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "dataplane/cpu/transport/address_exchange.h"
#include "dataplane/cpu/transport/process_memory.h"
#include "dataplane/cpu/transport/shared_thread.h"
#include "dataplane/cpu/transport/unproved_connections.h"

namespace muster::dataplane::cpu {

// Listener is the one socket on which a rank of a group listens. First it
// connects the rank to all others and verifies that both sides belong to this
// group. Later it accepts further connections that they open.
class Listener {
 public:
  Listener(int rank, int world_size);
  ~Listener();

  Listener(const Listener&) = delete;
  Listener& operator=(const Listener&) = delete;

  // Listens at the host of `address`, and returns that with the port. Errors:
  // kResourceExhausted (this process has no descriptor or memory left),
  // kUnavailable.
  StatusOr<RankAddress> Listen(AddressBytes address);

  // Two connections to each peer: see TcpConnections and ControlConnections. By
  // rank, -1 at this one. And the memory of those that are on this host, if
  // they may read this rank's, too.
  struct Sockets {
    std::vector<int> data = {};
    std::vector<int> control = {};
    std::vector<std::optional<PeerMemory>> memories = {};
  };

  // Connects to all peers, `addresses[r]` being that of rank r. Errors:
  // kDeadlineExceeded, naming the ranks that did not connect; kUnavailable,
  // naming one that does not listen, refuses this rank, or has gone, of which
  // its goodbye may say more; kCancelled after Wake; kResourceExhausted as of
  // Listen.
  StatusOr<Sockets> Connect(const std::vector<RankAddress>& addresses,
                            Instant deadline);

  // After Connect has failed: the connections for goodbyes of those peers that
  // know, or will know, whose they are; by rank, -1 of others.
  std::vector<int> TakeControlConnections();

  // What becomes of one more connection that a peer offers.
  enum class Reply : int32_t {
    kTaken = 1,
    kNotNeeded,  // this rank offers the peer one itself
    kRefused,
  };
  // Decides, and calls `tell` with what it has decided. `socket` is the taker's
  // then if that is kTaken.
  using Take = std::function<void(
      int peer, int socket, const std::function<void(Reply reply)>& tell)>;

  // After Connect: has what peers offer taken until Stop, on a thread of its
  // own, which starts when somebody connects.
  void Serve(Take take);

  // Offers `peer` one more connection: the caller's socket if the peer has
  // taken it, -1 if the peer offers one itself. After Connect, from any thread.
  // Errors: kUnavailable naming the peer; kCancelled after Wake;
  // kResourceExhausted as of Listen.
  StatusOr<int> Offer(int peer) const;

  // Ends what waits, and everything later. From any thread; does not block.
  void Wake();

  // The same, and ends the thread and listens no more; and what peers read of
  // this process's memory they do not believe. Not while somebody asks.
  void Stop();

 private:
  struct Handshake;

  enum class State {
    kAwaited,     // the peer will connect
    kConnecting,  // to the peer
    kGreeted,     // its answer is awaited
    kAnswered,    // whether it can read this process's memory is awaited
    kRefused,     // the peer has closed it, or does not listen
    kSettled,
    kGone,  // the peer has closed it since, or has said goodbye
  };

  // What a connection is for.
  enum Kind { kData, kControl, kConnectionKinds };

  struct Connection {
    int socket = -1;
    State state = State::kAwaited;
    // Of kRefused: an errno, or 0.
    int error = 0;
    // Of a line.
    std::optional<PeerMemory> memory = {};
    // How often this rank has connected.
    int attempts = 0;

    void Refused(int reason);
  };

  // Whether ranks tell each other about their memory before this is settled.
  bool SharesMemory(int kind, int peer) const;
  // As `hello` says, if it can be read.
  std::optional<PeerMemory> MemoryOf(int peer,
                                     const Handshake& handshake) const;
  // A socket that somebody has connected to this rank, not knowing yet who.
  // Returns whether that is known now, or will never be.
  bool TakeHandshake(int socket);
  bool TakeOffer(int socket) const;
  Status StartConnecting(int kind, int peer);
  // The peer has closed it without an answer, which `error` says, or 0.
  Status ConnectAgain(int kind, int peer, int error);
  // What comes next on a socket to `peer` that is ready for it: greets it, or
  // reads its answer, or what it says to this rank's.
  Status Greet(int kind, int peer);
  Status TakeAnswer(int kind, int peer);
  void TakeVerdict(Connection& connection);
  // Waits until something happens to a connection that is being made, or
  // `deadline`.
  Status AwaitGreetings(Instant deadline, UnprovedConnections& unproved);
  std::vector<int> MissingRanks() const;
  // Whether Connect may go on waiting.
  Status CheckMissing(const std::vector<int>& missing, Instant deadline) const;
  Status ConnectSockets(Instant deadline);
  // When to try again.
  Instant StartServer();
  void RunServer();
  // Waits for `events` on a socket. False after Wake.
  bool AwaitSocket(int socket, int events) const;
  // kAborted: the peer has dropped it unheard.
  StatusOr<int> OfferOnce(int peer) const;
  Status CannotOffer(int peer, int error) const;

  const int rank_;
  const int woken_;  // an eventfd
  // errno of it.
  const int woken_error_;
  const uint64_t nonce_;
  const int world_size_;
  const bool reads_memory_;
  // The nonce again.
  Mark mark_;
  AddressBytes own_;
  int listening_socket_ = -1;
  std::vector<Connection> connections_[kConnectionKinds];
  // Constant after Connect.
  std::vector<RankAddress> addresses_;
  // Of the server.
  Take take_;
  // Waits for somebody who connects.
  std::optional<SharedThread::Task> awaits_offer_;
  std::thread server_;
};

}  // namespace muster::dataplane::cpu

#endif  // MUSTER_DATAPLANE_CPU_TRANSPORT_LISTENER_H_
