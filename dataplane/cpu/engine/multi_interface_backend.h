#ifndef MUSTER_DATAPLANE_CPU_ENGINE_MULTI_INTERFACE_BACKEND_H_
#define MUSTER_DATAPLANE_CPU_ENGINE_MULTI_INTERFACE_BACKEND_H_

#include <functional>
#include <memory>

#include "base/status.h"
#include "dataplane/backend.h"

namespace muster::dataplane::cpu {

struct SingleInterfaceBackend {
  std::unique_ptr<Backend> backend;
  // The same on all ranks: the group is on one host, or has one rank, and its
  // collectives need no network.
  bool is_on_one_host = false;
};

// Joins the group over the first interface that the options name.
using SingleInterfaceFactory = std::function<StatusOr<SingleInterfaceBackend>(
    const BackendOptions& options)>;

// Returns what `make` makes; or, for a group on several hosts for which several
// interfaces are named (NamedInterfaces), a backend that has one of those for
// each interface, with keys of its own in the store. Collective k of the group
// goes over interface k % n, and a send or receive over interface tag % n. What
// goes over different interfaces has no order, and two of it may fail each in
// its own words; but a barrier comes after every collective that was started
// before it. Ranks that run different collectives may not find out before they
// meet again over the same interface. Symmetric memory is the first
// interface's, to the others it is memory as any other. Its owner aborts it at
// the first failure, as Communicator does: that ends it on all interfaces.
//
// Errors: those of `make`, with the interface in front.
StatusOr<std::unique_ptr<Backend>> CreateMultiInterfaceBackend(
    const BackendOptions& options, const SingleInterfaceFactory& make);

}  // namespace muster::dataplane::cpu

#endif  // MUSTER_DATAPLANE_CPU_ENGINE_MULTI_INTERFACE_BACKEND_H_
