// A bad argument of a collective that a C function finds itself.

#ifndef MUSTER_CLIENT_C_REFUSAL_H_
#define MUSTER_CLIENT_C_REFUSAL_H_

#include <utility>

#include "client/c/error.h"
#include "muster/dataplane/collective_kind.h"
#include "muster/muster.h"

namespace muster::internal {
class GroupState;
}  // namespace muster::internal

namespace muster::c {

// Uses up a number of the group, as C++ does for the bad arguments that it
// finds, so that this rank's next call does not meet the other ranks' calls in
// place of this one. Throws the error of a group that has failed.
void UseUpNumber(muster_group* group, dataplane::CollectiveKind kind,
                 const ArgumentError& error);
void UseUpNumber(internal::GroupState& group, dataplane::CollectiveKind kind,
                 const ArgumentError& error);

// Returns the arguments of a collective that `make` converts. If one is bad,
// the call uses up a number.
// `group`: a muster_group* or a GroupState&.
template <typename Group, typename Make>
auto MakeArguments(Group&& group, dataplane::CollectiveKind kind, Make&& make) {
  try {
    return std::forward<Make>(make)();
  } catch (const ArgumentError& error) {
    UseUpNumber(group, kind, error);
    throw;
  }
}

}  // namespace muster::c

#endif  // MUSTER_CLIENT_C_REFUSAL_H_
