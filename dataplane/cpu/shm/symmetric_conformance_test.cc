// The conformance suites on shm, with all tensors in symmetric memory.

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstring>
#include <memory>
#include <utility>

#include "absl/strings/string_view.h"
#include "dataplane/cpu/shm/shm_backend.h"
#include "dataplane/testing/backend_conformance.h"
#include "dataplane/testing/tensor_copies.h"
#include "gtest/gtest.h"
#include "muster/base/mutex.h"
#include "muster/base/thread_annotations.h"
#include "muster/dataplane/backend.h"
#include "muster/dataplane/factory.h"

namespace muster::dataplane::testing {
namespace {

using ::testing::Combine;
using ::testing::Values;
using ::testing::ValuesIn;

constexpr char kName[] = "shm-symmetric";

// An allocator in a rank's symmetric memory. Allocates from the beginning to
// the end, and again when everything is freed. Uses ordinary memory when it is
// full. Thread-safe.
class Pool {
 public:
  explicit Pool(std::shared_ptr<SymmetricMemory> memory)
      : memory_(std::move(memory)),
        begin_(static_cast<std::byte*>(memory_->data())) {}

  // Enough for the conformance tests, most of the time.
  static constexpr size_t kBytes = 4 << 20;

  void* Allocate(size_t bytes) {
    MutexLock lock(mutex_);
    // Aligned for every type.
    const size_t rounded = (bytes + 63) / 64 * 64;
    if (rounded > kBytes - used_) return ::operator new(bytes);
    std::byte* const piece = begin_ + used_;
    used_ += rounded;
    ++pieces_;
    return piece;
  }

  void Free(void* piece) {
    MutexLock lock(mutex_);
    if (piece < begin_ || piece >= begin_ + kBytes) {
      ::operator delete(piece);
    } else if (--pieces_ == 0) {
      used_ = 0;
    }
  }

 private:
  const std::shared_ptr<SymmetricMemory> memory_;
  std::byte* const begin_;
  Mutex mutex_;
  size_t used_ MUSTER_GUARDED_BY(mutex_) = 0;
  int pieces_ MUSTER_GUARDED_BY(mutex_) = 0;
};

class InSymmetricMemory : public BackendDecorator {
 public:
  InSymmetricMemory(std::unique_ptr<Backend> inner, std::shared_ptr<Pool> pool)
      : BackendDecorator(std::move(inner)), pool_(std::move(pool)) {}

  std::string name() const override { return kName; }

  std::shared_ptr<Work> Start(const Collective& collective) override {
    auto copies = std::make_shared<TensorCopies>(
        collective,
        CopyPlace{
            .device = {},
            .allocate =
                [pool = pool_](size_t bytes) { return pool->Allocate(bytes); },
            .free = [pool = pool_](void* piece) { pool->Free(piece); },
            .copy = &std::memcpy});
    auto work = std::make_shared<PromisedWork>(collective.Describe());
    const std::shared_ptr<Work> inner_work = inner().Start(copies->There());
    inner_work->OnCompletion([copies, work, inner_work](const Status& status) {
      if (status.ok()) {
        copies->TakeBack();
        work->SetSourceRank(inner_work->source_rank());
      }
      work->Complete(status);
    });
    return work;
  }

 private:
  const std::shared_ptr<Pool> pool_;
};

StatusOr<std::unique_ptr<Backend>> Make(const BackendOptions& options) {
  auto shm = CreateShmBackend(options);
  if (!shm.ok()) return shm.status();
  auto memory = (*shm)->AllocateSymmetric({.bytes = Pool::kBytes,
                                           .device = DeviceType::kCpu,
                                           .deadline = options.deadline});
  if (!memory.ok()) return memory.status();
  return std::make_unique<InSymmetricMemory>(
      *std::move(shm), std::make_shared<Pool>(*std::move(memory)));
}

const bool g_registered = [] {
  return RegisterBackend(kName, {DeviceType::kCpu}, &Make).ok();
}();

INSTANTIATE_TEST_SUITE_P(Symmetric, ReductionConformance,
                         Combine(Values(kName), ValuesIn(kWorldSizes),
                                 ValuesIn(kDataTypes)));

INSTANTIATE_TEST_SUITE_P(Symmetric, BackendConformance,
                         Combine(Values(kName), ValuesIn(kWorldSizes)));

INSTANTIATE_TEST_SUITE_P(Symmetric, FailureConformance,
                         Combine(Values(kName), Values(2, 3, 4, 8)));

INSTANTIATE_TEST_SUITE_P(Symmetric, PointToPointConformance,
                         Combine(Values(kName), Values(3)));

INSTANTIATE_TEST_SUITE_P(Symmetric, DisagreementConformance,
                         Combine(Values(kName), Values(2, 3, 5)));

INSTANTIATE_TEST_SUITE_P(Symmetric, ProgramConformance,
                         Combine(Values(kName), Values(1, 2, 3, 4, 5)));

}  // namespace
}  // namespace muster::dataplane::testing
