#ifndef MUSTER_CLIENT_EXAMPLES_CHECKPOINT_H_
#define MUSTER_CLIENT_EXAMPLES_CHECKPOINT_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "client/examples/tensor_device.h"

namespace muster::examples {

// The state of a training between two steps.
struct TrainingState {
  int32_t epoch = 1;
  int32_t step = 0;  // steps made in that epoch
  std::vector<float> parameters;
  std::vector<float> velocity;  // of SGD, one for each parameter
  std::vector<float> losses;    // of all steps
};

// Writes a file completely or not at all: an existing file stays until then.
// Throws std::runtime_error, which names the file.
void WriteCheckpoint(const std::string& path, const TrainingState& state);

// Returns nullopt if there is no such file. Throws std::runtime_error, which
// names the file, if it cannot be read or is no checkpoint.
std::optional<TrainingState> ReadCheckpoint(const std::string& path);

// Gives all ranks of the default group the state of the rank that has made the
// most steps (the lowest such rank). Collective. A rank without a state passes
// one without parameters. Throws std::runtime_error if the numbers of
// parameters differ.
void ShareNewest(TrainingState& state, size_t parameter_count,
                 TensorDevice& place);

}  // namespace muster::examples

#endif  // MUSTER_CLIENT_EXAMPLES_CHECKPOINT_H_
