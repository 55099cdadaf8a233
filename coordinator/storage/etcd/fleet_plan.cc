#include "coordinator/storage/etcd/fleet_plan.h"

#include <tuple>

namespace muster::coordinator {
namespace {

// The finalizer of SplitMix64 (Steele, Lea and Flood, 2014).
uint64_t Mix(uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
  x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
  return x ^ (x >> 31);
}

// All versions of a fleet must agree on it.
uint64_t ComputeWeight(const std::string& address, int shard) {
  return Mix(Mix(HashName(address)) + static_cast<uint64_t>(shard));
}

}  // namespace

std::string ChooseOwner(const FleetState& state, int shard) {
  // If there are two starts at one address, the later one lives.
  std::tuple<bool, uint64_t, int64_t> best;
  std::string chosen;
  for (const auto& [id, member] : state.members) {
    if (member.member.draining) continue;
    const std::string& address = member.member.address;
    const std::tuple<bool, uint64_t, int64_t> rank(
        address == state.pins[shard], ComputeWeight(address, shard),
        member.revision);
    if (!chosen.empty() && rank < best) continue;
    best = rank;
    chosen = id;
  }
  return chosen;
}

FleetPlan MakePlan(const FleetState& state, const std::string& self,
                   bool settled) {
  FleetPlan plan;
  const auto member = state.members.find(self);
  const bool draining =
      member != state.members.end() && member->second.member.draining;
  for (int shard = 0; shard < kShards; ++shard) {
    const std::string chosen = ChooseOwner(state, shard);
    const std::string& owner = state.owners[shard].id;
    if (chosen.empty() || chosen == owner) continue;
    if (owner.empty()) {
      if (chosen == self) plan.claim.push_back(shard);
      continue;
    }
    if (owner != self) continue;
    const bool pinned =
        state.members.at(chosen).member.address == state.pins[shard];
    if (!draining && !pinned && !std::exchange(settled, false)) continue;
    plan.hand_over.emplace_back(shard, chosen);
  }
  return plan;
}

}  // namespace muster::coordinator
