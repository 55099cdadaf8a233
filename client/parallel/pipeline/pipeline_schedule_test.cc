#include "muster/pipeline_schedule.h"

#include <algorithm>
#include <array>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "muster/errors.h"

namespace muster {
namespace {

using Kind = PipelineActionKind;
using ::testing::HasSubstr;

constexpr std::array kRanks = {1, 2, 3, 4, 7};
constexpr std::array kMicrobatches = {1, 2, 3, 4, 5, 7, 8, 14, 24};

// Durations that add exactly: forward 2, the halves of the backward 3 and 1.
double GetDuration(const PipelineAction& action) {
  switch (action.kind) {
    case Kind::kForward:
      return 2;
    case Kind::kBackward:
      return 4;
    case Kind::kBackwardInput:
      return 3;
    case Kind::kBackwardWeight:
      return 1;
    default:
      return 0;
  }
}

std::string GetError(const std::function<void()>& call) {
  try {
    call();
  } catch (const DistError& error) {
    EXPECT_EQ(error.status().code(), StatusCode::kInvalidArgument);
    return error.what();
  }
  return "";
}

// Two stages on two ranks, one microbatch.
PipelineSchedule MakeSmall() { return Make1F1B(2, 1); }

std::string ValidateChanged(
    const std::function<void(PipelineSchedule&)>& change,
    PipelineSchedule schedule = MakeSmall()) {
  change(schedule);
  return GetError([&] { schedule.Validate(); });
}

TEST(PipelineScheduleTest, TextsHaveTorchsLetters) {
  EXPECT_EQ(Make1F1B(2, 2).ToText(),
            "rank 0: 0F0 0SEND_F0 0RECV_B0 0F1 0SEND_F1 0RECV_B1 0B0 0B1\n"
            "rank 1: 1RECV_F0 1F0 1RECV_F1 1B0 1SEND_B0 1F1 1B1 1SEND_B1\n");
  EXPECT_EQ(MakeZeroBubbleH1(1, 2).ToText(),
            "rank 0: 0F0 0I0 0W0 0F1 0I1 0W1\n");
}

TEST(PipelineScheduleTest, EverySchedulePassesItsOwnCheck) {
  for (const int p : kRanks) {
    for (const int m : kMicrobatches) {
      MakeGPipe(p, m).Validate();
      Make1F1B(p, m).Validate();
      MakeZeroBubbleH1(p, m).Validate();
      for (const int v : {1, 2, 3}) {
        if (m % p == 0) MakeInterleaved1F1B(p, m, v).Validate();
      }
    }
  }
}

TEST(PipelineScheduleTest, BubblesOfGPipeAnd1F1BAreThoseOfTheFormula) {
  for (const int p : kRanks) {
    for (const int m : kMicrobatches) {
      for (const auto& schedule : {MakeGPipe(p, m), Make1F1B(p, m)}) {
        const auto simulation = schedule.Simulate(GetDuration);
        EXPECT_EQ(simulation.makespan, 6 * (m + p - 1)) << schedule.ToText();
        EXPECT_DOUBLE_EQ(simulation.bubble_fraction,
                         static_cast<double>(p - 1) / (m + p - 1));
        for (const auto& rank : simulation.ranks) {
          EXPECT_EQ(rank.busy, 6 * m);
          EXPECT_EQ(rank.bubble, 6 * (p - 1));
        }
      }
    }
  }
}

TEST(PipelineScheduleTest, BubbleOfInterleavedIsThatOfTheFormula) {
  for (const int p : kRanks) {
    for (const int m : kMicrobatches) {
      for (const int v : {1, 2, 3}) {
        if (m % p != 0) continue;
        const auto schedule = MakeInterleaved1F1B(p, m, v);
        const auto simulation = schedule.Simulate(GetDuration);
        EXPECT_DOUBLE_EQ(simulation.bubble_fraction,
                         static_cast<double>(p - 1) / (v * m + p - 1))
            << schedule.ToText();
      }
    }
  }
}

TEST(PipelineScheduleTest, BubbleOfZeroBubbleH1IsThatOfThePaper) {
  for (const int p : kRanks) {
    for (const int m : kMicrobatches) {
      if (m < p) continue;
      const auto simulation = MakeZeroBubbleH1(p, m).Simulate(GetDuration);
      // F + I - W.
      for (const auto& rank : simulation.ranks) {
        EXPECT_EQ(rank.bubble, (p - 1) * (2 + 3 - 1)) << p << " " << m;
      }
      // A third of 1F1B's if all take the same time.
      const auto equal = MakeZeroBubbleH1(p, m).Simulate(
          [](const PipelineAction& one) { return one.computes() ? 1.0 : 0.0; });
      EXPECT_EQ(equal.makespan, 3 * m + p - 1);
    }
  }
}

TEST(PipelineScheduleTest, RanksHoldAsManyActivationsAsTheHeaderSays) {
  for (const int p : kRanks) {
    for (const int m : kMicrobatches) {
      const auto check = [&](const PipelineSchedule& schedule,
                             const std::function<int(int)>& expected) {
        const auto simulation = schedule.Simulate(GetDuration);
        for (int rank = 0; rank < p; ++rank) {
          EXPECT_EQ(simulation.ranks[static_cast<size_t>(rank)].activations_max,
                    expected(rank))
              << schedule.name << " rank " << rank << " of " << p << ", " << m;
        }
      };
      check(MakeGPipe(p, m), [&](int) { return m; });
      check(Make1F1B(p, m), [&](int r) { return std::min(m, p - r); });
      check(MakeZeroBubbleH1(p, m), [&](int) { return std::min(m, p); });
      for (const int v : {1, 2, 3}) {
        if (m % p != 0) continue;
        check(MakeInterleaved1F1B(p, m, v), [&](int r) {
          return std::min(v * m, (v - 1) * p + 2 * (p - r) - 1);
        });
      }
    }
  }
}

TEST(PipelineScheduleTest, MessagesTakeTimeButDoNotMakeTheSenderWait) {
  const auto simulation =
      Make1F1B(2, 1).Simulate([](const PipelineAction& one) {
        return one.computes() ? GetDuration(one) : 10;
      });
  // F, a message, F, B, a message, B.
  EXPECT_EQ(simulation.makespan, 2 + 10 + 2 + 4 + 10 + 4);
  EXPECT_EQ(simulation.ranks[1].busy, 6);
  EXPECT_EQ(simulation.ranks[1].bubble, 26);
}

TEST(PipelineScheduleTest, MakersRefuseNumbersBelowOne) {
  EXPECT_EQ(GetError([] { MakeGPipe(0, 1); }),
            "gpipe: argument ranks must be at least 1 but was 0");
  EXPECT_EQ(GetError([] { Make1F1B(1, -1); }),
            "1f1b: argument microbatches must be at least 1 but was -1");
  EXPECT_EQ(
      GetError([] { MakeInterleaved1F1B(2, 2, 0); }),
      "interleaved 1f1b: argument stages_per_rank must be at least 1 but was "
      "0");
  EXPECT_EQ(GetError([] { MakeInterleaved1F1B(4, 6, 2); }),
            "interleaved 1f1b: argument microbatches must be a multiple of the "
            "4 ranks but was 6");
}

TEST(PipelineScheduleTest, MakersRefuseMoreMicrobatchesThanTheLimit) {
  constexpr int kMost = std::numeric_limits<int>::max();
  EXPECT_EQ(GetError([] { MakeGPipe(2, kMost); }),
            "gpipe: 2 stages times argument microbatches of 2147483647 is "
            "above the limit of 1048576");
  EXPECT_EQ(GetError([] { Make1F1B(1 << 10, (1 << 10) + 1); }),
            "1f1b: 1024 stages times argument microbatches of 1025 is above "
            "the limit of 1048576");
  EXPECT_EQ(GetError([] { MakeZeroBubbleH1(kMost, 1); }),
            "zb-h1: 2147483647 stages times argument microbatches of 1 is "
            "above the limit of 1048576");
  // The products overflow an int, and the first is 0 then.
  EXPECT_EQ(GetError([] { MakeInterleaved1F1B(1 << 16, 1 << 16, 1 << 16); }),
            "interleaved 1f1b: 4294967296 stages times argument microbatches "
            "of 65536 is above the limit of 1048576");
  EXPECT_EQ(GetError([] { MakeInterleaved1F1B(1, kMost, kMost); }),
            "interleaved 1f1b: 2147483647 stages times argument microbatches "
            "of 2147483647 is above the limit of 1048576");
  EXPECT_EQ(MakeGPipe(1, kStageMicrobatchesMax).actions[0].size(),
            2U * kStageMicrobatchesMax);
}

TEST(PipelineScheduleTest, AProgramsOwnScheduleGetsItsMessages) {
  // Stages 0 and 1 on rank 0, stage 2 on rank 1.
  PipelineSchedule schedule;
  schedule.name = "own";
  schedule.microbatches = 1;
  schedule.stage_ranks = {0, 0, 1};
  schedule.actions = {{{Kind::kForward, 0, 0},
                       {Kind::kForward, 1, 0},
                       {Kind::kBackward, 1, 0},
                       {Kind::kBackward, 0, 0}},
                      {{Kind::kForward, 2, 0},
                       {Kind::kBackwardInput, 2, 0},
                       {Kind::kBackwardWeight, 2, 0}}};
  schedule.AddTransfers();
  EXPECT_EQ(schedule.ToText(),
            "rank 0: 0F0 1RECV_B0 1F0 1SEND_F0 1B0 0B0\n"
            "rank 1: 2RECV_F0 2F0 2I0 2SEND_B0 2W0\n");
  schedule.Validate();
  EXPECT_EQ(GetError([&] { schedule.AddTransfers(); }),
            "pipeline schedule \"own\": AddTransfers: rank 0 already has "
            "1RECV_B0");
}

TEST(PipelineScheduleTest, ValidateNamesWhatIsOutOfRange) {
  EXPECT_THAT(ValidateChanged([](auto& one) { one.microbatches = 0; }),
              HasSubstr("2 ranks, 2 stages and 0 microbatches, at least 1"));
  EXPECT_THAT(ValidateChanged([](auto& one) { one.microbatches = 1 << 30; }),
              HasSubstr("2 stages times 1073741824 microbatches is above the "
                        "limit of 1048576"));
  EXPECT_THAT(ValidateChanged([](auto& one) { one.stage_ranks[1] = 2; }),
              HasSubstr("stage 1 is on rank 2, there are actions for 2 ranks"));
  EXPECT_THAT(
      ValidateChanged([](auto& one) { one.actions[0][1].microbatch = 1; }),
      HasSubstr("rank 0 has 0F1, there are 2 stages and 1 microbatches"));
  EXPECT_THAT(ValidateChanged([](auto& one) { one.actions[0][1].stage = -1; }),
              HasSubstr("rank 0 has -1F0"));
  EXPECT_THAT(ValidateChanged([](auto& one) {
                one.actions[0][1].kind = static_cast<Kind>(8);
              }),
              HasSubstr("rank 0 has 0?0"));
  EXPECT_THAT(ValidateChanged([](auto& one) { one.actions[0][1].stage = 1; }),
              HasSubstr("rank 0 has 1F0, but stage 1 is on rank 1"));
  EXPECT_THAT(ValidateChanged([](auto& one) {
                one.actions[0].push_back(one.actions[0][1]);
              }),
              HasSubstr("rank 0 has 0F0 twice, as actions 1 and 4"));
}

// Removes the action with this text.
std::function<void(PipelineSchedule&)> Without(const std::string& text) {
  return [text](PipelineSchedule& schedule) {
    for (auto& actions : schedule.actions) {
      actions.erase(
          std::remove_if(actions.begin(), actions.end(),
                         [&](const auto& one) { return one.ToText() == text; }),
          actions.end());
    }
  };
}

TEST(PipelineScheduleTest, ValidateNamesWhatIsMissing) {
  EXPECT_THAT(ValidateChanged(Without("0F0")), HasSubstr("rank 0 lacks 0F0"));
  EXPECT_THAT(ValidateChanged(Without("1B0")), HasSubstr("rank 1 lacks 1B0"));
  EXPECT_THAT(ValidateChanged(Without("1W0"), MakeZeroBubbleH1(2, 1)),
              HasSubstr("rank 1 lacks 1W0"));
  EXPECT_THAT(ValidateChanged(Without("0SEND_F0")),
              HasSubstr("rank 1 has 1RECV_F0, but rank 0 lacks 0SEND_F0"));
  EXPECT_THAT(ValidateChanged(Without("1RECV_F0")),
              HasSubstr("rank 0 has 0SEND_F0, but rank 1 lacks 1RECV_F0"));
  EXPECT_THAT(ValidateChanged([](auto& one) {
                Without("1RECV_F0")(one);
                Without("0SEND_F0")(one);
              }),
              HasSubstr("rank 1: 1F0 needs 1RECV_F0, which is missing"));
  EXPECT_THAT(ValidateChanged([](auto& one) {
                one.actions[0].push_back({Kind::kBackwardWeight, 0, 0});
              }),
              HasSubstr("rank 0 has both 0B0 and 0W0"));
}

TEST(PipelineScheduleTest, ValidateNamesAMessageThatNobodyNeeds) {
  EXPECT_THAT(ValidateChanged([](auto& one) {
                one.actions[0].push_back({Kind::kSendGradient, 0, 0});
              }),
              HasSubstr("rank 0 has 0SEND_B0, but stage 0 is the first"));
  EXPECT_THAT(ValidateChanged([](auto& one) {
                one.actions[1].push_back({Kind::kSendActivation, 1, 0});
              }),
              HasSubstr("rank 1 has 1SEND_F0, but stage 1 is the last"));
  EXPECT_THAT(ValidateChanged(
                  [](auto& one) {
                    one.actions[0].push_back({Kind::kSendActivation, 0, 0});
                  },
                  MakeInterleaved1F1B(1, 1, 2)),
              HasSubstr("rank 0 has 0SEND_F0, but stages 0 and 1 are both on "
                        "this rank"));
}

TEST(PipelineScheduleTest, ValidateNamesWhatComesTooLate) {
  const auto move_to_end = [](int rank, const std::string& text) {
    return ValidateChanged([&](auto& one) {
      auto& actions = one.actions[static_cast<size_t>(rank)];
      const auto at =
          std::find_if(actions.begin(), actions.end(),
                       [&](const auto& each) { return each.ToText() == text; });
      std::rotate(at, at + 1, actions.end());
    });
  };
  EXPECT_THAT(move_to_end(0, "0F0"),
              HasSubstr("rank 0: 0B0 (action 2) needs 0F0, which comes later "
                        "(3)"));
  EXPECT_THAT(move_to_end(0, "0RECV_B0"),
              HasSubstr("rank 0: 0B0 (action 2) needs 0RECV_B0, which"));
  EXPECT_THAT(move_to_end(1, "1B0"),
              HasSubstr("rank 1: 1SEND_B0 (action 2) needs 1B0, which"));
}

TEST(PipelineScheduleTest, ValidateSaysWhichRanksWaitForWhat) {
  // Rank 0 has stages 0 and 2. It runs microbatch 0 to the end before it begins
  // microbatch 1, for which rank 1 waits first.
  PipelineSchedule schedule;
  schedule.name = "stuck";
  schedule.microbatches = 2;
  schedule.stage_ranks = {0, 1, 0};
  schedule.actions.resize(2);
  for (const int i : {0, 1}) {
    for (const int stage : {0, 2}) {
      schedule.actions[0].push_back({Kind::kForward, stage, i});
    }
    schedule.actions[1].push_back({Kind::kForward, 1, 1 - i});
  }
  for (const int i : {0, 1}) {
    for (const int stage : {2, 0}) {
      schedule.actions[0].push_back({Kind::kBackward, stage, i});
    }
    schedule.actions[1].push_back({Kind::kBackward, 1, i});
  }
  schedule.AddTransfers();
  EXPECT_EQ(GetError([&] { schedule.Validate(); }),
            "pipeline schedule \"stuck\": deadlock: rank 0 waits in 2F0 for "
            "1SEND_F0 of rank 1; rank 1 waits in 1F1 for 0SEND_F1 of rank 0");
}

TEST(PipelineScheduleTest, SimulateRefusesANegativeDuration) {
  EXPECT_EQ(GetError([] {
              MakeSmall().Simulate([](const PipelineAction&) { return -1.0; });
            }),
            "pipeline schedule \"1f1b\": the duration of 0F0 must not be "
            "negative but was -1");
}

}  // namespace
}  // namespace muster
