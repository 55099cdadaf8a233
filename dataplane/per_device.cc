#include "dataplane/per_device.h"

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/text.h"
#include "muster/base/status.h"

namespace muster::dataplane {
namespace {

class Prefixed : public BootstrapStore {
 public:
  Prefixed(std::shared_ptr<BootstrapStore> store, std::string prefix)
      : store_(std::move(store)), prefix_(std::move(prefix)) {}

  Status Set(const std::string& key, const std::string& value) override {
    return store_->Set(prefix_ + key, value);
  }
  Status SetBy(const std::string& key, const std::string& value,
               Instant deadline) override {
    return store_->SetBy(prefix_ + key, value, deadline);
  }
  StatusOr<std::vector<std::string>> Get(const std::vector<std::string>& keys,
                                         Instant deadline) override {
    std::vector<std::string> own;
    own.reserve(keys.size());
    for (const std::string& key : keys) own.push_back(prefix_ + key);
    return store_->Get(own, deadline);
  }
  StatusOr<int64_t> Add(const std::string& key, int64_t delta) override {
    return store_->Add(prefix_ + key, delta);
  }
  void Forget(const std::string& key, Instant deadline) override {
    store_->Forget(prefix_ + key, deadline);
  }

 private:
  const std::shared_ptr<BootstrapStore> store_;
  const std::string prefix_;
};

class DeviceParentHandles : public ParentHandle {
 public:
  explicit DeviceParentHandles(
      std::map<DeviceType, std::shared_ptr<ParentHandle>> by_device)
      : by_device_(std::move(by_device)) {}

  std::shared_ptr<ParentHandle> Of(DeviceType device) const {
    const auto found = by_device_.find(device);
    return found == by_device_.end() ? nullptr : found->second;
  }

 private:
  const std::map<DeviceType, std::shared_ptr<ParentHandle>> by_device_;
};

}  // namespace

PerDevice::PerDevice(std::string name, Map backends)
    : name_(std::move(name)), backends_(std::move(backends)) {
  for (const auto& [device, backend] : backends_) devices_.push_back(device);
}

Backend* PerDevice::Find(const Collective& collective) const {
  const Tensor* const tensor = collective.first_tensor();
  if (tensor == nullptr && collective.device < 0) {
    return backends_.front().second.get();
  }
  const DeviceType wanted =
      tensor == nullptr ? DeviceType::kCuda : tensor->device().type;
  for (const auto& [device, backend] : backends_) {
    if (device == wanted) return backend.get();
  }
  return nullptr;
}

std::set<Backend*> PerDevice::Distinct() const {
  std::set<Backend*> distinct;
  for (const auto& [device, backend] : backends_) {
    distinct.insert(backend.get());
  }
  return distinct;
}

Status PerDevice::Supports(const Collective& collective) const {
  const Backend* const backend = Find(collective);
  if (backend != nullptr) return backend->Supports(collective);
  return UnimplementedError(absl::StrCat("No backend for ",
                                         collective.first_tensor()->Describe(),
                                         " in ", base::Quote(name_)));
}

size_t PerDevice::fusable_bytes() const {
  // Only CPU tensors are fused (coalescing.h).
  for (const auto& [device, backend] : backends_) {
    if (device == DeviceType::kCpu) return backend->fusable_bytes();
  }
  return 0;
}

std::shared_ptr<Work> PerDevice::Start(const Collective& collective) {
  return Find(collective)->Start(collective);
}

std::unique_ptr<Backend::Prepared> PerDevice::Prepare(
    const Collective& collective) {
  return Find(collective)->Prepare(collective);
}

Ticket PerDevice::Enter(const Collective& collective) {
  return Find(collective)->Enter(collective);
}

Completion PerDevice::Run(const Collective& collective, Prepared* prepared,
                          const Ticket& ticket) {
  return Find(collective)->Run(collective, prepared, ticket);
}

void PerDevice::BeginTogether() {
  for (Backend* const backend : Distinct()) backend->BeginTogether();
}

void PerDevice::EndTogether() {
  for (Backend* const backend : Distinct()) backend->EndTogether();
}

void PerDevice::Refused(const Collective& collective, const Status& why) {
  Backend* const backend = Find(collective);
  if (backend != nullptr) backend->Refused(collective, why);
}

std::shared_ptr<ParentHandle> PerDevice::Split(const SplitOptions& options) {
  std::map<Backend*, std::shared_ptr<ParentHandle>> by_backend;
  std::map<DeviceType, std::shared_ptr<ParentHandle>> by_device;
  for (const auto& [device, backend] : backends_) {
    const auto [found, is_new] = by_backend.emplace(backend.get(), nullptr);
    if (is_new) found->second = backend->Split(options);
    by_device[device] = found->second;
  }
  return std::make_shared<DeviceParentHandles>(std::move(by_device));
}

std::shared_ptr<ParentHandle> PerDevice::FindParentHandle(
    DeviceType device, const std::shared_ptr<ParentHandle>& parent_handle) {
  const auto* const all =
      dynamic_cast<const DeviceParentHandles*>(parent_handle.get());
  return all == nullptr ? nullptr : all->Of(device);
}

StatusOr<std::shared_ptr<SymmetricMemory>> PerDevice::AllocateSymmetric(
    const SymmetricOptions& options) {
  for (const auto& [device, backend] : backends_) {
    if (device == options.device) return backend->AllocateSymmetric(options);
  }
  return UnimplementedError(absl::StrCat("No backend for ",
                                         DeviceTypeName(options.device),
                                         " memory in ", base::Quote(name_)));
}

CommunicatorStates PerDevice::communicator_states() const {
  CommunicatorStates all;
  for (const Backend* const backend : Distinct()) {
    all.merge(backend->communicator_states());
  }
  return all;
}

LastRun PerDevice::last_run(DeviceType device) const {
  for (const auto& [kind, backend] : backends_) {
    if (kind == device) return backend->last_run(device);
  }
  return {.backend = name_};
}

void PerDevice::Abort(Status cause) {
  for (const auto& [device, backend] : backends_) backend->Abort(cause);
}

std::shared_ptr<BootstrapStore> PrefixedStore(
    std::shared_ptr<BootstrapStore> store, std::string prefix) {
  if (store == nullptr) return nullptr;
  return std::make_shared<Prefixed>(std::move(store), std::move(prefix));
}

}  // namespace muster::dataplane
