#include "tests/bench/training_rank.h"

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <ctime>
#include <iostream>
#include <memory>
#include <numeric>
#include <optional>
#include <sstream>
#include <stdexcept>

#include "absl/strings/str_cat.h"
#include "muster/muster.hpp"
#include "muster/parallel.h"

namespace muster::bench {
namespace {

double ReadClock(clockid_t clock) {
  timespec time{};
  clock_gettime(clock, &time);
  return static_cast<double>(time.tv_sec) +
         static_cast<double>(time.tv_nsec) / 1e9;
}

// The computation of one step.
class Computation {
 public:
  explicit Computation(bool on_device)
      : on_device_(on_device), device_time_(ReadClock(CLOCK_MONOTONIC)) {}

  // Returns when the computation has gone on for this long.
  void Run(double seconds) {
    if (seconds <= 0) return;
    if (!on_device_) {
      const double end = ReadClock(CLOCK_THREAD_CPUTIME_ID) + seconds;
      while (ReadClock(CLOCK_THREAD_CPUTIME_ID) < end) {
      }
      return;
    }
    device_time_ += seconds;
    if (device_time_ <= ReadClock(CLOCK_MONOTONIC)) return;
    timespec until{};
    until.tv_sec = static_cast<time_t>(device_time_);
    until.tv_nsec = static_cast<int64_t>(
        (device_time_ - static_cast<double>(until.tv_sec)) * 1e9);
    clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &until, nullptr);
  }

 private:
  const bool on_device_;
  double device_time_;
};

class Training {
 public:
  virtual ~Training() = default;

  virtual std::string name() const = 0;
  // Makes a step in which all of this rank's gradients are `gradient`. Returns
  // whether all averages are `average`.
  virtual bool Verify(float gradient, float average) = 0;
  virtual void Step(Computation computation, double seconds, bool sync) = 0;
  // The collectives of a step, one after the other.
  virtual void RunCollectives() {
    throw std::runtime_error("DataParallel has no collectives alone");
  }
  // The logging data of the last step.
  virtual std::string LoggedTimes() const { return ""; }
};

void Fill(const Tensor& tensor, float value) {
  std::fill_n(static_cast<float*>(tensor.data()), tensor.element_count(),
              value);
}

bool IsFilled(const Tensor& tensor, float value) {
  const auto* const data = static_cast<const float*>(tensor.data());
  return std::count(data, data + tensor.element_count(), value) ==
         tensor.element_count();
}

// The part of a step's computation that belongs to each parameter.
std::vector<double> ComputeParts(const std::vector<int64_t>& elements) {
  const auto sum = static_cast<double>(
      std::accumulate(elements.begin(), elements.end(), int64_t{0}));
  std::vector<double> parts;
  for (const int64_t count : elements) {
    parts.push_back(static_cast<double>(count) / sum);
  }
  return parts;
}

class DataParallelTraining : public Training {
 public:
  explicit DataParallelTraining(const TrainingSettings& settings)
      : parts_(ComputeParts(settings.elements)) {
    std::vector<Parameter> parameters;
    for (size_t i = 0; i < settings.elements.size(); ++i) {
      const auto count = static_cast<size_t>(settings.elements[i]);
      Parameter parameter = {absl::StrCat("p", i),
                             Tensor(values_.emplace_back(count))};
      if (!settings.gradient_as_bucket_view) {
        parameter.gradient = Tensor(gradients_.emplace_back(count));
      }
      parameters.push_back(std::move(parameter));
    }
    DataParallelOptions options;
    if (settings.bucket_kib > 0) {
      options.bucket_bytes = settings.bucket_kib << 10;
      options.first_bucket_bytes =
          std::min(options.first_bucket_bytes, options.bucket_bytes);
    }
    model_ = std::make_unique<DataParallel>(std::move(parameters), options);
  }

  std::string name() const override {
    const auto& sizes = model_->logging_data().bucket_sizes;
    const int64_t bytes =
        std::accumulate(sizes.begin(), sizes.end(), int64_t{0});
    return absl::StrCat("muster, ", GetBackend(), "; ", sizes.size(),
                        " buckets, the last has ",
                        100 * sizes.back() / std::max<int64_t>(bytes, 1),
                        " % of the gradients");
  }

  bool Verify(float gradient, float average) override {
    for (size_t i = 0; i < parts_.size(); ++i) {
      Fill(model_->Gradient(i), gradient);
    }
    Step(Computation(/*on_device=*/true), 0, /*sync=*/true);
    bool is_right = true;
    for (size_t i = 0; i < parts_.size(); ++i) {
      is_right &= IsFilled(model_->Gradient(i), average);
    }
    return is_right;
  }

  void Step(Computation computation, double seconds, bool sync) override {
    std::optional<DataParallel::NoSync> no_sync;
    if (!sync) no_sync.emplace(*model_);
    for (size_t i = parts_.size(); i-- > 0;) {
      computation.Run(seconds * parts_[i]);
      model_->Ready(i);
    }
    model_->FinishStep();
  }

  std::string LoggedTimes() const override {
    const DataParallel::Times times = model_->logging_data().last;
    const auto text = [](std::chrono::nanoseconds time) {
      return absl::StrCat(" ", std::chrono::duration<double>(time).count());
    };
    return absl::StrCat(text(times.backward_compute_time),
                        text(times.backward_comm_time),
                        text(times.backward_compute_comm_overlap_time),
                        text(times.exposed_comm_time));
  }

