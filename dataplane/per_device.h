#ifndef MUSTER_DATAPLANE_PER_DEVICE_H_
#define MUSTER_DATAPLANE_PER_DEVICE_H_

#include <cstddef>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "muster/base/status.h"
#include "muster/dataplane/backend.h"
#include "muster/dataplane/bootstrap_store.h"
#include "muster/dataplane/collective.h"
#include "muster/dataplane/tensor.h"
#include "muster/dataplane/work.h"

namespace muster::dataplane {

// PerDevice is one backend made of several. It passes each collective to the
// backend for its tensors' device, and a collective without tensors to the
// first backend. Collectives on different devices are not ordered.
class PerDevice : public Backend {
 public:
  // Not empty. A backend may occur several times.
  using Map = std::vector<std::pair<DeviceType, std::shared_ptr<Backend>>>;

  // `name`: "cpu:gloo,cuda:nccl".
  PerDevice(std::string name, Map backends);

  std::string name() const override { return name_; }
  std::span<const DeviceType> devices() const override { return devices_; }
  // Also kUnimplemented if no backend serves the device.
  Status Supports(const Collective& collective) const override;
  size_t fusable_bytes() const override;
  std::shared_ptr<Work> Start(const Collective& collective) override;
  std::unique_ptr<Prepared> Prepare(const Collective& collective) override;
  Ticket Enter(const Collective& collective) override;
  Completion Run(const Collective& collective, Prepared* prepared,
                 const Ticket& ticket) override;
  void BeginTogether() override;
  void EndTogether() override;
  void Refused(const Collective& collective, const Status& why) override;
  std::shared_ptr<ParentHandle> Split(const SplitOptions& options) override;
  StatusOr<std::shared_ptr<SymmetricMemory>> AllocateSymmetric(
      const SymmetricOptions& options) override;
  CommunicatorStates communicator_states() const override;
  LastRun last_run(DeviceType device) const override;
  void Abort(Status cause) override;

  // Returns the part of Split's result that belongs to the backend for
  // `device`.
  static std::shared_ptr<ParentHandle> FindParentHandle(
      DeviceType device, const std::shared_ptr<ParentHandle>& parent_handle);

 private:
  Backend* Find(const Collective& collective) const;
  // The backends, without duplicates.
  std::set<Backend*> Distinct() const;

  const std::string name_;
  const Map backends_;
  std::vector<DeviceType> devices_;
};

// A view of `store` that puts `prefix` in front of every key; null if `store`
// is.
std::shared_ptr<BootstrapStore> PrefixedStore(
    std::shared_ptr<BootstrapStore> store, std::string prefix);

}  // namespace muster::dataplane

#endif  // MUSTER_DATAPLANE_PER_DEVICE_H_
