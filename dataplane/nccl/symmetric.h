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

#include "dataplane/nccl/api.h"
#include "dataplane/nccl/comm_task.h"
#include "dataplane/nccl/platform.h"
#include "muster/base/clock.h"
#include "muster/base/mutex.h"
#include "muster/base/status.h"
#include "muster/base/thread_annotations.h"
#include "muster/dataplane/backend.h"

namespace muster::dataplane::nccl {

// SymmetricPiece is memory of ncclMemAlloc that is registered as a window of a
// communicator. It must be freed after the window is deregistered or the
// communicator has ended. Thread-safe.
class SymmetricPiece : public CommTask {
 public:
  // Allocates `bytes` on `device`, the current device, as the group's
  // allocation `number`.
  // Errors: kUnimplemented (NCCL is too old), kInternal with NCCL's text.
  static StatusOr<std::shared_ptr<SymmetricPiece>> Allocate(
      const Platform& platform, int device, uint64_t number, size_t bytes);
  ~SymmetricPiece() override;

  void* data() const { return data_; }
  int device() const { return device_; }
  uint64_t number() const { return number_; }
  size_t bytes() const { return bytes_; }

  // Registers the window.
  Result Begin(Comm comm) override;
  void End(const Status& why) override;

  // Waits for the registration. Errors: kDeadlineExceeded, the error of `over`,
  // which is polled, and the reason of End.
  Status Await(Instant deadline, const std::string& group,
               const std::function<Status()>& over);

  // Makes the task that deregisters the window and keeps the piece until then.
  // If the task fails, it adds the piece to `late`: the memory must not be
  // freed before the communicator has ended.
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
  // NCCL writes to it between Begin and End. Null if NCCL has no symmetric
  // memory here.
  Window window_ = nullptr;

  Mutex mutex_;
  CondVar changed_;
  bool ended_ MUSTER_GUARDED_BY(mutex_) = false;
  Status why_ MUSTER_GUARDED_BY(mutex_);
};

// Converts an error that only this rank has for Backend::AllocateSymmetric:
// kResourceExhausted (for instance the store's limit) becomes kInternal,
// because it would mean that all ranks agree.
Status OfThisRank(const Status& status);

// Checks, through the store, that all ranks allocate the same number of bytes,
// which NCCL does not. Waits for all ranks. `over` as for
// SymmetricPiece::Await.
// Errors: kInvalidArgument (they differ), kDeadlineExceeded (names the ranks
// that did not come), and those of the store and `over`.
Status AgreeOnBytes(const BackendOptions& group, const SymmetricPiece& piece,
                    Instant deadline, const std::function<Status()>& over);

// Call it when the piece is registered: all ranks have read this rank's value.
void ForgetBytes(const BackendOptions& group, const SymmetricPiece& piece,
                 Instant deadline);

// Returns pieces from their owners to the group while it lives. Thread-safe.
class SymmetricReturns {
 public:
  using Take = std::function<void(std::shared_ptr<SymmetricPiece>)>;
  explicit SymmetricReturns(Take take) : take_(std::move(take)) {}

  void Give(std::shared_ptr<SymmetricPiece> piece);
  // The group is about to end: from now on Give only drops the piece.
  void Close();

 private:
  Mutex mutex_;
  Take take_ MUSTER_GUARDED_BY(mutex_);
};

// The SymmetricMemory that the user owns.
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
