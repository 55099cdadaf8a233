#include "dataplane/cpu/p2p/point_to_point.h"

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstring>
#include <iterator>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "base/exception_guard.h"
#include "dataplane/cpu/transport/process_memory.h"
#include "dataplane/cpu/transport/spin_wait.h"
#include "dataplane/cpu/transport/transport_errors.h"
#include "dataplane/culprit.h"
#include "dataplane/failed_call.h"
#include "muster/base/status.h"

namespace muster::dataplane::cpu {
namespace {

// Reading so many bytes takes no longer than a thread's wake-up.
constexpr size_t kShortBytesMax = 1 << 20;

// Marks the ticket of a kTensor message; the rest is the send's sequence.
constexpr uint64_t kTensorTicket = uint64_t{1} << 63;

// The bytes of a tensor that a thread copies before it looks at other work.
constexpr size_t kReadBytes = 4 << 20;

}  // namespace

// The work of an operation that a mailbox message may complete.
class PointToPoint::SpinningWork : public PromisedWork {
 public:
  SpinningWork(const Collective& collective,
               std::shared_ptr<PointToPoint> owner)
      : PromisedWork(collective.Describe()), owner_(std::move(owner)) {}

  using Work::Wait;
  [[nodiscard]] Status Wait(Instant deadline) override {
    if (PromisedWork::IsCompleted()) return PromisedWork::Wait(deadline);
    const Instant began = Clock::now();
    // A caller with a short timeout waits again and again, so the whole time is
    // not known here.
    const bool learns = owner_->learns_ && deadline - began > SpinBudget::kMost;
    const std::chrono::nanoseconds spin_budget =
        learns ? owner_->spin_budget_.value() : kSpinTime;
    owner_->Look(*this, std::min(deadline, began + spin_budget), deadline);
    const bool sleeps = !PromisedWork::IsCompleted();
    Status status = PromisedWork::Wait(deadline);
    if (learns && PromisedWork::IsCompleted()) owner_->Learn(sleeps, began);
    return status;
  }

  // A caller that asks repeatedly should not wait for the mailbox thread's
  // next poll. Every caller asks once or twice.
  bool IsCompleted() const override {
    if (PromisedWork::IsCompleted()) return true;
    if (asked_.fetch_add(1, std::memory_order_relaxed) >= kAskedInPassing) {
      owner_->WakeMailboxThread();
    }
    return false;
  }

 private:
  static constexpr int kAskedInPassing = 4;

  mutable std::atomic<int> asked_{0};
  const std::shared_ptr<PointToPoint> owner_;
};

PointToPoint::PointToPoint(std::string group_name, Transport& transport,
                           std::function<void(const Status&)> fail)
    : group_name_(std::move(group_name)),
      transport_(transport),
      connections_(transport.p2p_connections()),
      fail_(std::move(fail)),
      peers_(transport.world_size()) {
  peers_[transport.rank()].credit = kEagerWindow;
  if (connections_ == nullptr) return;
  connections_->SetCallbacks(
      {.received =
           [this](int peer, const Message& message,
                  std::span<const std::byte> payload) {
             Received(peer, message, payload);
           },
       .find_memory =
           [this](int peer, const Message& message, size_t bytes) {
             return FindMemory(peer, message, bytes);
           },
       .sent = [this](int peer, uint64_t ticket) { Sent(peer, ticket); },
       .ended = [this](int peer, const Status& how) { Ended(peer, how); }});
}

Status PointToPoint::LabelFailure(const Collective& collective,
                                  const Status& failure) const {
  return Verdict(failure).has_value()
             ? failure
             : Labelled(FailedCall::Of(collective), group_name_, failure);
}

std::shared_ptr<Work> PointToPoint::Start(const Collective& collective) {
  auto operation = std::make_shared<Operation>();
  operation->collective = collective;
  operation->peer = collective.peer;
  DeferredActions actions;
  bool closed = false;
  {
    MutexLock lock(mutex_);
    closed = closed_;
    if (make_mail_ != nullptr && !closed) {
      mailbox_ = std::exchange(make_mail_, nullptr)();
    }
    operation->work = MakeWork(collective);
    if (!closed) {
      const bool wants = mailbox_ != nullptr && mailbox_->wants();
      running_.emplace(collective.sequence, operation);
      const Status started =
          Guarded([&]() MUSTER_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
            if (collective.kind == CollectiveKind::kSend) {
              StartSend(operation, actions);
            } else {
              StartReceive(operation, actions);
            }
            return OkStatus();
          });
      // A message may have left in part, so the tensor stays in use until the
      // group has ended.
      if (!started.ok()) actions.failure = LabelFailure(collective, started);
      if (mailbox_ != nullptr) {
        // A small send that is complete does not need it.
        if (running_.contains(collective.sequence)) TakeMail(actions);
        HaveMailboxThreadLook();
      }
      LeaveToOthers(operation, wants, actions);
    }
  }
  const std::shared_ptr<PromisedWork> work = operation->work;
  if (closed) work->Complete(transport_.abort_cause());
  Carry(actions);
  return work;
}

