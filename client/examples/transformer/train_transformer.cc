// A small transformer learns to continue a text, character by character, in any
// layout: data parallel, sharded, pipeline and tensor parallel, and products of
// these.
//
//   muster-run --standalone --nproc-per-node=4 -- train_transformer
//       --parallel=fsdp,tp --checkpoint=FOLDER
//
// Exit status: 0; 1 for an error; 75 when it ends because another rank failed:
// muster-run --max-restarts=N then starts all ranks again, which go on from the
// newest checkpoint.

#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/strings/str_cat.h"
#include "client/examples/program.h"
#include "client/examples/transformer/layout.h"
#include "client/examples/transformer/loss_curve.h"
#include "client/examples/transformer/text.h"
#include "client/examples/transformer/trainer.h"
#include "muster/muster.hpp"
#include "muster/parallel.h"

ABSL_FLAG(std::string, parallel, "ddp",
          "how the ranks share the work: ddp, fsdp, pp, tp, with commas "
          "between them; a size may follow, as in fsdp=2,tp=4, else the ranks "
          "are shared out evenly");
ABSL_FLAG(std::string, text, "/usr/share/games/fortunes/computers",
          "file to learn, plain or gzip'd; a tenth is held out");
ABSL_FLAG(int64_t, steps, 1000, "ends after this many steps");
ABSL_FLAG(int64_t, global_batch, 16, "sequences of a step over all ranks");
ABSL_FLAG(int64_t, microbatches, 0,
          "parts in which a rank's sequences go through the pipeline; 0: two "
          "for each rank of pp, without pp one");
ABSL_FLAG(int64_t, context, 64, "characters of a sequence");
ABSL_FLAG(int64_t, width, 64, "elements of each character's vector");
ABSL_FLAG(int64_t, heads, 4, "heads of each attention");
ABSL_FLAG(int64_t, blocks, 4, "blocks of attention and MLP");
ABSL_FLAG(std::string, precision, "float32", "float32 or float64");
ABSL_FLAG(double, learning_rate, 3e-3,
          "highest step size of AdamW, after --warmup_steps");
ABSL_FLAG(int64_t, warmup_steps, 50,
          "steps in which the step size rises; afterwards it falls with the "
          "square root of the step");
ABSL_FLAG(uint64_t, seed, 1, "of the first weights and of the sequences");
ABSL_FLAG(std::string, backend, "", "backend of the groups; empty: shm");
ABSL_FLAG(std::string, checkpoint, "",
          "folder of checkpoints: to begin with the newest, and to save at the "
          "end and every --checkpoint_steps steps");
ABSL_FLAG(int64_t, checkpoint_steps, 100, "steps between two checkpoints");
ABSL_FLAG(std::string, pause_file, "",
          "while this file is there, ranks wait after each checkpoint");
ABSL_FLAG(std::string, loss_curve, "",
          "file for the number and the loss of every step; written by rank 0");
ABSL_FLAG(std::string, report, "",
          "file for the results as JSON; written by rank 0");

