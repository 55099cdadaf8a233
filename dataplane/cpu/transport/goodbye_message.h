#ifndef MUSTER_DATAPLANE_CPU_TRANSPORT_GOODBYE_MESSAGE_H_
#define MUSTER_DATAPLANE_CPU_TRANSPORT_GOODBYE_MESSAGE_H_

#include <array>
#include <cstddef>

#include "absl/strings/string_view.h"
#include "muster/base/status.h"

namespace muster::dataplane::cpu {

// The message, as bytes, that a rank sends to a peer before it closes their
// connection.
using GoodbyeBytes = std::array<char, 512>;

// `reason` is the error that ended the group here, or kCancelled for leaving
// in peace. A long text is cut.
GoodbyeBytes EncodeGoodbye(const Status& reason);

// Interprets the end of the connection to `peer`. `bytes` are the peer's last
// bytes; `transport_error` is the transport's description of the end.
//   nothing sent:  kUnavailable, the peer died; it is the culprit
//   left in peace: kUnavailable, the peer left; it is the culprit
//   an error:      that code and text, and the culprit that the peer named, or
//                  the peer itself
//   a verdict:     that error, word for word
Status InterpretGoodbye(int peer, const GoodbyeBytes& bytes,
                        absl::string_view transport_error);

// Whether the peer that sent `bytes` left in peace.
bool LeftInPeace(const GoodbyeBytes& bytes);

}  // namespace muster::dataplane::cpu

#endif  // MUSTER_DATAPLANE_CPU_TRANSPORT_GOODBYE_MESSAGE_H_
