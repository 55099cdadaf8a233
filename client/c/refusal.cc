#include "client/c/refusal.h"

#include <memory>

#include "client/c/error.h"
#include "client/c/handles.h"
#include "client/groups/group_state.h"
#include "muster/base/status.h"
#include "muster/distributed.h"
#include "muster/process_group.h"

namespace muster::c {

void UseUpNumber(muster_group* group, dataplane::CollectiveKind kind,
                 const ArgumentError& error) {
  std::shared_ptr<ProcessGroup> ref;
  if (group != nullptr) {
    ref = group->group;
  } else if (IsInitialized()) {
    ref = WorldGroup();
  }
  // Without a group no call is counted.
  if (ref != nullptr) UseUpNumber(*ref->state(), kind, error);
}

void UseUpNumber(internal::GroupState& group, dataplane::CollectiveKind kind,
                 const ArgumentError& error) {
  group.UseUpNumber(kind, InvalidArgumentError("argument " + error.text));
}

}  // namespace muster::c
