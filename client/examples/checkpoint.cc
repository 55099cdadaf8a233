#include "client/examples/checkpoint.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <stdexcept>

#include "muster/muster.hpp"

namespace muster::examples {
namespace {

constexpr char kMagic[8] = {'m', 'u', 's', 't', 'e', 'r', '-', '1'};

struct Header {
  char magic[8];
  int32_t epoch;
  int32_t step;
  int64_t parameters;  // and as many velocities
  int64_t losses;
};

void Write(std::ofstream& file, const std::vector<float>& values) {
  file.write(reinterpret_cast<const char*>(values.data()),
             static_cast<std::streamsize>(values.size() * sizeof(float)));
}

void Read(std::ifstream& file, int64_t count, std::vector<float>& values) {
  values.resize(static_cast<size_t>(count));
  file.read(reinterpret_cast<char*>(values.data()),
            static_cast<std::streamsize>(values.size() * sizeof(float)));
}

}  // namespace

void WriteCheckpoint(const std::string& path, const TrainingState& state) {
  const std::string part = path + ".part";
  Header header = {};
  std::memcpy(header.magic, kMagic, sizeof(kMagic));
  header.epoch = state.epoch;
  header.step = state.step;
  header.parameters = static_cast<int64_t>(state.parameters.size());
  header.losses = static_cast<int64_t>(state.losses.size());
  std::ofstream file(part, std::ios::binary);
  file.write(reinterpret_cast<const char*>(&header), sizeof(header));
  Write(file, state.parameters);
  Write(file, state.velocity);
  Write(file, state.losses);
  file.close();
  std::error_code error;
  if (file) std::filesystem::rename(part, path, error);
  if (!file || error) {
    throw std::runtime_error("cannot write the checkpoint \"" + path + "\"");
  }
}

std::optional<TrainingState> ReadCheckpoint(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) {
    if (errno == ENOENT) return std::nullopt;
    throw std::runtime_error("cannot read the checkpoint \"" + path +
                             "\": " + std::strerror(errno));
  }
  Header header = {};
  file.read(reinterpret_cast<char*>(&header), sizeof(header));
  const auto bytes = static_cast<int64_t>(std::filesystem::file_size(path));
  constexpr int64_t kFloatsMax = int64_t{1} << 40;
  const bool good = file &&
                    std::memcmp(header.magic, kMagic, sizeof(kMagic)) == 0 &&
                    header.epoch >= 1 && header.step >= 0 &&
                    header.parameters >= 0 && header.parameters < kFloatsMax &&
                    header.losses >= 0 && header.losses < kFloatsMax &&
                    bytes == static_cast<int64_t>(sizeof(header)) +
                                 4 * (2 * header.parameters + header.losses);
  if (!good) {
    throw std::runtime_error("\"" + path +
                             "\" is no checkpoint of this "
                             "program, or a damaged one");
  }
  TrainingState state;
  state.epoch = header.epoch;
  state.step = header.step;
  Read(file, header.parameters, state.parameters);
  Read(file, header.parameters, state.velocity);
  Read(file, header.losses, state.losses);
  if (!file) {
    throw std::runtime_error("cannot read the checkpoint \"" + path + "\"");
  }
  return state;
}

void ShareNewest(TrainingState& state, size_t parameter_count,
                 TensorDevice& place) {
  // Steps made, or -1 on a rank without a state.
  std::vector<int64_t> steps(static_cast<size_t>(GetWorldSize()), -1);
  if (!state.parameters.empty()) {
    steps[static_cast<size_t>(GetRank())] =
        static_cast<int64_t>(state.losses.size());
  }
  place.With(steps,
             [](const Tensor& all) { AllReduce(all, {.op = ReduceOp::kMax}); });
  const auto newest = std::max_element(steps.begin(), steps.end());
  if (*newest < 0) return;
  const int root = static_cast<int>(newest - steps.begin());
  std::vector<int64_t> sizes = {state.epoch, state.step,
                                static_cast<int64_t>(state.parameters.size())};
  const auto from_root = [root](const Tensor& tensor) {
    Broadcast(tensor, root);
  };
  place.With(sizes, from_root);
  if (sizes[2] != static_cast<int64_t>(parameter_count)) {
    throw std::runtime_error("the checkpoint has " + std::to_string(sizes[2]) +
                             " parameters, this model " +
                             std::to_string(parameter_count) +
                             ": were other --hidden_units given?");
  }
  state.epoch = static_cast<int32_t>(sizes[0]);
  state.step = static_cast<int32_t>(sizes[1]);
  state.parameters.resize(parameter_count);
  state.velocity.resize(parameter_count);
  state.losses.resize(static_cast<size_t>(*newest));
  place.With(state.parameters, from_root);
  place.With(state.velocity, from_root);
  place.With(state.losses, from_root);
}

}  // namespace muster::examples
