#ifndef MUSTER_DATAPLANE_CPU_ENGINE_MULTI_INTERFACE_BACKEND_H_
#define MUSTER_DATAPLANE_CPU_ENGINE_MULTI_INTERFACE_BACKEND_H_

#include <functional>
#include <memory>

#include "muster/base/status.h"
#include "muster/dataplane/backend.h"

namespace muster::dataplane::cpu {

// A group's backend over one network interface.
struct SingleInterfaceBackend {
  std::unique_ptr<Backend> backend;
  // The same on all ranks: the group is on one host, or has one rank, and its
  // collectives need no network.
  bool is_on_one_host = false;
};

// Joins the group over the first interface that the options name.
using SingleInterfaceFactory = std::function<StatusOr<SingleInterfaceBackend>(
    const BackendOptions& options)>;

// Returns the backend that `make` makes. For a group on several hosts with
// several named interfaces (NamedInterfaces) it returns a backend that contains
// one such backend per interface, each with its own keys in the store.
// Collective k of the group uses interface k % n, and a send or receive
// interface tag % n. Operations on different interfaces are not ordered, and
// two of them may fail with different errors; but a barrier follows every
// collective that was started before it. Ranks that run different collectives
// may not notice until they meet again on the same interface. Symmetric memory
// belongs to the first interface; the others treat it as ordinary memory. The
// owner must abort the backend at the first failure, as Communicator does: that
// ends it on all interfaces.
//
// Errors: those of `make`, with the interface's name in front.
StatusOr<std::unique_ptr<Backend>> CreateMultiInterfaceBackend(
    const BackendOptions& options, const SingleInterfaceFactory& make);

}  // namespace muster::dataplane::cpu

#endif  // MUSTER_DATAPLANE_CPU_ENGINE_MULTI_INTERFACE_BACKEND_H_