std::shared_ptr<PromisedWork> PointToPoint::MakeWork(
    const Collective& collective) {
  const bool spins =
      mailbox_ != nullptr &&
      (collective.peer == kAnyPeer || mailbox_->Reaches(collective.peer));
  if (!spins) return std::make_shared<PromisedWork>(collective.Describe());
  return std::make_shared<SpinningWork>(collective, shared_from_this());
}

void PointToPoint::LeaveToOthers(const OperationPtr& own, bool wants,
                                 DeferredActions& actions) {
  // Completing them runs callbacks, which may need locks that the caller holds.
  std::erase_if(actions.done, [&](const OperationPtr& done)
                                  MUSTER_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
                                    if (done == own) return false;
                                    left_.done.push_back(done);
                                    return true;
                                  });
  // Reading may take long.
  if (!mailbox_thread_.joinable()) {
    GiveToConnections(actions.readings);
    return;
  }
  std::ranges::copy(actions.readings, std::back_inserter(left_.readings));
  if (left_.done.empty() && left_.readings.empty()) return;
  has_left_.store(true, std::memory_order_relaxed);
  ++started_;
  // Otherwise no thread sleeps, or the mailbox thread polls soon.
  if (wants || mailbox_thread_rests_) mailbox_->Wake();
  mailbox_thread_rests_ = false;
}

void PointToPoint::GiveToConnections(const std::vector<Reading>& readings) {
  for (const Reading& reading : readings) {
    connections_->Run([this, reading = Reading(reading)]() mutable {
      return ReadPart(reading);
    });
  }
}

void PointToPoint::GiveToSelf(const OperationPtr& receive,
                              const OperationPtr& send) {
  connections_->Run([this, receive, send, copied = size_t{0}]() mutable {
    const Tensor& tensor = send->tensor();
    const size_t bytes = std::min(tensor.bytes() - copied, kReadBytes);
    if (bytes > 0) {
      std::memmove(static_cast<std::byte*>(receive->tensor().data()) + copied,
                   static_cast<const std::byte*>(tensor.data()) + copied,
                   bytes);
    }
    copied += bytes;
    if (copied < tensor.bytes()) return false;
    DeferredActions actions;
    {
      MutexLock lock(mutex_);
      Done(send, actions);
      Done(receive, actions);
    }
    Carry(actions);
    return true;
  });
}

void PointToPoint::HaveMailboxThreadLook() {
  if (running_.empty()) return;
  ++started_;
  if (!mailbox_thread_rests_) return;
  mailbox_thread_rests_ = false;
  mailbox_->Wake();
}

void PointToPoint::SetMail(MailMaker make, const MailboxOptions& options) {
  MutexLock lock(mutex_);
  make_mail_ = std::move(make);
  mail_options_ = options;
  learns_ = !options.is_crowded;
}

bool PointToPoint::Post(int peer, const Message& message, const void* payload,
                        size_t bytes, uint64_t ticket) {
  Peer& state = peers_[peer];
  // No offer that completes at once may overtake one that has not left.
  const bool is_offer = ticket != 0;
  if (!(is_offer && state.unsent_offers > 0) && HasMailFor(peer) &&
      mailbox_->Put(peer, message, payload, bytes)) {
    return true;
  }
  if (connections_->Post(peer, message, payload, bytes, ticket)) return true;
  if (is_offer) ++state.unsent_offers;
  return false;
}

