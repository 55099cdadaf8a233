// Runs the simulation of the coordinator for one seed, or for a given time:
//   bazel run //tests/simulation:sim -- --seed=123 --trace
//   bazel run -c opt //tests/simulation:sim -- --soak_seconds=3600

#include <chrono>
#include <cstdint>
#include <iostream>
#include <optional>
#include <random>
#include <string>

#include "absl/flags/flag.h"
#include "absl/flags/parse.h"
#include "tests/simulation/sim_world.h"

ABSL_FLAG(uint64_t, seed, 0, "the run to do; 0: random ones");
ABSL_FLAG(bool, trace, false, "write down the steps as a golden transcript");
ABSL_FLAG(int64_t, soak_seconds, 0, "do random runs for this long");

namespace muster::simulation {
namespace {

// Returns whether the run found no violation.
bool RunSeed(uint64_t seed, bool trace) {
  SimWorld world(seed, trace);
  const std::optional<std::string> failure = world.Run();
  if (!failure.has_value()) return true;
  std::cerr << *failure
            << "\nreproduce: bazel run //tests/simulation:sim -- --seed="
            << seed << " --trace\n";
  return false;
}

int Main() {
  if (absl::GetFlag(FLAGS_seed) != 0) {
    if (!RunSeed(absl::GetFlag(FLAGS_seed), absl::GetFlag(FLAGS_trace))) {
      return 1;
    }
    std::cerr << "seed " << absl::GetFlag(FLAGS_seed) << ": good\n";
    return 0;
  }
  const auto end = std::chrono::steady_clock::now() +
                   std::chrono::seconds(absl::GetFlag(FLAGS_soak_seconds));
  std::random_device random;
  int64_t runs = 0;
  do {
    if (!RunSeed(1 + random(), /*trace=*/false)) return 1;
    ++runs;
  } while (std::chrono::steady_clock::now() < end);
  std::cerr << runs << " runs: good\n";
  return 0;
}

}  // namespace
}  // namespace muster::simulation

int main(int argc, char** argv) {
  absl::ParseCommandLine(argc, argv);
  return muster::simulation::Main();
}
