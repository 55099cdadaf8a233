// Distributed synchronous SGD: a perceptron with one hidden layer learns
// Fashion-MNIST on all ranks together.
//
//   muster-run --standalone --nproc-per-node=4 -- train_fashion_mnist
//   muster-run --standalone --nproc-per-node=4 -- train_fashion_mnist --compare
//   muster-run --standalone --nproc-per-node=2 -- train_fashion_mnist
//       --device=cuda
//
// Exit status: 0; 1 for an error, or when the ranks' parameters differ or
// --compare fails; 75 when it ends because another rank failed.

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iomanip>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "client/examples/checkpoint.h"
#include "client/examples/fashion_mnist.h"
#include "client/examples/program.h"
#include "client/examples/trainer.h"
#include "muster/muster.hpp"

ABSL_FLAG(std::string, data_dir, "/usr/share/datasets/fashion-mnist",
          "folder of the data set's gzip'd IDX files");
ABSL_FLAG(int, epochs, 5, "times through the training images");
ABSL_FLAG(int, global_batch, 128,
          "images of a step over all ranks, which share them as evenly as "
          "they can");
ABSL_FLAG(int, hidden_units, 128, "units of the hidden layer");
ABSL_FLAG(float, learning_rate, 0.05f,
          "step size of SGD in the first epoch; falls to 0");
ABSL_FLAG(float, momentum, 0.9f, "momentum of SGD, 0 to 1");
ABSL_FLAG(uint64_t, seed, 1, "of the first parameters and the shuffling");
ABSL_FLAG(int, max_steps, 0, "ends after this many steps; 0: no such limit");
ABSL_FLAG(
    std::string, device, "cpu",
    "where the collectives' tensors are: cpu, or cuda, of which each rank "
    "takes the device that its LOCAL_RANK says; the mathematics is on the "
    "CPU in both cases");
ABSL_FLAG(std::string, backend, "",
          "backend of the group; empty: cpu:shm,cuda:nccl where nccl can be "
          "used, else shm, or with --device=cuda cpu:gloo,cuda:gloo, by which "
          "several ranks can share a device, as they cannot by nccl");
ABSL_FLAG(bool, compare, false,
          "train --max_steps (default 200) steps on all ranks, then the same "
          "on rank 0 alone, and check that both follow the same loss curve");
ABSL_FLAG(double, compare_tolerance, 1e-3,
          "largest relative difference of a step's loss that --compare allows");
ABSL_FLAG(std::string, loss_curve, "",
          "file for the loss of every step, one a line; written by rank 0");
ABSL_FLAG(std::string, report, "",
          "file for the results as JSON; written by rank 0");
ABSL_FLAG(std::string, checkpoint, "",
          "file to begin with if it is there, and to write every "
          "--checkpoint_steps steps; by rank 0");
ABSL_FLAG(int, checkpoint_steps, 100, "steps between two checkpoints");
ABSL_FLAG(std::string, on_failure, "exit",
          "when other ranks are gone: exit; shrink: go on in this process with "
          "those that are left; reform: go on in this process and wait for the "
          "others to come again (muster-run --restart=rank)");
ABSL_FLAG(std::string, linger_file, "",
          "at the end, wait for this file to appear, so that metrics can be "
          "read until then");
ABSL_FLAG(absl::Duration, linger, absl::Seconds(30),
          "how long at most to wait for --linger_file (duration, such as 30s)");

