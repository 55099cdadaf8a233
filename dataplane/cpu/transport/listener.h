#ifndef MUSTER_DATAPLANE_CPU_TRANSPORT_LISTENER_H_
#define MUSTER_DATAPLANE_CPU_TRANSPORT_LISTENER_H_

#include <cstdint>
#include <functional>
#include <optional>
#include <thread>
#include <vector>

#include "dataplane/cpu/transport/address_exchange.h"
#include "dataplane/cpu/transport/process_memory.h"
#include "dataplane/cpu/transport/shared_thread.h"
#include "dataplane/cpu/transport/unproved_connections.h"
#include "muster/base/clock.h"
#include "muster/base/status.h"

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

  // Listens at the host of `address` and returns the address with the port.
  // Errors: kResourceExhausted (this process has no descriptor or memory left),
  // kUnavailable.
  StatusOr<RankAddress> Listen(AddressBytes address);

  // Two connections to each peer (see TcpConnections and ControlConnections) by
  // rank, -1 for this rank; and the memory of each peer on this host, if both
  // ranks may read each other's.
  struct Sockets {
    std::vector<int> data = {};
    std::vector<int> control = {};
    std::vector<std::optional<PeerMemory>> memories = {};
  };

  // Connects to all peers; `addresses[r]` is the address of rank r. Errors:
  // kDeadlineExceeded, naming the ranks that did not connect; kUnavailable,
  // naming a rank that does not listen, refuses this rank, or has gone (its
  // goodbye may tell why); kCancelled after Wake; kResourceExhausted as in
  // Listen.
  StatusOr<Sockets> Connect(const std::vector<RankAddress>& addresses,
                            Instant deadline);

  // After Connect has failed: returns the control connections whose peer knows,
  // or will know, which rank this is. By rank, -1 for the others.
  std::vector<int> TakeControlConnections();

  // The answer to a peer that offers one more connection.
  enum class Reply : int32_t {
    kTaken = 1,
    kNotNeeded,  // this rank offers the peer one itself
    kRefused,
  };
  // Decides about an offer and calls `tell` with the decision. If that is
  // kTaken, the function owns `socket` from then on.
  using Take = std::function<void(
      int peer, int socket, const std::function<void(Reply reply)>& tell)>;

  // After Connect: calls `take` for the peers' offers until Stop, on a separate
  // thread, which starts at the first connection.
  void Serve(Take take);

  // The steps of an offer of one more connection, none of which waits:
  // StartOffer returns a socket that connects to `peer`, owned by the caller.
  // Call SendOffer when it can be written, and ReadReply, which returns kTaken
  // or kNotNeeded, when it can be read. After Connect, from any thread. Errors:
  // kUnavailable naming the peer; kAborted if the peer has dropped the
  // connection without reading the offer (start again, kAttempts in all);
  // kResourceExhausted as in Listen.
  StatusOr<int> StartOffer(int peer) const;
  Status SendOffer(int peer, int socket) const;
  StatusOr<Reply> ReadReply(int peer, int socket) const;

  // The number of attempts to connect. If many clients connect, a listener
  // drops those whose handshake is late.
  static constexpr int kAttempts = 8;

  // Makes waiting calls and all later ones fail. From any thread; does not
  // block.
  void Wake();

  // As Wake; also ends the thread, closes the listening socket, and invalidates
  // every later read of this process's memory by a peer. No thread may be in
  // another call.
  void Stop();

 private:
  struct Handshake;

  enum class State {
    kAwaited,     // the peer will connect
    kConnecting,  // to the peer
    kGreeted,     // this rank waits for the peer's answer
    kAnswered,    // this rank waits to hear if the peer can read its memory
    kRefused,     // the peer closed the connection, or does not listen
    kSettled,
    kGone,  // was settled; then the peer closed it or said goodbye
  };

  // The purpose of a connection.
  enum Kind { kData, kControl, kConnectionKinds };

  struct Connection {
    int socket = -1;
    State state = State::kAwaited;
    // In state kRefused: an errno, or 0.
    int error = 0;
    // Set for data connections only.
    std::optional<PeerMemory> memory = {};
    // How often this rank has tried to connect.
    int attempts = 0;

    void Refused(int reason);
  };

  // Whether the two ranks exchange marks before the connection is settled.
  bool SharesMemory(int kind, int peer) const;
  // The peer's memory by its `handshake`; nullopt if this rank cannot read it.
  std::optional<PeerMemory> FindMemory(int peer,
                                       const Handshake& handshake) const;
  // Reads the handshake from a socket of an unknown client. Returns true if the
  // client is now known or was refused, false if the handshake has not come.
  bool TakeHandshake(int socket);
  bool TakeOffer(int socket) const;
  Status StartConnecting(int kind, int peer);
  // Call it after the peer has closed the connection without an answer; `error`
  // is an errno or 0.
  Status ConnectAgain(int kind, int peer, int error);
  // Takes the next step on a ready socket to `peer`: sends the handshake, or
  // reads the peer's answer or verdict.
  Status Greet(int kind, int peer);
  Status TakeAnswer(int kind, int peer);
  void TakeVerdict(Connection& connection);
  // Waits until an unsettled connection is ready or `deadline` comes, and takes
  // the next steps.
  Status AwaitGreetings(Instant deadline, UnprovedConnections& unproved);
  std::vector<int> MissingRanks() const;
  // Whether Connect may go on waiting.
  Status CheckMissing(const std::vector<int>& missing, Instant deadline) const;
  Status ConnectSockets(Instant deadline);
  // Returns the time of the next try.
  Instant StartServer();
  void RunServer();
  Status CannotOffer(int peer, int error) const;

  const int rank_;
  const int woken_;  // an eventfd
  // The errno if eventfd failed, or 0.
  const int woken_error_;
  const uint64_t nonce_;
  const int world_size_;
  const bool reads_memory_;
  // Its value is the nonce.
  Mark mark_;
  AddressBytes own_;
  int listening_socket_ = -1;
  std::vector<Connection> connections_[kConnectionKinds];
  // Constant after Connect.
  std::vector<RankAddress> addresses_;
  // Used only by the server thread.
  Take take_;
  // Waits for the first client.
  std::optional<SharedThread::Task> awaits_offer_;
  std::thread server_;
};

}  // namespace muster::dataplane::cpu

#endif  // MUSTER_DATAPLANE_CPU_TRANSPORT_LISTENER_H_