namespace muster::examples {
namespace {

constexpr int kProgressLines = 10;

TrainingSettings SettingsFromFlags(const Layout& layout, const Text& text) {
  const auto check = [](bool good, const char* name, auto value,
                        const char* want) {
    if (good) return;
    throw std::invalid_argument(
        absl::StrCat("--", name, "=", value, ": must be ", want));
  };
  TrainingSettings settings;
  const auto positive = [&](const absl::Flag<int64_t>& flag, const char* name) {
    const int64_t value = absl::GetFlag(flag);
    check(value >= 1, name, value, "1 or more");
    return value;
  };
  settings.model.vocabulary = text.vocabulary();
  settings.model.context = positive(FLAGS_context, "context");
  settings.model.width = positive(FLAGS_width, "width");
  settings.model.heads = positive(FLAGS_heads, "heads");
  settings.model.blocks = positive(FLAGS_blocks, "blocks");
  settings.global_batch = positive(FLAGS_global_batch, "global_batch");
  settings.warmup_steps = positive(FLAGS_warmup_steps, "warmup_steps");
  positive(FLAGS_steps, "steps");
  positive(FLAGS_checkpoint_steps, "checkpoint_steps");
  settings.microbatches = absl::GetFlag(FLAGS_microbatches);
  check(settings.microbatches >= 0 &&
            settings.microbatches <= kStageMicrobatchesMax,
        "microbatches", settings.microbatches,
        absl::StrCat("0 to ", kStageMicrobatchesMax).c_str());
  if (settings.microbatches == 0) {
    settings.microbatches = layout.size("pp") > 1 ? 2 * layout.size("pp") : 1;
  }
  settings.learning_rate = absl::GetFlag(FLAGS_learning_rate);
  check(settings.learning_rate > 0, "learning_rate", settings.learning_rate,
        "more than 0");
  const std::string precision = absl::GetFlag(FLAGS_precision);
  check(precision == "float32" || precision == "float64", "precision",
        precision, "float32 or float64");
  if (precision == "float64") settings.model.data_type = DataType::kFloat64;
  settings.seed = absl::GetFlag(FLAGS_seed);
  settings.checkpoint = absl::GetFlag(FLAGS_checkpoint);
  return settings;
}

// Waits after a checkpoint as long as the file is there.
void Pause(Trainer& trainer) {
  const std::string file = absl::GetFlag(FLAGS_pause_file);
  if (file.empty() || !std::filesystem::exists(file)) return;
  trainer.AwaitCheckpoint();
  if (GetRank() == 0) std::printf("paused by %s\n", file.c_str());
  while (std::filesystem::exists(file)) {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
}

// Writes a file completely or not at all, so that a reader that waits for it
// finds it complete.
void WriteReport(const std::string& path, const nlohmann::json& report) {
  if (path.empty()) return;
  const std::string unfinished = path + ".part";
  std::ofstream file(unfinished);
  file << report.dump(2) << "\n";
  file.close();
  if (!file) throw std::runtime_error("cannot write \"" + unfinished + "\"");
  std::filesystem::rename(unfinished, path);
}

// Trains to the end. Returns the last loss.
double TrainOn(Trainer& trainer) {
  const int64_t steps = absl::GetFlag(FLAGS_steps);
  const int64_t checkpoint_steps = absl::GetFlag(FLAGS_checkpoint_steps);
  const bool has_checkpoints = !absl::GetFlag(FLAGS_checkpoint).empty();
  const bool speaks = GetRank() == 0;
  LossCurve curve(speaks ? absl::GetFlag(FLAGS_loss_curve) : "",
                  trainer.steps());
  double loss = 0;
  while (trainer.steps() < steps) {
    loss = trainer.Step();
    const int64_t step = trainer.steps();
    if (!std::isfinite(loss)) {
      throw std::runtime_error(
          absl::StrCat("the loss of step ", step, " is ", loss,
                       "; try a smaller --learning_rate=",
                       absl::GetFlag(FLAGS_learning_rate)));
    }
    curve.Add(step, loss);
    if (speaks &&
        (step * kProgressLines / steps > (step - 1) * kProgressLines / steps)) {
      std::printf("step %lld/%lld: loss %.4f\n", static_cast<long long>(step),
                  static_cast<long long>(steps), loss);
    }
    if (has_checkpoints && (step % checkpoint_steps == 0 || step == steps)) {
      trainer.Save();
      Pause(trainer);
    }
  }
  trainer.AwaitCheckpoint();
  return loss;
}

void Train(const Layout& layout, const Text& text) {
  using Clock = std::chrono::steady_clock;
  const TrainingSettings settings = SettingsFromFlags(layout, text);
  Trainer trainer(settings, layout, text);
  const bool speaks = GetRank() == 0;
  const int64_t first = trainer.steps();
  if (speaks) {
    std::printf("%s: %s\n", layout.ToText().c_str(),
                first == 0
                    ? "from the beginning"
                    : absl::StrCat("going on after step ", first).c_str());
  }
  const auto begin = Clock::now();
  const double loss = TrainOn(trainer);
  const double seconds =
      std::chrono::duration<double>(Clock::now() - begin).count();
  const double held_out_loss = trainer.ComputeHeldOutLoss();
  if (!speaks) return;
  const double bigram_loss = text.ComputeBigramLoss();
  std::printf("held-out loss %.6f, of a bigram model %.6f\n", held_out_loss,
              bigram_loss);
  nlohmann::json report = {
      {"parallel", layout.ToText()},    {"world_size", GetWorldSize()},
      {"steps", trainer.steps()},       {"first_step", first},
      {"held_out_loss", held_out_loss}, {"bigram_loss", bigram_loss}};
  const int64_t made = trainer.steps() - first;
  if (made > 0) {
    const double speed = static_cast<double>(made * settings.global_batch *
                                             settings.model.context) /
                         seconds;
    std::printf("%.0f characters/s, %.1f s\n", speed, seconds);
    report["loss"] = loss;
    report["characters_per_second"] = speed;
    report["train_seconds"] = seconds;
  } else {
    std::printf("no step was made: the checkpoint has the %lld of --steps\n",
                static_cast<long long>(absl::GetFlag(FLAGS_steps)));
  }
  WriteReport(absl::GetFlag(FLAGS_report), report);
}

int Run() {
  // Before the group is formed: the others must not wait for a rank without a
  // text.
  const Text text = Text::Read(absl::GetFlag(FLAGS_text));
  InitProcessGroup({.backend = absl::GetFlag(FLAGS_backend)});
  const std::string debug_address = GetDebugAddress();
  if (!debug_address.empty()) {
    std::printf("metrics: http://%s/metrics\n", debug_address.c_str());
  }
  Train(Layout::Parse(absl::GetFlag(FLAGS_parallel), GetWorldSize()), text);
  DestroyProcessGroup();
  return 0;
}

}  // namespace
}  // namespace muster::examples

int main(int argc, char** argv) {
  return muster::examples::RunProgram(
      argc, argv,
      {.name = "train_transformer",
       .description =
           "Trains a transformer on a text with all ranks of a job; started by "
           "muster-run.",
       .run = muster::examples::Run});
}
