#include "client/distributed.h"

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

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

Work Reduce(Tensor tensor, int dst, const ReduceOptions& options) {
  return Resolve(options.group)->Reduce(std::move(tensor), dst, options);
}

Work AllGather(std::vector<Tensor> tensor_list, Tensor tensor,
               const AllGatherOptions& options) {
  return Resolve(options.group)
      ->AllGather(std::move(tensor_list), std::move(tensor), options);
}

Work AllGatherIntoTensor(Tensor output, Tensor input,
                         const AllGatherOptions& options) {
  return Resolve(options.group)
      ->AllGatherIntoTensor(std::move(output), std::move(input), options);
}

Work Gather(Tensor tensor, std::vector<Tensor> gather_list, int dst,
            const GatherOptions& options) {
  return Resolve(options.group)
      ->Gather(std::move(tensor), std::move(gather_list), dst, options);
}

Work Scatter(Tensor tensor, std::vector<Tensor> scatter_list, int src,
             const ScatterOptions& options) {
  return Resolve(options.group)
      ->Scatter(std::move(tensor), std::move(scatter_list), src, options);
}

Work ReduceScatter(Tensor output, std::vector<Tensor> input_list,
                   const ReduceScatterOptions& options) {
  return Resolve(options.group)
      ->ReduceScatter(std::move(output), std::move(input_list), options);
}

Work ReduceScatterTensor(Tensor output, Tensor input,
                         const ReduceScatterOptions& options) {
  return Resolve(options.group)
      ->ReduceScatterTensor(std::move(output), std::move(input), options);
}

Work AllToAll(std::vector<Tensor> output_tensor_list,
              std::vector<Tensor> input_tensor_list,
              const AllToAllOptions& options) {
  return Resolve(options.group)
      ->AllToAll(std::move(output_tensor_list), std::move(input_tensor_list),
                 options);
}

Work AllToAllSingle(Tensor output, Tensor input,
                    const AllToAllSingleOptions& options) {
  return Resolve(options.group)
      ->AllToAllSingle(std::move(output), std::move(input), options);
}

void Send(Tensor tensor, int dst, const SendOptions& options) {
  Resolve(options.group)->Send(std::move(tensor), dst, options);
}

int Recv(Tensor tensor, std::optional<int> src, const RecvOptions& options) {
  return Resolve(options.group)->Recv(std::move(tensor), src, options);
}

Work Isend(Tensor tensor, int dst, const SendOptions& options) {
  return Resolve(options.group)->Isend(std::move(tensor), dst, options);
}

Work Irecv(Tensor tensor, std::optional<int> src, const RecvOptions& options) {
  return Resolve(options.group)->Irecv(std::move(tensor), src, options);
}

std::vector<Work> BatchIsendIrecv(const std::vector<P2POp>& p2p_op_list) {
  if (p2p_op_list.empty()) {
    internal::Throw(Origin::kControl, absl::InvalidArgumentError(
                                          "p2p_op_list must not be empty"));
  }
  const std::shared_ptr<ProcessGroup> group = Resolve(p2p_op_list[0].group);
  for (const P2POp& op : p2p_op_list) {
    if (Resolve(op.group) != group) {
      internal::Throw(
          Origin::kControl,
          absl::InvalidArgumentError("All ops need to use the same group."));
    }
  }
  std::vector<Work> works;
  works.reserve(p2p_op_list.size());
  for (const P2POp& op : p2p_op_list) {
    works.push_back(op.op == P2POp::Kind::kIsend
                        ? group->Isend(op.tensor, op.peer, {.tag = op.tag})
                        : group->Irecv(op.tensor, op.peer, {.tag = op.tag}));
  }
  return works;
}

Work Barrier(const BarrierOptions& options) {
  return Resolve(options.group)->Barrier(options);
}

void MonitoredBarrier(const MonitoredBarrierOptions& options) {
  Resolve(options.group)->MonitoredBarrier(options);
}

}  // namespace muster
