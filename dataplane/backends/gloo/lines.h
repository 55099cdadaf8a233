#ifndef MUSTER_DATAPLANE_BACKENDS_GLOO_LINES_H_
#define MUSTER_DATAPLANE_BACKENDS_GLOO_LINES_H_

#include <cstddef>
#include <functional>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "dataplane/backends/gloo/rendezvous.h"
#include "dataplane/instant.h"

namespace muster::dataplane::gloo_internal {

// Lines are connections of their own beside Gloo's, one to each peer, for small
// messages. The thread that waits for a message reads it from the socket
// itself: one write and one wake-up for each. Gloo has a thread of its own read
// every socket, announces each send and each receive in a message, and so takes
// three writes and up to four wake-ups.
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
  // kUnavailable.
  absl::StatusOr<AddressBytes> Listen(AddressBytes address);

  // Connects to all peers: `addresses[r]` is where rank r listens. One that is
  // gone meanwhile, as `is_gone` says, is no error: its line is broken. Errors:
  // kDeadlineExceeded, naming the ranks that did not connect.
  absl::Status Connect(const std::vector<AddressBytes>& addresses,
                       Instant deadline,
                       const std::function<bool(int peer)>& is_gone);

  // Writes `head` and then `body`. Returns when the system has them. kBroken
  // also when the peer alone has closed its end.
  Outcome Write(int peer, const void* head, size_t head_bytes, const void* body,
                size_t body_bytes);

  // Waits until `bytes` have come. What came before the connection ended can
  // be read to the end.
  Outcome Read(int peer, void* data, size_t bytes);

  // Ends what waits, and everything later. From any thread.
  void Wake();

  // Closes all of them.
  void Close();

 private:
  // A socket that somebody has connected to this rank, not knowing yet who.
  // Returns whether that is known now, or will never be.
  bool TakeHello(int socket);
  void StartConnecting(int peer, const AddressBytes& address);
  void FinishConnecting(int peer);
  std::vector<int> MissingRanks() const;
  // Waits until `events` happen at the socket of `peer`, or Wake.
  Outcome Await(int peer, short events);

  const int rank_;
  const int woken_;  // an eventfd
  int listener_ = -1;
  // -1: broken, or not there yet.
  std::vector<int> sockets_;
  std::vector<bool> settled_;
};

}  // namespace muster::dataplane::gloo_internal

#endif  // MUSTER_DATAPLANE_BACKENDS_GLOO_LINES_H_
