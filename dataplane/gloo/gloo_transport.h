#ifndef MUSTER_DATAPLANE_GLOO_GLOO_TRANSPORT_H_
#define MUSTER_DATAPLANE_GLOO_GLOO_TRANSPORT_H_

#include <cstdint>
#include <memory>

#include "absl/strings/string_view.h"
#include "dataplane/cpu/transport/transport.h"
#include "muster/base/status.h"
#include "muster/dataplane/backend.h"

namespace muster::dataplane::cpu {

// As ConnectTcp, but collectives travel through the Gloo library: by
// its device for TCP or, if the environment variable GLOO_DEVICE_TRANSPORT is
// IBVERBS, by that for InfiniBand. The connections of ConnectTcp form
// and end the group, and carry its sends and receives. `tuning`: see
// TransportChoice.
//
// Errors: also kInvalidArgument for another value of the variable, and
// kUnimplemented if the library lacks the device or what it must do.
StatusOr<std::unique_ptr<Transport>> ConnectGloo(absl::string_view backend,
                                                 const BackendOptions& options,
                                                 uint64_t tuning = 0);

}  // namespace muster::dataplane::cpu

#endif  // MUSTER_DATAPLANE_GLOO_GLOO_TRANSPORT_H_