bool PointToPoint::TakeMail(DeferredActions& actions) {
  bool has_come = false;
  for (int peer = 0; peer < transport_.world_size(); ++peer) {
    // Nothing comes from a peer before its connection exists.
    if (!peers_[peer].is_open || !mailbox_->Reaches(peer)) continue;
    const auto take =
        [&](const Message& message, std::span<const std::byte> payload)
            MUSTER_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
              Take(peer, message, payload, actions);
            };
    if (mailbox_->Take(peer, take)) has_come = true;
  }
  return has_come;
}

bool PointToPoint::TakeMail(const Work* own, Instant deadline) {
  DeferredActions actions;
  {
    MutexLock lock(mutex_);
    if (closed_) return false;
    const bool has_come = TakeMail(actions);
    if (!has_come && left_.done.empty() && left_.readings.empty()) return false;
    std::ranges::copy(left_.done, std::back_inserter(actions.done));
    std::ranges::copy(left_.readings, std::back_inserter(actions.readings));
    left_ = {};
    has_left_.store(false, std::memory_order_relaxed);
    GiveAway(own, deadline, actions.readings);
    ++carriers_;
  }
  Carry(actions);
  for (Reading& reading : actions.readings) {
    while (!ReadPart(reading)) {
    }
  }
  MutexLock lock(mutex_);
  --carriers_;
  if (closed_) changed_.NotifyAll();
  return true;
}

void PointToPoint::GiveAway(const Work* own, Instant deadline,
                            std::vector<Reading>& readings) {
  size_t kept = 0;
  std::vector<Reading> others;
  std::erase_if(readings, [&](const Reading& reading) {
    const Operation& operation = *reading.operation;
    const bool is_own = operation.work.get() == own;
    const bool is_short = operation.tensor().bytes() <= kShortBytesMax;
    if (is_own && (is_short || deadline == Instant::max())) return false;
    if (own != nullptr && is_short && kept == 0) {
      ++kept;
      return false;
    }
    others.push_back(reading);
    return true;
  });
  GiveToConnections(others);
}

void PointToPoint::Look(const PromisedWork& work, Instant give_up,
                        Instant deadline) {
  std::shared_ptr<ShmMailbox> mailbox;
  {
    MutexLock lock(mutex_);
    if (closed_) return;
    mailbox = mailbox_;
  }
  Instant now = Clock::now();
  mailbox->BeginLooking();
  for (int look = 1; !work.PromisedWork::IsCompleted(); ++look) {
    if (mailbox->MayHaveCome() || has_left_.load(std::memory_order_relaxed)) {
      // Handling the message may take long; this thread does not poll
      // meanwhile.
      mailbox->EndLooking();
      const bool has_come = TakeMail(&work, deadline);
      mailbox->BeginLooking();
      now = Clock::now();
      if (has_come && now >= give_up) break;
      if (has_come) continue;
    }
    if (look <= kQuickSpins) {
      Relax();
      continue;
    }
    now = yielding_.GiveWay(now);
    if (now >= give_up) break;
  }
  if (!work.PromisedWork::IsCompleted()) WantMail();
  mailbox->EndLooking();
  TakeMail(&work, deadline);
}

void PointToPoint::Learn(bool sleeps, Instant began) {
  if (!sleeps && !spin_budget_.is_long()) return;
  const Instant now = Clock::now();
  MutexLock lock(mutex_);
  if (sleeps) {
    spin_budget_.HasSlept(began, now);
  } else {
    spin_budget_.HasSeen(began, now);
  }
}

void PointToPoint::WakeMailboxThread() {
  std::shared_ptr<ShmMailbox> mailbox;
  {
    MutexLock lock(mutex_);
    if (closed_) return;
    mailbox = mailbox_;
  }
  if (mailbox->MayHaveCome() || has_left_.load(std::memory_order_relaxed)) {
    mailbox->Wake();
  }
}

