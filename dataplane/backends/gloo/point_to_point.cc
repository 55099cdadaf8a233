#include "dataplane/backends/gloo/point_to_point.h"

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "dataplane/backends/gloo/gloo_errors.h"
#include "dataplane/backends/gloo/peer_memory.h"
#include "dataplane/culprit.h"

namespace muster::dataplane::gloo_internal {
namespace {

// Small messages to one peer that may lie unclaimed there: 2 MiB of them.
constexpr uint64_t kEagerWindow = 64;

// How much is read before it looks whether the group has been aborted.
constexpr size_t kReadBytes = 4 << 20;

const Tensor& TensorOf(const Collective& collective) {
  return collective.kind == CollectiveKind::kSend ? collective.inputs[0]
                                                  : collective.outputs[0];
}

bool Wants(const Collective& receive, int peer, int tag) {
  return receive.tag == tag &&
         (receive.peer == peer || receive.peer == kAnyPeer);
}

uint64_t SlotOf(uint64_t id) { return kPointToPointSlot + id; }

}  // namespace

PointToPoint::PointToPoint(std::string group_name, Mesh& mesh,
                           std::function<void(const absl::Status&)> fail)
    : group_name_(std::move(group_name)),
      mesh_(mesh),
      fail_(std::move(fail)),
      peers_(mesh.world_size()) {}

std::string PointToPoint::LabelOf(const Collective& collective) const {
  return absl::StrCat(collective.Label(), " on group \"", group_name_, "\"");
}

std::shared_ptr<Work> PointToPoint::Start(const Collective& collective) {
  auto operation = std::make_shared<Operation>();
  operation->collective = collective;
  operation->work = std::make_shared<PromisedWork>(collective.Describe());
  operation->peer = collective.peer;
  const std::shared_ptr<PromisedWork> work = operation->work;
  Outcome outcome;
  bool closed = false;
  {
    MutexLock lock(mutex_);
    closed = closed_;
    if (!closed) {
      running_.emplace(collective.sequence, operation);
      if (collective.kind == CollectiveKind::kSend) {
        StartSend(operation, outcome);
      } else {
        StartReceive(operation, outcome);
      }
      // It takes its time.
      for (const Reading& reading : outcome.readings) {
        peers_[reading.peer].channel->Run([this, reading] { Read(reading); });
      }
    }
  }
  if (closed) work->Complete(mesh_.abort_cause());
  Carry(outcome);
  return work;
}

PointToPoint::Peer& PointToPoint::Open(int peer) {
  Peer& state = peers_[peer];
  if (state.channel == nullptr) {
    state.credit = kEagerWindow;
    state.channel = std::make_unique<Channel>(
        mesh_, peer,
        Channel::Listener{
            .received =
                [this, peer](const Message& message, const std::byte* payload) {
                  Received(peer, message, payload);
                },
            .sent = [this](uint64_t ticket) { Sent(ticket); },
            .ended = [this,
                      peer](const absl::Status& how) { Ended(peer, how); }});
  }
  return state;
}

void PointToPoint::StartSend(const OperationPtr& operation, Outcome& outcome) {
  const Collective& collective = operation->collective;
  const Tensor& tensor = TensorOf(collective);
  Peer& peer = Open(collective.peer);
  absl::Status status = peer.ended;
  if (status.ok()) {
    Message message;
    message.tag = collective.tag;
    message.count = tensor.element_count();
    message.data_type = static_cast<uint8_t>(tensor.data_type());
    if (tensor.bytes() <= kMessagePayloadBytesMax && peer.credit > 0) {
      --peer.credit;
      operation->is_leaving = true;
      message.type = Message::kEager;
      status = peer.channel->Post(message, tensor.data(), tensor.bytes(),
                                  collective.sequence);
    } else {
      message.type = Message::kRequest;
      message.id = ++peer.last_id;
      if (mesh_.MemoryOf(collective.peer) != nullptr &&
          CanBeRead(tensor.data(), tensor.bytes())) {
        message.address = reinterpret_cast<uint64_t>(tensor.data());
      }
      peer.requests.emplace(message.id, operation);
      status = peer.channel->Post(message, nullptr, 0, /*ticket=*/0);
    }
  }
  if (!status.ok()) outcome.failure = Prefixed(LabelOf(collective), status);
}

void PointToPoint::StartReceive(const OperationPtr& operation,
                                Outcome& outcome) {
  const Collective& collective = operation->collective;
  for (int peer = 0; peer < mesh_.world_size(); ++peer) {
    if (peer == mesh_.rank()) continue;
    if (collective.peer == peer || collective.peer == kAnyPeer) Open(peer);
  }
  const auto found = std::find_if(
      unclaimed_.begin(), unclaimed_.end(), [&](const Unclaimed& unclaimed) {
        return Wants(collective, unclaimed.peer, unclaimed.message.tag);
      });
  if (found != unclaimed_.end()) {
    const Unclaimed claimed = std::move(*found);
    unclaimed_.erase(found);
    Match(operation, claimed.peer, claimed.message, claimed.payload.data(),
          outcome);
    return;
  }
  receives_.push_back(operation);
  const absl::Status loss = LossFor(*operation);
  if (!loss.ok()) outcome.failure = Prefixed(LabelOf(collective), loss);
}

void PointToPoint::Received(int peer, const Message& message,
                            const std::byte* payload) {
  Outcome outcome;
  {
    MutexLock lock(mutex_);
    switch (message.type) {
      case Message::kEager:
      case Message::kRequest:
        TakeOffer(peer, message, payload, outcome);
        break;
      case Message::kClear:
        TakeClear(peer, message, outcome);
        break;
      case Message::kDone:
        TakeDone(peer, message, outcome);
        break;
      case Message::kTaken:
        TakeTaken(peer, message, outcome);
        break;
      case Message::kReads:
        TakeReads(peer, message);
        break;
      case Message::kCredit:
        peers_[peer].credit += message.count;
        break;
      default:
        outcome.failure = absl::InternalError(absl::StrCat(
            "rank ", peer, " sent a message of unknown type ", message.type));
    }
  }
  Carry(outcome);
  for (const Reading& reading : outcome.readings) Read(reading);
}

void PointToPoint::TakeOffer(int peer, const Message& message,
                             const std::byte* payload, Outcome& outcome) {
  const bool known_type = message.data_type < kDataTypeCount;
  const size_t element_bytes =
      known_type ? DataTypeBytes(static_cast<DataType>(message.data_type)) : 1;
  const bool is_eager = message.type == Message::kEager;
  if (!known_type ||
      (is_eager && message.count > kMessagePayloadBytesMax / element_bytes)) {
    outcome.failure = absl::InternalError(
        absl::StrCat("rank ", peer, " sent a message of ", message.count,
                     " elements of type ", message.data_type));
    return;
  }
  const auto found = std::find_if(
      receives_.begin(), receives_.end(), [&](const OperationPtr& receive) {
        return Wants(receive->collective, peer, message.tag);
      });
  if (found != receives_.end()) {
    const OperationPtr operation = *found;
    receives_.erase(found);
    Match(operation, peer, message, payload, outcome);
    return;
  }
  const size_t bytes = is_eager ? message.count * element_bytes : 0;
  unclaimed_.push_back({peer, message, {payload, payload + bytes}});
}

absl::Status PointToPoint::CheckFits(const Operation& operation, int peer,
                                     const Message& message) const {
  const Tensor& tensor = TensorOf(operation.collective);
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
  const Tensor& tensor = TensorOf(operation->collective);
  Peer& state = peers_[peer];
  operation->peer = peer;
  absl::Status status = CheckFits(*operation, peer, message);
  if (status.ok() && message.type == Message::kEager) {
    if (tensor.bytes() > 0) {
      std::memcpy(tensor.data(), payload, tensor.bytes());
    }
    Done(operation, outcome);
    if (++state.claimed < kEagerWindow / 2) return;
    Message credit;
    credit.type = Message::kCredit;
    credit.count = std::exchange(state.claimed, 0);
    // A peer that is gone needs none.
    state.channel->Post(credit, nullptr, 0, /*ticket=*/0).IgnoreError();
    return;
  }
  if (status.ok()) {
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
  const Tensor& tensor = TensorOf(operation->collective);
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
  return peers_[peer].channel->Post(message, nullptr, 0, /*ticket=*/0);
}

void PointToPoint::Read(const Reading& reading) {
  const Tensor& tensor = TensorOf(reading.operation->collective);
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
  const Tensor& tensor = TensorOf(collective);
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

void PointToPoint::Sent(uint64_t sequence) {
  Outcome outcome;
  {
    MutexLock lock(mutex_);
    const auto found = running_.find(sequence);
    if (found != running_.end()) Done(OperationPtr(found->second), outcome);
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
}

void PointToPoint::Carry(const Outcome& outcome) {
  for (const OperationPtr& operation : outcome.done) {
    operation->work->Complete(absl::OkStatus());
  }
  // It ends this group, and with it what is left here.
  if (!outcome.failure.ok()) fail_(outcome.failure);
}

std::optional<PointToPoint::Oldest> PointToPoint::oldest() const {
  MutexLock lock(mutex_);
  if (running_.empty()) return std::nullopt;
  const auto& [sequence, operation] = *running_.begin();
  return Oldest{sequence, LabelOf(operation->collective)};
}

Instant PointToPoint::FirstDeadline() const {
  MutexLock lock(mutex_);
  Instant first = Instant::max();
  for (const auto& [sequence, operation] : running_) {
    first = std::min(first, operation->collective.deadline);
  }
  return first;
}

absl::Status PointToPoint::FindTimeout(Instant now) const {
  MutexLock lock(mutex_);
  for (const auto& [sequence, operation] : running_) {
    const Collective& collective = operation->collective;
    if (collective.deadline > now) continue;
    const bool known = operation->peer != kAnyPeer;
    absl::Status status = absl::DeadlineExceededError(absl::StrCat(
        LabelOf(collective), ": timed out after ",
        absl::FormatDuration(absl::FromChrono(collective.timeout)),
        " waiting for ",
        known ? absl::StrCat("rank ", operation->peer) : "any rank",
        " with tag ", collective.tag));
    if (known) SetCulpritRank(status, operation->peer);
    return status;
  }
  return absl::OkStatus();
}

void PointToPoint::Quiesce() {
  std::vector<Channel*> channels;
  {
    MutexLock lock(mutex_);
    closed_ = true;
    for (const Peer& peer : peers_) {
      if (peer.channel != nullptr) channels.push_back(peer.channel.get());
    }
  }
  for (Channel* const channel : channels) channel->Join();
}

void PointToPoint::Close(const absl::Status& cause) {
  std::map<uint64_t, OperationPtr> left;
  std::vector<Peer> peers;
  {
    MutexLock lock(mutex_);
    left.swap(running_);
    peers.swap(peers_);
    peers_.resize(mesh_.world_size());
    receives_.clear();
    unclaimed_.clear();
  }
  // Buffers before works: their tensors belong to the callers afterwards.
  peers.clear();
  for (const auto& [sequence, operation] : left) {
    operation->work->Complete(cause);
  }
}

}  // namespace muster::dataplane::gloo_internal
