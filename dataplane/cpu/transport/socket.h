#ifndef MUSTER_DATAPLANE_CPU_TRANSPORT_SOCKET_H_
#define MUSTER_DATAPLANE_CPU_TRANSPORT_SOCKET_H_

#include <sys/socket.h>

#include "absl/strings/string_view.h"
#include "dataplane/cpu/transport/address_exchange.h"
#include "muster/base/clock.h"
#include "muster/base/status.h"

namespace muster::dataplane::cpu {

// Helpers shared by the sockets of this folder.

const sockaddr* Generic(const AddressBytes& address);

// Makes a non-blocking socket of the address's family. Returns -1 and sets
// errno on failure.
int MakeSocket(const AddressBytes& address);

// Disables Nagle's algorithm: small messages are sent at once.
void SendAtOnce(int socket);

// As SendAtOnce, for a connection that carries messages. Also makes its send
// buffer large enough that two ranks may write a collective's messages to each
// other before either reads.
void SetForMessages(int socket);

// The timeout in milliseconds for a poll(2) that ends by `deadline`, or after
// an hour.
int PollTimeout(Instant deadline);

// Whether `error`, an errno, means that the call may be repeated later.
bool IsTemporary(int error);

// Whether `error`, an errno, means that this process lacks descriptors, ports
// or memory.
bool IsOfThisProcess(int error);

// The status for `what` failing with `error`, an errno: kResourceExhausted if
// IsOfThisProcess, otherwise kUnavailable.
Status Failed(absl::string_view what, int error);

}  // namespace muster::dataplane::cpu

#endif  // MUSTER_DATAPLANE_CPU_TRANSPORT_SOCKET_H_
