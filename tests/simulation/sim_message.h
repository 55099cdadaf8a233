// The messages between simulated members and the coordinator.

#ifndef MUSTER_TESTS_SIMULATION_SIM_MESSAGE_H_
#define MUSTER_TESTS_SIMULATION_SIM_MESSAGE_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "coordinator/core/barriers.h"
#include "coordinator/core/call.h"
#include "coordinator/core/group_failures.h"
#include "coordinator/core/groups.h"
#include "coordinator/core/ids.h"
#include "coordinator/core/instant.h"
#include "coordinator/core/outbox.h"
#include "coordinator/core/rendezvous.h"
#include "coordinator/core/store.h"
#include "muster/base/status.h"

namespace muster::simulation {

namespace core = ::muster::coordinator::core;

enum class Verb {
#define MUSTER_OPERATION(service, name, ...) k##name,
#define MUSTER_RPC(service, name, role) k##name,
#include "proto/muster/v1/verbs.inc"
};

// Small, so that a watch falls behind now and then.
inline constexpr int64_t kWatchHistoryChanges = 20;

// Whether the verb changes the store and is answered at once. A pop may wait.
inline bool IsMutation(Verb verb) {
  return verb == Verb::kSet || verb == Verb::kAppend || verb == Verb::kAdd ||
         verb == Verb::kCompareSet || verb == Verb::kCompareAndSet ||
         verb == Verb::kDelete || verb == Verb::kDeletePrefix ||
         verb == Verb::kQueuePush || verb == Verb::kMultiSet;
}

struct Request {
  uint64_t operation = 0;  // the member's number; a retry keeps it
  Verb verb = Verb::kHeartbeat;
  core::Call call;                  // the world fills in the waiter
  std::string key{};                // or the prefix
  std::string value{};              // kMultiSet: the value of each key
  std::vector<std::string> keys{};  // kMultiSet, kWait and kMultiGet
  std::string expected{};
  int64_t expected_revision = 0;
  core::SetOptions options{};
  int64_t delta = 0;
  core::Duration timeout{};        // zero: a pop does not wait
  std::optional<int64_t> after{};  // for a watch
  core::JoinRequest join{};
  core::BarrierRequest barrier{};
  core::Generation generation{};  // for kGroups
  std::vector<core::GroupDefinition> groups{};
  std::vector<std::string> groups_left{};
  std::optional<core::GroupCall> group_call{};
  core::GroupFailureReport failure{};
};

struct Response {
  uint64_t operation = 0;
  core::Incarnation incarnation;
  core::CoordinatorEpoch epoch;
  core::Reply reply;
};

// Returns the verb's word in a golden transcript.
std::string VerbName(Verb verb);

// Makes the request, whose verb is one of the store's.
void ApplyToStore(const Request& request, core::Instant now,
                  core::StoreEngine& store, core::Outbox& out);

// Returns the request as a command of a golden transcript.
std::string ToCommand(const Request& request);

}  // namespace muster::simulation

#endif  // MUSTER_TESTS_SIMULATION_SIM_MESSAGE_H_
