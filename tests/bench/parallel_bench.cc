// Training steps of DataParallel, beside torch's DistributedDataParallel on the
// same shapes, and of FullyShard, beside its collectives alone: how long
// communication takes, and how much of it the computation hides.
//
//   parallel_bench --ranks=2,4 [--torch=tests/bench/torch_ddp.py]
//
// training_rank.h says how the computation is modelled.

#include <glog/logging.h>
#include <stdlib.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <memory>
#include <sstream>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/flags/parse.h"
#include "absl/flags/usage.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "tests/bench/child.h"
#include "tests/bench/figure.h"
#include "tests/bench/training_rank.h"

ABSL_FLAG(std::vector<std::string>, models,
          std::vector<std::string>({"perceptron", "transformer", "layers",
                                    "sharded"}),
          "perceptron: 784 x 128 x 10; transformer: of characters, 4 blocks "
          "of width 64; layers: --layers of --layer_elements; sharded: those "
          "with FullyShard");
ABSL_FLAG(std::vector<std::string>, ranks, std::vector<std::string>({"2"}),
          "numbers of ranks");
ABSL_FLAG(int, layers, 50, "parameters of the models layers and sharded");
ABSL_FLAG(int64_t, layer_elements, 1'000'000, "float32 elements of each");
ABSL_FLAG(std::vector<std::string>, kinds,
          std::vector<std::string>({"device", "cpu"}),
          "where the computation runs");
ABSL_FLAG(std::vector<std::string>, factors,
          std::vector<std::string>({"1.5", "3"}),
          "the computation's time over that of muster's communication");
ABSL_FLAG(int, rounds, 5, "how many times each case is measured");
ABSL_FLAG(int, run_ms, 200, "about how long each measurement takes");
ABSL_FLAG(std::string, backend, "shm", "of muster's groups");
ABSL_FLAG(bool, gradient_as_bucket_view, true,
          "gradients lie in the buckets; false: they are copied");
ABSL_FLAG(int64_t, bucket_kib, 0,
          "size of a bucket, at most 1 MiB for the first; 0: 25 MiB");
ABSL_FLAG(std::string, torch, "", "the script torch_ddp.py; empty: no torch");
ABSL_FLAG(std::string, json, "", "file for the figures");
ABSL_FLAG(int, rank, -1, "for the program's own use: run this rank");
ABSL_FLAG(std::string, folder, "", "for the program's own use");

namespace muster::bench {
namespace {

constexpr double kOverlapTarget = 80;
constexpr double kCommunicationTarget = 0.5;

// Milliseconds.
struct Times {
  double step = 0;
  // As DataParallel logs them: computation, communication, overlap, exposed.
  std::vector<double> logged = {};
};

// The ranks of one library.
class Ranks {
 public:
  explicit Ranks(const std::vector<std::vector<std::string>>& commands) {
    for (const auto& command : commands) {
      ranks_.push_back(std::make_unique<Child>(command));
    }
    for (const auto& rank : ranks_) name_ = ReadName(*rank);
  }

  const std::string& name() const { return name_; }

  // Times of the slowest rank; those that are logged are of rank 0.
  Times Run(const std::string& kind, double compute_ms, bool sync, int steps) {
    for (const auto& rank : ranks_) {
      rank->WriteLine(absl::StrCat(kind, " ", compute_ms / 1e3, " ",
                                   sync ? 1 : 0, " ", steps));
    }
    Times times;
    for (const auto& rank : ranks_) {
      std::istringstream words(rank->ReadLine());
      double seconds = 0;
      if (!(words >> seconds)) throw std::runtime_error("not a time");
      times.step = std::max(times.step, seconds * 1e3);
      if (rank != ranks_.front()) continue;
      while (words >> seconds) times.logged.push_back(seconds * 1e3);
    }
    return times;
  }

 private:
  static std::string ReadName(Child& rank) {
    const std::string ready = "ready ";
    std::string line = rank.ReadLine();
    if (line.rfind(ready, 0) != 0) {
      throw std::runtime_error(absl::StrCat("a rank is not ready: ", line));
    }
    return line.substr(ready.size(), line.size() - ready.size() - 1);
  }

