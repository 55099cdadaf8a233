#include <algorithm>
#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "dataplane/communicator.h"
#include "dataplane/culprit.h"
#include "dataplane/testing/backend_conformance.h"
#include "dataplane/testing/local_world.h"
#include "dataplane/testing/reference.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace muster::dataplane::testing {
namespace {

using std::chrono::milliseconds;
using ::testing::HasSubstr;

constexpr std::chrono::seconds kSoon{10};

std::shared_ptr<Work> Send(Communicator& communicator, const Tensor& tensor,
                           int peer, int tag = 0) {
  return communicator.Start({.kind = CollectiveKind::kSend,
                             .inputs = {tensor},
                             .peer = peer,
                             .tag = tag});
}

std::shared_ptr<Work> Receive(Communicator& communicator, const Tensor& tensor,
                              int peer, int tag = 0,
                              milliseconds timeout = milliseconds(0)) {
  return communicator.Start({.kind = CollectiveKind::kRecv,
                             .outputs = {tensor},
                             .peer = peer,
                             .tag = tag,
                             .timeout = timeout});
}

void ExpectOk(const std::shared_ptr<Work>& work) {
  const Status status = work->Wait();
  EXPECT_TRUE(status.ok()) << work->description() << ": " << status;
}

TEST_P(PointToPointConformance, EverySizeGoesRoundTheRing) {
  LocalWorld world({.backend = backend(), .world_size = world_size()});
  // Includes sizes around gloo's limit for sending without a handshake.
  for (const size_t count : {size_t{0}, size_t{1}, size_t{13}, size_t{8192},
                             size_t{8193}, size_t{100'003}, kLargeCount}) {
    world.OnEachRank([&](Communicator& communicator) {
      const int rank = communicator.rank();
      const int next = (rank + 1) % world_size();
      const int previous = (rank - 1 + world_size()) % world_size();
      auto mine = Inputs<int32_t>(ReduceOp::kSum, world_size(), rank, count);
      std::vector<int32_t> theirs(count, 111);
      const auto sent = Send(communicator, Tensor(mine), next);
      const auto received = Receive(communicator, Tensor(theirs), previous);
      ExpectOk(sent);
      ExpectOk(received);
      EXPECT_EQ(received->source_rank(), previous);
      EXPECT_EQ(sent->source_rank(), -1);
      EXPECT_TRUE(theirs == Inputs<int32_t>(ReduceOp::kSum, world_size(),
                                            previous, count))
          << count;
    });
  }
}

TEST_P(PointToPointConformance, ManyGoBothWaysAtOnceAndKeepTheirOrder) {
  LocalWorld world({.backend = backend(), .world_size = world_size()});
  // More small messages than a receiver buffers, and large ones between them.
  constexpr int kMessages = 300;
  const auto count_of = [](int i) { return i % 50 == 7 ? 10'000 : 1 + i % 5; };
  world.OnEachRank([&](Communicator& communicator) {
    const int rank = communicator.rank();
    std::vector<std::vector<int64_t>> outgoing;
    std::vector<std::shared_ptr<Work>> works;
    for (int i = 0; i < kMessages; ++i) {
      for (int peer = 0; peer < world_size(); ++peer) {
        if (peer == rank) continue;
        outgoing.emplace_back(count_of(i), rank * 1000 + i);
        works.push_back(Send(communicator, Tensor(outgoing.back()), peer));
      }
    }
    for (int i = 0; i < kMessages; ++i) {
      for (int peer = 0; peer < world_size(); ++peer) {
        if (peer == rank) continue;
        std::vector<int64_t> incoming(count_of(i));
        ExpectOk(Receive(communicator, Tensor(incoming), peer));
        EXPECT_EQ(incoming, std::vector<int64_t>(count_of(i), peer * 1000 + i));
      }
    }
    for (const auto& work : works) ExpectOk(work);
  });
}

TEST_P(PointToPointConformance, TagsMatchInAnyOrderAndEachKeepsItsOwn) {
  LocalWorld world({.backend = backend(), .world_size = world_size()});
  for (const size_t count : {size_t{3}, size_t{50'000}}) {
    // Starts receives first, or sends first.
    for (const int first : {0, 1}) {
      world.OnEachRank([&](Communicator& communicator) {
        const int rank = communicator.rank();
        if (rank > 1) return;
        std::vector<std::vector<int32_t>> values(6,
                                                 std::vector<int32_t>(count));
        std::vector<std::shared_ptr<Work>> works;
        if (rank != first) ExpectOk(Receive(communicator, Tensor(), first, 99));
        // Tags 0 1 2 0 1 2 against 2 1 0 2 1 0.
        for (int i = 0; i < 6; ++i) {
          const int tag = rank == 0 ? i % 3 : 2 - i % 3;
          if (rank == 0) std::fill(values[i].begin(), values[i].end(), i);
          works.push_back(
              rank == 0 ? Send(communicator, Tensor(values[i]), 1, tag)
                        : Receive(communicator, Tensor(values[i]), 0, tag));
        }
        if (rank == first) ExpectOk(Send(communicator, Tensor(), 1 - rank, 99));
        for (const auto& work : works) ExpectOk(work);
        for (int i = 0; i < 6 && rank == 1; ++i) {
          const int expected = 2 - i % 3 + (i >= 3 ? 3 : 0);
          EXPECT_EQ(values[i], std::vector<int32_t>(count, expected)) << i;
        }
      });
    }
  }
}

TEST_P(PointToPointConformance, ReceiveFromAnyRankTellsWhoSent) {
  LocalWorld world({.backend = backend(), .world_size = world_size()});
  for (const size_t count : {size_t{5}, size_t{20'000}}) {
    world.OnEachRank([&](Communicator& communicator) {
      const int rank = communicator.rank();
      if (rank != 0) {
        std::vector<int32_t> mine(count, rank);
        ExpectOk(Send(communicator, Tensor(mine), 0, 5));
        return;
      }
      std::vector<int> heard;
      for (int i = 1; i < world_size(); ++i) {
        std::vector<int32_t> theirs(count);
        const auto work = Receive(communicator, Tensor(theirs), kAnyPeer, 5);
        ExpectOk(work);
        heard.push_back(work->source_rank());
        EXPECT_EQ(theirs, std::vector<int32_t>(count, heard.back()));
      }
      std::sort(heard.begin(), heard.end());
      for (int i = 1; i < world_size(); ++i) EXPECT_EQ(heard[i - 1], i);
    });
  }
}

TEST_P(PointToPointConformance, CollectivesAndTheirNumbersGoOnMeanwhile) {
  LocalWorld world({.backend = backend(), .world_size = world_size()});
  world.OnEachRank([&](Communicator& communicator) {
    const int rank = communicator.rank();
    std::vector<float> message(3, 1);
    std::shared_ptr<Work> received;
    if (rank == 0) {
      received = Receive(communicator, Tensor(message), 1);
      EXPECT_EQ(communicator.progress().current,
                "recv #1 float32[3] from rank 1 tag 0");
    }
    for (int i = 0; i < 3; ++i) {
      std::vector<float> values(20'000, 1);
      const auto work = communicator.Start(
          {.kind = CollectiveKind::kAllReduce, .tensors = {Tensor(values)}});
      ExpectOk(work);
      EXPECT_EQ(work->description(),
                absl::StrCat("all_reduce #", i + 1, " float32[20000] sum"));
    }
    EXPECT_EQ(communicator.progress().last_completed, 3u);
    if (rank == 0) {
      EXPECT_FALSE(received->IsCompleted());
      EXPECT_EQ(received->source_rank(), -1);
    }
    ExpectOk(communicator.Start({.kind = CollectiveKind::kBarrier}));
    if (rank == 1) ExpectOk(Send(communicator, Tensor(message), 0));
    if (rank == 0) ExpectOk(received);
  });
}

TEST_P(PointToPointConformance, BadArgumentsFailTheirCallAlone) {
  LocalWorld world({.backend = backend(), .world_size = world_size()});
  Communicator& communicator = world.at(1);
  float value = 0;
  const auto text_of = [](const std::shared_ptr<Work>& work) {
    EXPECT_EQ(work->Wait().code(), StatusCode::kInvalidArgument);
    return std::string(work->status().message());
  };
  EXPECT_THAT(text_of(Send(communicator, Tensor(&value, {1}), -1)),
              HasSubstr("send #1 on group \"world\": argument peer: Invalid "
                        "destination rank: -1, must be from 0 to"));
  EXPECT_THAT(text_of(Receive(communicator, Tensor(&value, {1}), 100)),
              HasSubstr("Invalid source rank: 100, must be from 0 to"));
  EXPECT_EQ(text_of(Receive(communicator, Tensor(&value, {1}), 0, -7)),
            "recv #3 on group \"world\": argument tag: Tag must be "
            "nonnegative, got -7");
  EXPECT_TRUE(communicator.status().ok());
}

TEST_P(PointToPointConformance, WhatARankSendsToItselfItReceivesInAnyOrder) {
  for (const int size : {1, world_size()}) {
    LocalWorld world({.backend = backend(), .world_size = size});
    for (const size_t count : {size_t{0}, size_t{3}, size_t{50'000}}) {
      for (const bool sends_first : {true, false}) {
        world.OnEachRank([&](Communicator& communicator) {
          const int rank = communicator.rank();
          std::vector<std::vector<int32_t>> sent;
          std::vector<std::vector<int32_t>> received(
              4, std::vector<int32_t>(count, -1));
          std::vector<std::shared_ptr<Work>> sends;
          std::vector<std::shared_ptr<Work>> receives(4);
          for (int i = 0; i < 4; ++i) sent.emplace_back(count, 4 * rank + i);
          for (const bool sends_now : {sends_first, !sends_first}) {
            // Two messages with each tag, which keep their order.
            for (const int i : {0, 1, 2, 3}) {
              if (!sends_now) break;
              sends.push_back(Send(communicator, Tensor(sent[i]), rank, i % 2));
            }
            for (const int i : {1, 0, 3, 2}) {
              if (sends_now) break;
              receives[i] = Receive(communicator, Tensor(received[i]),
                                    i == 3 ? kAnyPeer : rank, i % 2);
            }
          }
          for (const auto& work : receives) {
            ExpectOk(work);
            EXPECT_EQ(work->source_rank(), rank);
          }
          for (const auto& work : sends) ExpectOk(work);
          EXPECT_EQ(received, sent) << count << sends_first;
        });
      }
    }
  }
}

// More messages than a receiver buffers.
TEST_P(PointToPointConformance, ManySmallOnesToItselfKeepTheirOrder) {
  LocalWorld world({.backend = backend(), .world_size = world_size()});
  constexpr int kMessages = 200;
  world.OnEachRank([&](Communicator& communicator) {
    const int rank = communicator.rank();
    for (int time = 0; time < 2; ++time) {
      std::vector<int32_t> values(kMessages);
      std::vector<std::shared_ptr<Work>> works;
      for (int i = 0; i < kMessages; ++i) {
        values[i] = i;
        works.push_back(Send(communicator, Tensor(&values[i], {1}), rank));
      }
      for (int i = 0; i < kMessages; ++i) {
        int32_t value = -1;
        ExpectOk(Receive(communicator, Tensor(&value, {1}), rank));
        EXPECT_EQ(value, i);
      }
      for (const auto& work : works) ExpectOk(work);
    }
  });
}

TEST_P(PointToPointConformance, OneToItselfThatDoesNotFitEndsTheGroup) {
  for (const bool sends_first : {true, false}) {
    LocalWorld world({.backend = backend(), .world_size = world_size()});
    std::vector<int32_t> values(4);
    const Tensor three(values.data(), {3});
    if (sends_first) Send(world.at(1), three, 1, 3);
    const auto received = Receive(world.at(1), Tensor(values), 1, 3);
    if (!sends_first) Send(world.at(1), three, 1, 3);
    const Status status = received->Wait(Clock::now() + kSoon);
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << status;
    EXPECT_THAT(std::string(status.message()),
                HasSubstr("rank 1 sends 3 int32 with tag 3, rank 1 receives 4 "
                          "int32"));
    EXPECT_EQ(CulpritRank(status), 1);
    EXPECT_EQ(world.at(1).status(), status);
  }
}

TEST_P(PointToPointConformance, DifferentSizesOrTypesAreAnErrorThatShowsBoth) {
  for (const size_t count : {size_t{8}, size_t{50'000}}) {
    for (const bool type : {false, true}) {
      LocalWorld world({.backend = backend(), .world_size = world_size()});
      world.OnEachRank([&](Communicator& communicator) {
        const int rank = communicator.rank();
        if (rank > 1) return;
        std::vector<int32_t> values(count + 1);
        const auto own = static_cast<int64_t>(type ? count : count + rank);
        const Tensor tensor(
            values.data(),
            type && rank == 1 ? DataType::kFloat32 : DataType::kInt32, {own});
        const auto work = rank == 0 ? Send(communicator, tensor, 1, 3)
                                    : Receive(communicator, tensor, 0, 3);
        const Status status = work->Wait(Clock::now() + kSoon);
        // A small message may be sent before the receiver can refuse it.
        if (rank == 0 && count == 8 && status.ok()) return;
        EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << status;
        EXPECT_THAT(
            std::string(status.message()),
            HasSubstr(absl::StrCat(
                "rank 0 sends ", count, " int32 with tag 3, rank 1 receives ",
                type ? count : count + 1, type ? " float32" : " int32")));
      });
    }
  }
}

TEST_P(PointToPointConformance, PassedDeadlineNamesThePeerAndPoisons) {
  LocalWorld world({.backend = backend(), .world_size = world_size()});
  float value = 0;
  const auto work =
      Receive(world.at(0), Tensor(&value, {1}), 1, 4, milliseconds(100));
  const Status status = work->Wait(Clock::now() + kSoon);
  EXPECT_EQ(status.code(), StatusCode::kDeadlineExceeded);
  EXPECT_EQ(std::string(status.message()),
            "recv #1 on group \"world\": timed out after 100ms waiting for "
            "rank 1 with tag 4");
  EXPECT_EQ(CulpritRank(status), 1);
  EXPECT_EQ(world.at(0).status(), status);
  EXPECT_EQ(Send(world.at(0), Tensor(&value, {1}), 1)->Wait(), status);
  // The peer gets the error, too.
  const Status told =
      Receive(world.at(1), Tensor(&value, {1}), 0)->Wait(Clock::now() + kSoon);
  EXPECT_THAT(std::string(told.message()), HasSubstr("rank 0 failed: recv #1"));
}

TEST_P(PointToPointConformance, AbortEndsWhatWaitsWithItsCause) {
  const Status cause = AbortedError("on purpose");
  LocalWorld world({.backend = backend(), .world_size = world_size()});
  std::vector<float> small(3);
  std::vector<float> large(100'000);
  const std::vector<std::shared_ptr<Work>> works = {
      Receive(world.at(0), Tensor(small), 1),
      Receive(world.at(0), Tensor(large), kAnyPeer, 1),
      Send(world.at(0), Tensor(large), 1),
      Receive(world.at(0), Tensor(small), 0, 2),
      Send(world.at(0), Tensor(large), 0, 3)};
  world.at(0).Abort(cause);
  for (const auto& work : works) {
    EXPECT_EQ(work->Wait(Clock::now() + kSoon), cause) << work->description();
  }
}

TEST_P(PointToPointConformance, LeavingRankFailsWhoNeedsItAlone) {
  LocalWorld world({.backend = backend(), .world_size = world_size()});
  const int leaver = world_size() - 1;
  world.OnEachRank([&](Communicator& communicator) {
    const int rank = communicator.rank();
    std::vector<float> value(1, static_cast<float>(rank));
    if (rank == leaver) {
      // The message arrives although its sender leaves.
      ExpectOk(Send(communicator, Tensor(value), 0));
      world.Destroy(leaver);
      return;
    }
    if (rank == 0) ExpectOk(Receive(communicator, Tensor(value), leaver));
    // The others go on, also after they know that it has left.
    for (int i = 0; leaver > 1 && rank < 2 && i < 100; ++i) {
      ExpectOk(rank == 0 ? Send(communicator, Tensor(value), 1, i)
                         : Receive(communicator, Tensor(value), 0, i));
    }
    if (rank != 0) return;
    const Status status = Receive(communicator, Tensor(value), leaver)
                              ->Wait(Clock::now() + kSoon);
    EXPECT_EQ(status.code(), StatusCode::kUnavailable);
    EXPECT_THAT(std::string(status.message()),
                HasSubstr(absl::StrCat("on group \"world\": rank ", leaver,
                                       " left the group")));
    EXPECT_EQ(CulpritRank(status), leaver);
  });
}

}  // namespace
}  // namespace muster::dataplane::testing
