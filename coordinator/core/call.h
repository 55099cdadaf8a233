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

  // The number of a mutation by a registered member. A second call with this
  // number is not applied; it gets the first one's answer. 0: not deduplicated.
  SequenceNumber sequence;

  // The member has the answers to all its numbers up to this one, except those
  // in `unanswered`, and will not ask for them again.
  SequenceNumber acknowledged_through;

  // In ascending order. Few: calls that have been parked for so long that the
  // member would run out of retained_replies if it waited for their answers.
  std::vector<SequenceNumber> unanswered;

  // The message that carried the two fields above, which are the same in all
  // its calls and so are processed once. 0: none.
  uint64_t message = 0;
};

}  // namespace muster::coordinator::core

#endif  // MUSTER_COORDINATOR_CORE_CALL_H_
