#ifndef MUSTER_DATAPLANE_CPU_TRANSPORT_TCP_CONNECTIONS_H_
#define MUSTER_DATAPLANE_CPU_TRANSPORT_TCP_CONNECTIONS_H_

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <vector>

#include "dataplane/cpu/transport/process_memory.h"
#include "muster/base/status.h"

namespace muster::dataplane::cpu {

// TcpConnections are the connections of collectives, one to each peer. The
// thread that waits for data reads and writes all sockets with pending
// operations itself: one write and one wake-up per message.
//
// They carry messages in both directions and in order: notes, which are read as
// bytes, and posted buffers. If this rank may read a peer's memory, it copies
// large posted buffers from there: the connection then carries an offer with
// the address, and an answer when the buffer was taken.
//
// Used by one thread at a time, except for Wake.
class TcpConnections {
 public:
  enum class IoResult {
    kDone,
    // Wake was called.
    kWoken,
    // The connection has ended, or some memory cannot be read or written.
    kBroken,
  };

  // By rank. nullopt: posted buffers travel through the connection.
  using Memories = std::vector<std::optional<PeerMemory>>;

  TcpConnections(int rank, int world_size);
  ~TcpConnections();

  TcpConnections(const TcpConnections&) = delete;
  TcpConnections& operator=(const TcpConnections&) = delete;

  // Call it first. Takes ownership of the connected `sockets`, by rank; -1 for
  // this rank. If a rank has the memory of a peer in `memories`, the peer must
  // have this rank's. kResourceExhausted if no descriptor is left for Wake.
  Status Take(const std::vector<int>& sockets, const Memories& memories);

  // Queues a send of `bytes` to `peer`, or a receive from it; both sides must
  // give the same size. Returns the number of the send or receive; those with
  // one peer complete in order. Does not block and moves nothing yet.
  uint64_t PostSend(int peer, const void* data, size_t bytes);
  uint64_t PostReceive(int peer, void* data, size_t bytes);

  // Waits until that send or receive is done: `data` is no longer needed, or
  // has come. Moves everything that is under way meanwhile. A send may wait
  // until the peer posts its receive, and until this rank posts the receives of
  // everything that the peer sent before it took the data. Data that came
  // before the end of a connection can still be received.
  IoResult AwaitSend(int peer, uint64_t number);
  IoResult AwaitReceive(int peer, uint64_t number);

  // Sends a note, `head` and then `body`, and waits until the system has it.
  // Also kBroken if only the peer has closed its end.
  IoResult Write(int peer, const void* head, size_t head_bytes,
                 const void* body, size_t body_bytes);
  // Waits for the next `bytes` of notes.
  IoResult Read(int peer, void* data, size_t bytes);

  // After kBroken: the rank whose connection has ended.
  int broken_peer() const { return broken_peer_; }
  // After kBroken because of memory: the error, which names the rank; else OK.
  const Status& bad_memory() const { return bad_memory_; }

  // Makes waiting calls and all later waits return kWoken. From any thread.
  void Wake();

  // Closes all connections and drops what is under way.
  void Close();

 private:
  enum class Kind : uint32_t { kNote, kData, kOffer, kTaken };

  // The head of every message.
  struct Head {
    Kind kind = Kind::kNote;
    // kTaken: the number of offers.
    uint32_t count = 0;
    // kNote, kData: the size of what follows. kOffer: the size of the offer.
    uint64_t bytes = 0;
    // kOffer: the address of the data.
    uint64_t address = 0;
  };

  // The unsent rest of a message.
  struct Outgoing {
    Head head = {};
    size_t head_bytes = sizeof(Head);
    const std::byte* data = nullptr;
    size_t bytes = 0;
    // kPart: the message goes on in the next entry. kWhole: a numbered message
    // ends here. kAnswer: an answer, without a number.
    enum { kPart, kWhole, kAnswer } end = kWhole;
  };

  // Memory to be filled.
  struct Incoming {
    std::byte* data = nullptr;
    size_t bytes = 0;
  };

  struct Connection {
    int socket = -1;  // -1: none
    std::optional<PeerMemory> memory = {};

    std::deque<Outgoing> sends = {};
    // The last number given out, and the last one written.
    uint64_t posted = 0;
    uint64_t written = 0;
    // The numbers of the offers that the peer has not taken yet.
    std::deque<uint64_t> offers = {};
    // The number of answers in `sends`.
    int answers = 0;

    std::deque<Incoming> receives = {};
    // The number of completed receives.
    uint64_t received = 0;
    Incoming note = {};  // the rest of Read's memory
    // Bytes of later messages that were read together with this one.
    std::vector<std::byte> ahead = {};
    size_t ahead_begin = 0;
    size_t ahead_end = 0;
    // The unread rest of the current note or data message.
    std::optional<Head> current = {};
    // The peer's offers that are not taken yet.
    std::deque<Head> offered = {};
    // The number of offers taken and not answered yet.
    uint32_t taken = 0;

    // The number of the last completed send.
    uint64_t sent() const;
    bool is_active() const;
    // Whether arriving bytes could be used now.
    bool wants_input() const;
  };

  enum class Progress { kMoved, kNothing, kBroken };

  // Whether data of this size is offered on `connection`, if its memory can be
  // read.
  static bool IsOffered(const Connection& connection, size_t bytes);
  void Activate(int peer);
  // Interprets `moved`, the result of a system call on `data` (-1: see errno).
  // Records bad memory.
  Progress ToProgress(ssize_t moved, const void* data, size_t bytes);
  Progress Send(Connection& connection);
  Progress Receive(Connection& connection);
  // A step of Receive. `turn`: the bytes that Receive may still move.
  Progress ReceiveStep(Connection& connection, size_t& turn);
  Progress TakeOffered(Connection& connection, size_t& turn);
  Progress ReceiveHead(Connection& connection, size_t& turn);
  // Reads the head and, in the same call, the expected data.
  Progress ReceiveData(Connection& connection, size_t& turn);
  // Ends the current data message and its receive if all of it has come.
  static void FinishData(Connection& connection);
  Progress ReceiveCurrent(Connection& connection, size_t& turn);
  // Reads the part of the current message that has come.
  Progress ReceiveInto(Connection& connection, Incoming& part, size_t& turn);
  Progress Interpret(Connection& connection, const Head& head);
  void AnswerOffers(Connection& connection);
  // Moves what can be moved without waiting, on all active connections.
  Progress MoveAll();
  // Moves until `done` is true.
  template <typename Done>
  IoResult AwaitUntil(Done&& done);

  const int rank_;
  const int woken_;  // an eventfd
  // The errno if eventfd failed, or 0.
  const int woken_error_;
  std::vector<Connection> connections_;
  // Peers with sends or receives under way.
  std::vector<int> active_;
  int broken_peer_ = -1;
  Status bad_memory_;
};

}  // namespace muster::dataplane::cpu

#endif  // MUSTER_DATAPLANE_CPU_TRANSPORT_TCP_CONNECTIONS_H_
