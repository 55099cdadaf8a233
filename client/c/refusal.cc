#include "client/c/refusal.h"

#include <memory>
#include <utility>

#include "client/c/error.h"
#include "client/c/handles.h"
#include "client/groups/group_state.h"
#include "muster/base/status.h"
#include "muster/dataplane/collective.h"
#include "muster/distributed.h"
#include "muster/errors.h"
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
  // Without a group, or in one of other ranks, no call is counted.
  if (ref == nullptr || !ref->state()->is_member()) return;
  dataplane::Collective collective;
  collective.kind = kind;
  try {
    ref->state()->Refuse(std::move(collective),
                         InvalidArgumentError("argument " + error.text),
                         /*is_prepared=*/false);
  } catch (const DistError&) {
    // The caller's error says more about the argument.
    if (!ref->status().ok()) throw;
  }
}

}  // namespace muster::c
