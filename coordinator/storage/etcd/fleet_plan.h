// The assignment of shards to the coordinators of a fleet.

#ifndef MUSTER_COORDINATOR_STORAGE_ETCD_FLEET_PLAN_H_
#define MUSTER_COORDINATOR_STORAGE_ETCD_FLEET_PLAN_H_

#include <array>
#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "coordinator/storage/fleet.h"

namespace muster::coordinator {

// A fleet at one revision of etcd.
struct FleetState {
  struct Member {
    FleetMember member;
    int64_t lease = 0;
    // The creation of its key: a later start has a larger one.
    int64_t revision = 0;
  };
  struct Owner {
    std::string id;  // empty: none
    // The number of this ownership: no other one of the shard has it.
    int64_t revision = 0;
  };

  std::map<std::string, Member> members;  // by id
  std::array<Owner, kShards> owners;
  std::array<std::string, kShards> pins;  // addresses
};

// Returns the id of the coordinator to which a shard belongs; empty if there is
// none. That is the one that an operator chose, if it is there and does not
// drain, else the one with the highest random weight (rendezvous hashing:
// Thaler and Ravishankar, 1996), so that few shards move when coordinators come
// and go. Equal states give equal answers.
std::string ChooseOwner(const FleetState& state, int shard);

// The tasks of a coordinator.
struct FleetPlan {
  std::vector<int> claim;  // shards without an owner
  // Its own shards, and the ids of their next owners.
  std::vector<std::pair<int, std::string>> hand_over;
};

// `settled`: the members have not changed for a while, so one shard that
// belongs to another may be handed over. Those of an operator's choice, and all
// of a coordinator that drains, are handed over at any time.
FleetPlan MakePlan(const FleetState& state, const std::string& self,
                   bool settled);

}  // namespace muster::coordinator

#endif  // MUSTER_COORDINATOR_STORAGE_ETCD_FLEET_PLAN_H_
