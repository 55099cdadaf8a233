// The errors that ranks get if arguments are bad, if a stage throws and if a
// rank leaves.

#include <chrono>
#include <functional>
#include <future>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "client/testing/local_groups.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "muster/errors.h"
#include "muster/pipeline.h"

namespace muster {
namespace {

using muster::testing::LocalGroups;
using ::testing::AllOf;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

using Group = std::shared_ptr<ProcessGroup>;

const PipelineShape kShape = {DataType::kFloat32, {2, 4}};

// A stage that computes nothing.
PipelineStage MakeStage(int stage, int stages) {
  PipelineStage made;
  made.stage = stage;
  if (stage > 0) made.input = kShape;
  made.output = kShape;
  made.forward = [](int, const Tensor&, const Tensor&) {};
  made.backward = [](int, const Tensor&, const Tensor&, const Tensor&) {};
  if (stage + 1 == stages) {
    made.loss = [](int, const Tensor&, const Tensor&) { return 0.0; };
  }
  return made;
}

using Change = std::function<void(int rank, PipelineSchedule&,
                                  std::vector<PipelineStage>&)>;

// Makes pipelines of two ranks with changed arguments, which all ranks refuse
// with the same text. Returns that.
std::string MakeChanged(const Change& change) {
  LocalGroups world(2);
  const auto texts = world.OnEachRank([&](const Group& group, int rank) {
    PipelineSchedule schedule = Make1F1B(2, 2);
    std::vector<PipelineStage> stages = {MakeStage(rank, 2)};
    change(rank, schedule, stages);
    try {
      const Pipeline pipeline(schedule, stages, {.group = group});
    } catch (const DistError& error) {
      EXPECT_EQ(error.status().code(), StatusCode::kInvalidArgument);
      // The group goes on.
      Pipeline(Make1F1B(2, 2), {MakeStage(rank, 2)}, {.group = group}).Step();
      throw;
    }
  });
  EXPECT_THAT(texts, Each(texts[0]));
  return texts[0];
}

// Changes the only stage of rank 1 (global rank 10).
std::string MakeWithStage(const std::function<void(PipelineStage&)>& change) {
  return MakeChanged([&](int rank, PipelineSchedule&, auto& stages) {
    if (rank == 1) change(stages[0]);
  });
}

TEST(PipelineFailuresTest, ShapesOfNeighboursMustAgree) {
  EXPECT_EQ(MakeWithStage([](auto& stage) {
              stage.input->shape = {2, 5};
            }),
            "Pipeline: argument stages: stage 0 of rank 0 has the output "
            "float32[2,4], stage 1 of rank 10 has the input float32[2,5]");
  EXPECT_EQ(MakeWithStage([](auto& stage) {
              stage.input->data_type = DataType::kBfloat16;
            }),
            "Pipeline: argument stages: stage 0 of rank 0 has the output "
            "float32[2,4], stage 1 of rank 10 has the input bfloat16[2,4]");
  // Lists of one size.
  EXPECT_EQ(MakeChanged([](int rank, PipelineSchedule&, auto& stages) {
              const PipelineShape other = {DataType::kFloat32, {4}};
              if (rank == 0) stages[0].output.tensors = {kShape, other};
              if (rank == 1) stages[0].input->tensors = {other, kShape};
            }),
            "Pipeline: argument stages: stage 0 of rank 0 has the output "
            "(float32[2,4], float32[4]), stage 1 of rank 10 has the input "
            "(float32[4], float32[2,4])");
}

TEST(PipelineFailuresTest, RanksMustHaveOneSchedule) {
  EXPECT_EQ(MakeChanged([](int rank, PipelineSchedule& schedule, auto&) {
              if (rank == 1) schedule = Make1F1B(2, 3);
            }),
            "Pipeline: argument schedule: rank 10 has \"1f1b\" of 2 ranks, 2 "
            "stages and 3 microbatches, rank 0 has \"1f1b\" of 2 ranks, 2 "
            "stages and 2 microbatches");
  EXPECT_EQ(MakeChanged([](int rank, PipelineSchedule& schedule, auto&) {
              if (rank == 0) return;
              schedule = MakeGPipe(2, 2);
              schedule.name = "1f1b";
            }),
            "Pipeline: argument schedule, action 1 of the group's rank 1: rank "
            "10 has 1RECV_F1, rank 0 has 1F0");
}

TEST(PipelineFailuresTest, AllRanksGetWhatIsWrongOnOne) {
  EXPECT_THAT(MakeChanged([](int rank, PipelineSchedule& schedule, auto&) {
                if (rank == 1) schedule.actions[0].pop_back();
              }),
              HasSubstr("Pipeline: rank 10: argument schedule: pipeline "
                        "schedule \"1f1b\": rank 0 lacks 0B1"));
  EXPECT_EQ(MakeChanged([](int rank, PipelineSchedule& schedule, auto&) {
              if (rank == 1) schedule = Make1F1B(3, 2);
            }),
            "Pipeline: rank 10: argument schedule: it has 3 ranks, the group "
            "has 2");
  EXPECT_EQ(MakeChanged([](int rank, PipelineSchedule&, auto& stages) {
              if (rank == 1) stages.clear();
            }),
            "Pipeline: rank 10: argument stages: stage 1 is missing, which the "
            "schedule has on this rank");
  EXPECT_EQ(MakeChanged([](int rank, PipelineSchedule&, auto& stages) {
              if (rank == 1) stages.push_back(stages[0]);
            }),
            "Pipeline: rank 10: argument stages: stage 1 is given twice");
  EXPECT_EQ(MakeChanged([](int rank, PipelineSchedule&, auto& stages) {
              if (rank == 1) stages.push_back(MakeStage(0, 2));
            }),
            "Pipeline: rank 10: argument stages: stage 0 is not on this rank");
  EXPECT_EQ(MakeChanged([](int rank, PipelineSchedule&, auto& stages) {
              if (rank == 1) stages.push_back(MakeStage(7, 9));
            }),
            "Pipeline: rank 10: argument stages: stage 7 does not exist");
}

TEST(PipelineFailuresTest, StagesMustBeComplete) {
  const auto refuses = [](const std::function<void(PipelineStage&)>& change) {
    const std::string text = MakeWithStage(change);
    const std::string begin = "Pipeline: rank 10: argument stages: stage 1: ";
    EXPECT_EQ(text.substr(0, begin.size()), begin);
    return text.substr(begin.size());
  };
  EXPECT_EQ(refuses([](auto& stage) { stage.input.reset(); }),
            "input is not given");
  EXPECT_EQ(refuses([](auto& stage) {
              stage.input->shape = {2, -4};
            }),
            "input: negative dimension in float32[2,-4]");
  EXPECT_EQ(refuses([](auto& stage) { stage.output.shape = {0}; }),
            "output: float32[0] has no elements");
  EXPECT_EQ(refuses([](auto& stage) {
              stage.output.tensors = {kShape, {DataType::kFloat32, {3, -1}}};
            }),
            "output: negative dimension in float32[3,-1]");
  EXPECT_EQ(refuses([](auto& stage) {
              PipelineShape list;
              list.tensors = {kShape};
              stage.output.tensors = {list};
            }),
            "output: a list of tensors in a list");
  EXPECT_EQ(refuses([](auto& stage) { stage.forward = nullptr; }),
            "there is no function forward");
  EXPECT_EQ(refuses([](auto& stage) { stage.loss = nullptr; }),
            "the last stage has no function loss");
  constexpr auto kNeeds =
      "needs a function backward, or backward_input and backward_weight";
  EXPECT_EQ(refuses([](auto& stage) { stage.backward = nullptr; }), kNeeds);
  EXPECT_EQ(refuses([](auto& stage) { stage.backward_input = stage.backward; }),
            kNeeds);
  EXPECT_EQ(refuses([](auto& stage) {
              stage.backward_input = std::move(stage.backward);
              stage.backward = nullptr;
            }),
            kNeeds);
  EXPECT_THAT(MakeChanged([](int, PipelineSchedule& schedule, auto&) {
                schedule = MakeZeroBubbleH1(2, 2);
              }),
              HasSubstr("rank 0: argument stages: stage 0: the schedule needs "
                        "the functions backward_input and backward_weight"));
  EXPECT_THAT(MakeChanged([](int rank, PipelineSchedule&, auto& stages) {
                if (rank == 0) stages[0].input = kShape;
              }),
              HasSubstr("stage 0: input is given for the first stage"));
  EXPECT_THAT(MakeChanged([](int rank, PipelineSchedule&, auto& stages) {
                if (rank == 0) stages[0].loss = MakeStage(1, 2).loss;
              }),
              HasSubstr("stage 0: a function loss is given, but not for the "
                        "last stage"));
}

// Steps until one throws. A rank that has done its part in the failed step gets
// the error in the next one.
void StepUntilFailure(Pipeline& pipeline) {
  for (int step = 0; step < 3; ++step) pipeline.Step();
}

TEST(PipelineFailuresTest, AnExceptionOfAStageEndsTheStepOnAllRanks) {
  for (const int culprit : {0, 1, 2}) {
    LocalGroups world(3);
    int ended = 0;
    const auto texts = world.OnEachRank([&](const Group& group, int rank) {
      PipelineStage stage = MakeStage(rank, 3);
      if (rank == culprit) {
        stage.backward = [](int microbatch, const Tensor&, const Tensor&,
                            const Tensor&) {
          if (microbatch == 1) throw std::runtime_error("no memory left");
        };
      }
      Pipeline pipeline(Make1F1B(3, 4), {stage}, {.group = group});
      try {
        StepUntilFailure(pipeline);
      } catch (const DistError& error) {
        EXPECT_NE(rank, culprit);
        EXPECT_THAT(error.culprit_ranks(), ElementsAre(10 * culprit));
        EXPECT_THROW(pipeline.Step(), DistError);
        throw;
      } catch (const std::runtime_error& error) {
        EXPECT_EQ(rank, culprit);
        EXPECT_STREQ(error.what(), "no memory left");
        EXPECT_THROW(pipeline.Step(), DistError);
        ++ended;
      }
    });
    EXPECT_EQ(ended, 1);
    for (int rank = 0; rank < 3; ++rank) {
      if (rank == culprit) continue;
      const std::string stage = std::to_string(culprit);
      EXPECT_THAT(texts[static_cast<size_t>(rank)],
                  HasSubstr("pipeline stage " + stage + ", microbatch 1 (" +
                            stage + "B1): no memory left"));
    }
  }
}

TEST(PipelineFailuresTest, ARankThatLeavesEndsTheStepOnAllRanks) {
  LocalGroups world(3);
  const auto texts = world.OnEachRank([&](const Group& group, int rank) {
    PipelineStage stage = MakeStage(rank, 3);
    if (rank == 1) {
      stage.forward = [&](int microbatch, const Tensor&, const Tensor&) {
        if (microbatch == 1) world.Leave(1);
      };
    }
    Pipeline pipeline(Make1F1B(3, 4), {stage}, {.group = group});
    StepUntilFailure(pipeline);
  });
  EXPECT_THAT(texts, Each(::testing::Not("")));
  EXPECT_THAT(texts[0], HasSubstr("rank 10"));
  EXPECT_THAT(texts[2], HasSubstr("rank 10"));
}

TEST(PipelineFailuresTest, AStageThatIsStuckEndsTheStepInTheEnd) {
  LocalGroups world(2, std::chrono::seconds(1));
  std::promise<void> failed;
  const auto ended = failed.get_future().share();
  const auto texts = world.OnEachRank([&](const Group& group, int rank) {
    PipelineStage stage = MakeStage(rank, 2);
    if (rank == 1) {
      stage.forward = [&](int, const Tensor&, const Tensor&) { ended.wait(); };
    }
    Pipeline pipeline(Make1F1B(2, 1), {stage}, {.group = group});
    try {
      StepUntilFailure(pipeline);
    } catch (const DistError&) {
      if (rank == 0) failed.set_value();
      throw;
    }
  });
  // F, a message, F, B, a message, B.
  EXPECT_THAT(texts, Each(HasSubstr("6s")));
}

TEST(PipelineFailuresTest, OneRankAloneFailsAlike) {
  LocalGroups world(1);
  world.OnEachRank([&](const Group& group, int) {
    PipelineStage stage = MakeStage(0, 1);
    stage.forward = [](int, const Tensor&, const Tensor&) { throw 1; };
    Pipeline pipeline(MakeGPipe(1, 2), {stage}, {.group = group});
    EXPECT_THROW(pipeline.Step(), int);
    try {
      pipeline.Step();
      ADD_FAILURE() << "the group has ended";
    } catch (const DistError& error) {
      EXPECT_THAT(error.what(),
                  HasSubstr("an exception that is no std::exception"));
    }
  });
}

}  // namespace
}  // namespace muster
