#ifndef MUSTER_DATAPLANE_CPU_TRANSPORT_TCP_TRANSPORT_H_
#define MUSTER_DATAPLANE_CPU_TRANSPORT_TCP_TRANSPORT_H_

#include <cstdint>
#include <memory>
#include <string>

#include "absl/strings/string_view.h"
#include "dataplane/cpu/transport/transport.h"
#include "muster/base/status.h"
#include "muster/dataplane/backend.h"

namespace muster::dataplane::cpu {

// The choices that must be alike on all ranks of a group.
struct TransportChoice {
  // A transport of another name may form its group by ConnectTcp.
  std::string name = "tcp";
  // RankAddress::tuning.
  uint64_t tuning = 0;
};

// Joins the group over TCP: publishes this rank's address, gets the addresses
// of the other ranks, and connects to all of them. All must use `backend` and
// the same `choice`. Errors: see CreateBackend.
StatusOr<std::unique_ptr<Transport>> ConnectTcp(
    absl::string_view backend, const BackendOptions& options,
    const TransportChoice& choice = {});

}  // namespace muster::dataplane::cpu

#endif  // MUSTER_DATAPLANE_CPU_TRANSPORT_TCP_TRANSPORT_H_