void PointToPoint::WantMail() {
  MutexLock lock(mutex_);
  if (!closed_ && !running_.empty()) mailbox_->SetWants(true);
}

void PointToPoint::RunMailboxThread() {
  std::shared_ptr<ShmMailbox> mailbox;
  {
    MutexLock lock(mutex_);
    mailbox = mailbox_;
  }
  uint64_t seen_started = 0;
  int idle_polls = 0;
  for (;;) {
    const uint32_t dozed = mailbox->PrepareToSleep();
    std::chrono::microseconds period{0};
    WantMail();
    if (TakeMail(/*own=*/nullptr, Instant::max())) continue;
    {
      MutexLock lock(mutex_);
      if (closed_) return;
      idle_polls = started_ == seen_started ? idle_polls + 1 : 0;
      seen_started = started_;
      mailbox_thread_rests_ = idle_polls > mail_options_.idle_polls;
      period = mailbox_thread_rests_ ? std::chrono::microseconds(0)
                                     : mail_options_.look_period;
    }
    mailbox->Sleep(dozed, period);
  }
}

PointToPoint::Peer& PointToPoint::Open(int peer) {
  Peer& state = peers_[peer];
  if (!state.is_open) {
    connections_->Open(peer);
    state.is_open = true;
    state.credit = kEagerWindow;
    if (HasMailFor(peer)) {
      mailbox_->Open(peer);
      if (!mailbox_thread_.joinable()) {
        mailbox_thread_ = std::thread([this] { RunMailboxThread(); });
      }
    }
  }
  return state;
}

void PointToPoint::StartSend(const OperationPtr& operation,
                             DeferredActions& actions) {
  const Collective& collective = operation->collective;
  const Tensor& tensor = operation->tensor();
  const bool is_small = tensor.bytes() <= kMessagePayloadBytesMax;
  Message message;
  message.tag = collective.tag;
  message.count = tensor.element_count();
  message.data_type = static_cast<uint8_t>(tensor.data_type());
  if (collective.peer == transport_.rank()) {
    return StartSendToSelf(operation, message, is_small, actions);
  }
  Peer& peer = Open(collective.peer);
  if (peer.ended.ok()) {
    message.id = ++peer.last_id;
    if (is_small && peer.credit == 0 && mailbox_ != nullptr) TakeMail(actions);
    if (is_small && peer.credit > 0) {
      --peer.credit;
      operation->is_eager = true;
      message.type = Message::kEager;
      if (Post(collective.peer, message, tensor.data(), tensor.bytes(),
               collective.sequence)) {
        Done(operation, actions);
      }
    } else {
      message.type = Message::kRequest;
      if (transport_.FindMemory(collective.peer) != nullptr &&
          CanBeRead(tensor.data(), tensor.bytes())) {
        message.address = reinterpret_cast<uint64_t>(tensor.data());
      }
      peer.requests.emplace(message.id, operation);
      Post(collective.peer, message, nullptr, 0, collective.sequence);
    }
  } else {
    actions.failure = LabelFailure(collective, peer.ended);
  }
}

void PointToPoint::StartSendToSelf(const OperationPtr& operation,
                                   Message message, bool is_small,
                                   DeferredActions& actions) {
  const Tensor& tensor = operation->tensor();
  const int rank = transport_.rank();
  Peer& own = peers_[rank];
  message.id = ++own.last_id;
  message.type = Message::kRequest;
  if (const OperationPtr receive = TakeReceive(rank, message.tag)) {
    own.requests.emplace(message.id, operation);
    Match(receive, rank, message, /*payload=*/{}, actions);
  } else if (is_small && own.credit > 0) {
    --own.credit;
    message.type = Message::kEager;
    unclaimed_.push_back(
        Copy(rank, message,
             {static_cast<const std::byte*>(tensor.data()), tensor.bytes()}));
    Done(operation, actions);
  } else {
    own.requests.emplace(message.id, operation);
    unclaimed_.push_back(Copy(rank, message, /*payload=*/{}));
  }
}

