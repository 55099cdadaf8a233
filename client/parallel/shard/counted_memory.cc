#include "client/parallel/shard/counted_memory.h"

#include <algorithm>
#include <exception>
#include <new>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "client/control/throw.h"
#include "client/parallel/agreement/agreement.h"
#include "muster/errors.h"

namespace muster::internal {
namespace {

constexpr std::align_val_t kAlignment{64};

void AddUse(MemoryStats::Use& use, int64_t bytes) {
  use.current += bytes;
  use.peak = std::max(use.peak, use.current);
}

}  // namespace

std::shared_ptr<void> AllocateAligned(size_t bytes) {
  return {::operator new(std::max<size_t>(bytes, 1), kAlignment),
          [](void* memory) { ::operator delete(memory, kAlignment); }};
}

std::shared_ptr<void> Allocate(size_t bytes, const AllocateFunction& allocate) {
  if (allocate == nullptr) return AllocateAligned(bytes);
  std::shared_ptr<void> memory = allocate(bytes);
  if (memory == nullptr) {
    Throw(ErrorSource::kControl,
          ResourceExhaustedError(
              absl::StrCat("the function that allocates returned null for ",
                           bytes, " bytes")));
  }
  return memory;
}

void AllocateTogether(const std::string& what,
                      const std::vector<std::shared_ptr<ProcessGroup>>& groups,
                      const std::function<void()>& allocate) {
  Agreement agreement(what);
  try {
    allocate();
  } catch (const std::exception& error) {
    agreement.AddFault(
        ResourceExhaustedError(absl::StrCat("no memory: ", error.what())));
  } catch (...) {
    agreement.AddFault(ResourceExhaustedError("no memory: an exception"));
  }
  agreement.Check(groups);
}

void MemoryCounter::Add(Kind kind, int64_t bytes) {
  AddUse(stats_.*kind, bytes);
  AddUse(stats_.total, bytes);
}

CountedMemory::CountedMemory(MemoryCounter& counter, MemoryCounter::Kind kind,
                             int64_t bytes, const AllocateFunction& allocate)
    : counter_(&counter),
      kind_(kind),
      bytes_(bytes),
      memory_(Allocate(static_cast<size_t>(bytes), allocate)) {
  data_ = static_cast<std::byte*>(memory_.get());
  counter.Add(kind, bytes);
}

CountedMemory::CountedMemory(MemoryCounter& counter, MemoryCounter::Kind kind,
                             int64_t bytes, SymmetricTensor symmetric)
    : counter_(&counter),
      kind_(kind),
      bytes_(bytes),
      data_(static_cast<std::byte*>(symmetric.tensor().data())),
      symmetric_(std::move(symmetric)) {
  counter.Add(kind, bytes);
}

CountedMemory& CountedMemory::operator=(CountedMemory&& other) noexcept {
  if (this == &other) return *this;
  Free();
  counter_ = std::exchange(other.counter_, nullptr);
  kind_ = other.kind_;
  bytes_ = std::exchange(other.bytes_, 0);
  data_ = std::exchange(other.data_, nullptr);
  memory_ = std::move(other.memory_);
  symmetric_ = std::move(other.symmetric_);
  return *this;
}

void CountedMemory::Free() {
  if (counter_ == nullptr) return;
  counter_->Add(kind_, -bytes_);
  counter_ = nullptr;
  bytes_ = 0;
  data_ = nullptr;
  memory_.reset();
  symmetric_ = {};
}

CountedMemory CountedBufferPool::Take() {
  if (!free_.empty()) {
    CountedMemory memory = std::move(free_.back());
    free_.pop_back();
    return memory;
  }
  if (symmetric_ && bytes_ > 0) {
    try {
      return {counter_, kind_, bytes_,
              AllocateSymmetric(group_, DataType::kUint8, {bytes_},
                                {.device = DeviceType::kCpu})};
    } catch (const DistError& error) {
      // All ranks get these two, and the group goes on.
      const StatusCode code = error.status().code();
      if (code != StatusCode::kUnimplemented &&
          code != StatusCode::kResourceExhausted) {
        throw;
      }
      symmetric_ = false;
    }
  }
  return {counter_, kind_, bytes_};
}

}  // namespace muster::internal