  std::vector<std::unique_ptr<Child>> ranks_;
  std::string name_;
};

class Folder {
 public:
  Folder() {
    std::string path = std::filesystem::temp_directory_path() / "benchXXXXXX";
    if (mkdtemp(path.data()) == nullptr) {
      throw std::runtime_error(absl::StrCat("no folder ", path));
    }
    path_ = path;
  }
  ~Folder() { std::filesystem::remove_all(path_); }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;

  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

struct Spread {
  double median = 0;
  double least = 0;
  double most = 0;
};

Spread ComputeSpread(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return {values[values.size() / 2], values.front(), values.back()};
}

std::string ToText(const Spread& spread) {
  return absl::StrFormat("%.3g (%.3g to %.3g)", spread.median, spread.least,
                         spread.most);
}

// In the order of the forward pass.
std::vector<int64_t> MakeTransformer() {
  constexpr int kBlocks = 4;
  constexpr int64_t kWidth = 64;
  constexpr int64_t kContext = 64;
  constexpr int64_t kVocabulary = 100;
  constexpr int64_t kMatrix = kWidth * kWidth;
  std::vector<int64_t> elements = {kVocabulary * kWidth, kContext * kWidth};
  for (int i = 0; i < kBlocks; ++i) {
    // A norm and four matrices of attention; a norm, and a hidden layer.
    elements.insert(elements.end(),
                    {kWidth, kWidth, kMatrix, kMatrix, kMatrix, kMatrix, kWidth,
                     kWidth, 4 * kMatrix, 4 * kMatrix});
  }
  elements.insert(elements.end(), {kWidth, kWidth, kVocabulary * kWidth});
  return elements;
}

std::vector<int64_t> FindElements(const std::string& model) {
  if (model == "transformer") return MakeTransformer();
  if (model == "perceptron") return {784 * 128, 128, 128 * 10, 10};
  if (model != "layers" && model != "sharded") {
    throw std::runtime_error(absl::StrCat("--models: ", model));
  }
  return std::vector<int64_t>(static_cast<size_t>(absl::GetFlag(FLAGS_layers)),
                              absl::GetFlag(FLAGS_layer_elements));
}

std::vector<std::vector<std::string>> MakeMusterCommands(
    const std::string& model, int ranks, const std::string& folder) {
  std::vector<std::vector<std::string>> commands;
  for (int rank = 0; rank < ranks; ++rank) {
    commands.push_back(
        {"/proc/self/exe", absl::StrCat("--rank=", rank),
         absl::StrCat("--ranks=", ranks), absl::StrCat("--folder=", folder),
         absl::StrCat("--models=", model),
         absl::StrCat("--layers=", absl::GetFlag(FLAGS_layers)),
         absl::StrCat("--layer_elements=", absl::GetFlag(FLAGS_layer_elements)),
         absl::StrCat("--backend=", absl::GetFlag(FLAGS_backend)),
         absl::StrCat("--bucket_kib=", absl::GetFlag(FLAGS_bucket_kib)),
         absl::StrCat("--gradient_as_bucket_view=",
                      absl::GetFlag(FLAGS_gradient_as_bucket_view))});
  }
  return commands;
}

std::vector<std::vector<std::string>> MakeTorchCommands(
    const std::string& model, int ranks, const std::string& folder) {
  std::vector<std::vector<std::string>> commands;
  for (int rank = 0; rank < ranks; ++rank) {
    commands.push_back(
        {absl::GetFlag(FLAGS_torch), absl::StrCat(rank), absl::StrCat(ranks),
         folder, absl::GetFlag(FLAGS_gradient_as_bucket_view) ? "1" : "0",
         absl::StrCat(absl::GetFlag(FLAGS_bucket_kib)),
         absl::StrJoin(FindElements(model), ",")});
  }
  return commands;
}

// The first case of a model has no computation.
struct Case {
  std::string name;
  std::string kind = "device";
  // The computation's time over that of muster's communication.
  double factor = 0;
};

// The measurements of one case, by round.
struct Series {
  std::vector<double> computation = {};
  std::vector<double> step = {};
  std::vector<double> without_sync = {};
  std::vector<double> exposed = {};
  // Per cent of the communication.
  std::vector<double> overlap = {};
  // By time that is logged.
  std::vector<std::vector<double>> logged = {};
};

// A library, and its series by case.
struct Side {
  std::unique_ptr<Ranks> ranks;
  std::vector<Series> series = {};
};

// Measures one model with a number of ranks.
class Comparison {
 public:
  Comparison(std::string model, int ranks)
      : model_(std::move(model)), title_(absl::StrCat(model_, ", ", ranks)) {
    sides_.push_back({std::make_unique<Ranks>(
        MakeMusterCommands(model_, ranks, folder_.path()))});
    if (!is_sharded() && !absl::GetFlag(FLAGS_torch).empty()) {
      sides_.push_back({std::make_unique<Ranks>(
          MakeTorchCommands(model_, ranks, folder_.path()))});
    }
  }

