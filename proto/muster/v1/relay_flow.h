#ifndef MUSTER_PROTO_MUSTER_V1_RELAY_FLOW_H_
#define MUSTER_PROTO_MUSTER_V1_RELAY_FLOW_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "muster/base/status.h"
#include "muster/v1/session.pb.h"

// The flow control of SessionService.Relay, for one session and one direction.
// Both ends of the call use it. Not thread-safe.
namespace muster::v1 {

// A session's parts may take up so much before the first credit.
inline constexpr int64_t kRelayWindowBytes = 64 << 10;

// RelaySender cuts messages into parts, as fast as the other side credits them.
// A large message is cut so that others go between its parts.
class RelaySender {
 public:
  // Begins to send a message. The one before must be sent.
  void Begin(std::string message);

  // Whether a message is not sent completely.
  bool sending() const { return sending_; }

  // Whether the next part may be sent now.
  bool ready() const;

  // Makes the next part; requires ready(). Returns whether it is the last one.
  bool MakePart(RelayFrame* frame);

  // Errors: kInvalidArgument (more credit than was used).
  Status AddCredit(int64_t bytes);

 private:
  bool sending_ = false;
  std::string message_;
  size_t sent_ = 0;  // of the message
  int64_t used_ = 0;
};

// RelayReceiver puts the parts of messages together. It credits the parts of
// the message that is being read at once, and those of later messages when they
// are read. So it holds at most one message and a window.
class RelayReceiver {
 public:
  // Takes the next part of a message.
  // Errors: kInvalidArgument (more parts than the credit allows).
  Status Add(std::string part, bool last);

  // Begins to read the next message. The one before must be taken.
  void Read();

  // Whether the message that is being read is complete. TakeMessage requires
  // that, and ends the reading.
  bool complete() const { return complete_; }
  std::string TakeMessage();

  // Returns the credit to send; 0: too little to be worth a frame.
  int64_t TakeCredit();

  // Whether there is no part of a message that has not been taken.
  bool empty() const { return message_.empty() && waiting_.empty(); }

  // The bytes of the message that is being read, and of all parts.
  size_t message_bytes() const { return message_.size(); }
  size_t bytes() const { return message_.size() + waiting_bytes_; }

 private:
  struct Part {
    std::string bytes;
    bool last;
  };

  void Consume(std::string&& bytes, bool last);

  bool reading_ = false;
  bool complete_ = false;
  std::string message_;
  std::vector<Part> waiting_;
  size_t next_ = 0;  // of the waiting parts
  size_t waiting_bytes_ = 0;
  int64_t outstanding_ = 0;  // received and not credited
  int64_t consumed_ = 0;     // of these, to be credited
};

}  // namespace muster::v1

#endif  // MUSTER_PROTO_MUSTER_V1_RELAY_FLOW_H_
