// Trains a small model by every schedule among ranks that are threads. The
// weights must be those of a single process, bit for bit.

#include "muster/pipeline.h"

#include <chrono>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <future>
#include <memory>
#include <random>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "client/testing/local_groups.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "muster/errors.h"

namespace muster {
namespace {

using muster::testing::LocalGroups;
using ::testing::Each;
using ::testing::IsEmpty;

using Group = std::shared_ptr<ProcessGroup>;
using Values = std::vector<double>;

constexpr int kRows = 3;  // Samples of a microbatch.
constexpr int kSteps = 3;

// The width before each stage: uneven, so that a wrong shape shows.
int GetWidth(int boundary) { return 2 + (boundary * 5) % 4; }

Values MakeValues(int count, unsigned seed) {
  std::mt19937 random(seed);
  std::uniform_real_distribution<double> one(-1, 1);
  Values values(static_cast<size_t>(count));
  for (double& value : values) value = one(random);
  return values;
}

Values ReadValues(const Tensor& tensor) {
  const auto* const begin = static_cast<const double*>(tensor.data());
  return {begin, begin + tensor.element_count()};
}

void WriteValues(const Values& values, const Tensor& tensor) {
  ASSERT_EQ(tensor.element_count(), static_cast<int64_t>(values.size()));
  std::memcpy(tensor.data(), values.data(), tensor.bytes());
}

// tanh(x W), with rows of x as samples.
struct Layer {
  Layer(int inputs, int outputs, unsigned seed)
      : in(inputs),
        out(outputs),
        weights(MakeValues(inputs * outputs, seed)),
        gradients(weights.size()) {}

  Values Forward(const Values& x) const {
    Values y(static_cast<size_t>(kRows * out));
    for (int row = 0; row < kRows; ++row) {
      for (int o = 0; o < out; ++o) {
        double sum = 0;
        for (int i = 0; i < in; ++i)
          sum += At(x, row, i, in) * At(weights, i, o, out);
        y[static_cast<size_t>(row * out + o)] = std::tanh(sum);
      }
    }
    return y;
  }

  // The gradient before the tanh.
  static Values Inside(const Values& y, const Values& dy) {
    Values d(y.size());
    for (size_t i = 0; i < y.size(); ++i) d[i] = dy[i] * (1 - y[i] * y[i]);
    return d;
  }

  Values BackwardInput(const Values& d) const {
    Values dx(static_cast<size_t>(kRows * in));
    for (int row = 0; row < kRows; ++row) {
      for (int i = 0; i < in; ++i) {
        double sum = 0;
        for (int o = 0; o < out; ++o)
          sum += At(d, row, o, out) * At(weights, i, o, out);
        dx[static_cast<size_t>(row * in + i)] = sum;
      }
    }
    return dx;
  }

  void BackwardWeight(const Values& x, const Values& d) {
    for (int row = 0; row < kRows; ++row) {
      for (int i = 0; i < in; ++i) {
        for (int o = 0; o < out; ++o) {
          gradients[static_cast<size_t>(i * out + o)] +=
              At(x, row, i, in) * At(d, row, o, out);
        }
      }
    }
  }

  static double At(const Values& matrix, int row, int column, int columns) {
    return matrix[static_cast<size_t>(row * columns + column)];
  }

  int in;
  int out;
  Values weights;
  Values gradients;
};

// Two layers.
struct Model {
  explicit Model(int stage)
      : first(GetWidth(stage), 4, static_cast<unsigned>(2 * stage)),
        second(4, GetWidth(stage + 1), static_cast<unsigned>(2 * stage + 1)) {}

  Values Forward(const Values& x) const {
    return second.Forward(first.Forward(x));
  }

  Values BackwardInput(const Values& x, const Values& dy) const {
    const Values h = first.Forward(x);
    const Values d = Layer::Inside(second.Forward(h), dy);
    return first.BackwardInput(Layer::Inside(h, second.BackwardInput(d)));
  }

  void BackwardWeight(const Values& x, const Values& dy) {
    const Values h = first.Forward(x);
    const Values d = Layer::Inside(second.Forward(h), dy);
    second.BackwardWeight(h, d);
    first.BackwardWeight(x, Layer::Inside(h, second.BackwardInput(d)));
  }

  void Update() {
    for (Layer* layer : {&first, &second}) {
      for (size_t i = 0; i < layer->weights.size(); ++i) {
        layer->weights[i] -= 0.1 * layer->gradients[i];
        layer->gradients[i] = 0;
      }
    }
  }

