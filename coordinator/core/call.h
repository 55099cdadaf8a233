// Identifies the caller of a verb and the waiter that its answer goes to.

#ifndef MUSTER_COORDINATOR_CORE_CALL_H_
#define MUSTER_COORDINATOR_CORE_CALL_H_

#include <cstdint>
#include <vector>

#include "coordinator/core/ids.h"

namespace muster::coordinator::core {

// Call accompanies every verb.
struct Call {
  // Empty for a client that only uses the store. Such a client is neither
  // fenced nor deduplicated.
  MemberId member;
  Incarnation incarnation;

  // The answer goes to this waiter, exactly once.
  WaiterId waiter;

  // Of a mutation of a registered member: a second call with the same number
  // is not applied again but gets the first one's answer. 0: no such promise.
  SequenceNumber sequence;

  // The member has the answers of all its numbers up to this one, except those
  // of `unanswered`, and will not ask for them again.
  SequenceNumber acknowledged_through;

  // In ascending order. Few: calls that have been parked for so long that the
  // member would run out of retained_replies if it waited for their answers.
  std::vector<SequenceNumber> unanswered;

  // The message that brought these two: calls with the same number have the
  // same, and they are looked at once. 0: none.
  uint64_t message = 0;
};

}  // namespace muster::coordinator::core

#endif  // MUSTER_COORDINATOR_CORE_CALL_H_
