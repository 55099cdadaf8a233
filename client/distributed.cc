#include "client/distributed.h"

#include <memory>
#include <string>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/cleanup/cleanup.h"
#include "absl/status/status.h"
#include "client/errors.h"
#include "client/internal/throw.h"
#include "client/internal/world.h"
#include "dataplane/mutex.h"

namespace muster {
namespace {

using dataplane::MutexLock;
using internal::Origin;
using internal::World;

// The default group of this process. Its destructor runs when the process
// exits without DestroyProcessGroup.
struct Default {
  dataplane::Mutex mutex;
  // Somebody forms or ends a group, without the lock.
  bool changing ABSL_GUARDED_BY(mutex) = false;
  std::unique_ptr<World> world ABSL_GUARDED_BY(mutex);
};

Default& TheDefault() {
  static Default instance;
  return instance;
}

[[noreturn]] void NotInitialized() {
  internal::Throw(Origin::kControl,
                  absl::FailedPreconditionError(
                      "Default process group has not been initialized, please "
                      "make sure to call init_process_group. In C++: "
                      "muster::InitProcessGroup()"));
}

std::shared_ptr<ProcessGroup> Resolve(
    const std::shared_ptr<ProcessGroup>& group) {
  return group == nullptr ? WorldGroup() : group;
}

}  // namespace

void InitProcessGroup(const InitProcessGroupOptions& options) {
  Default& instance = TheDefault();
  {
    MutexLock lock(instance.mutex);
    if (instance.world != nullptr || instance.changing) {
      internal::Throw(
          Origin::kControl,
          absl::FailedPreconditionError(
              "trying to initialize the default process group twice!"));
    }
    instance.changing = true;
  }
  const absl::Cleanup done = [&instance] {
    MutexLock lock(instance.mutex);
    instance.changing = false;
  };
  std::unique_ptr<World> world = World::Form(options);
  MutexLock lock(instance.mutex);
  instance.world = std::move(world);
}

bool IsInitialized() {
  Default& instance = TheDefault();
  MutexLock lock(instance.mutex);
  return instance.world != nullptr;
}

void DestroyProcessGroup() {
  Default& instance = TheDefault();
  std::unique_ptr<World> world;
  {
    MutexLock lock(instance.mutex);
    if (instance.world == nullptr) NotInitialized();
    world = std::move(instance.world);
    instance.changing = true;
  }
  const absl::Cleanup done = [&instance] {
    MutexLock lock(instance.mutex);
    instance.changing = false;
  };
  world->Destroy();
}

std::shared_ptr<ProcessGroup> WorldGroup() {
  Default& instance = TheDefault();
  MutexLock lock(instance.mutex);
  if (instance.world == nullptr) NotInitialized();
  return instance.world->group();
}

int GetRank(const std::shared_ptr<ProcessGroup>& group) {
  return Resolve(group)->rank();
}

int GetWorldSize(const std::shared_ptr<ProcessGroup>& group) {
  return Resolve(group)->size();
}

std::string GetBackend(const std::shared_ptr<ProcessGroup>& group) {
  return Resolve(group)->backend();
}

std::shared_ptr<Store> GetDefaultStore() {
  Default& instance = TheDefault();
  MutexLock lock(instance.mutex);
  if (instance.world == nullptr) NotInitialized();
  return instance.world->store();
}

std::string GetDebugAddress() {
  Default& instance = TheDefault();
  MutexLock lock(instance.mutex);
  if (instance.world == nullptr) NotInitialized();
  return instance.world->debug_address();
}

Work AllReduce(Tensor tensor, const AllReduceOptions& options) {
  return Resolve(options.group)->AllReduce(std::move(tensor), options);
}

Work Broadcast(Tensor tensor, int src, const BroadcastOptions& options) {
  return Resolve(options.group)->Broadcast(std::move(tensor), src, options);
}

Work Barrier(const BarrierOptions& options) {
  return Resolve(options.group)->Barrier(options);
}

void MonitoredBarrier(const MonitoredBarrierOptions& options) {
  Resolve(options.group)->MonitoredBarrier(options);
}

}  // namespace muster
