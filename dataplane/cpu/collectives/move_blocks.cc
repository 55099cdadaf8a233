#include <cstddef>
#include <cstring>
#include <memory>
#include <vector>

#include "dataplane/cpu/collectives/schedules.h"
#include "muster/base/status.h"

namespace muster::dataplane::cpu {
namespace {

// The moves of one rank. All pairs of ranks move at the same time, and all
// streams are posted before the first wait, so no stream depends on another.
// Within a pair a note goes first, from which the receiver knows that the
// stream fits.
class Mover {
 public:
  Mover(const Moves& moves, bool agreed, Exchange& exchange)
      : moves_(moves),
        agreed_(agreed),
        exchange_(exchange),
        sent_(exchange.world_size()),
        received_(exchange.world_size()) {}

  Status Run() {
    for (const int peer : moves_.receivers) {
      Status status = Give(peer);
      if (!status.ok()) return status;
    }
    for (const int peer : moves_.senders) {
      Status status = Expect(peer);
      if (!status.ok()) return status;
    }
    for (const int peer : moves_.senders) {
      if (received_[peer] == nullptr) continue;
      Status status = received_[peer]->WaitReceive(peer);
      if (!status.ok()) return status;
    }
    for (const int peer : moves_.receivers) {
      if (sent_[peer] == nullptr) continue;
      Status status = sent_[peer]->WaitSend(peer);
      if (!status.ok()) return status;
    }
    return OkStatus();
  }

 private:
  size_t CountBytes(const Block& block) const {
    return block.count * exchange_.element_bytes();
  }

  bool IsStreamed(const Block& block) const {
    return agreed_ ? block.count > 0 : CountBytes(block) > kNotePayloadBytesMax;
  }

  Status Give(int peer) {
    const Block& block = moves_.give[peer];
    const bool streamed = IsStreamed(block);
    if (!agreed_) {
      Status sent = exchange_.SendNote(
          peer, block.data, streamed ? 0 : CountBytes(block), block.count);
      if (!sent.ok()) return sent;
    }
    if (!streamed) return OkStatus();
    sent_[peer] = exchange_.Wrap(block.data, CountBytes(block));
    return sent_[peer]->Send(peer, 0, CountBytes(block));
  }

  Status Expect(int peer) {
    const Block& block = moves_.take[peer];
    const bool streamed = IsStreamed(block);
    if (!agreed_) {
      StatusOr<const std::byte*> payload =
          exchange_.ReceiveNote(peer, block.count);
      if (!payload.ok()) return payload.status();
      if (!streamed && block.count > 0) {
        std::memcpy(block.data, *payload, CountBytes(block));
      }
    }
    if (!streamed) return OkStatus();
    received_[peer] = exchange_.Wrap(block.data, CountBytes(block));
    return received_[peer]->Receive(peer, 0, CountBytes(block));
  }

  const Moves& moves_;
  const bool agreed_;
  Exchange& exchange_;
  std::vector<std::unique_ptr<Buffer>> sent_;
  std::vector<std::unique_ptr<Buffer>> received_;
};

}  // namespace

Blocks CutParts(const Block& whole, size_t parts, size_t element_bytes) {
  Blocks blocks;
  blocks.reserve(parts);
  for (size_t i = 0; i < parts; ++i) {
    blocks.push_back(CutPart(whole, i, parts, element_bytes));
  }
  return blocks;
}

Blocks ToBlocks(const Collective::Tensors& tensors,
                const std::vector<int64_t>& splits, int world_size) {
  Blocks blocks;
  if (splits.empty() || tensors.size() != 1) {
    const Parts parts(tensors, world_size);
    const int count =
        tensors.size() == 1 ? world_size : static_cast<int>(tensors.size());
    blocks.reserve(count);
    for (int i = 0; i < count; ++i) blocks.push_back(parts[i]);
    return blocks;
  }
  const Block whole = ToBlock(tensors[0]);
  const size_t element_bytes = DataTypeBytes(tensors[0].data_type());
  blocks.reserve(splits.size());
  Range part;
  for (const int64_t count : PartCounts(tensors, splits, world_size)) {
    part = {part.first + part.count, static_cast<size_t>(count)};
    blocks.push_back(whole.Slice(part, element_bytes));
  }
  return blocks;
}

Collective::Tensors ToTensors(const Blocks& blocks, DataType type) {
  Collective::Tensors tensors;
  for (const Block& block : blocks) tensors.push_back(ToTensor(block, type));
  return tensors;
}

void CopyBlock(const Block& to, const Block& from, size_t element_bytes) {
  if (to.data == from.data || from.count == 0) return;
  std::memcpy(to.data, from.data, from.count * element_bytes);
}

void Moves::WithEverybody(int rank, int world_size) {
  for (int distance = 1; distance < world_size; ++distance) {
    receivers.push_back((rank + distance) % world_size);
    senders.push_back((rank - distance + world_size) % world_size);
  }
}

Status MoveBlocks(const Moves& moves, bool agreed, Exchange& exchange) {
  return Mover(moves, agreed, exchange).Run();
}

}  // namespace muster::dataplane::cpu
