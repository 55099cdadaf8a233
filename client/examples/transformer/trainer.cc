#include "client/examples/transformer/trainer.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <stdexcept>
#include <utility>

#include "absl/strings/str_cat.h"
#include "client/examples/transformer/model.h"
#include "muster/distributed.h"

namespace muster::examples {
namespace {

// The text that is held out gives this many global batches.
constexpr int64_t kHeldOutBatches = 4;

void Check(bool good, const char* flag, int64_t value,
           const std::string& want) {
  if (good) return;
  throw std::invalid_argument(
      absl::StrCat("--", flag, "=", value, ": must be ", want));
}

const TrainingSettings& CheckFit(const TrainingSettings& settings,
                                 const Layout& layout) {
  const ModelSettings& model = settings.model;
  Check(model.width % model.heads == 0, "width", model.width,
        absl::StrCat("a multiple of --heads=", model.heads));
  Check(model.heads % layout.size("tp") == 0, "heads", model.heads,
        absl::StrCat("a multiple of the ", layout.size("tp"), " ranks of tp"));
  Check(model.blocks >= layout.size("pp"), "blocks", model.blocks,
        absl::StrCat("at least the ", layout.size("pp"), " ranks of pp"));
  const int64_t parts = layout.size("ddp") * layout.size("fsdp");
  Check(settings.global_batch % (parts * settings.microbatches) == 0,
        "global_batch", settings.global_batch,
        absl::StrCat("a multiple of ", parts, " data parallel ranks times ",
                     settings.microbatches, " microbatches"));
  return settings;
}

std::vector<std::unique_ptr<Layer>> MakeLayersHere(
    const ModelSettings& settings, const DeviceMesh& mesh) {
  return MakeLayers(settings, {.group = mesh.GetGroup("tp")},
                    mesh.GetLocalRank("pp"),
                    static_cast<int>(mesh["pp"].size()));
}

// The sum over all ranks.
double Sum(double value) {
  AllReduce(Tensor(&value, {1}));
  return value;
}

}  // namespace

Trainer::Trainer(const TrainingSettings& settings, const Layout& layout,
                 const Text& text)
    : settings_(CheckFit(settings, layout)),
      text_(text),
      mesh_(layout.MakeMesh()),
      parts_(layout.size("ddp") * layout.size("fsdp")),
      part_(mesh_.GetLocalRank("ddp") * layout.size("fsdp") +
            mesh_.GetLocalRank("fsdp")),
      layers_(MakeLayersHere(settings.model, mesh_)),
      weights_(MakeWeights(layers_, settings.model.data_type, settings.seed,
                           layout, mesh_)),
      stage_(settings.model, layers_, *weights_, mesh_.GetLocalRank("pp"),
             static_cast<int>(layout.size("pp")),
             static_cast<int>(settings.microbatches)),
      pipeline_(Make1F1B(static_cast<int>(layout.size("pp")),
                         static_cast<int>(settings.microbatches)),
                {stage_.Describe(settings.global_batch / parts_)},
                {.group = mesh_.GetGroup("pp")}),
      optimizer_(AdamW(), weights_->tensors()) {
  if (settings.checkpoint.empty()) return;
  storage_ = DirectoryStorage(settings.checkpoint);
  checkpointer_ = std::make_unique<Checkpointer>(
      storage_, CheckpointerOptions{.keep_newest = 2});
  Resume();
}

double Trainer::Step() {
  const double loss = ComputeGradients(text_.MakeTrainingBatch(
      settings_.seed, steps(), MakeRange(0, 1), settings_.model.context));
  optimizer_.Step(LearningRate());
  return loss;
}

double Trainer::ComputeHeldOutLoss() {
  double loss = 0;
  for (int64_t i = 0; i < kHeldOutBatches; ++i) {
    loss += ComputeGradients(text_.MakeHeldOutBatch(
        MakeRange(i, kHeldOutBatches), settings_.model.context));
  }
  return loss / kHeldOutBatches;
}

double Trainer::ComputeGradients(Batch batch) {
  stage_.set_batch(std::move(batch));
  weights_->ZeroGradients();
  double loss = 0;
  for (const double each : pipeline_.Step()) {
    loss += each / static_cast<double>(settings_.microbatches);
  }
  weights_->FinishStep();
  // Tensor parallel ranks have the same loss, and earlier stages none.
  return Sum(loss / static_cast<double>(parts_ * mesh_["tp"].size()));
}

double Trainer::LearningRate() const {
  const auto step = static_cast<double>(steps() + 1);
  const auto warmup = static_cast<double>(settings_.warmup_steps);
  return settings_.learning_rate *
         std::min(step / warmup, std::sqrt(warmup / step));
}

SequenceRange Trainer::MakeRange(int64_t batch, int64_t batches) const {
  const int64_t count = settings_.global_batch / parts_;
  return {.first = batch * settings_.global_batch + part_ * count,
          .count = count,
          .all = batches * settings_.global_batch};
}

std::vector<CheckpointShard> Trainer::MakeState() const {
  static constexpr std::array<const char*, 2> kSlots = {".exp_avg",
                                                        ".exp_avg_sq"};
  std::vector<CheckpointShard> state = weights_->boxes();
  for (size_t i = 0; i < weights_->boxes().size(); ++i) {
    for (size_t slot = 0; slot < kSlots.size(); ++slot) {
      CheckpointShard shard = weights_->boxes()[i];
      shard.name += kSlots[slot];
      shard.local = optimizer_.state(i)[slot];
      state.push_back(std::move(shard));
    }
  }
  return state;
}

void Trainer::Save() {
  AwaitCheckpoint();
  pending_ = checkpointer_->SaveAsync(
      steps(), MakeState(),
      {{"text", text_.checksum()},
       {"heads", absl::StrCat(settings_.model.heads)}});
}

void Trainer::AwaitCheckpoint() {
  if (pending_.has_value()) pending_->Wait();
}

void Trainer::Resume() {
  const std::optional<LoadedCheckpoint> loaded =
      LoadNewestCheckpoint(*storage_, MakeState());
  if (!loaded.has_value()) return;
  const auto compare = [&](const char* name, const std::string& here) {
    const std::string& saved = loaded->values.at(name);
    if (saved == here) return;
    throw std::invalid_argument(absl::StrCat(
        "--checkpoint=", settings_.checkpoint, ": step ", loaded->step,
        " has --", name, "=", saved, ", not ", here));
  };
  compare("heads", absl::StrCat(settings_.model.heads));
  compare("text", text_.checksum());
  optimizer_.set_steps(loaded->step);
}

}  // namespace muster::examples
