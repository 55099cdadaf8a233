// Runs random programs and compares them with their simulation. Each run uses
// the seeds 1 to 24 for each world size, and so every element type twice. A
// failure prints its seed. To run more, or that one again:
//
//   ./dev test //dataplane/cpu/engine:cpu_conformance_test
//       --test_filter='*Program*' --test_env=MUSTER_PROGRAM_SEED=1000
//       --test_env=MUSTER_PROGRAMS=500 --test_timeout=3000

#include <cstdint>
#include <cstdlib>
#include <string>

#include "dataplane/testing/backend_conformance.h"
#include "dataplane/testing/random_program.h"
#include "gtest/gtest.h"

namespace muster::dataplane::testing {
namespace {

uint64_t GetNumber(const char* variable, uint64_t fallback) {
  const char* const text = getenv(variable);
  return text == nullptr ? fallback : std::stoull(text);
}

TEST_P(ProgramConformance, RandomProgramsGiveWhatTheirSimulationGives) {
  const uint64_t first = GetNumber("MUSTER_PROGRAM_SEED", 1);
  const uint64_t programs = GetNumber("MUSTER_PROGRAMS", 24);
  for (uint64_t seed = first; seed < first + programs; ++seed) {
    const RandomProgram program(seed, world_size());
    const std::string problem = RunProgram(program, backend());
    if (problem.empty()) continue;
    std::string text;
    for (const Instruction& instruction : program.instructions) {
      text += instruction.Describe() + "\n";
    }
    FAIL() << "seed " << seed << ": " << problem << "\n" << text;
  }
}

}  // namespace
}  // namespace muster::dataplane::testing