  Layer first;
  Layer second;
};

Values MakeInput(int step, int microbatch) {
  return MakeValues(kRows * GetWidth(0),
                    static_cast<unsigned>(1000 + 100 * step + microbatch));
}

// Half the squared distance to a target, over all microbatches.
double ComputeLoss(const Values& y, int step, int microbatch, int microbatches,
                   Values& dy) {
  const Values target =
      MakeValues(static_cast<int>(y.size()),
                 static_cast<unsigned>(9000 + 100 * step + microbatch));
  double loss = 0;
  dy.resize(y.size());
  for (size_t i = 0; i < y.size(); ++i) {
    dy[i] = (y[i] - target[i]) / microbatches;
    loss += (y[i] - target[i]) * (y[i] - target[i]) / 2 / microbatches;
  }
  return loss;
}

struct Trained {
  std::vector<Model> stages;
  // By step.
  std::vector<Values> losses;
};

Trained TrainAlone(int stages, int microbatches) {
  Trained trained;
  for (int stage = 0; stage < stages; ++stage)
    trained.stages.emplace_back(stage);
  for (int step = 0; step < kSteps; ++step) {
    trained.losses.emplace_back();
    for (int i = 0; i < microbatches; ++i) {
      std::vector<Values> x = {MakeInput(step, i)};
      for (const Model& stage : trained.stages) {
        x.push_back(stage.Forward(x.back()));
      }
      Values dy;
      trained.losses.back().push_back(
          ComputeLoss(x.back(), step, i, microbatches, dy));
      for (int stage = stages - 1; stage >= 0; --stage) {
        Model& model = trained.stages[static_cast<size_t>(stage)];
        const Values& input = x[static_cast<size_t>(stage)];
        model.BackwardWeight(input, dy);
        dy = model.BackwardInput(input, dy);
      }
    }
    for (Model& stage : trained.stages) stage.Update();
  }
  return trained;
}

PipelineShape MakeShape(int boundary) {
  return {DataType::kFloat64, {kRows, GetWidth(boundary)}};
}

// The stage of `model`; `step` is the current one.
PipelineStage MakeStage(Model& model, int number, const int& step,
                        const PipelineSchedule& schedule, bool halves) {
  PipelineStage stage;
  stage.stage = number;
  if (number > 0) stage.input = MakeShape(number);
  stage.output = MakeShape(number + 1);
  const auto read = [number, &step](int microbatch, const Tensor& input) {
    if (number > 0) return ReadValues(input);
    EXPECT_EQ(input.element_count(), 0);
    return MakeInput(step, microbatch);
  };
  stage.forward = [&model, read](int microbatch, const Tensor& input,
                                 const Tensor& output) {
    WriteValues(model.Forward(read(microbatch, input)), output);
  };
  const auto backward_input = [&model, read, number](
                                  int microbatch, const Tensor& input,
                                  const Tensor& output_gradient,
                                  const Tensor& input_gradient) {
    if (number == 0) {
      EXPECT_EQ(input_gradient.element_count(), 0);
      return;
    }
    WriteValues(model.BackwardInput(read(microbatch, input),
                                    ReadValues(output_gradient)),
                input_gradient);
  };
  const auto backward_weight = [&model, read](int microbatch,
                                              const Tensor& input,
                                              const Tensor& output_gradient) {
    model.BackwardWeight(read(microbatch, input), ReadValues(output_gradient));
  };
  if (halves) {
    stage.backward_input = backward_input;
    stage.backward_weight = backward_weight;
  } else {
    stage.backward = [=](int microbatch, const Tensor& input,
                         const Tensor& output_gradient,
                         const Tensor& input_gradient) {
      backward_input(microbatch, input, output_gradient, input_gradient);
      backward_weight(microbatch, input, output_gradient);
    };
  }
  if (number + 1 < schedule.stages()) return stage;
  stage.loss = [&step, microbatches = schedule.microbatches](
                   int microbatch, const Tensor& output,
                   const Tensor& output_gradient) {
    Values dy;
    const double loss =
        ComputeLoss(ReadValues(output), step, microbatch, microbatches, dy);
    WriteValues(dy, output_gradient);
    return loss;
  };
  return stage;
}

void ExpectEqualTraining(const PipelineSchedule& schedule, bool halves,
                         const std::string& backend = "gloo") {
  const Trained alone = TrainAlone(schedule.stages(), schedule.microbatches);
  LocalGroups world(schedule.ranks(), std::chrono::seconds(60), backend);
  EXPECT_THAT(world.OnEachRank([&](const Group& group, int rank) {
    int step = 0;
    std::vector<std::unique_ptr<Model>> models;
    std::vector<PipelineStage> stages;
    // In any order.
    for (int stage = schedule.stages() - 1; stage >= 0; --stage) {
      if (schedule.stage_ranks[static_cast<size_t>(stage)] != rank) continue;
      models.push_back(std::make_unique<Model>(stage));
      stages.push_back(
          MakeStage(*models.back(), stage, step, schedule, halves));
    }
    const std::vector<PipelineStage> kept = stages;
    Pipeline pipeline(schedule, stages, {.group = group});
    for (; step < kSteps; ++step) {
      // Before the step and after it, in which the weights do not change.
      for (const bool evaluates : {true, false, true}) {
        const Values losses = evaluates ? pipeline.Evaluate() : pipeline.Step();
        if (schedule.stage_ranks.back() == rank) {
          EXPECT_EQ(losses, alone.losses[static_cast<size_t>(step)]);
        } else {
          EXPECT_THAT(losses, IsEmpty());
        }
      }
      for (const auto& model : models) model->Update();
    }
    for (size_t i = 0; i < kept.size(); ++i) {
      const Model& expected = alone.stages[static_cast<size_t>(kept[i].stage)];
      EXPECT_EQ(models[i]->first.weights, expected.first.weights);
      EXPECT_EQ(models[i]->second.weights, expected.second.weights);
    }
  }),
              Each(""))
      << schedule.name << " " << schedule.ranks() << " ranks, "
      << schedule.microbatches << " microbatches";
}

// The reference itself: a weight's gradient is the slope of the loss.
TEST(PipelineTest, ReferenceGradientIsTheSlope) {
  Model model(0);
  const Values x = MakeInput(0, 0);
  Values dy;
  ComputeLoss(model.Forward(x), 0, 0, 1, dy);
  model.BackwardWeight(x, dy);
  const double gradient = model.first.gradients[1];
  constexpr double kStep = 1e-6;
  const auto loss_at = [&](double weight) {
    Model moved(0);
    moved.first.weights[1] = weight;
    return ComputeLoss(moved.Forward(x), 0, 0, 1, dy);
  };
  const double at = model.first.weights[1];
  EXPECT_NEAR((loss_at(at + kStep) - loss_at(at - kStep)) / (2 * kStep),
              gradient, 1e-8);
}

class PipelineTrainingTest : public ::testing::TestWithParam<int> {};

TEST_P(PipelineTrainingTest, EveryScheduleGivesTheWeightsOfOneProcess) {
  const int ranks = GetParam();
  for (const int microbatches : {1, 3, 4, 5, 8}) {
    ExpectEqualTraining(MakeGPipe(ranks, microbatches), false);
    ExpectEqualTraining(Make1F1B(ranks, microbatches), false);
    ExpectEqualTraining(MakeZeroBubbleH1(ranks, microbatches), true);
  }
  for (const int rounds : {1, 2}) {
    for (const int stages_per_rank : {2, 3}) {
      ExpectEqualTraining(
          MakeInterleaved1F1B(ranks, rounds * ranks, stages_per_rank), false);
    }
  }
}

TEST_P(PipelineTrainingTest, HalvesDoTheWorkOfABackward) {
  ExpectEqualTraining(Make1F1B(GetParam(), 3), true);
}

INSTANTIATE_TEST_SUITE_P(All, PipelineTrainingTest,
                         ::testing::Values(1, 2, 3, 4));

TEST(PipelineTest, RunsInSharedMemory) {
  ExpectEqualTraining(Make1F1B(3, 5), false, "shm");
  ExpectEqualTraining(MakeInterleaved1F1B(2, 4, 2), false, "shm");
}

TEST(PipelineTest, RunsAProgramsOwnSchedule) {
  // A "V": rank 0 has the first and the last stage, rank 1 the two between.
  PipelineSchedule schedule;
  schedule.name = "v";
  schedule.microbatches = 3;
  schedule.stage_ranks = {0, 1, 1, 0};
  schedule.actions.resize(2);
  using Kind = PipelineActionKind;
  for (int i = 0; i < 3; ++i) {
    schedule.actions[0].push_back({Kind::kForward, 0, i});
    for (const int stage : {1, 2}) {
      schedule.actions[1].push_back({Kind::kForward, stage, i});
    }
  }
  for (int i = 0; i < 3; ++i) {
    schedule.actions[0].push_back({Kind::kForward, 3, i});
    schedule.actions[0].push_back({Kind::kBackwardInput, 3, i});
    for (const int stage : {2, 1}) {
      schedule.actions[1].push_back({Kind::kBackward, stage, i});
    }
  }
  for (int i = 0; i < 3; ++i) {
    schedule.actions[0].push_back({Kind::kBackwardWeight, 3, i});
    schedule.actions[0].push_back({Kind::kBackward, 0, i});
  }
  schedule.AddTransfers();
  ExpectEqualTraining(schedule, true);
}

TEST(PipelineTest, TensorsHaveTheGivenTypesAndShapesAndLargeOnesArrive) {
  // Larger than what is sent eagerly.
  const PipelineShape shape = {DataType::kBfloat16, {5, 1, 40'001}};
  LocalGroups world(2);
  EXPECT_THAT(world.OnEachRank([&](const Group& group, int rank) {
    const auto check = [&](const Tensor& tensor) {
      EXPECT_EQ(tensor.Describe(), "bfloat16[5,1,40001]");
      EXPECT_EQ(reinterpret_cast<uintptr_t>(tensor.data()) % 64, 0U);
    };
    const auto fill = [&](const Tensor& tensor, int value) {
      check(tensor);
      std::memset(tensor.data(), value, tensor.bytes());
    };
    const auto expect = [&](const Tensor& tensor, int value) {
      check(tensor);
      const std::string bytes(static_cast<const char*>(tensor.data()),
                              tensor.bytes());
      EXPECT_EQ(bytes, std::string(tensor.bytes(), static_cast<char>(value)));
    };
    PipelineStage stage;
    stage.stage = rank;
    if (rank == 1) stage.input = shape;
    stage.output = shape;
    stage.forward = [&](int microbatch, const Tensor& input,
                        const Tensor& output) {
      if (rank == 1) expect(input, 10 + microbatch);
      fill(output, 10 + microbatch);
    };
    stage.backward = [&](int microbatch, const Tensor& input,
                         const Tensor& output_gradient,
                         const Tensor& input_gradient) {
      if (rank == 1) expect(input, 10 + microbatch);
      expect(output_gradient, 20 + microbatch);
      if (rank == 1) fill(input_gradient, 20 + microbatch);
    };
    if (rank == 1) {
      stage.loss = [&](int microbatch, const Tensor& output,
                       const Tensor& output_gradient) {
        expect(output, 10 + microbatch);
        fill(output_gradient, 20 + microbatch);
        return 0.5 * microbatch;
      };
    }
    Pipeline pipeline(Make1F1B(2, 6), {stage}, {.group = group});
    for (int step = 0; step < 2; ++step) pipeline.Step();
    const PipelineTimes times = pipeline.last_times();
    EXPECT_GT(times.compute.count(), 0);
    EXPECT_GT(times.wait.count(), 0);
    EXPECT_GE(times.step, times.compute + times.wait);
  }),
              Each(""));
}

TEST(PipelineTest, AnEvaluationRunsTheForwardsAlone) {
  LocalGroups world(2);
  EXPECT_THAT(world.OnEachRank([&](const Group& group, int rank) {
    PipelineStage stage;
    stage.stage = rank;
    if (rank == 1) stage.input = PipelineShape{DataType::kInt64, {1}};
    stage.output = {DataType::kInt64, {1}};
    int forwards = 0;
    stage.forward = [&](int microbatch, const Tensor& input,
                        const Tensor& output) {
      int64_t& out = *static_cast<int64_t*>(output.data());
      out = rank == 0 ? microbatch
                      : *static_cast<const int64_t*>(input.data()) * 10;
      ++forwards;
    };
    stage.backward = [](int, const Tensor&, const Tensor&, const Tensor&) {
      ADD_FAILURE() << "an evaluation has no backward";
    };
    if (rank == 1) {
      stage.loss = [](int, const Tensor& output, const Tensor& gradient) {
        // The function need not know what its gradient is for.
        *static_cast<int64_t*>(gradient.data()) = 1;
        return static_cast<double>(*static_cast<int64_t*>(output.data()));
      };
    }
    Pipeline pipeline(Make1F1B(2, 3), {stage}, {.group = group});
    for (int i = 0; i < 2; ++i) {
      const Values losses = pipeline.Evaluate();
      EXPECT_EQ(losses, rank == 1 ? Values({0, 10, 20}) : Values());
    }
    EXPECT_EQ(forwards, 6);
  }),
              Each(""));
}

TEST(PipelineTest, SeveralTensorsPassABoundary) {
  PipelineShape list;
  list.tensors = {{DataType::kFloat32, {3}}, {DataType::kInt64, {1, 2}}};
  LocalGroups world(2);
  EXPECT_THAT(world.OnEachRank([&](const Group& group, int rank) {
    // Writes numbers to a list, or expects them there.
    const auto fill = [&](const Tensor& packed, int number) {
      const std::vector<Tensor> tensors = list.Unpack(packed);
      ASSERT_EQ(tensors.size(), 2U);
      EXPECT_EQ(tensors[0].Describe(), "float32[3]");
      EXPECT_EQ(tensors[1].Describe(), "int64[1,2]");
      for (const Tensor& one : tensors) {
        EXPECT_EQ(reinterpret_cast<uintptr_t>(one.data()) % 64, 0U);
      }
      static_cast<float*>(tensors[0].data())[2] = 0.5F * number;
      static_cast<int64_t*>(tensors[1].data())[1] = number;
    };
    const auto expect = [&](const Tensor& packed, int number) {
      const std::vector<Tensor> tensors = list.Unpack(packed);
      EXPECT_EQ(static_cast<const float*>(tensors[0].data())[2], 0.5F * number);
      EXPECT_EQ(static_cast<const int64_t*>(tensors[1].data())[1], number);
    };
    PipelineStage stage;
    stage.stage = rank;
    if (rank == 1) stage.input = list;
    stage.output = rank == 0 ? list : PipelineShape{DataType::kFloat32, {1}};
    int backwards = 0;
    stage.forward = [&](int microbatch, const Tensor& input,
                        const Tensor& output) {
      if (rank == 0) fill(output, microbatch);
      if (rank == 1) expect(input, microbatch);
    };
    stage.backward = [&](int microbatch, const Tensor&,
                         const Tensor& output_gradient,
                         const Tensor& input_gradient) {
      if (rank == 0) expect(output_gradient, 7 + microbatch);
      if (rank == 1) fill(input_gradient, 7 + microbatch);
      ++backwards;
    };
    if (rank == 1) {
      stage.loss = [](int, const Tensor&, const Tensor&) { return 0.0; };
    }
    Pipeline pipeline(Make1F1B(2, 3), {stage}, {.group = group});
    pipeline.Step();
    EXPECT_EQ(backwards, 3);
  }),
              Each(""));
  std::vector<uint8_t> bytes(64);
  try {
    list.Unpack(bytes);
    ADD_FAILURE() << "the list is larger";
  } catch (const DistError& error) {
    EXPECT_STREQ(error.what(),
                 "argument packed: uint8[64] is not (float32[3], int64[1,2])");
  }
}

// Waits as long as a slow stage computes.
void ComputeSlowly(std::chrono::milliseconds time) {
  std::promise<void>().get_future().wait_for(time);
}

// A fast stage's messages take longer than the group's timeout, but no
// computation does.
TEST(PipelineTest, ASlowStageEndsNoStep) {
  constexpr std::chrono::milliseconds kTimeout{2000};
  // Larger than what is sent eagerly: a send waits for its receiver.
  const PipelineShape shape = {DataType::kFloat32, {40'001}};
  LocalGroups world(2, kTimeout);
  EXPECT_THAT(world.OnEachRank([&](const Group& group, int rank) {
    PipelineStage stage;
    stage.stage = rank;
    if (rank == 1) stage.input = shape;
    stage.output = shape;
    stage.forward = [&](int, const Tensor&, const Tensor&) {
      if (rank == 1) ComputeSlowly(kTimeout / 3);
    };
    stage.backward = [](int, const Tensor&, const Tensor&, const Tensor&) {};
    if (rank == 1) {
      stage.loss = [](int, const Tensor&, const Tensor&) { return 1.0; };
    }
    Pipeline pipeline(MakeGPipe(2, 6), {stage}, {.group = group});
    EXPECT_EQ(pipeline.Step(), rank == 1 ? Values(6, 1) : Values());
    if (rank == 0) {
      EXPECT_GT(pipeline.last_times().wait, kTimeout);
    }
  }),
              Each(""));
}

TEST(PipelineTest, RanksOutsideTheGroupDoNothing) {
  Pipeline pipeline(Make1F1B(2, 2), {}, {.group = LocalGroups::NonMember()});
  EXPECT_THAT(pipeline.Step(), IsEmpty());
  EXPECT_THAT(pipeline.Evaluate(), IsEmpty());
}

}  // namespace
}  // namespace muster