void PointToPoint::StartReceive(const OperationPtr& operation,
                                DeferredActions& actions) {
  const Collective& collective = operation->collective;
  for (int peer = 0; peer < transport_.world_size(); ++peer) {
    if (peer == transport_.rank()) continue;
    if (collective.peer == peer || collective.peer == kAnyPeer) Open(peer);
  }
  const auto found = std::find_if(
      unclaimed_.begin(), unclaimed_.end(), [&](const Unclaimed& unclaimed) {
        return operation->Wants(unclaimed.peer, unclaimed.message.tag);
      });
  if (found != unclaimed_.end()) {
    const Unclaimed claimed = std::move(*found);
    unclaimed_.erase(found);
    Match(operation, claimed.peer, claimed.message, claimed.payload, actions);
    return;
  }
  receives_.push_back(operation);
  const Status loss = LossFor(*operation);
  if (!loss.ok()) actions.failure = LabelFailure(collective, loss);
}

std::optional<PointToPoint::Oldest> PointToPoint::oldest() const {
  MutexLock lock(mutex_);
  if (running_.empty()) return std::nullopt;
  const auto& [sequence, operation] = *running_.begin();
  return Oldest{sequence, FailedCall::Of(operation->collective)};
}

Instant PointToPoint::FirstDeadline() const {
  MutexLock lock(mutex_);
  Instant first = Instant::max();
  for (const auto& [sequence, operation] : running_) {
    first = std::min(first, operation->collective.deadline);
  }
  return first;
}

Status PointToPoint::FindTimeout(Instant now) const {
  MutexLock lock(mutex_);
  for (const auto& [sequence, operation] : running_) {
    const Collective& collective = operation->collective;
    if (collective.deadline > now) continue;
    const bool known = operation->peer != kAnyPeer;
    Status status = DeadlineExceededError(absl::StrCat(
        "timed out after ",
        absl::FormatDuration(absl::FromChrono(collective.timeout)),
        " waiting for ",
        known ? absl::StrCat("rank ", operation->peer) : "any rank",
        " with tag ", collective.tag));
    if (known) SetCulpritRank(status, operation->peer);
    return LabelFailure(collective, status);
  }
  return OkStatus();
}

void PointToPoint::Quiesce() {
  {
    MutexLock lock(mutex_);
    closed_ = true;
    if (mailbox_ != nullptr) mailbox_->Wake();
    // Carriers use the connections.
    while (carriers_ > 0) changed_.Wait(mutex_);
  }
  if (connections_ != nullptr) connections_->Join();
  if (mailbox_thread_.joinable()) mailbox_thread_.join();
}

void PointToPoint::Close(const Status& cause) {
  std::map<uint64_t, OperationPtr> left;
  std::vector<OperationPtr> done;
  {
    MutexLock lock(mutex_);
    left.swap(running_);
    peers_ = std::vector<Peer>(transport_.world_size());
    receives_.clear();
    unclaimed_.clear();
    done.swap(left_.done);
    left_ = {};
    make_mail_ = nullptr;
    mailbox_.reset();
  }
  for (const OperationPtr& each : done) {
    each->work->Complete(OkStatus());
  }
  for (const auto& [sequence, operation] : left) {
    operation->work->Complete(cause);
  }
}

// PointToPoint: handling of the peers' messages.

void* PointToPoint::FindMemory(int peer, const Message& message, size_t bytes) {
  DeferredActions actions;
  {
    MutexLock lock(mutex_);
    const auto& arriving = peers_[peer].arriving;
    const auto found = arriving.find(message.id);
    if (found != arriving.end() && found->second->tensor().bytes() == bytes) {
      // An empty tensor need have no memory.
      static std::byte nothing;
      return bytes == 0 ? &nothing : found->second->tensor().data();
    }
    actions.failure = InternalError(
        absl::StrCat("rank ", peer, " sent a tensor that nobody awaits"));
  }
  Carry(actions);
  return nullptr;
}

void PointToPoint::Received(int peer, const Message& message,
                            std::span<const std::byte> payload) {
  DeferredActions actions;
  {
    MutexLock lock(mutex_);
    Take(peer, message, payload, actions);
  }
  GiveToConnections(actions.readings);
  Carry(actions);
}

