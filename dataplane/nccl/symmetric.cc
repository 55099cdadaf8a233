#include "dataplane/nccl/symmetric.h"

#include <algorithm>
#include <chrono>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/text.h"
#include "dataplane/cuda/stream.h"
#include "dataplane/culprit.h"
#include "dataplane/nccl/issue.h"
#include "dataplane/nccl/roll_call.h"
#include "muster/dataplane/bootstrap_store.h"

namespace muster::dataplane::nccl {
namespace {

// The polling interval of `over`.
constexpr std::chrono::milliseconds kLook(10);

// The polling interval of `over` while this rank waits in the store.
constexpr std::chrono::milliseconds kSlice(200);
// The time to ask the store whether it has a value.
constexpr std::chrono::milliseconds kStoreTime(50);
constexpr size_t kMissingMax = 8;

size_t Aligned(size_t bytes) {
  return (bytes + kWindowAlignment - 1) / kWindowAlignment * kWindowAlignment;
}

std::string MakeKey(const SymmetricPiece& piece, int rank) {
  return absl::StrCat("nccl/symmetric/", piece.number(), "/", rank);
}

Status NotCome(const BackendOptions& group, const SymmetricPiece& piece) {
  std::vector<int> missing;
  for (int rank = 0; rank < group.world_size && missing.size() < kMissingMax;
       ++rank) {
    const Instant until = Clock::now() + kStoreTime;
    if (!group.store->Get({MakeKey(piece, rank)}, until).ok()) {
      missing.push_back(rank);
    }
  }
  Status status = DeadlineExceededError(absl::StrCat(
      "group ", base::Quote(group.group_name), ": ", DescribeRanks(missing),
      " did not come to allocate symmetric memory"));
  SetCulpritRanks(status, missing);
  return status;
}

}  // namespace

class SymmetricPiece::Return : public CommTask {
 public:
  Return(std::shared_ptr<SymmetricPiece> piece,
         std::vector<std::shared_ptr<SymmetricPiece>>& late)
      : piece_(std::move(piece)), late_(late) {}

  Result Begin(Comm comm) override {
    const Window window = std::exchange(piece_->window_, nullptr);
    if (window == nullptr) return kSuccess;
    return piece_->platform_.nccl.CommWindowDeregister(comm, window);
  }
  void End(const Status& why) override {
    if (!why.ok()) late_.push_back(std::move(piece_));
    piece_ = nullptr;
  }

 private:
  std::shared_ptr<SymmetricPiece> piece_;
  std::vector<std::shared_ptr<SymmetricPiece>>& late_;
};

StatusOr<std::shared_ptr<SymmetricPiece>> SymmetricPiece::Allocate(
    const Platform& platform, int device, uint64_t number, size_t bytes) {
  const Api& nccl = platform.nccl;
  if (nccl.MemAlloc == nullptr || nccl.MemFree == nullptr ||
      nccl.CommWindowRegister == nullptr ||
      nccl.CommWindowDeregister == nullptr) {
    return UnimplementedError(
        absl::StrCat("NCCL ", VersionText(platform.nccl_version),
                     " has no symmetric memory: 2.27.0 is needed"));
  }
  void* data = nullptr;
  Status status = ToStatus(nccl, nccl.MemAlloc(&data, Aligned(bytes)),
                           absl::StrCat("ncclMemAlloc of ", bytes, " bytes"));
  if (!status.ok()) return status;
  return std::shared_ptr<SymmetricPiece>(
      new SymmetricPiece(platform, device, number, bytes, data));
}

SymmetricPiece::~SymmetricPiece() {
  const cuda::DeviceGuard guard(platform_.cuda, device_);
  platform_.nccl.MemFree(data_);
}

Result SymmetricPiece::Begin(Comm comm) {
  return platform_.nccl.CommWindowRegister(comm, data_, Aligned(bytes_),
                                           &window_, kWindowSymmetric);
}

void SymmetricPiece::End(const Status& why) {
  MutexLock lock(mutex_);
  ended_ = true;
  why_ = why;
  changed_.NotifyAll();
}

Status SymmetricPiece::Await(Instant deadline, const std::string& group,
                             const std::function<Status()>& over) {
  for (;;) {
    if (Status why = over(); !why.ok()) return why;
    MutexLock lock(mutex_);
    if (ended_) return why_;
    if (Clock::now() >= deadline) {
      return DeadlineExceededError(
          absl::StrCat("group ", base::Quote(group),
                       ": not all ranks came to allocate symmetric memory"));
    }
    changed_.WaitUntil(mutex_, std::min(deadline, Clock::now() + kLook));
  }
}

std::shared_ptr<CommTask> SymmetricPiece::GivingBack(
    std::shared_ptr<SymmetricPiece> piece,
    std::vector<std::shared_ptr<SymmetricPiece>>& late) {
  return std::make_shared<Return>(std::move(piece), late);
}

Status OfThisRank(const Status& status) {
  return IsResourceExhausted(status) ? InternalError(status.message()) : status;
}

Status AgreeOnBytes(const BackendOptions& group, const SymmetricPiece& piece,
                    Instant deadline, const std::function<Status()>& over) {
  if (group.world_size == 1) return OkStatus();
  const std::string own = absl::StrCat(piece.bytes());
  std::vector<std::string> keys;
  keys.reserve(static_cast<size_t>(group.world_size));
  for (int rank = 0; rank < group.world_size; ++rank) {
    keys.push_back(MakeKey(piece, rank));
  }
  Status status = group.store->SetBy(MakeKey(piece, group.rank), own, deadline);
  while (status.ok()) {
    const auto all =
        group.store->Get(keys, std::min(deadline, Clock::now() + kSlice));
    if (all.ok()) {
      const auto other =
          std::find_if(all->begin(), all->end(),
                       [&](const std::string& bytes) { return bytes != own; });
      if (other == all->end()) return OkStatus();
      return InvalidArgumentError(absl::StrCat(
          "group ", base::Quote(group.group_name), ": rank ",
          other - all->begin(), " allocates ", *other,
          " bytes of symmetric memory, rank ", group.rank, " ", own));
    }
    status = over();
    if (!status.ok()) return status;
    if (!IsDeadlineExceeded(all.status())) return all.status();
    if (Clock::now() >= deadline) return NotCome(group, piece);
  }
  return status;
}

void ForgetBytes(const BackendOptions& group, const SymmetricPiece& piece,
                 Instant deadline) {
  if (group.world_size == 1) return;
  group.store->Forget(MakeKey(piece, group.rank), deadline);
}

void SymmetricReturns::Give(std::shared_ptr<SymmetricPiece> piece) {
  MutexLock lock(mutex_);
  if (take_) take_(std::move(piece));
}

void SymmetricReturns::Close() {
  MutexLock lock(mutex_);
  take_ = nullptr;
}

}  // namespace muster::dataplane::nccl
