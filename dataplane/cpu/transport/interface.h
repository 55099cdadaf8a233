#ifndef MUSTER_DATAPLANE_CPU_TRANSPORT_INTERFACE_H_
#define MUSTER_DATAPLANE_CPU_TRANSPORT_INTERFACE_H_

#include <string>
#include <vector>

#include "dataplane/cpu/transport/address_exchange.h"
#include "muster/base/status.h"
#include "muster/dataplane/backend.h"

namespace muster::dataplane::cpu {

// The names in options.network_interfaces or, if that is empty, in the
// environment variable GLOO_SOCKET_IFNAME; empty if there is none. A name may
// occur several times.
std::vector<std::string> NamedInterfaces(const BackendOptions& options);

// The address to which a group's sockets are bound: that of the first of
// NamedInterfaces; else options.local_address; else loopback, with one warning
// per process. Errors: kInvalidArgument, listing the host's interfaces, if a
// named one is not among them; kUnavailable if the address does not belong to
// this host.
StatusOr<AddressBytes> ChooseAddress(const BackendOptions& options);

}  // namespace muster::dataplane::cpu

#endif  // MUSTER_DATAPLANE_CPU_TRANSPORT_INTERFACE_H_
