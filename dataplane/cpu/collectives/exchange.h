#ifndef MUSTER_DATAPLANE_CPU_COLLECTIVES_EXCHANGE_H_
#define MUSTER_DATAPLANE_CPU_COLLECTIVES_EXCHANGE_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "dataplane/cpu/collectives/selection.h"
#include "dataplane/cpu/transport/transport.h"
#include "muster/base/status.h"
#include "muster/dataplane/collective.h"

namespace muster::dataplane::cpu {

// The largest payload of a note (see Exchange), in bytes.
inline constexpr size_t kNotePayloadBytesMax = 32 << 10;

// The first bytes of every note. They say what its sender runs.
struct MessageHeader {
  uint64_t sequence = 0;
  // In kinds with a size per pair of ranks: the size for this receiver.
  uint64_t element_count = 0;
  int32_t root = 0;
  uint8_t kind = 0;
  uint8_t data_type = 0;
  uint8_t reduce_op = 0;
  uint8_t step = 0;
  // The hash of all ranks' sizes, if every rank must know them; for coalesced
  // collectives, of the sizes of their parts. In a reduction by a function of
  // the user, the higher half is the size of its elements.
  uint64_t sizes_hash = 0;

  // In `reduce_op`, beside kUser.
  static constexpr uint8_t kNotCommutative = 0x80;

  // A step of a reduction has the kind, operation and sizes of the reduction,
  // and its own `element_count`.
  static MessageHeader Of(const Collective& collective);
  std::string Describe() const;
  friend bool operator==(const MessageHeader&, const MessageHeader&) = default;
};
// The payload after it is aligned for every element type.
static_assert(sizeof(MessageHeader) == 32);

// kInvalidArgument: `peer` runs `theirs`, this rank runs `ours`. The text
// describes both.
Status Mismatch(int peer, int rank, const MessageHeader& theirs,
                const MessageHeader& ours);

// MessageConnection carries notes, messages of bounded size, between this rank
// and one peer.
class MessageConnection {
 public:
  MessageConnection(Transport& transport, int peer)
      : transport_(transport), peer_(peer) {}

  // Returns when `payload` may be overwritten.
  Status Send(const MessageHeader& header, const void* payload, size_t bytes);

  // Waits for the next note, which must begin with `expected`, and returns its
  // payload, valid until the next call.
  StatusOr<const std::byte*> Receive(const MessageHeader& expected);

 private:
  Transport& transport_;
  const int peer_;
  // Allocated at the first payload.
  std::unique_ptr<std::byte[]> payload_;
};

// The connections and the scratch memory of a group. Connections are made at
// first use and kept. Each takes 32 KiB if payloads come from its peer.
class Workspace {
 public:
  explicit Workspace(Transport& transport);

  Transport& transport() { return transport_; }
  MessageConnection& ConnectionTo(int peer);

  // Frees all memory.
  void Clear();

  // At least `bytes` of scratch memory. The next call reuses it.
  std::byte* Scratch(size_t bytes);

 private:
  Transport& transport_;
  std::vector<std::unique_ptr<MessageConnection>> connections_;
  std::unique_ptr<std::byte[]> scratch_;
  size_t scratch_bytes_ = 0;
};

// Exchange sends and receives the data of one running collective on this rank.
// The algorithms are written in terms of it.
//
// It has two kinds of message: notes, which are short (see MessageConnection),
// and streams, which may have any size and move directly between the callers'
// memory, without a copy. A stream may begin only after a note has shown that
// both sides run the same collective and expect the same sizes.
class Exchange {
 public:
  Exchange(Workspace& workspace, const Collective& collective);

  // For a step of another collective: all notes carry `header`.
  Exchange(Workspace& workspace, const Collective& step,
           const MessageHeader& header);

  int rank() const { return workspace_.transport().rank(); }
  int world_size() const { return workspace_.transport().world_size(); }

  Status SendNote(int peer, const void* payload, size_t bytes);

  // The payload is valid until the next note from this peer.
  StatusOr<const std::byte*> ReceiveNote(int peer);

  // For kinds with a size per pair of ranks: `element_count` is the size that
  // this rank gives to `peer`, or takes from it.
  Status SendNote(int peer, const void* payload, size_t bytes,
                  size_t element_count);
  StatusOr<const std::byte*> ReceiveNote(int peer, size_t element_count);

  // Sends an empty note to each of `receivers`, then waits for one from each
  // of `senders`.
  Status Handshake(const std::vector<int>& receivers,
                   const std::vector<int>& senders);

  // Makes a buffer for streams. Between two ranks, streams arrive in the order
  // in which they were sent.
  std::unique_ptr<Buffer> Wrap(void* data, size_t bytes) {
    return workspace_.transport().CreateBuffer(data, bytes);
  }
  std::byte* Scratch(size_t bytes) { return workspace_.Scratch(bytes); }

  // The size of an element of the collective's type.
  size_t element_bytes() const { return element_bytes_; }

  // See Transport. `name` is from selection.h or dataplane/MEASUREMENTS.md.
  void set_algorithm(const char* name) {
    workspace_.transport().set_algorithm(name);
  }

 private:
  MessageHeader HeaderFor(size_t element_count) const;

  Workspace& workspace_;
  const MessageHeader header_;
  const size_t element_bytes_;
  // Each pair of ranks has its own size.
  const bool directed_;
};

}  // namespace muster::dataplane::cpu

#endif  // MUSTER_DATAPLANE_CPU_COLLECTIVES_EXCHANGE_H_
