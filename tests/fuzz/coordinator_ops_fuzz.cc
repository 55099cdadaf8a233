// Sends any sequence of messages to a job's coordinator. Each call must be
// answered at most once, the invariants must hold after each step, and the
// stored records must restore the same state.
//
// The input is a list of frames: a byte for the action, a byte for the caller,
// a byte for the length of the message, and the message.

#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"
#include "coordinator/core/coordinator.h"
#include "coordinator/core/outbox.h"
#include "coordinator/core/records.h"
#include "coordinator/server/jobs/job.h"
#include "coordinator/server/rpc/apply.h"
#include "coordinator/storage/record_codec.h"
#include "muster/base/status.h"
#include "muster/v1/common.pb.h"
#include "muster/v1/membership.pb.h"
#include "muster/v1/session.pb.h"
#include "tests/fuzz/fuzz.h"

namespace muster::fuzz {
namespace {

namespace core = coordinator::core;
namespace v1 = ::muster::v1;

using coordinator::JobContext;

core::CoordinatorOptions Options() {
  core::CoordinatorOptions options;
  options.durable = true;
  // Small limits, so that a short input reaches them.
  options.limits.keys = 8;
  options.limits.value_bytes = 64;
  options.limits.store_bytes = 256;
  options.limits.queue_items = 4;
  options.limits.watch_history_changes = 4;
  options.limits.waiters = 4;
  options.limits.waiter_bytes = 512;
  options.limits.members = 4;
  options.limits.retained_replies = 4;
  options.limits.retained_reply_bytes = 256;
  options.limits.open_barriers = 2;
  options.limits.decided_barriers = 2;
  options.limits.decided_barrier_bytes = 1024;
  return options;
}

class World {
 public:
  // Returns false at the end of the input.
  bool Step(absl::string_view& input) {
    if (input.size() < 3) return false;
    const auto verb = static_cast<uint8_t>(input[0]);
    const auto who = static_cast<uint8_t>(input[1]);
    const auto size = static_cast<uint8_t>(input[2]);
    const std::string message(input.substr(3, size));
    input.remove_prefix(std::min<size_t>(3 + size, input.size()));
    Do(verb, who, message);
    CheckStep();
    return true;
  }

  void Restart() {
    std::vector<core::Record> records;
    for (const auto& [key, value] : stored_) {
      auto decoded = coordinator::DecodeRecord(key, value);
      Require(decoded.ok(), "a record does not come back");
      records.push_back(std::move(decoded->record));
    }
    coordinator_.emplace(core::CoordinatorEpoch(++epoch_), Options());
    coordinator_->Restore(std::move(records), now_);
    open_.clear();
    detached_.clear();
    // Changes that the restoration makes.
    CheckStep();
  }

 private:
  core::Call NewCall(uint8_t who) {
    core::Call call;
    const int member = who % 4;
    if (member > 0) {
      call.member = core::MemberId(std::string(1, 'a' + member - 1));
      call.incarnation = core::Incarnation(1 + who / 128);
    }
    call.waiter = core::WaiterId(++waiter_);
    const Acknowledgement& acknowledgement = acknowledged_[member];
    call.acknowledged_through = acknowledgement.through;
    call.unanswered = acknowledgement.unanswered;
    return call;
  }

  template <typename Message>
  void Apply(uint8_t who, const std::string& bytes) {
    Message message;
    if (!message.ParseFromString(bytes)) return;
    core::Call call = NewCall(who);
    JobContext context{*coordinator_, limits_, now_, out_};
    open_.insert(call.waiter.value());
    coordinator::Apply(message, call, context);
  }

  // The member's later calls carry this acknowledgement.
  void Acknowledge(uint8_t who, const std::string& bytes) {
    v1::Caller caller;
    if (!caller.ParseFromString(bytes)) return;
    acknowledged_[who % 4] = {
        core::SequenceNumber(caller.acknowledged_through()),
        coordinator::ToSequenceNumbers(caller.unanswered(), limits_)};
  }

  void Do(uint8_t verb, uint8_t who, const std::string& bytes) {
    const core::WaiterId waiter(waiter_ - who % 4);
    switch (verb % 16) {
      case 0:
        return Apply<v1::RegisterRequest>(who, bytes);
      case 1:
        return Apply<v1::HeartbeatRequest>(who, bytes);
      case 2:
        now_ += std::chrono::milliseconds(50 * who);
        return coordinator_->Tick(now_, out_);
      case 3:
        return coordinator_->CancelWaiter(waiter, out_);
      case 4:
        // An arrival stays, and its answer goes to nobody.
        if (open_.erase(waiter.value()) == 1) detached_.insert(waiter.value());
        return coordinator_->DetachWaiter(waiter, out_);
      case 5: {
        const core::Call call = NewCall(who);
        return coordinator_->Disconnected(call.member, call.incarnation, now_,
                                          out_);
      }
      case 6:
        return Restart();
      case 15:
        return Acknowledge(who, bytes);
      default:
        break;
    }
    v1::Operation operation;
    if (!operation.ParseFromString(bytes)) return;
    if (operation.request_case() == v1::Operation::REQUEST_NOT_SET ||
        operation.request_case() == v1::Operation::kCancel) {
      return;
    }
    core::Call call = NewCall(who);
    JobContext context{*coordinator_, limits_, now_, out_};
    open_.insert(call.waiter.value());
    methods_[call.waiter.value()] = coordinator::GetMethod(operation);
    coordinator::ApplyOperation(operation, call, context);
  }

  void CheckStep() {
    for (core::Reply& reply : out_.replies) {
      Require(open_.erase(reply.waiter.value()) +
                      detached_.erase(reply.waiter.value()) ==
                  1,
              "an answer to nobody, or a second one");
      const auto method = methods_.find(reply.waiter.value());
      if (method == methods_.end()) continue;
      const coordinator::Answer answer{
          {1, method->second, reply.waiter.value() % 2 == 1},
          now_,
          reply.status,
          reply.payload};
      v1::Result result;
      coordinator::FillResult(answer, core::MemberId("a"), &result);
      Require(!result.SerializeAsString().empty(), "an answer without bytes");
    }
    for (const core::Record& record : coordinator_->TakeChanges()) {
      const std::string key = coordinator::EncodeKey("j", record);
      std::optional<std::string> value = coordinator::EncodeValue(record);
      if (value.has_value()) {
        stored_[key] = *std::move(value);
      } else {
        stored_.erase(key);
      }
    }
    out_ = core::Outbox();
    const Status status = coordinator_->CheckInvariants();
    Require(status.ok(), status.ToString());
  }

  struct Acknowledgement {
    core::SequenceNumber through;
    std::vector<core::SequenceNumber> unanswered;
  };

  const core::Limits limits_ = Options().limits;
  uint64_t epoch_ = 1;
  std::optional<core::Coordinator> coordinator_{
      std::in_place, core::CoordinatorEpoch(1), Options()};
  core::Instant now_ = core::Instant() + std::chrono::hours(1);
  core::Outbox out_;
  uint64_t waiter_ = 0;
  std::map<int, Acknowledgement> acknowledged_;
  std::set<uint64_t> open_;
  std::set<uint64_t> detached_;
  std::map<uint64_t, coordinator::Method> methods_;
  std::map<std::string, std::string> stored_;
};

}  // namespace

void FuzzOne(absl::string_view input) {
  World world;
  while (world.Step(input)) {
  }
  world.Restart();
}

}  // namespace muster::fuzz
