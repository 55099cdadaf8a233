// An example of a backend in a shared library. It moves tensors through the
// group's key-value store, so it needs no connections between the ranks and is
// slow. It supports few collectives; the others fail with a clear error.
//
//   export MUSTER_BACKEND_LIBRARIES=.../libstore_backend.so
//   InitProcessGroup({.backend = "store"});
//
// A group's store never deletes keys, so each collective leaves its tensors
// there. Use it only to see how a backend is made, and for small tests.

#include <chrono>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "dataplane/reduction.h"
#include "muster/base/clock.h"
#include "muster/base/status.h"
#include "muster/dataplane/backend.h"
#include "muster/dataplane/collective.h"
#include "muster/dataplane/plugin.h"
#include "muster/dataplane/work.h"

namespace {

using muster::Clock;
using muster::Instant;
using muster::dataplane::Backend;
using muster::dataplane::BackendOptions;
using muster::dataplane::Collective;
using muster::dataplane::CollectiveKind;
using muster::dataplane::DeviceType;
using muster::dataplane::PromisedWork;
using muster::dataplane::Reduction;
using muster::dataplane::Tensor;
using muster::dataplane::Work;

// The time that an abort may have to wait for the store.
constexpr std::chrono::milliseconds kPatience(100);

class StoreBackend : public Backend {
 public:
  explicit StoreBackend(const BackendOptions& options)
      : options_(options), thread_([this] { RunThread(); }) {}

  ~StoreBackend() override {
    Abort(muster::CancelledError(
        absl::StrCat("group \"", options_.group_name, "\" was destroyed")));
    thread_.join();
  }

  std::string name() const override { return "store"; }

  std::span<const DeviceType> devices() const override {
    static constexpr DeviceType kDevices[] = {DeviceType::kCpu};
    return kDevices;
  }

  muster::Status Supports(const Collective& collective) const override {
    switch (collective.kind) {
      case CollectiveKind::kAllReduce:
      case CollectiveKind::kBroadcast:
        if (collective.tensors[0].device().type == DeviceType::kCpu) {
          return CheckReducible("store", collective);
        }
        return muster::UnimplementedError(
            absl::StrCat("the store backend takes CPU tensors, got ",
                         collective.tensors[0].Describe()));
      case CollectiveKind::kBarrier:
        break;
      default:
        return muster::UnimplementedError(
            absl::StrCat("the store backend has no ",
                         muster::dataplane::CollectiveKindName(collective.kind),
                         ": it has all_reduce, broadcast and barrier"));
    }
    return muster::OkStatus();
  }

  std::shared_ptr<Work> Start(const Collective& collective) override {
    auto work = std::make_shared<PromisedWork>(collective.Describe());
    muster::Status cause;
    {
      const std::lock_guard lock(mutex_);
      cause = cause_;
      if (cause.ok()) queue_.emplace_back(collective, work);
    }
    if (!cause.ok()) work->Complete(cause);
    changed_.notify_one();
    return work;
  }

  void Abort(muster::Status cause) override {
    {
      const std::lock_guard lock(mutex_);
      if (cause_.ok()) cause_ = std::move(cause);
    }
    changed_.notify_one();
  }

 private:
  // The thread's loop: runs one collective after the other until the group
  // ends.
  void RunThread() {
    for (;;) {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [&] { return !cause_.ok() || !queue_.empty(); });
      if (queue_.empty()) return;
      const auto [collective, work] = std::move(queue_.front());
      queue_.pop_front();
      muster::Status status = cause_;
      lock.unlock();
      if (status.ok()) status = Do(collective);
      work->Complete(status);
    }
  }

  muster::Status Do(const Collective& collective) {
    switch (collective.kind) {
      case CollectiveKind::kAllReduce:
        return AllReduce(collective);
      case CollectiveKind::kBroadcast:
        return Broadcast(collective);
      default:
        return AllTensors(collective, "").status();
    }
  }

