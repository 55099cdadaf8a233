#include "dataplane/cpu/engine/multi_interface_backend.h"

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "dataplane/cpu/transport/interface.h"
#include "dataplane/cpu/transport/transport_errors.h"
#include "dataplane/per_device.h"
#include "muster/base/status.h"
#include "muster/dataplane/collective.h"
#include "muster/dataplane/work.h"

namespace muster::dataplane::cpu {
namespace {

using Backends = std::vector<std::unique_ptr<Backend>>;

class MultiInterfaceBackend : public Backend {
 public:
  // One backend per interface, all with the same name.
  explicit MultiInterfaceBackend(Backends backends)
      : backends_(std::move(backends)) {}

  std::string name() const override { return first().name(); }
  std::span<const DeviceType> devices() const override {
    return first().devices();
  }
  Status Supports(const Collective& collective) const override {
    return first().Supports(collective);
  }
  size_t fusable_bytes() const override { return first().fusable_bytes(); }

  std::shared_ptr<Work> Start(const Collective& collective) override {
    if (collective.kind == CollectiveKind::kBarrier) {
      return StartOnAll(collective);
    }
    return backends_[ChooseInterface(collective)]->Start(collective);
  }

  Ticket Enter(const Collective& collective) override {
    if (collective.kind == CollectiveKind::kBarrier) {
      return Backend::Enter(collective);
    }
    const size_t interface = ChooseInterface(collective);
    Ticket ticket = backends_[interface]->Enter(collective);
    ticket.interface = static_cast<uint32_t>(interface);
    return ticket;
  }

  // Nothing is prepared: the runs of a collective take turns on the interfaces.
  Completion Run(const Collective& collective, Prepared*,
                 const Ticket& ticket) override {
    if (ticket.work != nullptr) {
      return Backend::Run(collective, /*prepared=*/nullptr, ticket);
    }
    return backends_[ticket.interface]->Run(collective, /*prepared=*/nullptr,
                                            ticket);
  }

  StatusOr<std::shared_ptr<SymmetricMemory>> AllocateSymmetric(
      const SymmetricOptions& options) override {
    return first().AllocateSymmetric(options);
  }

  // The last run on the interface of the last collective that was started.
  LastRun last_run(DeviceType device) const override {
    const size_t started = started_.load();
    const size_t last = started == 0 ? 0 : (started - 1) % backends_.size();
    return backends_[last]->last_run(device);
  }

  void Abort(Status cause) override {
    for (const auto& backend : backends_) backend->Abort(cause);
  }

 private:
  Backend& first() const { return *backends_.front(); }

  size_t ChooseInterface(const Collective& collective) {
    const size_t number = IsPointToPoint(collective.kind)
                              ? static_cast<size_t>(collective.tag)
                              : started_.fetch_add(1);
    return number % backends_.size();
  }

  // Each backend runs its collectives in order, so all earlier collectives are
  // complete when the barrier is complete on all interfaces.
  std::shared_ptr<Work> StartOnAll(const Collective& collective) {
    const auto whole = std::make_shared<PromisedWork>(collective.Describe());
    const auto left = std::make_shared<std::atomic<size_t>>(backends_.size());
    for (const auto& backend : backends_) {
      backend->Start(collective)
          ->OnCompletion([whole, left](const Status& status) {
            if (!status.ok() || left->fetch_sub(1) == 1) {
              whole->Complete(status);
            }
          });
    }
    return whole;
  }

  const Backends backends_;
  // The number of collectives started, without barriers.
  std::atomic<size_t> started_{0};
};

}  // namespace

StatusOr<std::unique_ptr<Backend>> CreateMultiInterfaceBackend(
    const BackendOptions& options, const SingleInterfaceFactory& make) {
  std::vector<std::string> names = NamedInterfaces(options);
  const size_t count = std::max<size_t>(1, names.size());
  Backends backends;
  BackendOptions own = options;
  for (size_t i = 0; i < count; ++i) {
    if (i > 0) {
      // A backend uses the first name. The number of names stays, because every
      // rank publishes it.
      std::rotate(names.begin(), names.begin() + 1, names.end());
      own.network_interfaces = absl::StrJoin(names, ",");
      own.store =
          PrefixedStore(options.store, absl::StrCat("interface", i, "/"));
    }
    StatusOr<SingleInterfaceBackend> made = make(own);
    if (!made.ok()) {
      // An error about the names explains itself.
      if (count == 1 || IsInvalidArgument(made.status())) {
        return made.status();
      }
      return Prefixed(absl::StrCat("network interface \"", names.front(),
                                   "\" (", i + 1, " of ", count, ")"),
                      made.status());
    }
    if (count == 1 || made->is_on_one_host) return std::move(made->backend);
    backends.push_back(std::move(made->backend));
  }
  return std::make_unique<MultiInterfaceBackend>(std::move(backends));
}

}  // namespace muster::dataplane::cpu
