#ifndef MUSTER_DATAPLANE_CPU_TRANSPORT_TCP_CONNECTIONS_H_
#define MUSTER_DATAPLANE_CPU_TRANSPORT_TCP_CONNECTIONS_H_

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <vector>

#include "base/status.h"
#include "dataplane/cpu/transport/process_memory.h"

namespace muster::dataplane::cpu {

// TcpConnections are the collectives' own connections beside Gloo's, one to
// each peer. The thread that waits for data reads and writes all sockets with
// pending operations itself: one write and one wake-up per message. Gloo reads
// every socket on a thread of its own and announces each send and each receive
// in a message, which takes three writes and up to four wake-ups.
//
// They carry messages in both directions and in order: notes, which are read as
// bytes, and posted buffers. If this rank may read a peer's memory, it copies
// large posted buffers from there: the connection then carries an offer with
// the address, and an answer when the buffer was taken.
//
// Used by one thread at a time, except for Wake.
class TcpConnections {
 public:
  enum class Outcome {
    kDone,
    // Wake was called.
    kWoken,
    // The connection has ended, or some memory cannot be read or written.
    kBroken,
  };

  // By rank; none: what is posted goes through the connection.
  using Memories = std::vector<std::optional<PeerMemory>>;

  TcpConnections(int rank, int world_size);
  ~TcpConnections();

  TcpConnections(const TcpConnections&) = delete;
  TcpConnections& operator=(const TcpConnections&) = delete;

  // Before anything else: the connected sockets, by rank; -1 at this one. Owns
  // them from now on. Where a rank has `memories` of a peer, so has that one of
  // this rank. kResourceExhausted: no descriptor is left for Wake.
  Status Take(const std::vector<int>& sockets, const Memories& memories);

  // Queues `bytes` to be sent to `peer`, or to be received from it, which must
  // expect as many. Returns the number of this send, or receive: those with one
  // peer end in their order. Neither blocks, nor moves anything yet.
  uint64_t PostSend(int peer, const void* data, size_t bytes);
  uint64_t PostReceive(int peer, void* data, size_t bytes);

  // Waits until that one is done: `data` is not needed any more, or has come.
  // Meanwhile everything moves that is under way. A send may wait for its
  // receive to be posted, and for this rank to post those of what the peer sent
  // before it took that. What came before a connection ended can be received to
  // the end.
  Outcome AwaitSend(int peer, uint64_t number);
  Outcome AwaitReceive(int peer, uint64_t number);

  // Sends a note, `head` and then `body`, and waits until the system has it.
  // kBroken also when the peer alone has closed its end.
  Outcome Write(int peer, const void* head, size_t head_bytes, const void* body,
                size_t body_bytes);
  // Waits for the next `bytes` of notes.
  Outcome Read(int peer, void* data, size_t bytes);

  // After kBroken: whose connection has ended.
  int broken_peer() const { return broken_peer_; }
  // Or whose memory it is, and what is wrong with it; else OK.
  const Status& bad_memory() const { return bad_memory_; }

  // Ends what waits, and everything later. From any thread.
  void Wake();

  // Closes all of them, and forgets what is under way.
  void Close();

 private:
  enum class Kind : uint32_t { kNote, kData, kOffer, kTaken };

  // What every message begins with.
  struct Head {
    Kind kind = Kind::kNote;
    // Of kTaken: how many offers.
    uint32_t count = 0;
    // What follows, in a note and in data; or what is offered.
    uint64_t bytes = 0;
    // Of an offer: where that is.
    uint64_t address = 0;
  };

  // What is left of a message to be sent.
  struct Outgoing {
    Head head = {};
    size_t head_bytes = sizeof(Head);
    const std::byte* data = nullptr;
    size_t bytes = 0;
    // What ends with it, besides an answer: nothing yet, or a number.
    enum { kPart, kWhole, kAnswer } end = kWhole;
  };

  // Memory to be filled.
  struct Incoming {
    std::byte* data = nullptr;
    size_t bytes = 0;
  };

  struct Connection {
    int socket = -1;  // -1: not there
    std::optional<PeerMemory> memory = {};

    std::deque<Outgoing> sends = {};
    // The last number that was given, and the last one that was written.
    uint64_t posted = 0;
    uint64_t written = 0;
    // The numbers of offers that the peer has not taken yet.
    std::deque<uint64_t> offers = {};
    // Answers among `sends`.
    int answers = 0;

    std::deque<Incoming> receives = {};
    // How many are done.
    uint64_t received = 0;
    Incoming note = {};  // what Read waits for
    // What came with the end of a message, of the next one.
    std::vector<std::byte> ahead = {};
    size_t ahead_begin = 0;
    size_t ahead_end = 0;
    // The note or the data under way: what is left of it.
    std::optional<Head> current = {};
    // The peer's, not taken yet.
    std::deque<Head> offered = {};
    // How many were, and are not answered yet.
    uint32_t taken = 0;

    // The last send that is done.
    uint64_t sent() const;
    bool is_active() const;
    // Something that arrives could be used.
    bool wants_input() const;
  };

  enum class Progress { kMoved, kNothing, kBroken };

  // How what has this size is sent on `line`, unless its memory cannot be read.
  static bool IsOffered(const Connection& connection, size_t bytes);
  void Activate(int peer);
  // Of what the system has moved from or to `data`, or of -1 and an errno.
  // Notes bad memory.
  Progress ProgressOf(ssize_t moved, const void* data, size_t bytes);
  Progress Send(Connection& connection);
  Progress Receive(Connection& connection);
  // A step of Receive; `turn` is what may still be moved in it.
  Progress ReceiveStep(Connection& connection, size_t& turn);
  Progress TakeOffered(Connection& connection, size_t& turn);
  Progress ReceiveHead(Connection& connection, size_t& turn);
  // The head and, in the same call, what is expected behind it.
  Progress ReceiveData(Connection& connection, size_t& turn);
  // If all of it has come.
  static void FinishData(Connection& connection);
  Progress ReceiveCurrent(Connection& connection, size_t& turn);
  // What is left of the message under way, as far as it has come.
  Progress ReceiveInto(Connection& connection, Incoming& part, size_t& turn);
  Progress Interpret(Connection& connection, const Head& head);
  void AnswerOffers(Connection& connection);
  // Moves what can be moved without waiting, on all lines.
  Progress MoveAll();
  // Moves until `done` is true.
  template <typename Done>
  Outcome AwaitUntil(Done&& done);

  const int rank_;
  const int woken_;  // an eventfd
  // errno of it.
  const int woken_error_;
  std::vector<Connection> connections_;
  // Peers with which something is under way.
  std::vector<int> active_;
  int broken_peer_ = -1;
  Status bad_memory_;
};

}  // namespace muster::dataplane::cpu

#endif  // MUSTER_DATAPLANE_CPU_TRANSPORT_TCP_CONNECTIONS_H_