 private:
  const std::vector<double> parts_;
  std::vector<std::vector<float>> values_;
  std::vector<std::vector<float>> gradients_;
  std::unique_ptr<DataParallel> model_;
};

// Memory as FullyShard's buffers have it.
class Buffer {
 public:
  explicit Buffer(int64_t elements) {
    try {
      symmetric_ =
          AllocateSymmetric(WorldGroup(), DataType::kFloat32, {elements});
      tensor_ = symmetric_.tensor();
      Fill(tensor_, 0);
    } catch (const DistError& error) {
      if (!IsUnimplemented(error.status())) throw;
      ordinary_.resize(static_cast<size_t>(elements));
      tensor_ = Tensor(ordinary_);
    }
  }

  const Tensor& tensor() const { return tensor_; }

 private:
  SymmetricTensor symmetric_;
  std::vector<float> ordinary_;
  Tensor tensor_;
};

class FullyShardTraining : public Training {
 public:
  explicit FullyShardTraining(const TrainingSettings& settings)
      : ranks_(settings.ranks),
        elements_(settings.elements),
        parts_(ComputeParts(settings.elements)),
        buffer_(
            (*std::max_element(elements_.begin(), elements_.end()) / ranks_ +
             1) *
            ranks_) {
    std::vector<ShardGroup> groups;
    for (size_t i = 0; i < elements_.size(); ++i) {
      const std::string name = absl::StrCat("p", i);
      groups.push_back(
          {name,
           {{name, Tensor(nullptr, DataType::kFloat32, {elements_[i]})}}});
    }
    model_ = std::make_unique<FullyShard>(groups);
  }

  std::string name() const override {
    return absl::StrCat("muster, ", GetBackend());
  }

  bool Verify(float gradient, float average) override {
    for (int layer = count(); layer-- > 0;) {
      model_->WaitUnshard(layer);
      Fill(model_->Gradient(layer, 0), gradient);
      model_->GradientsReady(layer);
    }
    model_->FinishStep();
    bool is_right = true;
    for (const ParameterShard& shard : model_->Shards()) {
      is_right &= IsFilled(shard.gradient, average);
    }
    model_->ZeroGradients();
    return is_right;
  }

  void Step(Computation computation, double seconds, bool sync) override {
    for (int layer = 0; layer < count(); ++layer) {
      if (sync) model_->WaitUnshard(layer);
      computation.Run(seconds / 3 * parts_[static_cast<size_t>(layer)]);
      if (sync) model_->Reshard(layer);
    }
    for (int layer = count(); layer-- > 0;) {
      if (sync) {
        model_->WaitUnshard(layer);
        (void)model_->Gradient(layer, 0);
      }
      computation.Run(seconds * 2 / 3 * parts_[static_cast<size_t>(layer)]);
      if (sync) model_->GradientsReady(layer);
    }
    if (!sync) return;
    model_->FinishStep();
    model_->ZeroGradients();
  }

  void RunCollectives() override {
    const std::shared_ptr<ProcessGroup> group = WorldGroup();
    for (const int64_t elements : elements_) {
      const int64_t part = (elements + ranks_ - 1) / ranks_;
      float* const data = static_cast<float*>(buffer_.tensor().data());
      const Tensor whole(data, {part * ranks_});
      const Tensor own(data + part * group->rank(), {part});
      group->AllGatherIntoTensor(whole, own);
      group->AllGatherIntoTensor(whole, own);
      group->ReduceScatterTensor(own, whole);
    }
  }

 private:
  int count() const { return static_cast<int>(elements_.size()); }

  const int64_t ranks_;
  const std::vector<int64_t> elements_;
  const std::vector<double> parts_;
  // The largest parameter.
  const Buffer buffer_;
  std::unique_ptr<FullyShard> model_;
};

std::unique_ptr<Training> MakeTraining(const TrainingSettings& settings) {
  if (settings.sharded) return std::make_unique<FullyShardTraining>(settings);
  return std::make_unique<DataParallelTraining>(settings);
}

// Returns the answer to a line.
std::string Measure(Training& training, const std::string& line) {
  std::istringstream words(line);
  std::string kind;
  double seconds = 0;
  int sync = 0;
  int steps = 0;
  if (!(words >> kind >> seconds >> sync >> steps) || steps < 1) {
    throw std::runtime_error(absl::StrCat("bad line \"", line, "\""));
  }
  Barrier();
  const double start = ReadClock(CLOCK_MONOTONIC);
  for (int i = 0; i < steps; ++i) {
    if (kind == "collectives") {
      training.RunCollectives();
    } else {
      training.Step(Computation(kind == "device"), seconds, sync != 0);
    }
  }
  const double elapsed = ReadClock(CLOCK_MONOTONIC) - start;
  return absl::StrCat(elapsed / steps, training.LoggedTimes());
}

}  // namespace

void RunTrainingRank(const TrainingSettings& settings) {
  InitProcessGroup({.backend = settings.backend,
                    .init_method = absl::StrCat("file://", settings.folder,
                                                "/muster?rank=", settings.rank,
                                                "&world_size=", settings.ranks),
                    .timeout = std::chrono::minutes(2)});
  {
    const std::unique_ptr<Training> training = MakeTraining(settings);
    const float average = static_cast<float>(settings.ranks + 1) / 2;
    if (!training->Verify(static_cast<float>(settings.rank + 1), average)) {
      throw std::runtime_error("wrong averages");
    }
    std::cout << "ready " << training->name() << std::endl;
    for (std::string line; std::getline(std::cin, line);) {
      std::cout << Measure(*training, line) << std::endl;
    }
  }
  DestroyProcessGroup();
}

}  // namespace muster::bench
