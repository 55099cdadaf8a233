#ifndef MUSTER_DATAPLANE_CPU_TRANSPORT_SOCKET_H_
#define MUSTER_DATAPLANE_CPU_TRANSPORT_SOCKET_H_

#include <sys/socket.h>

#include "absl/strings/string_view.h"
#include "base/clock.h"
#include "base/status.h"
#include "dataplane/cpu/transport/address_exchange.h"

namespace muster::dataplane::cpu {

// What the sockets of this folder have in common.

const sockaddr* Generic(const AddressBytes& address);

// Of the address's family, not blocking. -1 with errno.
int MakeSocket(const AddressBytes& address);

// Small messages do not wait for others.
void SendAtOnce(int socket);

// For a connection of messages: the same, and two ranks may write to each other
// those of a collective before either reads.
void SetForMessages(int socket);

// For poll, which ends by `deadline`, or after an hour.
int PollTimeout(Instant deadline);

// Of an errno: the call may be made again, later.
bool IsTemporary(int error);

// Of an errno: this process has no descriptor, port or memory left.
bool IsOfThisProcess(int error);

// `what` has failed with `error`, an errno: kResourceExhausted if that is of
// this process, else kUnavailable.
Status Failed(absl::string_view what, int error);

}  // namespace muster::dataplane::cpu

#endif  // MUSTER_DATAPLANE_CPU_TRANSPORT_SOCKET_H_
