// The order in which a client asks coordinators for its job.

#ifndef MUSTER_CLIENT_CONTROL_OWNER_SEARCH_H_
#define MUSTER_CLIENT_CONTROL_OWNER_SEARCH_H_

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "client/control/backoff.h"
#include "client/control/endpoint.h"
#include "muster/base/status.h"

namespace muster::internal {

// OwnerSearch goes to the coordinator that another one names (the JobOwner
// payload), and else around its list. The last named one belongs to the list,
// too: the addresses that the user gave may be gone.
//
// No coordinator is asked twice without a pause, so two that name each other
// cost no more than one that does not answer. Used by one thread.
class OwnerSearch {
 public:
  // At least one address. `seed` spreads the pauses of clients that search at
  // the same time.
  OwnerSearch(std::vector<Endpoint> addresses, uint64_t seed);

  // The coordinator to ask now: at first the first of the list.
  const Endpoint& current() const { return current_; }

  // Whether there is more than one.
  bool has_others() const { return addresses_.size() > 1 || owner_; }

  // The given addresses.
  const std::vector<Endpoint>& addresses() const { return addresses_; }

  // current() serves the job: the next search begins without a pause.
  void Found();

  // Chooses the next coordinator after current() has answered or ended with
  // `why`. Returns how long to pause before asking it: 0 unless it was asked
  // since the last pause. The pauses grow (Backoff).
  std::chrono::milliseconds Next(const Status& why);

 private:
  Endpoint TakeFromList();

  const std::vector<Endpoint> addresses_;
  // The last named coordinator that is not in addresses_.
  std::optional<Endpoint> owner_;
  Endpoint current_;
  // The place in the list, owner_ being its end, of the one to ask next.
  size_t next_ = 0;
  // Asked since the last pause.
  std::set<std::string> asked_;
  Backoff backoff_;
};

// Returns the coordinator that `why` names. nullopt if it names none, or one
// that is no HOST:PORT.
std::optional<Endpoint> NamedOwner(const Status& why);

}  // namespace muster::internal

#endif  // MUSTER_CLIENT_CONTROL_OWNER_SEARCH_H_
