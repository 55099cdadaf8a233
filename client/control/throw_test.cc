#include "client/control/throw.h"

#include <cstdlib>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "muster/errors.h"

namespace muster::internal {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;

template <typename Error>
bool Throws(ErrorSource source, const Status& status) {
  try {
    Throw(source, status);
  } catch (const Error&) {
    return true;
  } catch (const DistError&) {
    return false;
  }
}

TEST(ThrowTest, TheOriginDecidesTheClass) {
  const Status status = DeadlineExceededError("late");
  EXPECT_TRUE(Throws<DistStoreError>(ErrorSource::kStore, status));
  EXPECT_TRUE(Throws<DistBackendError>(ErrorSource::kBackend, status));
  EXPECT_FALSE(Throws<DistStoreError>(ErrorSource::kControl, status));
  EXPECT_FALSE(Throws<DistBackendError>(ErrorSource::kControl, status));
}

TEST(ThrowTest, NoAnswerIsANetworkErrorWhereverItComesFrom) {
  for (ErrorSource source :
       {ErrorSource::kStore, ErrorSource::kBackend, ErrorSource::kControl}) {
    EXPECT_TRUE(Throws<DistNetworkError>(source, UnavailableError("no")));
  }
}

TEST(ThrowTest, CarriesStatusTextAndCulprits) {
  const Status status =
      WithCulprits(AbortedError("barrier failed"),
                   {{{.rank = 2,
                      .member = "b",
                      .host = "h",
                      .pid = 7,
                      .cause = "lost",
                      .last_progress = "all_reduce #4",
                      .debug_address = "h:1"}},
                    {{.first = 0, .count = 2}, {.first = 9, .count = 3}}});
  try {
    Throw(ErrorSource::kControl, status);
  } catch (const DistError& error) {
    EXPECT_STREQ(error.what(), "barrier failed");
    EXPECT_EQ(error.status().code(), StatusCode::kAborted);
    ASSERT_EQ(error.culprits().size(), 1);
    EXPECT_EQ(error.culprits()[0].rank, 2);
    EXPECT_EQ(error.culprits()[0].host, "h");
    EXPECT_EQ(error.culprits()[0].pid, 7);
    EXPECT_EQ(error.culprits()[0].last_progress, "all_reduce #4");
    EXPECT_EQ(error.culprit_ranks(), (std::vector<int>{0, 1, 2, 9, 10, 11}));
  }
}

TEST(ThrowTest, TheStackIsInTheTextWhereTheEnvironmentAsksForIt) {
  setenv("TORCH_SHOW_CPP_STACKTRACES", "1", /*overwrite=*/1);
  try {
    Throw(ErrorSource::kControl, AbortedError("barrier failed"));
  } catch (const DistError& error) {
    EXPECT_THAT(error.what(),
                AllOf(StartsWith("barrier failed\nC++ stack (most recent call "
                                 "first):\nframe #0: "),
                      HasSubstr("muster::internal::Throw")));
    EXPECT_EQ(error.status().message(), "barrier failed");
  }
  unsetenv("TORCH_SHOW_CPP_STACKTRACES");
}

}  // namespace
}  // namespace muster::internal
