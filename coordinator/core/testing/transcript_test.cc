// Replays testdata/*.txt. With MUSTER_REWRITE=1 under `bazel run` it writes the
// result into the source tree instead; read the difference before you commit
// it.

#include "coordinator/core/testing/transcript.h"

#include <cstdlib>
#include <fstream>
#include <iostream>
#include <sstream>
#include <string>

#include "gtest/gtest.h"

namespace muster::coordinator::core {
namespace {

constexpr char kFolder[] = "coordinator/core/testing/testdata/";

// The source tree of `bazel run`; empty: nothing is rewritten.
std::string RewriteRoot() {
  const char* rewrite = std::getenv("MUSTER_REWRITE");
  const char* root = std::getenv("BUILD_WORKSPACE_DIRECTORY");
  if (rewrite == nullptr || root == nullptr) return "";
  return std::string(root) + "/";
}

std::string Read(const std::string& path) {
  std::ifstream file(path);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

class TranscriptTest : public testing::TestWithParam<const char*> {};

TEST_P(TranscriptTest, TheCoordinatorAnswersAsWrittenDown) {
  const std::string path = std::string(kFolder) + GetParam() + ".txt";
  const std::string expected = Read(RewriteRoot() + path);
  ASSERT_NE(expected, "") << path << " is missing or empty";
  const std::string replayed = Replay(expected);
  if (!RewriteRoot().empty()) {
    std::ofstream(RewriteRoot() + path) << replayed;
    std::cerr << "rewrote " << path << "\n";
    return;
  }
  EXPECT_EQ(replayed, expected) << "to accept: MUSTER_REWRITE=1 bazel run "
                                   "//coordinator/core/testing:transcript_test";
}

INSTANTIATE_TEST_SUITE_P(
    Testdata, TranscriptTest,
    testing::Values("store", "store_lifetimes", "store_queues", "store_watch",
                    "membership", "rendezvous", "rendezvous_elastic", "groups",
                    "group_calls", "group_failures", "barrier", "restart",
                    "restart_claims", "silence"),
    [](const auto& info) { return info.param; });

}  // namespace
}  // namespace muster::coordinator::core
