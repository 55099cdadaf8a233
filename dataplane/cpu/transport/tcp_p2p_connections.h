#ifndef MUSTER_DATAPLANE_CPU_TRANSPORT_TCP_P2P_CONNECTIONS_H_
#define MUSTER_DATAPLANE_CPU_TRANSPORT_TCP_P2P_CONNECTIONS_H_

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <list>
#include <optional>
#include <span>
#include <thread>
#include <utility>
#include <vector>

#include "dataplane/cpu/transport/listener.h"
#include "dataplane/cpu/transport/p2p_connections.h"
#include "muster/base/clock.h"
#include "muster/base/mutex.h"
#include "muster/base/status.h"
#include "muster/base/thread_annotations.h"

namespace muster::dataplane::cpu {

// TcpP2pConnections are P2pConnections over TCP. Each connection is made at its
// first use, over the group's Listener. A message leaves on the thread that
// posts it if its connection takes it at once.
class TcpP2pConnections : public P2pConnections {
 public:
  // Returns the error of a peer whose connection ended at `since`, with
  // `failure` if that is known; nullopt if the reason is not known yet: it is
  // called again. `since` is max() if no connection has ended: nullopt unless
  // the peer is gone. Does not block.
  using FindGone = std::function<std::optional<Status>(
      int peer, const Status& failure, Instant since)>;
  // The time in which a peer that says that it connects must do so: as long as
  // the system tries to connect.
  static constexpr std::chrono::seconds kOfferTimeout{127};
  // The owner has `listener` call Take.
  TcpP2pConnections(int rank, int world_size, const Listener& listener,
                    FindGone find_gone,
                    std::chrono::milliseconds offer_timeout = kOfferTimeout);
  // Destroy it after Join.
  ~TcpP2pConnections() override;

  TcpP2pConnections(const TcpP2pConnections&) = delete;
  TcpP2pConnections& operator=(const TcpP2pConnections&) = delete;

  void SetCallbacks(Callbacks callbacks) override;
  void Open(int peer) override;
  bool Post(int peer, const Message& message, const void* payload, size_t bytes,
            uint64_t ticket) override;
  void PostTensor(int peer, const Message& message, const void* data,
                  size_t bytes, uint64_t ticket) override;
  void Run(std::function<bool()> step) override;
  void Join() override;

  // Handles a connection that a peer offers (Listener::Take).
  void Take(int peer, int socket,
            const std::function<void(Listener::Reply reply)>& tell);

  // Ends the work of the progress thread. Does not block.
  void Abort();

  // Closes all connections, those over which everything has arrived at once,
  // the others by `deadline`. Call it after Join; Take must not run meanwhile
  // or later.
  void Close(Instant deadline);

 private:
  // Precedes each payload.
  struct Head {
    uint64_t payload_bytes = 0;
    Message message;
  };

  // The unsent rest of a message.
  struct Outgoing {
    Head head;
    size_t head_bytes = sizeof(Head);
    std::vector<std::byte> copy = {};
    const std::byte* data = nullptr;
    size_t bytes = 0;
    uint64_t ticket = 0;
  };

  enum class Phase {
    kNone,
    kConnecting,  // this rank connects to offer the connection
    kOffered,     // this rank waits for the reply
    kAwaited,     // the peer is offering a connection itself
    kOpen,
    kEnded,
  };

  struct Connection {
    Phase phase = Phase::kNone;
    int socket = -1;
    int attempts = 0;
    // The peer reads nothing any more. Its messages may still come.
    bool is_cut = false;
    std::deque<Outgoing> sends = {};
    // Set in phase kEnded: the reason, or OK if the peer closed it.
    Status failure = OkStatus();
  };

  // The part of a connection that only the progress thread uses.
  struct Incoming {
    // Received bytes that are not interpreted yet.
    std::vector<std::byte> inbox = {};
    size_t end = 0;
    // The rest of a tensor that is coming.
    std::byte* tensor = nullptr;
    size_t tensor_bytes = 0;
    Message message = {};
  };

  // A peer that is offering a connection itself.
  struct Awaited {
    int peer;
    Instant since;
  };

  // A connection that has ended, until its reason is known.
  struct Ending {
    int peer;
    Status failure;
    Instant since;
  };

  enum class Progress { kMoved, kNothing, kEnded };

  // Throws std::system_error.
  void EnsureThread() MUSTER_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Wake() MUSTER_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Has the progress thread watch the connection for what is needed next.
  void Watch(int peer) MUSTER_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Connect(int peer) MUSTER_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Takes the next step of an offer.
  void Offer(int peer) MUSTER_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Has the progress thread close the connection and call `ended`.
  void End(int peer, const Status& failure)
      MUSTER_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Sends what can be sent without waiting. Adds the tickets of the messages
  // that have left.
  void Send(int peer, std::vector<uint64_t>& left)
      MUSTER_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void RunProgressThread(int poll);
  // Calls each step once. Returns whether some remain.
  bool RunSteps();
  void Advance(int peer);
  // Receives a bounded number of bytes.
  Progress Receive(int peer, int socket);
  // Tells of the tensor if all of it has come.
  void FinishTensor(int peer);
  // Handles the messages in the inbox. kEnded: the peer sent something else.
  Progress Interpret(int peer);
  // Begins to receive the payload of `head`, whose first bytes are `here`.
  // Returns the number of bytes taken; nullopt if the connection has ended.
  std::optional<size_t> BeginTensor(int peer, const Head& head,
                                    std::span<const std::byte> here);
  // Ends the connections whose peers are gone, or late. Returns whether some
  // are still awaited.
  bool CheckAwaited();
  // Closes the connections that have ended and calls `ended` for those whose
  // reason is known. Returns whether some remain.
  bool TellEnded();

  const int rank_;
  const Listener& listener_;
  const FindGone find_gone_;
  const std::chrono::milliseconds offer_timeout_;
  // Constant after SetCallbacks.
  Callbacks callbacks_;

  // By rank.
  std::vector<Incoming> incoming_;
  // Used only by the progress thread.
  std::vector<Awaited> awaited_;
  std::vector<Ending> endings_;

  Mutex mutex_;
  bool is_stopping_ MUSTER_GUARDED_BY(mutex_) = false;
  // By rank.
  std::vector<Connection> connections_ MUSTER_GUARDED_BY(mutex_);
  std::list<std::function<bool()>> steps_ MUSTER_GUARDED_BY(mutex_);
  // Peers for which `ended` is to be called.
  std::vector<int> ended_ MUSTER_GUARDED_BY(mutex_);

  // Made with the thread.
  int woken_ MUSTER_GUARDED_BY(mutex_) = -1;  // an eventfd
  int poll_ MUSTER_GUARDED_BY(mutex_) = -1;   // an epoll instance
  std::thread thread_;
};

}  // namespace muster::dataplane::cpu

#endif  // MUSTER_DATAPLANE_CPU_TRANSPORT_TCP_P2P_CONNECTIONS_H_
