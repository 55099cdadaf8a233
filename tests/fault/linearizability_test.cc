#include "tests/fault/linearizability.h"

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace muster::fault {
namespace {

using ::testing::HasSubstr;
using ::testing::Optional;

// Clients count from 0; an operation lasts from `called` to `answered`.
Operation Op(int client, int64_t called, int64_t answered, std::string verb,
             std::vector<std::string> arguments, std::string result) {
  Operation operation;
  operation.client = client;
  operation.verb = std::move(verb);
  operation.key = "k";
  operation.arguments = std::move(arguments);
  operation.called = called;
  operation.answered = answered;
  operation.result = std::move(result);
  return operation;
}

Operation Unanswered(int client, int64_t called, std::string verb,
                     std::vector<std::string> arguments) {
  Operation operation =
      Op(client, called, 0, std::move(verb), std::move(arguments), "");
  operation.answered = std::numeric_limits<int64_t>::max();
  operation.result = std::nullopt;
  return operation;
}

TEST(LinearizabilityTest, OneClientInOrder) {
  EXPECT_EQ(FindViolation({}), std::nullopt);
  EXPECT_EQ(FindViolation({
                Op(0, 1, 2, "get", {}, "absent"),
                Op(0, 3, 4, "set", {"a"}, "-"),
                Op(0, 5, 6, "get", {}, "a"),
                Op(0, 7, 8, "append", {"b"}, "-"),
                Op(0, 9, 10, "get", {}, "ab"),
                Op(0, 11, 12, "cas", {"ab", "c"}, "c"),
                Op(0, 13, 14, "cas", {"ab", "d"}, "c"),
                Op(0, 15, 16, "delete", {}, "1"),
                Op(0, 17, 18, "delete", {}, "0"),
                Op(0, 19, 20, "cas", {"x", "y"}, "x"),
                Op(0, 21, 22, "add", {"5"}, "5"),
                Op(0, 23, 24, "add", {"-2"}, "3"),
            }),
            std::nullopt);
}

TEST(LinearizabilityTest, AStaleReadIsFound) {
  EXPECT_THAT(FindViolation({
                  Op(0, 1, 2, "set", {"a"}, "-"),
                  Op(0, 3, 4, "set", {"b"}, "-"),
                  Op(1, 5, 6, "get", {}, "a"),
              }),
              Optional(HasSubstr("client 1: get() = a")));
}

TEST(LinearizabilityTest, AReadThatOverlapsAWriteMaySeeEither) {
  for (const char* const seen : {"a", "b"}) {
    EXPECT_EQ(FindViolation({
                  Op(0, 1, 2, "set", {"a"}, "-"),
                  Op(0, 3, 9, "set", {"b"}, "-"),
                  Op(1, 4, 8, "get", {}, seen),
              }),
              std::nullopt);
  }
  // No client may read the old value after another has read the new one.
  EXPECT_NE(FindViolation({
                Op(0, 1, 2, "set", {"a"}, "-"),
                Op(0, 3, 9, "set", {"b"}, "-"),
                Op(1, 4, 5, "get", {}, "b"),
                Op(2, 6, 7, "get", {}, "a"),
            }),
            std::nullopt);
}

TEST(LinearizabilityTest, TwoThatAddAtTheSameTimeSeeDifferentSums) {
  EXPECT_EQ(FindViolation({
                Op(0, 1, 9, "add", {"1"}, "2"),
                Op(1, 2, 8, "add", {"1"}, "1"),
            }),
            std::nullopt);
  EXPECT_NE(FindViolation({
                Op(0, 1, 9, "add", {"1"}, "1"),
                Op(1, 2, 8, "add", {"1"}, "1"),
            }),
            std::nullopt);
  // Applied twice.
  EXPECT_NE(FindViolation({
                Op(0, 1, 2, "add", {"1"}, "1"),
                Op(0, 3, 4, "add", {"1"}, "3"),
            }),
            std::nullopt);
}

TEST(LinearizabilityTest, WhatHasNoAnswerMayHaveHappenedLateOrNever) {
  for (const char* const seen : {"absent", "a"}) {
    EXPECT_EQ(FindViolation({
                  Unanswered(0, 1, "set", {"a"}),
                  Op(1, 5, 6, "get", {}, "absent"),
                  Op(1, 7, 8, "get", {}, seen),
              }),
              std::nullopt);
  }
  // It must not take effect twice, or before it began.
  EXPECT_NE(FindViolation({
                Unanswered(0, 1, "add", {"1"}),
                Op(1, 5, 6, "add", {"1"}, "3"),
            }),
            std::nullopt);
  EXPECT_NE(FindViolation({
                Op(1, 5, 6, "get", {}, "a"),
                Unanswered(0, 7, "set", {"a"}),
            }),
            std::nullopt);
}

TEST(LinearizabilityTest, QueuesAreFirstInFirstOut) {
  EXPECT_EQ(FindViolation({
                Op(0, 1, 2, "pop", {}, "empty"),
                Op(0, 3, 4, "push", {"a"}, "-"),
                Op(1, 5, 6, "push", {"b"}, "-"),
                Op(0, 7, 9, "pop", {}, "b"),
                Op(1, 8, 10, "pop", {}, "a"),
                Op(0, 11, 12, "pop", {}, "empty"),
            }),
            std::nullopt);
  // Popped twice.
  EXPECT_NE(FindViolation({
                Op(0, 1, 2, "push", {"a"}, "-"),
                Op(0, 3, 9, "pop", {}, "a"),
                Op(1, 4, 8, "pop", {}, "a"),
            }),
            std::nullopt);
  // Lost.
  EXPECT_NE(FindViolation({
                Op(0, 1, 2, "push", {"a"}, "-"),
                Op(0, 3, 4, "pop", {}, "empty"),
            }),
            std::nullopt);
  // In the wrong order.
  EXPECT_NE(FindViolation({
                Op(0, 1, 2, "push", {"a"}, "-"),
                Op(0, 3, 4, "push", {"b"}, "-"),
                Op(0, 5, 6, "pop", {}, "b"),
            }),
            std::nullopt);
}

// The order that is tried first leads nowhere, so the search must go back.
TEST(LinearizabilityTest, TheSearchTakesBackWhatLedNowhere) {
  std::vector<Operation> operations;
  for (int client = 0; client < 6; ++client) {
    operations.push_back(
        Op(client, client, 100, "set", {std::to_string(client)}, "-"));
  }
  operations.push_back(Op(6, 50, 60, "get", {}, "3"));
  operations.push_back(Op(6, 70, 80, "get", {}, "1"));
  operations.push_back(Op(6, 110, 120, "get", {}, "5"));
  EXPECT_EQ(FindViolation(operations), std::nullopt);
  operations.push_back(Op(6, 130, 140, "get", {}, "4"));
  EXPECT_THAT(FindViolation(operations),
              Optional(HasSubstr("client 6: get() = 4")));
}

TEST(LinearizabilityTest, KeysAreSeparate) {
  Operation other = Op(1, 3, 4, "get", {}, "absent");
  other.key = "other";
  EXPECT_EQ(FindViolation({Op(0, 1, 2, "set", {"a"}, "-"), other}),
            std::nullopt);
  other.result = "a";
  EXPECT_THAT(FindViolation({Op(0, 1, 2, "set", {"a"}, "-"), other}),
              Optional(HasSubstr("key other")));
}

}  // namespace
}  // namespace muster::fault
