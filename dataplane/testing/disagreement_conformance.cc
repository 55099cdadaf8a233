// Ranks that start collectives that do not match.

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "dataplane/communicator.h"
#include "dataplane/testing/backend_conformance.h"
#include "dataplane/testing/local_world.h"
#include "dataplane/testing/sample.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace muster::dataplane::testing {
namespace {

using std::chrono::milliseconds;
using ::testing::AllOf;
using ::testing::HasSubstr;

// Much longer than an error needs to reach every rank.
constexpr std::chrono::seconds kSoon{10};

constexpr size_t kSmall = 8;
constexpr size_t kStream = 50'000;

// Runs on every rank of a new group the collective of `sample_for`, then two
// all_to_alls. Returns each rank's first error, or OK.
std::vector<Status> Outcomes(
    const std::string& backend, int world_size,
    const std::function<std::unique_ptr<Sample>(int rank)>& sample_for) {
  LocalWorld world({.backend = backend, .world_size = world_size});
  std::vector<Status> outcomes(world_size);
  world.OnEachRank([&](Communicator& communicator) {
    const std::unique_ptr<Sample> sample = sample_for(communicator.rank());
    Status status =
        communicator.Start(sample->collective)->Wait(Clock::now() + kSoon);
    // With some kinds a rank is done as soon as it has sent its data. Then the
    // first all_to_all fails on some ranks and the second one on all.
    for (int i = 0; i < 2 && status.ok(); ++i) {
      Sample meeting(CollectiveKind::kAllToAll,
                     {.rank = communicator.rank(), .world_size = world_size});
      meeting.collective.timeout = sample->collective.timeout;
      status =
          communicator.Start(meeting.collective)->Wait(Clock::now() + kSoon);
    }
    outcomes[communicator.rank()] = status;
  });
  return outcomes;
}

// Outcomes of one collective of `count` elements per rank, which `change`
// alters on some ranks.
std::vector<Status> CollectOutcomes(
    const std::string& backend, int world_size, CollectiveKind kind,
    size_t count,
    const std::function<void(int rank, Collective& collective)>& change) {
  return Outcomes(backend, world_size, [&](int rank) {
    auto sample = std::make_unique<Sample>(
        kind,
        SampleOptions{.rank = rank, .world_size = world_size, .count = count});
    change(rank, sample->collective);
    return sample;
  });
}

// Expects that all ranks failed, without a timeout, with a text that shows both
// collectives.
void ExpectMismatch(const std::vector<Status>& outcomes, const std::string& one,
                    const std::string& other) {
  for (const Status& status : outcomes) {
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << status;
    EXPECT_THAT(std::string(status.message()),
                AllOf(HasSubstr(one), HasSubstr(other)));
  }
}

TEST_P(DisagreementConformance, DifferentSizesAreAnErrorThatShowsBoth) {
  for (const CollectiveKind kind : KindsWithTensors()) {
    for (const size_t count : {kSmall, kStream}) {
      for (const int odd_one : {0, world_size() - 1}) {
        if (odd_one == 0 && count == kStream) continue;
        SCOPED_TRACE(absl::StrCat(CollectiveKindName(kind), " of ", count,
                                  " but on rank ", odd_one));
        const auto outcomes = Outcomes(backend(), world_size(), [&](int rank) {
          return std::make_unique<Sample>(
              kind, SampleOptions{.rank = rank,
                                  .world_size = world_size(),
                                  .count = count + (rank == odd_one)});
        });
        ExpectMismatch(outcomes, std::string(CollectiveKindName(kind)),
                       "rank ");
      }
    }
  }
}

TEST_P(DisagreementConformance, DifferentTypesAreAnErrorThatShowsBoth) {
  for (const CollectiveKind kind : KindsWithTensors()) {
    for (const size_t count : {kSmall, kStream}) {
      SCOPED_TRACE(absl::StrCat(CollectiveKindName(kind), " of ", count));
      const auto outcomes = Outcomes(backend(), world_size(), [&](int rank) {
        return std::make_unique<Sample>(
            kind, SampleOptions{.rank = rank,
                                .world_size = world_size(),
                                .count = count,
                                .data_type = rank == 1 ? DataType::kInt32
                                                       : DataType::kFloat32});
      });
      ExpectMismatch(outcomes, "int32", "float32");
    }
  }
}

TEST_P(DisagreementConformance, DifferentReductionsAreAnErrorThatShowsBoth) {
  for (const CollectiveKind kind : KindsWithTensors()) {
    if (!IsReduction(kind)) continue;
    for (const size_t count : {kSmall, kStream}) {
      SCOPED_TRACE(absl::StrCat(CollectiveKindName(kind), " of ", count));
      const auto outcomes =
          CollectOutcomes(backend(), world_size(), kind, count,
                          [](int rank, Collective& collective) {
                            if (rank == 0)
                              collective.reduce_op = ReduceOp::kMax;
                          });
      ExpectMismatch(outcomes, "max", "sum");
    }
  }
}

// Expects that all ranks failed by the deadline. Ranks that wait in another
// order, or for another root, may not reach the rank that differs, but no rank
// may go on.
void ExpectFailure(const std::vector<Status>& outcomes) {
  for (const Status& status : outcomes) {
    EXPECT_TRUE(IsInvalidArgument(status) || IsDeadlineExceeded(status))
        << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr("rank "));
  }
}

