#include "client/control/continuations.h"

#include <sys/wait.h>
#include <unistd.h>

#include <memory>
#include <thread>

#include "gtest/gtest.h"

namespace muster::internal {
namespace {

// Returns the thread on which `continuations` runs a task.
std::thread::id FindRunner(Continuations& continuations) {
  std::thread::id runner;
  continuations.Run([&] { runner = std::this_thread::get_id(); });
  // Runs the tasks that were added.
  continuations.Close();
  return runner;
}

TEST(ContinuationsTest, AreFoundByTheirNumber) {
  const auto one = Continuations::Create();
  const auto other = Continuations::Create();
  EXPECT_NE(one->number(), 0U);
  EXPECT_NE(one->number(), other->number());
  EXPECT_EQ(Continuations::Find(one->number()), one);
  EXPECT_EQ(Continuations::Find(other->number()), other);
  EXPECT_NE(FindRunner(*one), std::this_thread::get_id());
}

TEST(ContinuationsTest, ThoseThatAreGoneRunTasksAtOnce) {
  auto gone = Continuations::Create();
  const uint64_t number = gone->number();
  gone = nullptr;
  const auto closed = Continuations::Find(number);
  EXPECT_EQ(FindRunner(*closed), std::this_thread::get_id());
  EXPECT_NE(Continuations::Create()->number(), number);
}

TEST(ContinuationsTest, AForkedChildHasNoneOfItsParents) {
  const auto parents = Continuations::Create();
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    const bool is_good = Continuations::Find(parents->number()) != parents &&
                         Continuations::Create()->number() > parents->number();
    _exit(is_good ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
}

}  // namespace
}  // namespace muster::internal
