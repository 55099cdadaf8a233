#ifndef MUSTER_CLIENT_EXAMPLES_CHECKPOINT_H_
#define MUSTER_CLIENT_EXAMPLES_CHECKPOINT_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "client/examples/place.h"

namespace muster::examples {

// Where a training stands between two steps.
struct TrainingState {
  int32_t epoch = 1;
  int32_t step = 0;  // steps made in that epoch
  std::vector<float> parameters;
  std::vector<float> velocity;  // of SGD, one for each parameter
  std::vector<float> losses;    // of all steps
};

// Writes a file, whole or not at all: what had the name is there until then.
// Throws std::runtime_error, which names the file.
void WriteCheckpoint(const std::string& path, const TrainingState& state);

// Nothing: there is no such file. Throws std::runtime_error, which names the
// file: it cannot be read, or is no checkpoint.
std::optional<TrainingState> ReadCheckpoint(const std::string& path);

// Agrees with all ranks of the default group on a state: that of the rank which
// has made the most steps, the lowest of several. Collective. A rank without
// one gives a state without parameters. Not so many parameters on some rank as
// there: throws std::runtime_error.
void ShareNewest(TrainingState& state, size_t parameter_count, Place& place);

}  // namespace muster::examples

#endif  // MUSTER_CLIENT_EXAMPLES_CHECKPOINT_H_
