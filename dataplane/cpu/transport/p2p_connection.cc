#include "dataplane/cpu/transport/p2p_connection.h"

#include <cstring>
#include <memory>
#include <utility>
#include <vector>

#include "base/status.h"
#include "glog/logging.h"

namespace muster::dataplane::cpu {

P2pConnection::P2pConnection(Transport& transport, int peer, Receiver listener)
    : transport_(transport),
      peer_(peer),
      listener_(std::move(listener)),
      inbox_(kDepth * kSlotBytes),
      inbox_buffer_(transport.CreateQuietBuffer(inbox_.data(), inbox_.size())),
      reader_([this] { RunReader(); }),
      reaper_([this] { RunReaper(); }) {}

Status P2pConnection::Post(const Message& message, const void* payload,
                           size_t bytes, uint64_t ticket) {
  CHECK_LE(bytes, kMessagePayloadBytesMax);
  Posted posted;
  posted.ticket = ticket;
  posted.memory.resize(sizeof(message) + bytes);
  std::memcpy(posted.memory.data(), &message, sizeof(message));
  if (bytes > 0) {
    std::memcpy(posted.memory.data() + sizeof(message), payload, bytes);
  }
  posted.buffer =
      transport_.CreateQuietBuffer(posted.memory.data(), posted.memory.size());
  posted.slot = kPointToPointSlot;
  posted.bytes = sizeof(message) + bytes;
  return PostBuffer(std::move(posted));
}

Status P2pConnection::PostTensor(uint64_t slot, void* data, size_t bytes) {
  Posted posted;
  posted.buffer = transport_.CreateQuietBuffer(data, bytes);
  posted.slot = slot;
  posted.bytes = bytes;
  return PostBuffer(std::move(posted));
}

Status P2pConnection::PostBuffer(Posted posted) {
  MutexLock lock(mutex_);
  if (open_) {
    Status status = posted.buffer->Send(peer_, posted.slot, 0, posted.bytes);
    if (!status.ok()) return status;
  }
  posted_.push_back(std::move(posted));
  if (open_) changed_.NotifyOne();
  return OkStatus();
}

Status P2pConnection::Open() {
  Status status = transport_.OpenQuiet(peer_);
  if (!status.ok()) return status;
  MutexLock lock(mutex_);
  for (const Posted& posted : posted_) {
    status = posted.buffer->Send(peer_, posted.slot, 0, posted.bytes);
    if (!status.ok()) return status;
  }
  open_ = true;
  changed_.NotifyOne();
  return OkStatus();
}

Status P2pConnection::Announce(int slot) {
  return inbox_buffer_->Receive(peer_, kPointToPointSlot, slot * kSlotBytes,
                                kSlotBytes);
}

void P2pConnection::RunReader() {
  Status status = Open();
  int announced = 0;
  while (announced < kDepth && status.ok()) {
    status = Announce(announced);
    if (status.ok()) ++announced;
  }
  // A peer that has left may have sent messages before: wait for every
  // announced receive.
  for (int next = 0; announced > 0; next = (next + 1) % kDepth) {
    const Status received = inbox_buffer_->WaitReceive(peer_);
    if (!received.ok()) {
      status = received;
      break;
    }
    --announced;
    const std::byte* const data = inbox_.data() + next * kSlotBytes;
    Message message;
    std::memcpy(&message, data, sizeof(message));
    listener_.received(message, data + sizeof(message));
    if (status.ok()) {
      status = Announce(next);
      if (status.ok()) ++announced;
    }
  }
  listener_.ended(status);
}

void P2pConnection::RunReaper() {
  for (;;) {
    Buffer* buffer = nullptr;
    uint64_t ticket = 0;
    std::function<void()> task;
    {
      MutexLock lock(mutex_);
      const auto has_posted = [this]() MUSTER_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
        return open_ && !posted_.empty();
      };
      while (!has_posted() && tasks_.empty() && !joining_) {
        changed_.Wait(mutex_);
      }
      if (!tasks_.empty() && !joining_) {
        task = std::move(tasks_.front());
        tasks_.pop_front();
      } else if (has_posted()) {
        buffer = posted_.front().buffer.get();
        ticket = posted_.front().ticket;
      } else {
        return;
      }
    }
    if (buffer == nullptr) {
      task();
      continue;
    }
    // Data that has not left must stay in memory until the connection is
    // closed.
    if (!buffer->WaitSend(peer_).ok()) return;
    Posted left;
    {
      MutexLock lock(mutex_);
      left = std::move(posted_.front());
      posted_.pop_front();
    }
    left.buffer.reset();
    if (ticket != 0) listener_.sent(ticket);
  }
}

void P2pConnection::Run(std::function<void()> task) {
  MutexLock lock(mutex_);
  tasks_.push_back(std::move(task));
  changed_.NotifyOne();
}

void P2pConnection::Join() {
  {
    MutexLock lock(mutex_);
    joining_ = true;
  }
  changed_.NotifyAll();
  reader_.join();
  reaper_.join();
}

}  // namespace muster::dataplane::cpu
