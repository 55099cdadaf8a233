#ifndef MUSTER_DATAPLANE_BACKENDS_GLOO_EXCHANGE_H_
#define MUSTER_DATAPLANE_BACKENDS_GLOO_EXCHANGE_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "dataplane/backends/gloo/mesh.h"
#include "dataplane/collective.h"

namespace muster::dataplane::gloo_internal {

// Largest payload of a note, in bytes.
inline constexpr size_t kNotePayloadBytesMax = 32 << 10;

// The first bytes of every note: what its sender is doing.
struct NoteHeader {
  uint64_t sequence = 0;
  // Where ranks give each other different sizes: what goes to this receiver.
  uint64_t element_count = 0;
  int32_t root = 0;
  uint8_t kind = 0;
  uint8_t data_type = 0;
  uint8_t reduce_op = 0;
  uint8_t padding = 0;
  // Of the sizes of all ranks, where every rank must know the same ones.
  uint64_t sizes_hash = 0;

  static NoteHeader Of(const Collective& collective);
  std::string Describe() const;
  friend bool operator==(const NoteHeader&, const NoteHeader&) = default;
};
// The payload after it is aligned for every element type.
static_assert(sizeof(NoteHeader) == 32);

// NoteLane carries notes, messages of bounded size, between this rank and one
// peer. Gloo sends only what the other side has announced to receive; a lane
// announces its next two receives ahead of time, so that a note normally takes
// one trip. One buffer to send from is enough: notes normally leave at once,
// and no collective sends a peer two in a row. Both sides use it in the same
// order.
class NoteLane {
 public:
  NoteLane(Mesh& mesh, int peer);

  absl::Status Send(const NoteHeader& header, const void* payload,
                    size_t bytes);

  // Waits until the note sent last has left.
  absl::Status Flush();

  // Waits for the next note, which must begin with `expected`, and returns its
  // payload, which stays until Release.
  absl::StatusOr<const std::byte*> Receive(const NoteHeader& expected);

  // Announces again the receives of which notes were taken.
  absl::Status Release();

 private:
  // Receives announced ahead: the peer may be one collective further.
  static constexpr int kDepth = 2;
  static constexpr uint64_t kSlot = 0;

  struct Side {
    std::vector<std::byte> memory;
    std::unique_ptr<Buffer> buffer;
    bool under_way = false;
  };

  void Allocate(Side& side);
  absl::Status Announce(Side& side);

  Mesh& mesh_;
  const int peer_;
  Side send_;
  Side receive_[kDepth];
  int next_receive_ = 0;
};

// The lanes and the scratch memory of a group. Lanes are made at first use and
// kept: 3 x 32 KiB for each peer that an algorithm talks to.
class Workspace {
 public:
  explicit Workspace(Mesh& mesh);

  Mesh& mesh() { return mesh_; }
  NoteLane& LaneTo(int peer);

  // Gives everything back.
  void Clear();

  // At least `bytes` of scratch, kept for the next caller.
  std::byte* Scratch(size_t bytes);

 private:
  Mesh& mesh_;
  std::vector<std::unique_ptr<NoteLane>> lanes_;
  std::unique_ptr<std::byte[]> scratch_;
  size_t scratch_bytes_ = 0;
};

// Exchange is the traffic of one running collective on this rank. The
// algorithms are written in terms of it.
//
// Two kinds of message: notes (see NoteLane), and streams, which go from and
// to the caller's memory without a copy and have any size. A stream may begin
// only when a note has shown that both sides run the same collective: a
// message longer than what its receiver announced kills the process there.
class Exchange {
 public:
  Exchange(Workspace& workspace, const Collective& collective);

  int rank() const { return workspace_.mesh().rank(); }
  int world_size() const { return workspace_.mesh().world_size(); }

  absl::Status SendNote(int peer, const void* payload, size_t bytes);

  // The payload stays until the exchange finishes.
  absl::StatusOr<const std::byte*> ReceiveNote(int peer);

  // The same where ranks give each other different sizes: `element_count` is
  // what this rank gives to that one, or takes from it.
  absl::Status SendNote(int peer, const void* payload, size_t bytes,
                        size_t element_count);
  absl::StatusOr<const std::byte*> ReceiveNote(int peer, size_t element_count);

  // Sends an empty note to each of `receivers`, then waits for one from each
  // of `senders`.
  absl::Status Handshake(const std::vector<int>& receivers,
                         const std::vector<int>& senders);

  // For streams. All of one collective's use one slot: between two ranks they
  // come in the order in which they were sent.
  std::unique_ptr<Buffer> Wrap(void* data, size_t bytes);
  uint64_t stream_slot() const { return header_.sequence; }
  std::byte* Scratch(size_t bytes) { return workspace_.Scratch(bytes); }

  // Of the collective's type.
  size_t element_bytes() const {
    return DataTypeBytes(static_cast<DataType>(header_.data_type));
  }

  // Waits for what is still being sent and prepares the lanes for the next
  // collective.
  absl::Status Finish();

 private:
  void Use(int peer);
  NoteHeader HeaderFor(size_t element_count) const;

  Workspace& workspace_;
  const NoteHeader header_;
  // Ranks give each other different sizes.
  const bool directed_;
  std::vector<int> used_;
};

}  // namespace muster::dataplane::gloo_internal

#endif  // MUSTER_DATAPLANE_BACKENDS_GLOO_EXCHANGE_H_
