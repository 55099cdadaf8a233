#include "dataplane/backends/nccl/split.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "absl/strings/str_cat.h"
#include "dataplane/backends/nccl/config.h"

namespace muster::dataplane::nccl {
namespace {

// How often whoever waits for a communicator asks whether it is still needed.
constexpr std::chrono::milliseconds kLook(10);

}  // namespace

Split::~Split() {
  MutexLock lock(mutex_);
  if (comm_ != nullptr) nccl_.CommAbort(comm_);
}

Result Split::Begin(Comm parent) {
  Config config = ConfigOf(options_.nccl, options_.group_name, version_);
  const bool takes_part = options_.part != kNoPart;
  return nccl_.CommSplit(parent, takes_part ? options_.part : kSplitNoColor,
                         key_, &made_, &config);
}

void Split::End(const absl::Status& why) {
  MutexLock lock(mutex_);
  ended_ = true;
  comm_ = std::exchange(made_, nullptr);
  if (!why.ok() && comm_ != nullptr) {
    nccl_.CommAbort(std::exchange(comm_, nullptr));
  }
  changed_.NotifyAll();
}

absl::StatusOr<Comm> Split::Await(Instant deadline,
                                  const std::function<absl::Status()>& over) {
  for (;;) {
    if (absl::Status why = over(); !why.ok()) return why;
    MutexLock lock(mutex_);
    if (ended_) return std::exchange(comm_, nullptr);
    if (Clock::now() >= deadline) {
      return absl::DeadlineExceededError(absl::StrCat(
          "group \"", options_.group_name,
          "\": not all ranks of the group that it is made from came to make "
          "its communicator"));
    }
    changed_.WaitUntil(mutex_, std::min(deadline, Clock::now() + kLook));
  }
}

}  // namespace muster::dataplane::nccl
