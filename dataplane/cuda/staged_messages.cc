#include "dataplane/cuda/staged_messages.h"

#include <algorithm>
#include <bit>
#include <chrono>
#include <cstddef>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "dataplane/cuda/stream.h"
#include "dataplane/failed_call.h"

namespace muster::dataplane::cuda {
namespace {

// The polling interval while there are events to wait for.
constexpr std::chrono::microseconds kLook(20);

// The amount of pinned memory to keep for later messages. Allocating it takes
// longer than a small message.
constexpr size_t kFreeBytesMax = 16 << 20;
constexpr size_t kPieceBytesMin = 4 << 10;

}  // namespace

struct StagedMessages::Message {
  enum class Stage {
    kNew,
    // Waits for the stream to reach `ready`.
    kWaits,
    kIsCopied,
    kIsWithInner,
  };

  const Tensor& tensor() const { return *collective.first_tensor(); }
  bool is_send() const { return collective.kind == CollectiveKind::kSend; }

  Collective collective;
  std::shared_ptr<DeviceWork> work;
  int device = 0;
  Event ready = nullptr;
  Event copied = nullptr;
  Stage stage = Stage::kNew;
  std::unique_ptr<Pinned> memory;
  // Set when the message is passed to the inner backend.
  std::shared_ptr<Work> inner;
  // The result of `inner`.
  std::optional<Status> ended;
};

Status StreamIsLate(const Collective& collective) {
  Status status = DeadlineExceededError(absl::StrCat(
      collective.Label(), ": timed out after ", collective.timeout.count(),
      " ms waiting for what the current stream had been given before"));
  SetFailedCall(status, FailedCall::Of(collective));
  return status;
}

StagedMessages::StagedMessages(const Api& api, Backend& inner,
                               std::function<void(const Status&)> fail)
    : api_(api), inner_(inner), fail_(std::move(fail)) {}

StagedMessages::~StagedMessages() {
  std::thread thread;
  {
    MutexLock lock(mutex_);
    stopping_ = true;
    changed_.NotifyAll();
    thread = std::move(thread_);
  }
  if (thread.joinable()) thread.join();
  for (const auto& [device, streams] : streams_) {
    for (const Stream stream : {streams.in, streams.out}) {
      if (stream != nullptr) api_.StreamDestroy(stream);
    }
  }
}

void StagedMessages::Start(const Collective& collective,
                           std::shared_ptr<DeviceWork> work, Event ready) {
  auto message = std::make_unique<Message>();
  message->collective = collective;
  message->work = std::move(work);
  message->device = collective.cuda_device();
  message->ready = ready;
  MutexLock lock(mutex_);
  started_.push_back(std::move(message));
  is_news_ = true;
  changed_.NotifyAll();
  if (!thread_.joinable()) thread_ = std::thread([this] { Serve(); });
}

void StagedMessages::Abort(const Status& cause) {
  MutexLock lock(mutex_);
  if (!status_.ok()) return;
  status_ = cause;
  is_news_ = true;
  changed_.NotifyAll();
}

void StagedMessages::Serve() {
  BeginOwnThread(api_);
  for (;;) {
    Status aborted;
    // Polls only for events; the inner backend notifies.
    const bool polls = std::any_of(
        messages_.begin(), messages_.end(), [](const auto& message) {
          return message->stage != Message::Stage::kIsWithInner;
        });
    {
      MutexLock lock(mutex_);
      while (!is_news_ && !(stopping_ && messages_.empty())) {
        if (!polls) {
          changed_.Wait(mutex_);
        } else if (!changed_.WaitUntil(mutex_, Clock::now() + kLook)) {
          break;
        }
      }
      is_news_ = false;
      for (auto& message : started_) messages_.push_back(std::move(message));
      started_.clear();
      for (auto& [message, status] : ended_) message->ended = status;
      ended_.clear();
      aborted = status_;
      if (stopping_ && messages_.empty()) return;
    }
    for (auto& message : messages_) {
      const DeviceGuard guard(api_, message->device);
      if (Advance(*message, aborted)) message = nullptr;
    }
    std::erase(messages_, nullptr);
  }
}

bool StagedMessages::Advance(Message& message, const Status& aborted) {
  using Stage = Message::Stage;
  Status status;
  bool reached = false;
  if (message.stage == Stage::kNew) {
    status = aborted.ok() ? Begin(message) : aborted;
  }
  if (status.ok() && message.stage == Stage::kIsWithInner) {
    if (!message.ended.has_value()) return false;
    status = *message.ended;
    if (message.is_send()) {
      End(message, status);
      return true;
    }
    message.work->SetSourceRank(message.inner->source_rank());
    message.stage = Stage::kWaits;
  }
  if (status.ok() && message.stage == Stage::kWaits) {
    status = aborted;
    if (status.ok()) status = Await(message, message.ready, reached);
    if (status.ok() && !reached) return false;
    if (status.ok()) status = GiveCopy(message);
  }
  if (status.ok() && message.stage == Stage::kIsCopied) {
    // The stream has only such copies, so this ends soon, also after an Abort.
    status = Await(message, message.copied, reached);
    if (status.ok() && !reached) return false;
    if (status.ok() && message.is_send()) {
      status = aborted;
      if (status.ok()) {
        if (!HasToWait(message)) GiveToInner(message);
        return false;
      }
    }
  }
  End(message, status);
  return true;
}

Status StagedMessages::Begin(Message& message) {
  const size_t bytes = std::max(message.tensor().bytes(), kPieceBytesMin);
  const auto found =
      std::find_if(free_.begin(), free_.end(),
                   [&](const auto& piece) { return piece->bytes() >= bytes; });
  if (found != free_.end()) {
    message.memory = std::move(*found);
    free_.erase(found);
    free_bytes_ -= message.memory->bytes();
  } else {
    message.memory = std::make_unique<Pinned>(api_);
    Status status = message.memory->Reserve(
        bytes < kFreeBytesMax ? std::bit_ceil(bytes) : bytes);
    if (!status.ok()) return status;
  }
  Status status = ToStatus(
      api_, api_.EventCreateWithFlags(&message.copied, kEventDisableTiming),
      "cudaEventCreateWithFlags");
  if (!status.ok()) return status;
  message.stage = Message::Stage::kWaits;
  if (!message.is_send()) GiveToInner(message);
  return OkStatus();
}

void StagedMessages::GiveToInner(Message& message) {
  Collective on_host = message.collective;
  Tensor& tensor = message.is_send() ? on_host.inputs[0] : on_host.outputs[0];
  tensor = Tensor(message.memory->data(), tensor.data_type(), tensor.shape());
  message.stage = Message::Stage::kIsWithInner;
  message.inner = inner_.Start(on_host);
  message.inner->OnCompletion([this, &message](const Status& status) {
    MutexLock lock(mutex_);
    ended_.emplace_back(&message, status);
    is_news_ = true;
    changed_.NotifyAll();
  });
}

Status StagedMessages::GiveCopy(Message& message) {
  const StatusOr<Stream> stream = GetStream(message);
  if (!stream.ok()) return stream.status();
  const Tensor& tensor = message.tensor();
  void* to = message.memory->data();
  void* from = tensor.data();
  if (!message.is_send()) std::swap(to, from);
  if (tensor.bytes() > 0) {
    Status status = ToStatus(
        api_,
        api_.MemcpyAsync(to, from, tensor.bytes(), kMemcpyDefault, *stream),
        "cudaMemcpyAsync");
    if (!status.ok()) return status;
  }
  Status status = ToStatus(api_, api_.EventRecord(message.copied, *stream),
                           "cudaEventRecord");
  if (!status.ok()) return status;
  message.stage = Message::Stage::kIsCopied;
  message.work->Given(message.copied,
                      message.is_send() ? -1 : message.inner->source_rank());
  return OkStatus();
}

void StagedMessages::End(Message& message, const Status& status) {
  if (!status.ok()) fail_(status);
  message.work->Over();
  for (const Event event : {message.ready, message.copied}) {
    if (event != nullptr) api_.EventDestroy(event);
  }
  if (message.memory != nullptr &&
      free_bytes_ + message.memory->bytes() <= kFreeBytesMax) {
    free_bytes_ += message.memory->bytes();
    free_.push_back(std::move(message.memory));
  }
  message.work->Complete(status);
}

bool StagedMessages::HasToWait(const Message& message) const {
  for (const auto& other : messages_) {
    if (other.get() == &message) return false;
    if (other != nullptr && other->is_send() && other->inner == nullptr &&
        other->collective.peer == message.collective.peer &&
        other->collective.tag == message.collective.tag) {
      return true;
    }
  }
  return false;
}

Status StagedMessages::Await(const Message& message, Event event,
                             bool& reached) const {
  const Error error = Query(api_, event);
  reached = error == kSuccess;
  if (error != kNotReady) return ToStatus(api_, error, "cudaEventQuery");
  return event == message.ready && Clock::now() >= message.collective.deadline
             ? StreamIsLate(message.collective)
             : OkStatus();
}

StatusOr<Stream> StagedMessages::GetStream(const Message& message) {
  Streams& streams = streams_[message.device];
  Stream& stream = message.is_send() ? streams.in : streams.out;
  if (stream == nullptr) {
    Status status = ToStatus(
        api_, api_.StreamCreateWithPriority(&stream, kStreamNonBlocking, 0),
        "cudaStreamCreateWithPriority");
    if (!status.ok()) return status;
  }
  return stream;
}

}  // namespace muster::dataplane::cuda
