#include "client/process_group.h"

#include <memory>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "client/errors.h"
#include "client/internal/group_state.h"
#include "client/internal/throw.h"

namespace muster {
namespace {

using dataplane::Collective;
using dataplane::CollectiveKind;

std::chrono::milliseconds Checked(std::chrono::milliseconds timeout) {
  if (timeout.count() < 0) {
    internal::Throw(
        internal::Origin::kControl,
        absl::InvalidArgumentError(absl::StrCat(
            "timeout must not be negative but was ", timeout.count(), " ms")));
  }
  return timeout;
}

}  // namespace

Work::Work(std::shared_ptr<dataplane::Work> work,
           std::shared_ptr<internal::GroupState> group)
    : work_(std::move(work)), group_(std::move(group)) {}

Work& Work::operator=(Work&& other) noexcept {
  if (this != &other) {
    Finish();
    work_ = std::move(other.work_);
    group_ = std::move(other.group_);
  }
  return *this;
}

Work::~Work() { Finish(); }

void Work::Finish() noexcept {
  if (work_ != nullptr && !work_->IsCompleted()) work_->Wait().IgnoreError();
}

void Work::Wait() {
  if (work_ == nullptr) return;
  const absl::Status status = work_->Wait();
  if (!status.ok()) group_->ThrowFailure(status);
}

bool Work::WaitFor(std::chrono::milliseconds timeout) {
  if (work_ == nullptr) return true;
  const absl::Status status =
      work_->Wait(dataplane::Clock::now() + Checked(timeout));
  if (!work_->IsCompleted()) return false;
  if (!status.ok()) Wait();
  return true;
}

bool Work::IsCompleted() const {
  return work_ == nullptr || work_->IsCompleted();
}

bool Work::IsSuccess() const {
  return IsCompleted() && (work_ == nullptr || work_->status().ok());
}

ProcessGroup::ProcessGroup(std::shared_ptr<internal::GroupState> state)
    : state_(std::move(state)) {}

int ProcessGroup::rank() const { return state_->rank(); }

int ProcessGroup::size() const { return state_->size(); }

const std::string& ProcessGroup::name() const { return state_->options().name; }

std::string ProcessGroup::backend() const { return state_->options().backend; }

std::chrono::milliseconds ProcessGroup::timeout() const {
  return state_->options().timeout;
}

Work ProcessGroup::AllReduce(Tensor tensor, const AllReduceOptions& options) {
  Collective collective;
  collective.kind = CollectiveKind::kAllReduce;
  collective.tensors.push_back(std::move(tensor));
  collective.reduce_op = options.op;
  collective.timeout = Checked(options.timeout);
  return state_->Run(std::move(collective), options.async_op);
}

Work ProcessGroup::Broadcast(Tensor tensor, int src,
                             const BroadcastOptions& options) {
  Collective collective;
  collective.kind = CollectiveKind::kBroadcast;
  collective.tensors.push_back(std::move(tensor));
  collective.root = src;
  collective.timeout = Checked(options.timeout);
  return state_->Run(std::move(collective), options.async_op);
}

Work ProcessGroup::Barrier(const BarrierOptions& options) {
  Collective collective;
  collective.kind = CollectiveKind::kBarrier;
  collective.timeout = Checked(options.timeout);
  return state_->Run(std::move(collective), options.async_op);
}

void ProcessGroup::MonitoredBarrier(const MonitoredBarrierOptions& options) {
  state_->MonitoredBarrier(Checked(options.timeout), options.wait_all_ranks);
}

absl::Status ProcessGroup::status() const { return state_->status(); }

}  // namespace muster
