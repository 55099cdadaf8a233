#include <cstddef>
#include <cstring>
#include <memory>
#include <vector>

#include "dataplane/cpu/collectives/algorithms.h"
#include "dataplane/cpu/collectives/schedules.h"
#include "dataplane/cpu/collectives/selection.h"
#include "muster/base/status.h"

namespace muster::dataplane::cpu {
namespace {

// Large enough to be moved at full speed, small enough that the next rank of
// the chain begins early.
constexpr size_t kSegmentBytes = 512 << 10;

Links Chain(int rank, int root, int world_size) {
  const int number = (rank - root + world_size) % world_size;
  Links links;
  if (number != 0) links.parent = (rank - 1 + world_size) % world_size;
  if (number + 1 < world_size) {
    links.children.push_back((rank + 1) % world_size);
  }
  return links;
}

Status BroadcastNote(const Tensor& tensor, const Links& links,
                     Exchange& exchange) {
  if (links.parent >= 0) {
    StatusOr<const std::byte*> payload = exchange.ReceiveNote(links.parent);
    if (!payload.ok()) return payload.status();
    // An empty tensor's pointer may be null.
    if (tensor.bytes() > 0) {
      std::memcpy(tensor.data(), *payload, tensor.bytes());
    }
  }
  for (const int child : links.children) {
    Status sent = exchange.SendNote(child, tensor.data(), tensor.bytes());
    if (!sent.ok()) return sent;
  }
  return OkStatus();
}

// The segments go down the tree one after the other. A rank passes one on while
// the next arrives.
Status BroadcastStream(const Tensor& tensor, const Links& links,
                       Exchange& exchange) {
  std::vector<int> parents;
  if (links.parent >= 0) parents.push_back(links.parent);
  Status agreed = exchange.Handshake(links.children, parents);
  if (!agreed.ok()) return agreed;

  const size_t bytes = tensor.bytes();
  const std::unique_ptr<Buffer> buffer = exchange.Wrap(tensor.data(), bytes);
  const size_t segments = ChunksFor(bytes, kSegmentBytes);
  if (links.parent >= 0) {
    for (size_t i = 0; i < segments; ++i) {
      const Range segment = CutChunk(bytes, i, kSegmentBytes);
      Status announced =
          buffer->Receive(links.parent, segment.first, segment.count);
      if (!announced.ok()) return announced;
    }
  }
  for (size_t i = 0; i < segments; ++i) {
    if (links.parent >= 0) {
      Status received = buffer->WaitReceive(links.parent);
      if (!received.ok()) return received;
    }
    const Range segment = CutChunk(bytes, i, kSegmentBytes);
    for (const int child : links.children) {
      Status sent = buffer->Send(child, segment.first, segment.count);
      if (!sent.ok()) return sent;
    }
  }
  for (size_t i = 0; i < segments; ++i) {
    for (const int child : links.children) {
      Status sent = buffer->WaitSend(child);
      if (!sent.ok()) return sent;
    }
  }
  return OkStatus();
}

}  // namespace

Links BinomialTree(int rank, int root, int world_size) {
  const int number = (rank - root + world_size) % world_size;
  Links links;
  int bit = 1;
  while (bit < world_size && (number & bit) == 0) bit *= 2;
  if (number != 0) links.parent = (number - bit + root) % world_size;
  for (bit /= 2; bit > 0; bit /= 2) {
    if (number + bit < world_size) {
      links.children.push_back((number + bit + root) % world_size);
    }
  }
  return links;
}

Status Broadcast(const Collective& collective, Exchange& exchange) {
  if (exchange.world_size() == 1) return OkStatus();
  const Tensor& tensor = collective.tensors[0];
  const size_t bytes = tensor.bytes();
  const Algorithm algorithm = SelectOnConnections(CollectiveKind::kBroadcast,
                                                  exchange.world_size(), bytes);
  exchange.set_algorithm(AlgorithmName(algorithm));
  const Links links =
      algorithm == Algorithm::kTree
          ? BinomialTree(exchange.rank(), collective.root,
                         exchange.world_size())
          : Chain(exchange.rank(), collective.root, exchange.world_size());
  return bytes <= kNotePayloadBytesMax
             ? BroadcastNote(tensor, links, exchange)
             : BroadcastStream(tensor, links, exchange);
}

}  // namespace muster::dataplane::cpu
