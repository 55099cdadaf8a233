#include <cstdint>
#include <future>
#include <memory>
#include <utility>
#include <vector>

#include "base/serial_executor.h"
#include "client/groups/group_state.h"
#include "client/parallel/checkpoint/save.h"
#include "glog/logging.h"
#include "muster/base/status.h"
#include "muster/checkpoint.h"
#include "muster/distributed.h"
#include "muster/errors.h"

namespace muster::internal {

struct PendingSave {
  std::promise<void> promise = {};
  std::shared_future<void> done = promise.get_future().share();
};

class BackgroundSaves {
 public:
  BackgroundSaves(std::shared_ptr<CheckpointStorage> storage,
                  CheckpointerOptions options)
      : storage_(std::move(storage)), options_(std::move(options)) {
    if (options_.group == nullptr) {
      // A backend for CPU tensors, whatever that of the default group is.
      options_.group = NewGroup({.timeout = options_.timeout,
                                 .backend = "gloo",
                                 .description = "checkpoints"});
    }
  }

  ~BackgroundSaves() { WaitForLast(); }

  BackgroundSaves(const BackgroundSaves&) = delete;
  BackgroundSaves& operator=(const BackgroundSaves&) = delete;

  std::shared_ptr<PendingSave> Start(int64_t step,
                                     const std::vector<CheckpointShard>& state,
                                     const CheckpointValues& values) {
    auto pending = std::make_shared<PendingSave>();
    if (options_.group->state()->IsForOthers("save_checkpoint")) {
      pending->promise.set_value();
      return pending;
    }
    WaitForLast();
    auto save = std::make_shared<CheckpointSave>(
        *storage_, plan_, step,
        SaveCheckpointOptions{.group = options_.group,
                              .timeout = options_.timeout,
                              .values = values,
                              .keep_newest = options_.keep_newest,
                              .keep_every = options_.keep_every});
    save->Agree(state);
    save->CopyShards();
    ++started_;
    thread_.Post([save = std::move(save), pending]() mutable {
      std::exception_ptr error;
      try {
        save->Write();
      } catch (const std::exception& thrown) {
        LOG(ERROR) << thrown.what();
        error = std::current_exception();
      }
      // The copy is gone before the caller may start the next save.
      save = nullptr;
      if (error == nullptr) {
        pending->promise.set_value();
      } else {
        pending->promise.set_exception(std::move(error));
      }
      return OkStatus();
    });
    return pending;
  }

 private:
  void WaitForLast() { thread_.Await(started_).IgnoreError(); }

  const std::shared_ptr<CheckpointStorage> storage_;
  CheckpointerOptions options_;
  // Used by one save at a time.
  SavePlan plan_;
  size_t started_ = 0;
  base::SerialExecutor thread_;
};

}  // namespace muster::internal

namespace muster {

void PendingCheckpoint::Wait() const { pending_->done.get(); }

bool PendingCheckpoint::Done() const {
  return pending_->done.wait_for(std::chrono::seconds(0)) ==
         std::future_status::ready;
}

Checkpointer::Checkpointer(std::shared_ptr<CheckpointStorage> storage,
                           const CheckpointerOptions& options)
    : saves_(std::make_unique<internal::BackgroundSaves>(std::move(storage),
                                                         options)) {}

Checkpointer::~Checkpointer() = default;

PendingCheckpoint Checkpointer::SaveAsync(
    int64_t step, const std::vector<CheckpointShard>& state,
    const CheckpointValues& values) {
  return PendingCheckpoint(saves_->Start(step, state, values));
}

}  // namespace muster