namespace muster::examples {
namespace {

constexpr int kCompareSteps = 200;
// The time in which the remaining ranks must find each other.
constexpr std::chrono::seconds kRecoveryTimeout(60);

struct Dataset {
  LabelledImages train;
  LabelledImages test;
};

// Throws std::runtime_error if there is no device, with the reason.
int OwnDevice() {
  try {
    DeviceMemory(0, 1);
  } catch (const DistError& error) {
    throw std::runtime_error(std::string("--device=cuda: ") + error.what());
  }
  return GetNodeLocalRank(0) % CudaDeviceCount();
}

// The options of every group of this program.
InitProcessGroupOptions GroupOptions(const TrainingSettings& settings) {
  InitProcessGroupOptions options = {.backend = absl::GetFlag(FLAGS_backend),
                                     .device_id = settings.device};
  if (!settings.device.has_value()) return options;
  const int local_rank = GetNodeLocalRank(0);
  if (options.backend.empty() && !IsNcclAvailable()) {
    options.backend = "cpu:gloo,cuda:gloo";
    if (local_rank == 0) {
      std::cerr << "backend " << options.backend << ": no nccl here, musterctl "
                << "version --verbose says why\n";
    }
  }
  const bool has_nccl = options.backend.empty() ||
                        options.backend.find("nccl") != std::string::npos;
  if (has_nccl && local_rank >= CudaDeviceCount()) {
    throw std::runtime_error(absl::StrCat(
        "nccl needs a CUDA device for each rank of a host: this is local rank ",
        local_rank, ", there are ", CudaDeviceCount(),
        "; --backend=cpu:gloo,cuda:gloo lets ranks share them"));
  }
  return options;
}

TrainingSettings SettingsFromFlags() {
  TrainingSettings settings;
  settings.hidden_units = absl::GetFlag(FLAGS_hidden_units);
  settings.epochs = absl::GetFlag(FLAGS_epochs);
  settings.global_batch = absl::GetFlag(FLAGS_global_batch);
  settings.learning_rate = absl::GetFlag(FLAGS_learning_rate);
  settings.momentum = absl::GetFlag(FLAGS_momentum);
  settings.seed = absl::GetFlag(FLAGS_seed);
  settings.max_steps = absl::GetFlag(FLAGS_max_steps);
  const auto check = [](bool good, const char* name, const char* want) {
    if (!good) {
      throw std::invalid_argument(std::string("--") + name + " must be " +
                                  want);
    }
  };
  check(settings.hidden_units >= 1, "hidden_units", "1 or more");
  check(settings.epochs >= 1, "epochs", "1 or more");
  check(settings.global_batch >= 1, "global_batch", "1 or more");
  check(settings.learning_rate > 0, "learning_rate", "more than 0");
  check(settings.momentum >= 0 && settings.momentum < 1, "momentum",
        "0 or more and less than 1");
  check(settings.max_steps >= 0, "max_steps", "0 or more");
  check(absl::GetFlag(FLAGS_checkpoint_steps) >= 1, "checkpoint_steps",
        "1 or more");
  const std::string on_failure = absl::GetFlag(FLAGS_on_failure);
  check(
      on_failure == "exit" || on_failure == "shrink" || on_failure == "reform",
      "on_failure", "exit, shrink or reform");
  const std::string device = absl::GetFlag(FLAGS_device);
  check(device == "cpu" || device == "cuda", "device", "cpu or cuda");
  if (device == "cuda") settings.device = OwnDevice();
  return settings;
}

// A progress bar on a terminal; elsewhere one line per epoch.
class ProgressBar {
 public:
  explicit ProgressBar(bool wanted)
      : shown_(wanted && isatty(STDERR_FILENO) == 1) {}

  void Show(const Trainer::Progress& progress) {
    const int percent = 100 * progress.step / progress.steps;
    if (!shown_ || percent == last_percent_) return;
    last_percent_ = percent;
    const std::string done(static_cast<size_t>(percent / 4), '#');
    std::fprintf(stderr, "\repoch %d [%-25s] %3d %%  loss %.4f ",
                 progress.epoch, done.c_str(), percent,
                 static_cast<double>(progress.loss));
  }
  void Clear() const {
    if (shown_) std::fprintf(stderr, "\r\x1b[K");
  }

