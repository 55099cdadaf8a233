#include "client/control/connection.h"

#include <chrono>
#include <cstdint>

#include "grpc/support/time.h"
#include "proto/muster/v1/status_wire.h"

namespace muster::internal {
namespace {

void* Pointer(intptr_t tag) { return reinterpret_cast<void*>(tag); }

gpr_timespec DeadlineAt(Instant until) {
  if (until == Instant::max()) return gpr_inf_future(GPR_CLOCK_MONOTONIC);
  const auto left = std::chrono::duration_cast<std::chrono::nanoseconds>(
      until - Clock::now());
  return gpr_time_add(gpr_now(GPR_CLOCK_MONOTONIC),
                      gpr_time_from_nanos(left.count(), GPR_TIMESPAN));
}

}  // namespace

Connection::Connection(const Route& route)
    : channel_(route.channel), stub_(v1::SessionService::NewStub(channel_)) {
  for (const auto& [name, value] : route.headers) {
    context_.AddMetadata(name, value);
  }
}

Connection::~Connection() {
  context_.TryCancel();
  events_.Shutdown();
  void* tag = nullptr;
  bool ok = false;
  while (events_.Next(&tag, &ok)) {
  }
}

void Connection::Start(const v1::StreamRequest& hello) {
  // Sends the hello and the headers in one packet.
  context_.set_initial_metadata_corked(true);
  stream_ = stub_->AsyncStream(&context_, &events_, nullptr);
  Write(hello);
}

void Connection::Write(const v1::StreamRequest& request) {
  writing_ = true;
  stream_->Write(request, Pointer(kWriteTag));
}

Connection::Event Connection::Poll(Instant until) {
  // Not earlier: gRPC requests the next read in the packet of a message that
  // was written meanwhile, and not in a packet of its own (which cost a lone
  // caller 8 of 60 us).
  if (!reading_) {
    reading_ = true;
    stream_->Read(&received_, Pointer(kReadTag));
  }
  void* tag = nullptr;
  bool ok = false;
  switch (events_.AsyncNext(&tag, &ok, DeadlineAt(until))) {
    case grpc::CompletionQueue::GOT_EVENT:
      return ToEvent(static_cast<Tag>(reinterpret_cast<intptr_t>(tag)), ok);
    case grpc::CompletionQueue::TIMEOUT:
      return Event::kNothing;
    case grpc::CompletionQueue::SHUTDOWN:
      break;
  }
  return Event::kBroken;
}

Connection::Event Connection::ToEvent(Tag tag, bool ok) {
  switch (tag) {
    case kWriteTag:
      // If a write fails, the read fails, too.
      writing_ = false;
      return Event::kWritten;
    case kReadTag:
      if (!ok) return Event::kBroken;
      reading_ = false;
      return Event::kReceived;
    case kFinishTag:
      break;
  }
  return Event::kBroken;
}

Status Connection::Finish() {
  while (writing()) Poll(Instant::max());
  grpc::Status status;
  stream_->Finish(&status, Pointer(kFinishTag));
  void* tag = nullptr;
  bool ok = false;
  events_.Next(&tag, &ok);
  return v1::FromGrpc(status);
}

}  // namespace muster::internal