  muster::Status AllReduce(const Collective& collective) {
    const Tensor& tensor = collective.tensors[0];
    const size_t count = static_cast<size_t>(tensor.element_count());
    const Reduction& reduction =
        Reduction::Of(tensor.data_type(), collective.reduce_op);
    // The ranks exchange accumulators: multiplied by the factor, not yet
    // rounded.
    std::string own(count * reduction.accumulator_bytes(), '\0');
    reduction.Load(own.data(), tensor.data(), count, collective.factor);
    const auto all = AllTensors(collective, own);
    if (!all.ok()) return all.status();
    std::string sum = all->front();
    for (size_t rank = 1; rank < all->size(); ++rank) {
      reduction.Combine(sum.data(), sum.data(), (*all)[rank].data(), count);
    }
    reduction.Finish(sum.data(), count, options_.world_size);
    reduction.Store(tensor.data(), sum.data(), count);
    return muster::OkStatus();
  }

  muster::Status Broadcast(const Collective& collective) {
    const Tensor& tensor = collective.tensors[0];
    if (options_.rank == collective.root) {
      return options_.store->Set(
          Key(collective, collective.root),
          std::string(static_cast<const char*>(tensor.data()), tensor.bytes()));
    }
    const auto value = Await(collective, {Key(collective, collective.root)});
    if (!value.ok()) return value.status();
    muster::Status fits =
        CheckBytes(collective, collective.root, value->front(), tensor.bytes());
    if (!fits.ok()) return fits;
    memcpy(tensor.data(), value->front().data(), tensor.bytes());
    return muster::OkStatus();
  }

  // Sends `own` to all ranks and returns the values of all ranks.
  muster::StatusOr<std::vector<std::string>> AllTensors(
      const Collective& collective, const std::string& own) {
    const muster::Status given =
        options_.store->Set(Key(collective, options_.rank), own);
    if (!given.ok()) return given;
    std::vector<std::string> keys;
    for (int rank = 0; rank < options_.world_size; ++rank) {
      keys.push_back(Key(collective, rank));
    }
    auto all = Await(collective, keys);
    for (size_t rank = 0; all.ok() && rank < all->size(); ++rank) {
      muster::Status fits = CheckBytes(collective, static_cast<int>(rank),
                                       (*all)[rank], own.size());
      if (!fits.ok()) return fits;
    }
    return all;
  }

  // Waits for the keys, or until the group has ended.
  muster::StatusOr<std::vector<std::string>> Await(
      const Collective& collective, const std::vector<std::string>& keys) {
    for (;;) {
      const Instant now = Clock::now();
      auto values = options_.store->Get(
          keys, std::min(now + kPatience, collective.deadline));
      if (values.ok() || !muster::IsDeadlineExceeded(values.status()) ||
          now >= collective.deadline) {
        return values;
      }
      const std::lock_guard lock(mutex_);
      if (!cause_.ok()) return cause_;
    }
  }

  muster::Status CheckBytes(const Collective& collective, int rank,
                            const std::string& value, size_t bytes) const {
    if (value.size() == bytes) return muster::OkStatus();
    return muster::InvalidArgumentError(
        absl::StrCat(collective.Label(), ": rank ", rank, " has ", value.size(),
                     " bytes, rank ", options_.rank, " has ", bytes));
  }

  static std::string Key(const Collective& collective, int rank) {
    return absl::StrCat(collective.sequence, "/", rank);
  }

  const BackendOptions options_;
  std::mutex mutex_;
  std::condition_variable changed_;
  muster::Status cause_;  // the error that ended the group
  std::deque<std::pair<Collective, std::shared_ptr<PromisedWork>>> queue_;
  std::thread thread_;
};

muster::StatusOr<std::unique_ptr<Backend>> Create(
    const BackendOptions& options) {
  return std::make_unique<StoreBackend>(options);
}

}  // namespace

MUSTER_BACKEND_PLUGIN("store", Create, DeviceType::kCpu)