  void Run() {
    ChooseCases();
    for (Side& side : sides_) side.series.resize(cases_.size());
    for (int i = 0; i < std::max(1, absl::GetFlag(FLAGS_rounds)); ++i) {
      for (Side& side : sides_) {
        for (size_t k = 0; k < cases_.size(); ++k) MeasureCase(side, k);
      }
      if (is_sharded()) {
        collectives_.push_back(
            RunFor(*sides_[0].ranks, "collectives", 0, /*sync=*/true).step);
      }
    }
  }

  void Print() const {
    const auto elements = FindElements(model_);
    std::cout << "\n"
              << title_ << " ranks: " << elements.size() << " parameters, "
              << absl::GetFlag(FLAGS_rounds)
              << " rounds: median (least to most), ms\n";
    for (const Side& side : sides_) {
      std::cout << "  " << side.ranks->name() << "\n";
    }
    if (sides_.size() > 1) {
      std::cout << absl::StrFormat("%28s%-28s%-28s%s\n", "", "muster", "torch",
                                   "ratio");
    }
    for (size_t k = 0; k < cases_.size(); ++k) PrintCase(k);
    if (is_sharded()) {
      PrintRow("collectives alone", {ComputeSpread(collectives_)});
    }
  }

  void AddFigures(std::vector<Figure>& figures) const {
    Figure communication = {
        .name = absl::StrCat(title_, " ranks: communication"),
        .value = ComputeSpread(sides_[0].series[0].exposed).median,
        .unit = "ms"};
    if (sides_.size() > 1) {
      communication.reference = "torch";
      communication.reference_value =
          ComputeSpread(sides_[1].series[0].exposed).median;
      communication.target = kCommunicationTarget;
    } else if (is_sharded()) {
      communication.reference = "collectives";
      communication.reference_value = ComputeSpread(collectives_).median;
    }
    figures.push_back(std::move(communication));
    for (size_t k = 1; k < cases_.size(); ++k) {
      const std::string name =
          absl::StrCat(title_, " ranks, ", cases_[k].name, ": ");
      // Elsewhere the computation leaves no core for communication, or the
      // largest part of the gradients comes last.
      const bool can_hide = model_ == "layers" && cases_[k].kind == "device";
      figures.push_back(
          {.name = name + "overlap",
           .value = ComputeSpread(sides_[0].series[k].overlap).median,
           .unit = "%",
           .target = can_hide ? kOverlapTarget : 0,
           .less_is_better = false});
      Figure step = {.name = name + "step",
                     .value = ComputeSpread(sides_[0].series[k].step).median,
                     .unit = "ms"};
      if (sides_.size() > 1) {
        step.reference = "torch";
        step.reference_value = ComputeSpread(sides_[1].series[k].step).median;
      }
      figures.push_back(std::move(step));
    }
  }

 private:
  bool is_sharded() const { return model_ == "sharded"; }

  static Times RunFor(Ranks& ranks, const std::string& kind, double compute_ms,
                      bool sync) {
    const double one =
        std::max(ranks.Run(kind, compute_ms, sync, 1).step, 1e-3);
    const double steps = absl::GetFlag(FLAGS_run_ms) / one;
    return ranks.Run(kind, compute_ms, sync,
                     static_cast<int>(std::clamp(steps, 2.0, 1000.0)));
  }

  void ChooseCases() {
    cases_.push_back({.name = "no computation"});
    for (const std::string& kind : absl::GetFlag(FLAGS_kinds)) {
      for (const std::string& factor : absl::GetFlag(FLAGS_factors)) {
        cases_.push_back(
            {absl::StrCat(kind, " x", factor), kind, std::stod(factor)});
      }
    }
  }

