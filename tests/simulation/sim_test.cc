// Runs the simulation four hundred times. `bazel run //tests/simulation:sim`
// repeats one of the runs, or runs a soak.

#include <cstdint>
#include <iostream>
#include <optional>
#include <string>

#include "gtest/gtest.h"
#include "tests/simulation/sim_world.h"

namespace muster::simulation {
namespace {

constexpr uint64_t kSeeds = 400;

TEST(SimTest, TheInvariantsHoldForAllSeeds) {
  SimStatistics sum;
  SimChecker::Seen seen;
  for (uint64_t seed = 1; seed <= kSeeds; ++seed) {
    SimWorld world(seed, /*trace=*/false);
    const std::optional<std::string> failure = world.Run();
    ASSERT_FALSE(failure.has_value())
        << *failure
        << "\nreproduce: bazel run //tests/simulation:sim -- --seed=" << seed
        << " --trace";
    const SimStatistics& run = world.statistics();
    sum.steps += run.steps;
    sum.requests += run.requests;
    sum.lost_messages += run.lost_messages;
    sum.member_crashes += run.member_crashes;
    sum.coordinator_restarts += run.coordinator_restarts;
    sum.generations += run.generations;
    sum.barriers_released += run.barriers_released;
    sum.barriers_failed += run.barriers_failed;
    sum.events += run.events;
    sum.silences += run.silences;
    seen.popped += world.seen().popped;
    seen.expired += world.seen().expired;
    seen.orphaned += world.seen().orphaned;
    seen.watched += world.seen().watched;
    seen.watches_cut += world.seen().watches_cut;
    seen.watched_on += world.seen().watched_on;
    seen.last_calls += world.seen().last_calls;
    seen.spares += world.seen().spares;
    seen.returns += world.seen().returns;
    seen.closed += world.seen().closed;
    seen.grouped += world.seen().grouped;
    seen.group_conflicts += world.seen().group_conflicts;
    seen.calls_told += world.seen().calls_told;
    seen.verdicts += world.seen().verdicts;
    seen.too_late += world.seen().too_late;
    seen.parts_released += world.seen().parts_released;
    seen.read_together += world.seen().read_together;
    seen.waited += world.seen().waited;
    seen.stragglers += world.seen().stragglers;
    seen.told += world.seen().told;
    seen.together += world.seen().together;
  }
  // Checks that the simulation covers these events.
  EXPECT_GT(sum.requests, 20000);
  EXPECT_GT(sum.lost_messages, 1000);
  EXPECT_GT(sum.member_crashes, 200);
  EXPECT_GT(sum.coordinator_restarts, 50);
  EXPECT_GT(sum.generations, 400);
  EXPECT_GT(sum.barriers_released, 1000);
  EXPECT_GT(sum.barriers_failed, 200);
  EXPECT_GT(sum.events, 300);
  EXPECT_GT(sum.silences, 20);
  EXPECT_GT(seen.popped, 700);
  EXPECT_GT(seen.expired, 200);
  EXPECT_GT(seen.orphaned, 100);
  EXPECT_GT(seen.watched, 700);
  EXPECT_GT(seen.watches_cut, 30);
  EXPECT_GT(seen.watched_on, 20);
  EXPECT_GT(seen.last_calls, 100);
  EXPECT_GT(seen.spares, 10);
  EXPECT_GT(seen.returns, 100);
  EXPECT_GT(seen.closed, 5);
  EXPECT_GT(seen.grouped, 500);
  EXPECT_GT(seen.group_conflicts, 50);
  EXPECT_GT(seen.calls_told, 50);
  EXPECT_GT(seen.verdicts, 500);
  EXPECT_GT(seen.too_late, 10);
  EXPECT_GT(seen.parts_released, 500);
  EXPECT_GT(seen.read_together, 300);
  EXPECT_GT(seen.waited, 100);
  EXPECT_GT(seen.stragglers, 1000);
  EXPECT_GT(seen.told, 300);
  EXPECT_GT(seen.together, 10);
  std::cout << sum.steps << " steps, " << sum.requests << " requests, "
            << sum.lost_messages << " lost messages, " << sum.member_crashes
            << " member crashes, " << sum.coordinator_restarts
            << " coordinator restarts, " << sum.generations << " generations, "
            << sum.barriers_released << " barriers released, "
            << sum.barriers_failed << " failed, " << sum.events << " events, "
            << sum.silences << " silences, " << seen.popped << " items popped, "
            << seen.expired << " keys expired, " << seen.orphaned
            << " orphaned, " << seen.watched << " changes watched, "
            << seen.watched_on << " of them across a restart, "
            << seen.watches_cut << " watches cut, " << seen.last_calls
            << " last calls, " << seen.spares << " worlds with spares, "
            << seen.returns << " ranks kept, " << seen.closed
            << " rendezvous closed, " << seen.grouped << " group calls, "
            << seen.group_conflicts << " refused, " << seen.calls_told
            << " told of other arguments, " << seen.verdicts
            << " verdicts about groups, " << seen.too_late
            << " barriers asked for too late, " << seen.parts_released
            << " calls released by barriers of parts, " << seen.read_together
            << " multi gets, " << seen.waited << " waits, " << seen.stragglers
            << " stragglers, " << seen.told << " members told, "
            << seen.together << " departures together\n";
}

}  // namespace
}  // namespace muster::simulation