void PointToPoint::Take(int peer, const Message& message,
                        std::span<const std::byte> payload,
                        DeferredActions& actions) {
  const Status taken = Guarded([&]() MUSTER_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    TakeByType(peer, message, payload, actions);
    return OkStatus();
  });
  if (taken.ok()) return;
  actions.failure = Status(
      taken.code(),
      absl::StrCat("handling a message of rank ", peer, " ", taken.message()));
}

void PointToPoint::TakeByType(int peer, const Message& message,
                              std::span<const std::byte> payload,
                              DeferredActions& actions) {
  switch (message.type) {
    case Message::kEager:
    case Message::kRequest:
      return TakeOffer(peer, message, payload, actions);
    case Message::kClear:
      return TakeClear(peer, message, actions);
    case Message::kTensor:
      return TakeTensor(peer, message, actions);
    case Message::kTaken:
      return TakeTaken(peer, message, actions);
    case Message::kReads:
      return TakeReads(peer, message);
    case Message::kCredit:
      peers_[peer].credit += message.count;
      return;
    default:
      actions.failure = InternalError(absl::StrCat(
          "rank ", peer, " sent a message of unknown type ", message.type));
  }
}

PointToPoint::Unclaimed PointToPoint::Copy(int peer, const Message& message,
                                           std::span<const std::byte> payload) {
  const auto type = static_cast<DataType>(message.data_type);
  const size_t bytes =
      message.type == Message::kEager ? message.count * DataTypeBytes(type) : 0;
  payload = payload.first(bytes);
  return {peer, message, {payload.begin(), payload.end()}};
}

void PointToPoint::TakeOffer(int peer, const Message& message,
                             std::span<const std::byte> payload,
                             DeferredActions& actions) {
  const bool known_type = message.data_type < kDataTypeCount;
  const size_t element_bytes =
      known_type ? DataTypeBytes(static_cast<DataType>(message.data_type)) : 1;
  if (!known_type || (message.type == Message::kEager &&
                      message.count > payload.size() / element_bytes)) {
    actions.failure = InternalError(
        absl::StrCat("rank ", peer, " sent a message of ", message.count,
                     " elements of type ", message.data_type));
    return;
  }
  Peer& state = peers_[peer];
  const bool is_eager = message.type == Message::kEager;
  uint64_t& unclaimed =
      is_eager ? state.unclaimed_eager : state.unclaimed_requests;
  const uint64_t most = is_eager ? kEagerWindow : kRequestsMax;
  if (unclaimed == most) {
    actions.failure = InternalError(absl::StrCat(
        "rank ", peer, " sent more than ", most,
        is_eager ? " small tensors" : " requests", " that nobody received"));
    return;
  }
  ++unclaimed;
  if (HasMailFor(peer) && message.id != state.last_offered + 1) {
    state.early.try_emplace(message.id, Copy(peer, message, payload));
    return;
  }
  TakeOfferInOrder(peer, message, payload, actions);
  for (;;) {
    const auto next = state.early.find(++state.last_offered + 1);
    if (next == state.early.end()) return;
    const Unclaimed offer = std::move(next->second);
    state.early.erase(next);
    TakeOfferInOrder(peer, offer.message, offer.payload, actions);
  }
}

void PointToPoint::TakeOfferInOrder(int peer, const Message& message,
                                    std::span<const std::byte> payload,
                                    DeferredActions& actions) {
  if (const OperationPtr receive = TakeReceive(peer, message.tag)) {
    Match(receive, peer, message, payload, actions);
    return;
  }
  unclaimed_.push_back(Copy(peer, message, payload));
}

PointToPoint::OperationPtr PointToPoint::TakeReceive(int peer, int tag) {
  const auto found = std::find_if(
      receives_.begin(), receives_.end(),
      [&](const OperationPtr& receive) { return receive->Wants(peer, tag); });
  if (found == receives_.end()) return nullptr;
  OperationPtr receive = *found;
  receives_.erase(found);
  return receive;
}