  void MeasureCase(Side& side, size_t k) {
    const Case& measured = cases_[k];
    // From this round, as the machine's speed changes.
    const double compute_ms =
        k == 0 ? 0 : measured.factor * sides_[0].series[0].exposed.back();
    const Times with =
        RunFor(*side.ranks, measured.kind, compute_ms, /*sync=*/true);
    const Times without =
        RunFor(*side.ranks, measured.kind, compute_ms, /*sync=*/false);
    Series& series = side.series[k];
    series.computation.push_back(compute_ms);
    series.step.push_back(with.step);
    series.without_sync.push_back(without.step);
    series.exposed.push_back(with.step - without.step);
    series.overlap.push_back(
        100 * (1 - series.exposed.back() / side.series[0].exposed.back()));
    series.logged.resize(with.logged.size());
    for (size_t i = 0; i < with.logged.size(); ++i) {
      series.logged[i].push_back(with.logged[i]);
    }
  }

  void PrintCase(size_t k) const {
    const auto row = [&](const std::string& name,
                         std::vector<double> Series::*values,
                         bool has_ratio = false) {
      std::vector<Spread> spreads;
      for (const Side& side : sides_) {
        spreads.push_back(ComputeSpread(side.series[k].*values));
      }
      PrintRow(name, spreads, has_ratio);
    };
    if (k == 0) {
      row("communication alone", &Series::exposed, /*has_ratio=*/true);
      return;
    }
    std::cout << "  " << cases_[k].name << "\n";
    row("computation", &Series::computation);
    row("step", &Series::step, /*has_ratio=*/true);
    row("step without sync", &Series::without_sync);
    row("exposed communication", &Series::exposed);
    row("overlap, %", &Series::overlap);
    const std::vector<const char*> names = {"computation", "communication",
                                            "overlap", "exposed"};
    const auto& logged = sides_[0].series[k].logged;
    for (size_t i = 0; i < logged.size(); ++i) {
      PrintRow(absl::StrCat("logged ", names.at(i)),
               {ComputeSpread(logged[i])});
    }
  }

  static void PrintRow(const std::string& name,
                       const std::vector<Spread>& spreads,
                       bool has_ratio = false) {
    std::cout << absl::StrFormat("    %-22s", name);
    for (const Spread& spread : spreads) {
      std::cout << absl::StrFormat("  %-26s", ToText(spread));
    }
    if (has_ratio && spreads.size() > 1) {
      std::cout << absl::StrFormat("  %.2f",
                                   spreads[0].median / spreads[1].median);
    }
    std::cout << "\n";
  }

  const std::string model_;
  const std::string title_;
  const Folder folder_;
  // Muster's, and torch's if it is measured.
  std::vector<Side> sides_;
  std::vector<Case> cases_;
  // FullyShard's collectives alone, by round.
  std::vector<double> collectives_;
};

void RunRank() {
  // For the coordinator of rank 0.
  setenv("GLOO_SOCKET_IFNAME", "lo", 1);
  const std::string model = absl::GetFlag(FLAGS_models).at(0);
  RunTrainingRank(
      {.rank = absl::GetFlag(FLAGS_rank),
       .ranks = std::stoi(absl::GetFlag(FLAGS_ranks).at(0)),
       .folder = absl::GetFlag(FLAGS_folder),
       .backend = absl::GetFlag(FLAGS_backend),
       .elements = FindElements(model),
       .sharded = model == "sharded",
       .gradient_as_bucket_view = absl::GetFlag(FLAGS_gradient_as_bucket_view),
       .bucket_kib = absl::GetFlag(FLAGS_bucket_kib)});
}

void RunAll() {
  std::vector<Figure> figures;
  for (const std::string& model : absl::GetFlag(FLAGS_models)) {
    for (const std::string& ranks : absl::GetFlag(FLAGS_ranks)) {
      Comparison comparison(model, std::stoi(ranks));
      comparison.Run();
      comparison.Print();
      comparison.AddFigures(figures);
    }
  }
  std::cout << "\n";
  PrintTargets(figures);
  const std::string file = absl::GetFlag(FLAGS_json);
  if (!file.empty()) std::ofstream(file) << ToJson(figures).dump(1) << "\n";
}

}  // namespace
}  // namespace muster::bench

int main(int argc, char** argv) {
  absl::SetProgramUsageMessage("Measures training steps.");
  absl::ParseCommandLine(argc, argv);
  FLAGS_logtostderr = true;
  FLAGS_minloglevel = google::GLOG_ERROR;
  google::InitGoogleLogging(argv[0]);
  try {
    if (absl::GetFlag(FLAGS_rank) >= 0) {
      muster::bench::RunRank();
    } else {
      muster::bench::RunAll();
    }
  } catch (const std::exception& error) {
    std::cerr << "parallel_bench: " << error.what() << std::endl;
    return 1;
  }
  return 0;
}
