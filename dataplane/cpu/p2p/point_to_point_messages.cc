// PointToPoint: what its peers' messages do.

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <memory>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "dataplane/cpu/transport/transport_errors.h"
#include "dataplane/cpu/transport/process_memory.h"
#include "dataplane/cpu/p2p/point_to_point.h"
#include "dataplane/culprit.h"

namespace muster::dataplane::gloo_internal {
namespace {

// How much is read before it looks whether the group has been aborted.
constexpr size_t kReadBytes = 4 << 20;

uint64_t SlotOf(uint64_t id) { return kPointToPointSlot + id; }

}  // namespace

void PointToPoint::Received(int peer, const Message& message,
                            const std::byte* payload) {
  Outcome outcome;
  {
    MutexLock lock(mutex_);
    Take(peer, message, payload, outcome);
  }
  Carry(outcome);
  for (const Reading& reading : outcome.readings) Read(reading);
}

void PointToPoint::Take(int peer, const Message& message,
                        const std::byte* payload, Outcome& outcome) {
  switch (message.type) {
    case Message::kEager:
    case Message::kRequest:
      return TakeOffer(peer, message, payload, outcome);
    case Message::kClear:
      return TakeClear(peer, message, outcome);
    case Message::kDone:
      return TakeDone(peer, message, outcome);
    case Message::kTaken:
      return TakeTaken(peer, message, outcome);
    case Message::kReads:
      return TakeReads(peer, message);
    case Message::kCredit:
      peers_[peer].credit += message.count;
      return;
    default:
      outcome.failure = absl::InternalError(absl::StrCat(
          "rank ", peer, " sent a message of unknown type ", message.type));
  }
}

PointToPoint::Unclaimed PointToPoint::Copy(int peer, const Message& message,
                                           const std::byte* payload) {
  const auto type = static_cast<DataType>(message.data_type);
  const size_t bytes =
      message.type == Message::kEager ? message.count * DataTypeBytes(type) : 0;
  return {peer, message, {payload, payload + bytes}};
}

void PointToPoint::TakeOffer(int peer, const Message& message,
                             const std::byte* payload, Outcome& outcome) {
  const bool known_type = message.data_type < kDataTypeCount;
  const size_t element_bytes =
      known_type ? DataTypeBytes(static_cast<DataType>(message.data_type)) : 1;
  if (!known_type ||
      (message.type == Message::kEager &&
       message.count > kMessagePayloadBytesMax / element_bytes)) {
    outcome.failure = absl::InternalError(
        absl::StrCat("rank ", peer, " sent a message of ", message.count,
                     " elements of type ", message.data_type));
    return;
  }
  Peer& state = peers_[peer];
  if (HasMailFor(peer) && message.id != state.last_offered + 1) {
    state.early.try_emplace(message.id, Copy(peer, message, payload));
    return;
  }
  TakeOfferInOrder(peer, message, payload, outcome);
  for (;;) {
    const auto next = state.early.find(++state.last_offered + 1);
    if (next == state.early.end()) return;
    const Unclaimed offer = std::move(next->second);
    state.early.erase(next);
    TakeOfferInOrder(peer, offer.message, offer.payload.data(), outcome);
  }
}

void PointToPoint::TakeOfferInOrder(int peer, const Message& message,
                                    const std::byte* payload,
                                    Outcome& outcome) {
  if (const OperationPtr receive = TakeReceive(peer, message.tag)) {
    Match(receive, peer, message, payload, outcome);
    return;
  }
  unclaimed_.push_back(Copy(peer, message, payload));
}

PointToPoint::OperationPtr PointToPoint::TakeReceive(int peer, int tag) {
  const auto found = std::find_if(
      receives_.begin(), receives_.end(),
      [&](const OperationPtr& receive) { return receive->Wants(peer, tag); });
  if (found == receives_.end()) return nullptr;
  const OperationPtr receive = *found;
  receives_.erase(found);
  return receive;
}

absl::Status PointToPoint::CheckFits(const Operation& operation, int peer,
                                     const Message& message) const {
  const Tensor& tensor = operation.tensor();
  const auto type = static_cast<DataType>(message.data_type);
  if (type == tensor.data_type() &&
      message.count == static_cast<uint64_t>(tensor.element_count())) {
    return absl::OkStatus();
  }
  absl::Status status = absl::InvalidArgumentError(absl::StrCat(
      "rank ", peer, " sends ", message.count, " ", DataTypeName(type),
      " with tag ", message.tag, ", rank ", mesh_.rank(), " receives ",
      tensor.element_count(), " ", DataTypeName(tensor.data_type())));
  SetCulpritRank(status, peer);
  return status;
}

void PointToPoint::Match(const OperationPtr& operation, int peer,
                         const Message& message, const std::byte* payload,
                         Outcome& outcome) {
  const Tensor& tensor = operation->tensor();
  Peer& state = peers_[peer];
  operation->peer = peer;
  absl::Status status = CheckFits(*operation, peer, message);
  if (status.ok() && message.type == Message::kEager) {
    if (tensor.bytes() > 0) {
      std::memcpy(tensor.data(), payload, tensor.bytes());
    }
    Done(operation, outcome);
    if (peer == mesh_.rank()) {
      ++state.credit;
      return;
    }
    if (++state.claimed < kEagerWindow / 2) return;
    Message credit;
    credit.type = Message::kCredit;
    credit.count = std::exchange(state.claimed, 0);
    // A peer that is gone needs none.
    Post(peer, credit, nullptr, 0, /*ticket=*/0).status().IgnoreError();
    return;
  }
  if (status.ok() && peer == mesh_.rank()) {
    GiveToSelf(operation, state.requests.extract(message.id).mapped());
  } else if (status.ok()) {
    if (message.address != 0 && mesh_.MemoryOf(peer) != nullptr) {
      outcome.readings.push_back({operation, peer, message});
      status = Tell(peer, Message::kReads, message.id);
    } else {
      status = Clear(operation, peer, message);
    }
  }
  if (!status.ok()) {
    outcome.failure = Prefixed(LabelOf(operation->collective), status);
  }
}

absl::Status PointToPoint::Clear(const OperationPtr& operation, int peer,
                                 const Message& request) {
  const Tensor& tensor = operation->tensor();
  auto buffer = mesh_.CreateQuietBuffer(tensor.data(), tensor.bytes());
  absl::Status status =
      buffer->Receive(peer, SlotOf(request.id), 0, tensor.bytes());
  peers_[peer].arriving[request.id] = {operation, std::move(buffer)};
  return status.ok() ? Tell(peer, Message::kClear, request.id) : status;
}

absl::Status PointToPoint::Tell(int peer, Message::Type type, uint64_t id) {
  Message message;
  message.type = type;
  message.id = id;
  return Post(peer, message, nullptr, 0, /*ticket=*/0).status();
}

void PointToPoint::Read(const Reading& reading) {
  const Tensor& tensor = reading.operation->tensor();
  const PeerMemory& memory = *mesh_.MemoryOf(reading.peer);
  const size_t bytes = tensor.bytes();
  bool is_read = true;
  for (size_t done = 0; done < bytes && is_read; done += kReadBytes) {
    // Close completes it.
    if (!mesh_.abort_cause().ok()) return;
    is_read = memory.Read(reading.request.address + done,
                          static_cast<std::byte*>(tensor.data()) + done,
                          std::min(bytes - done, kReadBytes));
  }
  Outcome outcome;
  {
    MutexLock lock(mutex_);
    if (is_read) {
      Done(reading.operation, outcome);
      // One that is gone does not wait for this.
      Tell(reading.peer, Message::kTaken, reading.request.id).IgnoreError();
    } else if (absl::Status status =
                   Clear(reading.operation, reading.peer, reading.request);
               !status.ok()) {
      outcome.failure =
          Prefixed(LabelOf(reading.operation->collective), status);
    }
  }
  Carry(outcome);
}

void PointToPoint::TakeClear(int peer, const Message& message,
                             Outcome& outcome) {
  Peer& state = peers_[peer];
  const auto found = state.requests.find(message.id);
  if (found == state.requests.end()) {
    outcome.failure = absl::InternalError(
        absl::StrCat("rank ", peer, " cleared a send that is not there"));
    return;
  }
  const Collective& collective = found->second->collective;
  const Tensor& tensor = found->second->tensor();
  found->second->is_leaving = true;
  absl::Status status = state.channel->PostTensor(
      SlotOf(message.id), tensor.data(), tensor.bytes());
  if (status.ok()) status = Tell(peer, Message::kDone, message.id);
  if (!status.ok()) outcome.failure = Prefixed(LabelOf(collective), status);
}

void PointToPoint::TakeDone(int peer, const Message& message,
                            Outcome& outcome) {
  Peer& state = peers_[peer];
  const auto found = state.arriving.find(message.id);
  if (found == state.arriving.end()) {
    outcome.failure = absl::InternalError(
        absl::StrCat("rank ", peer, " sent a tensor that nobody awaits"));
    return;
  }
  const Arriving arrived = std::move(found->second);
  state.arriving.erase(found);
  // It was sent before this message, on the same connection, so it is there.
  absl::Status status = arrived.buffer->WaitReceive(peer);
  if (!status.ok()) {
    outcome.failure = Prefixed(LabelOf(arrived.operation->collective), status);
    return;
  }
  Done(arrived.operation, outcome);
  // One that is gone does not wait for this.
  Tell(peer, Message::kTaken, message.id).IgnoreError();
}

void PointToPoint::TakeTaken(int peer, const Message& message,
                             Outcome& outcome) {
  Peer& state = peers_[peer];
  const auto found = state.requests.find(message.id);
  if (found == state.requests.end()) return;
  Done(found->second, outcome);
  state.requests.erase(found);
}

void PointToPoint::TakeReads(int peer, const Message& message) {
  Peer& state = peers_[peer];
  const auto found = state.requests.find(message.id);
  if (found != state.requests.end()) found->second->is_leaving = true;
}

void PointToPoint::Sent(int peer, uint64_t sequence) {
  Outcome outcome;
  {
    MutexLock lock(mutex_);
    --peers_[peer].unsent_offers;
    const auto found = running_.find(sequence);
    // A large one waits for more.
    if (found != running_.end() && found->second->is_eager) {
      Done(OperationPtr(found->second), outcome);
    }
  }
  Carry(outcome);
}

void PointToPoint::Ended(int peer, const absl::Status& how) {
  // What an abort ends, Close completes.
  if (!mesh_.abort_cause().ok()) return;
  Outcome outcome;
  const bool in_peace = mesh_.CheckPeers().ok();
  {
    MutexLock lock(mutex_);
    // What it left before it went.
    if (closed_) return;
    if (mail_ != nullptr) TakeMail(outcome);
    GiveToChannels(outcome.readings);
    peers_[peer].ended = how;
    std::vector<OperationPtr> left;
    for (const auto& [sequence, operation] : running_) {
      const absl::Status loss = LossFor(*operation);
      if (loss.ok()) continue;
      // Its receiver has left in peace: it has what it wanted.
      if (operation->is_leaving && in_peace) {
        left.push_back(operation);
      } else {
        outcome.failure = Prefixed(LabelOf(operation->collective), loss);
        break;
      }
    }
    for (const OperationPtr& operation : left) Done(operation, outcome);
  }
  Carry(outcome);
}

absl::Status PointToPoint::LossFor(const Operation& operation) const {
  if (operation.peer != kAnyPeer) return peers_[operation.peer].ended;
  absl::Status last;
  for (int peer = 0; peer < mesh_.world_size(); ++peer) {
    if (peer == mesh_.rank()) continue;
    last = peers_[peer].ended;
    if (last.ok()) return last;
  }
  return last;
}

void PointToPoint::Done(const OperationPtr& operation, Outcome& outcome) {
  if (operation->collective.kind == CollectiveKind::kRecv) {
    operation->work->SetSourceRank(operation->peer);
  }
  outcome.done.push_back(operation);
  running_.erase(operation->collective.sequence);
  if (running_.empty() && mail_ != nullptr) mail_->SetWants(false);
}

void PointToPoint::Carry(const Outcome& outcome) {
  for (const OperationPtr& operation : outcome.done) {
    operation->work->Complete(absl::OkStatus());
  }
  // It ends this group, and with it what is left here.
  if (!outcome.failure.ok()) fail_(outcome.failure);
}

}  // namespace muster::dataplane::gloo_internal
