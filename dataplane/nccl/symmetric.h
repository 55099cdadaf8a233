// Symmetric memory: memory that NCCL accesses on other ranks.

#ifndef MUSTER_DATAPLANE_NCCL_SYMMETRIC_H_
#define MUSTER_DATAPLANE_NCCL_SYMMETRIC_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/mutex.h"
#include "base/status.h"
#include "base/thread_annotations.h"
#include "dataplane/backend.h"
#include "dataplane/nccl/api.h"
#include "dataplane/nccl/comm_task.h"
#include "dataplane/nccl/platform.h"

namespace muster::dataplane::nccl {

// SymmetricPiece is memory of ncclMemAlloc, from its registration as a window
// of a communicator until it is freed. It is freed after the window was
// deregistered or the communicator has ended. Thread-safe.
class SymmetricPiece : public CommTask {
 public:
  // `bytes` on `device`, the current one, as the group's `number`th.
  // Errors: kUnimplemented (NCCL is too old), kInternal with its own words.
  static StatusOr<std::shared_ptr<SymmetricPiece>> Allocate(
      const Platform& platform, int device, uint64_t number, size_t bytes);
  ~SymmetricPiece() override;

  void* data() const { return data_; }
  int device() const { return device_; }
  uint64_t number() const { return number_; }
  size_t bytes() const { return bytes_; }

  // Registers it.
  Result Begin(Comm comm) override;
  void End(const Status& why) override;

  // Waits for that. Errors: kDeadlineExceeded, what `over` says, which is asked
  // now and then, and why it has ended.
  Status Await(Instant deadline, const std::string& group,
               const std::function<Status()>& over);

  // The task that gives the window back, and keeps the piece until then. If
  // that comes to nothing the piece is added to `late`, for whoever ends the
  // communicator: its memory must not go before.
  static std::shared_ptr<CommTask> GivingBack(
      std::shared_ptr<SymmetricPiece> piece,
      std::vector<std::shared_ptr<SymmetricPiece>>& late);

 private:
  class Return;

  SymmetricPiece(const Platform& platform, int device, uint64_t number,
                 size_t bytes, void* data)
      : platform_(platform),
        device_(device),
        number_(number),
        bytes_(bytes),
        data_(data) {}

  const Platform platform_;
  const int device_;
  const uint64_t number_;
  const size_t bytes_;
  void* const data_;
  // NCCL writes to it between Begin and End; null where it has no symmetric
  // memory.
  Window window_ = nullptr;

  Mutex mutex_;
  CondVar changed_;
  bool ended_ MUSTER_GUARDED_BY(mutex_) = false;
  Status why_ MUSTER_GUARDED_BY(mutex_);
};

// An error of Backend::AllocateSymmetric that this rank has: kInternal in the
// place of kResourceExhausted (the store's limits), which would say that all
// ranks have found out together.
Status OfThisRank(const Status& status);

// Whether all ranks of the group want as many bytes, which NCCL does not ask:
// each says in the store how many, and waits for the others. `over` as for
// SymmetricPiece::Await.
// Errors: kInvalidArgument (they do not), kDeadlineExceeded (naming who did not
// come), the store's, and what `over` says.
Status AgreeOnBytes(const BackendOptions& group, const SymmetricPiece& piece,
                    Instant deadline, const std::function<Status()>& over);

// When the piece is registered: all ranks have read that.
void ForgetBytes(const BackendOptions& group, const SymmetricPiece& piece,
                 Instant deadline);

// The way back of a piece to its group, as long as that lives. Thread-safe.
class SymmetricReturns {
 public:
  using Take = std::function<void(std::shared_ptr<SymmetricPiece>)>;
  explicit SymmetricReturns(Take take) : take_(std::move(take)) {}

  void Give(std::shared_ptr<SymmetricPiece> piece);
  // The group is about to end: pieces are freed by their owners from now on.
  void Close();

 private:
  Mutex mutex_;
  Take take_ MUSTER_GUARDED_BY(mutex_);
};

// What the owner of a piece has.
class OwnedPiece : public SymmetricMemory {
 public:
  OwnedPiece(std::shared_ptr<SymmetricPiece> piece,
             std::shared_ptr<SymmetricReturns> returns)
      : piece_(std::move(piece)), returns_(std::move(returns)) {}
  ~OwnedPiece() override { returns_->Give(std::move(piece_)); }

  void* data() const override { return piece_->data(); }
  Device device() const override {
    return {DeviceType::kCuda, piece_->device()};
  }

 private:
  std::shared_ptr<SymmetricPiece> piece_;
  const std::shared_ptr<SymmetricReturns> returns_;
};

}  // namespace muster::dataplane::nccl

#endif  // MUSTER_DATAPLANE_NCCL_SYMMETRIC_H_