Status PointToPoint::CheckFits(const Operation& operation, int peer,
                               const Message& message) const {
  const Tensor& tensor = operation.tensor();
  const auto type = static_cast<DataType>(message.data_type);
  if (type == tensor.data_type() &&
      message.count == static_cast<uint64_t>(tensor.element_count())) {
    return OkStatus();
  }
  Status status = InvalidArgumentError(absl::StrCat(
      "rank ", peer, " sends ", message.count, " ", DataTypeName(type),
      " with tag ", message.tag, ", rank ", transport_.rank(), " receives ",
      tensor.element_count(), " ", DataTypeName(tensor.data_type())));
  SetCulpritRank(status, peer);
  return status;
}

void PointToPoint::Match(const OperationPtr& operation, int peer,
                         const Message& message,
                         std::span<const std::byte> payload,
                         DeferredActions& actions) {
  const Tensor& tensor = operation->tensor();
  Peer& state = peers_[peer];
  operation->peer = peer;
  if (peer != transport_.rank()) {
    --(message.type == Message::kEager ? state.unclaimed_eager
                                       : state.unclaimed_requests);
  }
  Status status = CheckFits(*operation, peer, message);
  if (status.ok() && message.type == Message::kEager) {
    if (tensor.bytes() > 0) {
      std::memcpy(tensor.data(), payload.data(), tensor.bytes());
    }
    Done(operation, actions);
    if (peer == transport_.rank()) {
      ++state.credit;
      return;
    }
    if (++state.claimed < kEagerWindow / 2) return;
    Message credit;
    credit.type = Message::kCredit;
    credit.count = std::exchange(state.claimed, 0);
    Post(peer, credit, nullptr, 0, /*ticket=*/0);
    return;
  }
  if (!status.ok()) {
    actions.failure = LabelFailure(operation->collective, status);
  } else if (peer == transport_.rank()) {
    GiveToSelf(operation, state.requests.extract(message.id).mapped());
  } else if (message.address != 0 && transport_.FindMemory(peer) != nullptr) {
    actions.readings.push_back({operation, peer, message});
    Tell(peer, Message::kReads, message.id);
  } else {
    Clear(operation, peer, message);
  }
}

void PointToPoint::Clear(const OperationPtr& operation, int peer,
                         const Message& request) {
  peers_[peer].arriving[request.id] = operation;
  Tell(peer, Message::kClear, request.id);
}

void PointToPoint::Tell(int peer, Message::Type type, uint64_t id) {
  Message message;
  message.type = type;
  message.id = id;
  Post(peer, message, nullptr, 0, /*ticket=*/0);
}

bool PointToPoint::ReadPart(Reading& reading) {
  const Tensor& tensor = reading.operation->tensor();
  const size_t bytes =
      std::min(tensor.bytes() - reading.bytes_read, kReadBytes);
  // Close completes the operation.
  if (!transport_.abort_cause().ok()) return true;
  const bool is_read =
      transport_.FindMemory(reading.peer)
          ->Read(reading.request.address + reading.bytes_read,
                 static_cast<std::byte*>(tensor.data()) + reading.bytes_read,
                 bytes);
  if (is_read) reading.bytes_read += bytes;
  if (is_read && reading.bytes_read < tensor.bytes()) return false;
  DeferredActions actions;
  {
    MutexLock lock(mutex_);
    if (is_read) {
      Done(reading.operation, actions);
      Tell(reading.peer, Message::kTaken, reading.request.id);
    } else {
      Clear(reading.operation, reading.peer, reading.request);
    }
  }
  Carry(actions);
  return true;
}

void PointToPoint::TakeClear(int peer, const Message& message,
                             DeferredActions& actions) {
  Peer& state = peers_[peer];
  const auto found = state.requests.find(message.id);
  if (found == state.requests.end()) {
    actions.failure = InternalError(
        absl::StrCat("rank ", peer, " cleared a send that is not there"));
    return;
  }
  if (std::exchange(found->second->is_cleared, true)) {
    actions.failure =
        InternalError(absl::StrCat("rank ", peer, " cleared a send twice"));
    return;
  }
  const Tensor& tensor = found->second->tensor();
  Message sent;
  sent.type = Message::kTensor;
  sent.id = message.id;
  connections_->PostTensor(peer, sent, tensor.data(), tensor.bytes(),
                           found->second->collective.sequence | kTensorTicket);
}