 private:
  const bool shown_;
  int last_percent_ = -1;
};

// Writes a file completely or not at all, so that a reader that waits for it
// finds it complete.
void WriteFile(const std::string& path, const std::string& text) {
  const std::string unfinished = path + ".part";
  std::ofstream file(unfinished);
  file << text;
  file.close();
  if (!file) throw std::runtime_error("cannot write \"" + unfinished + "\"");
  std::filesystem::rename(unfinished, path);
}

void WriteLossCurve(const std::string& path, const std::vector<float>& losses) {
  std::ostringstream text;
  text << std::setprecision(9);
  for (const float loss : losses) text << loss << "\n";
  WriteFile(path, text.str());
}

void WriteReport(const std::string& path,
                 const std::vector<EpochResult>& epochs, bool equal) {
  nlohmann::json report = {{"world_size", GetWorldSize()},
                           {"parameters_equal", equal},
                           {"test_accuracy", epochs.back().test_accuracy}};
  double seconds = 0;
  double images = 0;
  for (const EpochResult& epoch : epochs) {
    seconds += epoch.train_seconds;
    images += epoch.train_seconds * epoch.images_per_second;
    report["epochs"].push_back({{"epoch", epoch.epoch},
                                {"loss", epoch.loss},
                                {"test_accuracy", epoch.test_accuracy},
                                {"images_per_second", epoch.images_per_second},
                                {"train_seconds", epoch.train_seconds}});
  }
  report["train_seconds"] = seconds;
  report["images_per_second"] = images / seconds;
  WriteFile(path, report.dump(2) + "\n");
}

// Waits until another process has read this process's metrics.
void Linger(const std::string& file) {
  const auto deadline = std::chrono::steady_clock::now() +
                        absl::ToChronoMilliseconds(absl::GetFlag(FLAGS_linger));
  while (!std::filesystem::exists(file) &&
         std::chrono::steady_clock::now() < deadline) {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
}

// Trains to the end. After a failure `trainer` has the steps made so far.
std::vector<EpochResult> TrainOn(Trainer& trainer, const int epochs) {
  const bool speaks = GetRank() == 0;
  const std::string checkpoint = absl::GetFlag(FLAGS_checkpoint);
  const auto every = static_cast<size_t>(absl::GetFlag(FLAGS_checkpoint_steps));
  ProgressBar bar(speaks);
  std::vector<EpochResult> results;
  while (trainer.epoch() <= epochs && !trainer.done()) {
    results.push_back(trainer.RunEpoch([&](const Trainer::Progress& progress) {
      bar.Show(progress);
      if (speaks && !checkpoint.empty() &&
          trainer.losses().size() % every == 0) {
        WriteCheckpoint(checkpoint, trainer.state());
      }
    }));
    bar.Clear();
    const EpochResult& epoch = results.back();
    if (!speaks) continue;
    if (epoch.images_per_second == 0) {
      std::printf("epoch %d/%d: resumed at its end, test accuracy %.2f %%\n",
                  epoch.epoch, epochs, 100 * epoch.test_accuracy);
      continue;
    }
    std::printf(
        "epoch %d/%d: loss %.4f, test accuracy %.2f %%, %.0f images/s, "
        "%.1f s\n",
        epoch.epoch, epochs, epoch.loss, 100 * epoch.test_accuracy,
        epoch.images_per_second, epoch.train_seconds);
  }
  return results;
}

// Forms a default group without the culprits of `error`, or with others in
// their place. More ranks may fail meanwhile.
void Recover(DistError error, const TrainingSettings& settings) {
  const bool shrinks = absl::GetFlag(FLAGS_on_failure) == "shrink";
  // Each error names only further culprits.
  std::vector<int> gone;
  while (true) {
    if (absl::GetFlag(FLAGS_on_failure) == "exit" ||
        error.culprit_ranks().empty()) {
      throw error;
    }
    std::fprintf(stderr, "rank %d: %s\n", GetRank(), error.what());
    gone.insert(gone.end(), error.culprit_ranks().begin(),
                error.culprit_ranks().end());
    std::sort(gone.begin(), gone.end());
    gone.erase(std::unique(gone.begin(), gone.end()), gone.end());
    // The others have gone on without this rank.
    if (shrinks && std::binary_search(gone.begin(), gone.end(), GetRank())) {
      throw error;
    }
    try {
      if (shrinks) {
        ShrinkGroup(gone, nullptr, {.timeout = kRecoveryTimeout});
      } else {
        DestroyProcessGroup();
        InitProcessGroup(GroupOptions(settings));
      }
      return;
    } catch (const DistError& next) {
      // Without a group no rank can be excluded.
      if (!IsInitialized() && shrinks) throw;
      error = next;
    }
  }
}

int Train(const Dataset& dataset, const TrainingSettings& settings) {
  const auto start = std::chrono::steady_clock::now();
  const std::string checkpoint = absl::GetFlag(FLAGS_checkpoint);
  TrainingState state;
  if (!checkpoint.empty() && GetRank() == 0) {
    state = ReadCheckpoint(checkpoint).value_or(TrainingState());
  }
  std::vector<EpochResult> epochs;
  std::unique_ptr<Trainer> trainer;
  bool equal = false;
  while (true) {
    try {
      trainer = std::make_unique<Trainer>(settings, dataset.train, dataset.test,
                                          state);
      if (GetRank() == 0 && !trainer->losses().empty()) {
        std::printf("going on after %zu steps, in epoch %d, on %d ranks\n",
                    trainer->losses().size(), trainer->epoch(), GetWorldSize());
      }
      const std::vector<EpochResult> results =
          TrainOn(*trainer, settings.epochs);
      epochs.insert(epochs.end(), results.begin(), results.end());
      equal = trainer->ParametersAreEqual();
      break;
    } catch (const DistError& error) {
      if (trainer != nullptr) state = trainer->state();
      trainer.reset();
      Recover(error, settings);
    }
  }
  if (GetRank() == 0) {
    const std::chrono::duration<double> elapsed =
        std::chrono::steady_clock::now() - start;
    std::printf("parameters are %s on %d ranks; %.1f s in all\n",
                equal ? "bitwise equal" : "NOT EQUAL", GetWorldSize(),
                elapsed.count());
    const std::string curve = absl::GetFlag(FLAGS_loss_curve);
    if (!curve.empty()) WriteLossCurve(curve, trainer->losses());
    const std::string report = absl::GetFlag(FLAGS_report);
    if (!report.empty() && !epochs.empty()) WriteReport(report, epochs, equal);
  }
  const std::string linger_file = absl::GetFlag(FLAGS_linger_file);
  if (!linger_file.empty()) Linger(linger_file);
  return equal ? 0 : 1;
}

// Returns the losses of the first steps on the default group.
std::vector<float> LossCurve(const Dataset& dataset,
                             const TrainingSettings& settings) {
  Trainer trainer(settings, dataset.train, dataset.test);
  while (trainer.epoch() <= settings.epochs && !trainer.done()) {
    trainer.RunEpoch([](const Trainer::Progress&) {});
  }
  return trainer.losses();
}

// Joins a separate job on the same coordinator, alone.
void InitAlone(const TrainingSettings& settings) {
  const auto variable = [](const char* name) {
    const char* const value = std::getenv(name);
    if (value == nullptr) {
      throw std::invalid_argument(
          std::string("--compare runs under muster-run: ") + name +
          " is not set");
    }
    return std::string(value);
  };
  const std::string host = variable("MASTER_ADDR");
  InitProcessGroupOptions options = GroupOptions(settings);
  options.init_method =
      "muster://" +
      (host.find(':') == std::string::npos ? host : "[" + host + "]") + ":" +
      variable("MASTER_PORT") + "/" + variable("TORCHELASTIC_RUN_ID") +
      "-alone";
  options.world_size = 1;
  options.rank = 0;
  InitProcessGroup(options);
}

int Compare(const Dataset& dataset, TrainingSettings settings) {
  if (settings.max_steps == 0) settings.max_steps = kCompareSteps;
  const int rank = GetRank();
  const int world_size = GetWorldSize();
  const std::vector<float> together = LossCurve(dataset, settings);
  DestroyProcessGroup();
  if (rank != 0) return 0;
  InitAlone(settings);
  const std::vector<float> alone = LossCurve(dataset, settings);
  DestroyProcessGroup();
  double worst = 0;
  size_t worst_step = 0;
  for (size_t i = 0; i < alone.size(); ++i) {
    const double difference =
        std::abs(static_cast<double>(together[i]) - alone[i]) /
        std::abs(static_cast<double>(alone[i]));
    // A NaN is a difference too.
    if (!(difference <= worst)) {
      worst = difference;
      worst_step = i;
    }
  }
  const bool same = worst <= absl::GetFlag(FLAGS_compare_tolerance);
  std::printf(
      "world sizes 1 and %d: %s over %zu steps; loss %.6f to %.6f, largest "
      "relative difference %.2e at step %zu (allowed: %.0e)\n",
      world_size, same ? "the same loss curve" : "DIFFERENT loss curves",
      alone.size(), static_cast<double>(alone.front()),
      static_cast<double>(alone.back()), worst, worst_step + 1,
      absl::GetFlag(FLAGS_compare_tolerance));
  return same ? 0 : 1;
}

int Run() {
  const TrainingSettings settings = SettingsFromFlags();
  const std::string folder = absl::GetFlag(FLAGS_data_dir);
  // Before the group is formed: the others must not wait for a rank without
  // data.
  const Dataset dataset = {ReadFashionMnist(folder, FashionMnistPart::kTrain),
                           ReadFashionMnist(folder, FashionMnistPart::kTest)};
  InitProcessGroup(GroupOptions(settings));
  const std::string debug_address = GetDebugAddress();
  if (!debug_address.empty()) {
    std::printf("metrics: http://%s/metrics\n", debug_address.c_str());
  }
  if (absl::GetFlag(FLAGS_compare)) return Compare(dataset, settings);
  const int status = Train(dataset, settings);
  DestroyProcessGroup();
  return status;
}

}  // namespace
}  // namespace muster::examples

int main(int argc, char** argv) {
  return muster::examples::RunProgram(
      argc, argv,
      {.name = "train_fashion_mnist",
       .description = "Trains a perceptron on Fashion-MNIST with all ranks of "
                      "a job; started by muster-run.",
       .run = muster::examples::Run});
}