TEST_P(DisagreementConformance, DifferentKindsFailAtTheLatestByTheDeadline) {
  for (const CollectiveKind kind : KindsWithTensors()) {
    if (kind == CollectiveKind::kAllReduce) continue;
    SCOPED_TRACE(CollectiveKindName(kind));
    ExpectFailure(Outcomes(backend(), world_size(), [&](int rank) {
      auto sample = std::make_unique<Sample>(
          rank == 0 ? CollectiveKind::kAllReduce : kind,
          SampleOptions{.rank = rank, .world_size = world_size()});
      sample->collective.timeout = milliseconds(300);
      return sample;
    }));
  }
}

TEST_P(DisagreementConformance, DifferentRootsFailAtTheLatestByTheDeadline) {
  for (const CollectiveKind kind : KindsWithTensors()) {
    if (!IsRooted(kind)) continue;
    for (const size_t count : {kSmall, kStream}) {
      SCOPED_TRACE(absl::StrCat(CollectiveKindName(kind), " of ", count));
      ExpectFailure(Outcomes(backend(), world_size(), [&](int rank) {
        auto sample = std::make_unique<Sample>(
            kind, SampleOptions{.rank = rank,
                                .world_size = world_size(),
                                .count = count,
                                .root = rank == 0 ? 1 : 0});
        sample->collective.timeout = milliseconds(300);
        return sample;
      }));
    }
  }
}

TEST_P(DisagreementConformance,
       SplitsThatDisagreeNameBothRanksAndWhatTheyMean) {
  for (const int64_t unit : {int64_t{2}, int64_t{20'000}}) {
    SCOPED_TRACE(absl::StrCat("unit ", unit));
    const auto outcomes = Outcomes(backend(), world_size(), [&](int rank) {
      auto sample = std::make_unique<Sample>(
          CollectiveKind::kAllToAllSingle,
          SampleOptions{.rank = rank,
                        .world_size = world_size(),
                        .count = static_cast<size_t>(unit)});
      // Rank 0 sends one more row to rank 1, and one less to itself, than they
      // expect.
      if (rank == 0) {
        Collective& collective = sample->collective;
        collective.input_splits.assign(world_size(), unit);
        --collective.input_splits[0];
        ++collective.input_splits[1];
        collective.output_splits.assign(world_size(), unit);
        --collective.output_splits[0];
        ++collective.output_splits[world_size() - 1];
      }
      return sample;
    });
    // In a group of two, rank 0 may first see that rank 1 sends it fewer rows.
    for (const Status& status : outcomes) {
      EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << status;
      const std::string text(status.message());
      const std::string last = absl::StrCat("rank ", world_size() - 1);
      EXPECT_TRUE(
          text.find(absl::StrCat("rank 0 gives rank 1 ", unit + 1,
                                 " float32 in all_to_all_single #1, rank 1 "
                                 "takes ",
                                 unit)) != std::string::npos ||
          text.find(absl::StrCat(last, " gives rank 0 ", unit,
                                 " float32 in all_to_all_single #1, rank 0 "
                                 "takes ",
                                 unit + 1)) != std::string::npos)
          << text;
    }
  }
}

TEST_P(DisagreementConformance, WhoExpectsNothingDoesNotLoseWhatHeIsGiven) {
  for (const CollectiveKind kind :
       {CollectiveKind::kAllToAll, CollectiveKind::kScatter}) {
    for (const size_t count : {kSmall, kStream}) {
      SCOPED_TRACE(absl::StrCat(CollectiveKindName(kind), " of ", count));
      const auto outcomes = CollectOutcomes(
          backend(), world_size(), kind, count,
          [](int rank, Collective& collective) {
            Tensor& output = collective.outputs[0];
            if (rank != 1) return;
            output = Tensor(output.data(), DataType::kFloat32, {0});
          });
      ExpectMismatch(outcomes, std::string(CollectiveKindName(kind)), "rank 0");
    }
  }
}

TEST_P(DisagreementConformance, UnevenSizesThatDisagreeAreAnErrorNotAHang) {
  for (const CollectiveKind kind :
       {CollectiveKind::kAllGather, CollectiveKind::kReduceScatter}) {
    for (const size_t count : {kSmall, kStream}) {
      SCOPED_TRACE(absl::StrCat(CollectiveKindName(kind), " of ", count));
      const auto outcomes = CollectOutcomes(
          backend(), world_size(), kind, count,
          [&](int rank, Collective& collective) {
            auto& list = kind == CollectiveKind::kAllGather ? collective.outputs
                                                            : collective.inputs;
            if (rank != 0) return;
            list[1] = Tensor(list[1].data(), DataType::kFloat32,
                             {static_cast<int64_t>(count - 1)});
          });
      ExpectMismatch(outcomes, std::string(CollectiveKindName(kind)), "rank 0");
    }
  }
}

}  // namespace
}  // namespace muster::dataplane::testing