void PointToPoint::TakeTensor(int peer, const Message& message,
                              DeferredActions& actions) {
  Peer& state = peers_[peer];
  const auto found = state.arriving.find(message.id);
  if (found == state.arriving.end()) {
    actions.failure = InternalError(
        absl::StrCat("rank ", peer, " sent a tensor that nobody awaits"));
    return;
  }
  Done(found->second, actions);
  state.arriving.erase(found);
  Tell(peer, Message::kTaken, message.id);
}

void PointToPoint::TakeTaken(int peer, const Message& message,
                             DeferredActions& actions) {
  Peer& state = peers_[peer];
  const auto found = state.requests.find(message.id);
  if (found == state.requests.end() ||
      !(found->second->is_cleared || found->second->is_read)) {
    actions.failure = InternalError(
        absl::StrCat("rank ", peer, " took a send that it did not ask for"));
    return;
  }
  const OperationPtr operation = std::move(found->second);
  state.requests.erase(found);
  operation->is_taken = true;
  // The connection may still read the tensor: see Sent.
  if (operation->is_cleared && !operation->has_left) return;
  Done(operation, actions);
}

void PointToPoint::TakeReads(int peer, const Message& message) {
  Peer& state = peers_[peer];
  const auto found = state.requests.find(message.id);
  if (found != state.requests.end()) found->second->is_read = true;
}

void PointToPoint::Sent(int peer, uint64_t ticket) {
  DeferredActions actions;
  {
    MutexLock lock(mutex_);
    const bool is_tensor = (ticket & kTensorTicket) != 0;
    if (!is_tensor) --peers_[peer].unsent_offers;
    const auto found = running_.find(ticket & ~kTensorTicket);
    if (found != running_.end()) {
      const OperationPtr operation = found->second;
      if (is_tensor) operation->has_left = true;
      // A large send also waits for kTaken.
      if (is_tensor ? operation->is_taken : operation->is_eager) {
        Done(operation, actions);
      }
    }
  }
  Carry(actions);
}

void PointToPoint::Ended(int peer, const Status& how) {
  // After an abort, Close completes the operations.
  if (!transport_.abort_cause().ok()) return;
  DeferredActions actions;
  const bool in_peace = IsUnavailable(how) && transport_.CheckPeers().ok();
  {
    MutexLock lock(mutex_);
    // Takes the messages that the peer left before it went.
    if (closed_) return;
    if (mailbox_ != nullptr) TakeMail(actions);
    GiveToConnections(actions.readings);
    peers_[peer].ended = how;
    std::vector<OperationPtr> left;
    for (const auto& [sequence, operation] : running_) {
      const Status loss = LossFor(*operation);
      if (loss.ok()) continue;
      // A tensor that has not left is lost.
      if (in_peace && (operation->is_read || operation->has_left)) {
        left.push_back(operation);
      } else {
        actions.failure = LabelFailure(operation->collective, loss);
        break;
      }
    }
    for (const OperationPtr& operation : left) Done(operation, actions);
  }
  Carry(actions);
}

Status PointToPoint::LossFor(const Operation& operation) const {
  if (operation.peer != kAnyPeer) return peers_[operation.peer].ended;
  Status last;
  for (int peer = 0; peer < transport_.world_size(); ++peer) {
    if (peer == transport_.rank()) continue;
    last = peers_[peer].ended;
    if (last.ok()) return last;
  }
  return last;
}

void PointToPoint::Done(const OperationPtr& operation,
                        DeferredActions& actions) {
  if (operation->collective.kind == CollectiveKind::kRecv) {
    operation->work->SetSourceRank(operation->peer);
  }
  actions.done.push_back(operation);
  running_.erase(operation->collective.sequence);
  if (running_.empty() && mailbox_ != nullptr) mailbox_->SetWants(false);
}

void PointToPoint::Carry(const DeferredActions& actions) {
  for (const OperationPtr& operation : actions.done) {
    operation->work->Complete(OkStatus());
  }
  // This ends the group and all its operations.
  if (!actions.failure.ok()) fail_(actions.failure);
}

}  // namespace muster::dataplane::cpu
