// Limits the memory of all jobs of a coordinator together, and each job's share
// of it.

#ifndef MUSTER_COORDINATOR_CORE_TOTAL_MEMORY_H_
#define MUSTER_COORDINATOR_CORE_TOTAL_MEMORY_H_

#include <atomic>
#include <cstdint>
#include <utility>

#include "coordinator/core/limits.h"
#include "muster/base/status.h"

namespace muster::coordinator::core {

// Estimated memory of a table's entry in addition to the bytes that its limit
// counts: measured and rounded up.
inline constexpr int64_t kKeyMemory = 256;  // its value included
inline constexpr int64_t kItemMemory = 96;  // of a queue
inline constexpr int64_t kWaiterMemory = 512;
inline constexpr int64_t kMemberMemory = 2048;
inline constexpr int64_t kReplyMemory = 128;  // kept for a retry

// TotalMemory enforces the limit total_bytes. Any job may use the first half.
// The other half is reserved for jobs that are within their share: one
// sixteenth of that half, or less if more than sixteen jobs hold more than a
// thousandth of it. So one job cannot take everything, its use does not cause
// another job with small needs to be refused, and jobs that hold next to
// nothing, of which anybody can create many, do not reduce the share of others.
// Thread-safe.
class TotalMemory {
 public:
  explicit TotalMemory(int64_t limit) : limit_(limit) {}
  TotalMemory(const TotalMemory&) = delete;
  TotalMemory& operator=(const TotalMemory&) = delete;

  int64_t held() const { return held_.load(std::memory_order_relaxed); }

  // The bytes that each job may have while all together are within the limit.
  int64_t share() const;

 private:
  friend class MemoryShare;

  const int64_t limit_;
  std::atomic<int64_t> held_ = 0;
  std::atomic<int64_t> sharing_jobs_ = 0;  // jobs that take a share
};

// MemoryShare counts the memory of one job. The owner of the job guards it.
class MemoryShare {
 public:
  // `total` outlives the share. Null: everything is allowed.
  explicit MemoryShare(TotalMemory* total);
  ~MemoryShare();
  MemoryShare(const MemoryShare&) = delete;
  MemoryShare& operator=(const MemoryShare&) = delete;

  // Whether the job may hold `more` more bytes.
  // Errors: RESOURCE_EXHAUSTED (`limit total_bytes is 1000, offered 2000 (key
  //   "k") by a job that holds 900, and whose share is 31; the coordinator's
  //   --limit_total_bytes sets it`).
  Status Check(int64_t more, const Offer& offer = {}) const;

  // Adds `more` bytes; negative: releases them.
  void Add(int64_t more);

  int64_t held() const { return held_; }

  // TotalMemory::share(); without a total, the largest number.
  int64_t share() const;

 private:
  TotalMemory* const total_;
  int64_t held_ = 0;
  bool shares_ = false;  // whether the job takes a share
};

// MemoryHeld counts the memory of one part of a job. Its destructor releases
// that memory.
class MemoryHeld {
 public:
  // `share` outlives it. Null: nothing is counted.
  explicit MemoryHeld(MemoryShare* share = nullptr) : share_(share) {}
  ~MemoryHeld() { Set(0); }
  // A moved-from object holds nothing.
  MemoryHeld(MemoryHeld&& other) noexcept
      : share_(other.share_), bytes_(std::exchange(other.bytes_, 0)) {}
  MemoryHeld& operator=(MemoryHeld&& other) noexcept {
    if (this == &other) return *this;
    Set(0);
    share_ = other.share_;
    bytes_ = std::exchange(other.bytes_, 0);
    return *this;
  }

  // Whether this part may hold `bytes`. Errors: those of MemoryShare::Check.
  Status Check(int64_t bytes, const Offer& offer = {}) const;

  // Sets the bytes that this part holds.
  void Set(int64_t bytes);

  int64_t bytes() const { return bytes_; }

 private:
  MemoryShare* share_;
  int64_t bytes_ = 0;
};

// Calls Check of the limits' memory, if there is one.
Status CheckMemory(const Limits& limits, int64_t more, const Offer& offer = {});

}  // namespace muster::coordinator::core

#endif  // MUSTER_COORDINATOR_CORE_TOTAL_MEMORY_H_
