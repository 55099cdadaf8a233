#include "dataplane/nccl/split.h"

#include <algorithm>
#include <chrono>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/text.h"
#include "dataplane/nccl/config.h"
#include "dataplane/nccl/issue.h"
#include "muster/dataplane/bootstrap_store.h"

namespace muster::dataplane::nccl {
namespace {

// The polling interval of `over` while this rank waits for the parent group.
constexpr std::chrono::milliseconds kLook(10);
// The polling interval of `over` while this rank waits in the store.
constexpr std::chrono::milliseconds kSlice(200);
// The polling interval of a shrink.
constexpr std::chrono::milliseconds kShrinkLook(1);

Status Late(const SplitRank& asker, absl::string_view why) {
  return DeadlineExceededError(
      absl::StrCat("group ", base::Quote(asker.group.group_name), ": ", why));
}

}  // namespace

Split::~Split() {
  MutexLock lock(mutex_);
  if (comm_ != nullptr) nccl_.CommAbort(comm_);
}

Result Split::Begin(Comm parent) {
  Config config =
      MakeConfig(GetNcclOptions(options_), options_.group_name, version_);
  const bool takes_part = options_.part != kNoPart;
  return nccl_.CommSplit(parent, takes_part ? options_.part : kSplitNoColor,
                         key_, &made_, &config);
}

void Split::End(const Status& why) {
  MutexLock lock(mutex_);
  ended_ = true;
  comm_ = std::exchange(made_, nullptr);
  if (!why.ok() && comm_ != nullptr) {
    nccl_.CommAbort(std::exchange(comm_, nullptr));
  }
  changed_.NotifyAll();
}

StatusOr<Comm> Split::Make(const SplitRank& asker) {
  for (;;) {
    if (Status why = asker.over(); !why.ok()) return why;
    MutexLock lock(mutex_);
    if (ended_) return std::exchange(comm_, nullptr);
    if (Clock::now() >= asker.deadline) {
      return Late(asker,
                  "not all ranks of the group that it is made from came to "
                  "make its communicator");
    }
    changed_.WaitUntil(mutex_, std::min(asker.deadline, Clock::now() + kLook));
  }
}

StatusOr<Comm> Shrink::Make(const SplitRank& asker) {
  const StatusOr<bool> all = AllHaveOne(asker);
  if (!all.ok()) return all.status();
  StatusOr<Comm> made(static_cast<Comm>(nullptr));
  if (*all) made = Call(asker);
  Release();
  return made;
}

StatusOr<bool> Shrink::AllHaveOne(const SplitRank& asker) const {
  const bool has_one = parent_ != nullptr && asker.device == device_;
  if (asker.group.world_size == 1) return has_one;
  std::vector<std::string> keys;
  keys.reserve(static_cast<size_t>(asker.group.world_size));
  for (int rank = 0; rank < asker.group.world_size; ++rank) {
    keys.push_back(absl::StrCat("nccl/shrinks/", rank));
  }
  BootstrapStore& store = *asker.group.store;
  Status status = store.SetBy(keys[static_cast<size_t>(asker.group.rank)],
                              has_one ? "yes" : "no", asker.deadline);
  while (status.ok()) {
    const auto values =
        store.Get(keys, std::min(asker.deadline, Clock::now() + kSlice));
    if (values.ok()) {
      return std::count(values->begin(), values->end(), "yes") ==
             asker.group.world_size;
    }
    status = asker.over();
    if (!status.ok()) break;
    if (!IsDeadlineExceeded(values.status())) return values.status();
    if (Clock::now() >= asker.deadline) {
      status = Late(asker, "not all of its ranks came to shrink the other one");
    }
  }
  return status;
}

StatusOr<Comm> Shrink::Call(const SplitRank& asker) {
  std::vector<int> excluded = options_.excluded;
  Config config =
      MakeConfig(GetNcclOptions(options_), options_.group_name, version_);
  Comm made = nullptr;
  Status status = ToStatus(
      nccl_,
      nccl_.CommShrink(parent_, excluded.data(),
                       static_cast<int>(excluded.size()), &made, &config,
                       options_.aborts ? kShrinkAbort : kShrinkDefault),
      "ncclCommShrink", parent_);
  Result state = kInProgress;
  while (status.ok()) {
    status = ToStatus(nccl_, nccl_.CommGetAsyncError(parent_, &state),
                      "ncclCommGetAsyncError", parent_);
    if (status.ok()) {
      status = ToStatus(nccl_, state, "ncclCommShrink", parent_);
    }
    if (status.ok() && state != kInProgress) return made;
    if (status.ok()) status = asker.over();
    if (status.ok() && Clock::now() >= asker.deadline) {
      status = Late(asker, "not all of its ranks came to shrink the other one");
    }
    std::this_thread::sleep_for(kShrinkLook);
  }
  // Ends NCCL's work: it does not write to `made` any more.
  nccl_.CommAbort(std::exchange(parent_, nullptr));
  if (made != nullptr) nccl_.CommAbort(made);
  return status;
}

// Without `aborts`, the new communicator may share resources with the parent.
void Shrink::Release() {
  if (parent_ == nullptr) return;
  const Comm parent = std::exchange(parent_, nullptr);
  if (options_.aborts) {
    nccl_.CommAbort(parent);
  } else {
    nccl_.CommDestroy(parent);
  }
}

}  // namespace muster::dataplane::nccl
