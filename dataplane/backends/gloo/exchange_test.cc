// Notes over a mesh without a network: it writes down what is asked of it and
// delivers what the test has put into its inbox.

#include "dataplane/backends/gloo/exchange.h"

#include <cstddef>
#include <cstring>
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "dataplane/culprit.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace muster::dataplane::gloo_internal {
namespace {

using ::testing::ElementsAre;

class TapeMesh : public Mesh {
 public:
  TapeMesh() : Mesh(/*rank=*/0, /*world_size=*/2) {}

  std::unique_ptr<Buffer> CreateBuffer(void* data, size_t bytes) override {
    return std::make_unique<TapeBuffer>(*this, static_cast<std::byte*>(data),
                                        buffers_++);
  }
  std::unique_ptr<Buffer> CreateQuietBuffer(void* data, size_t bytes) override {
    return CreateBuffer(data, bytes);
  }
  void Abort(const absl::Status&) override {}
  absl::Status abort_cause() const override { return absl::OkStatus(); }
  absl::Status CheckPeers() override { return absl::OkStatus(); }
  void Close(const absl::Status&) override {}

  // The next message from the peer.
  void Deliver(const NoteHeader& header, const std::string& payload = "") {
    std::string& message = inbox_.emplace_back(sizeof(header), '\0');
    std::memcpy(message.data(), &header, sizeof(header));
    message += payload;
  }

  // What has happened since the last call. Buffers are numbered as made.
  std::vector<std::string> TakeTape() { return std::exchange(tape_, {}); }

 private:
  class TapeBuffer : public Buffer {
   public:
    TapeBuffer(TapeMesh& mesh, std::byte* data, int number)
        : mesh_(mesh), data_(data), number_(number) {}

    absl::Status Receive(int peer, uint64_t, size_t, size_t) override {
      return Note("announce");
    }
    absl::Status Send(int peer, uint64_t, size_t, size_t bytes) override {
      const std::string payload(
          reinterpret_cast<const char*>(data_ + sizeof(NoteHeader)),
          bytes - sizeof(NoteHeader));
      return Note(absl::StrCat("send ", payload, " from"));
    }
    absl::Status WaitReceive(int peer) override {
      std::memcpy(data_, mesh_.inbox_.front().data(),
                  mesh_.inbox_.front().size());
      mesh_.inbox_.pop_front();
      return Note("take");
    }
    absl::Status WaitSend(int peer) override { return Note("sent"); }

   private:
    absl::Status Note(const std::string& what) {
      mesh_.tape_.push_back(absl::StrCat(what, " ", number_));
      return absl::OkStatus();
    }

    TapeMesh& mesh_;
    std::byte* const data_;
    const int number_;
  };

  int buffers_ = 0;
  std::deque<std::string> inbox_;
  std::vector<std::string> tape_;
};

class ExchangeTest : public ::testing::Test {
 protected:
  static Collective Barrier() {
    return {.kind = CollectiveKind::kBarrier, .sequence = 7};
  }
  Collective AllReduce() {
    return {.kind = CollectiveKind::kAllReduce,
            .tensors = {Tensor(values_)},
            .sequence = 7};
  }
  Collective Broadcast() {
    return {.kind = CollectiveKind::kBroadcast,
            .tensors = {Tensor(values_)},
            .sequence = 7};
  }

  // What this rank, which runs `ours`, says to a peer that runs `theirs`.
  std::string Mismatch(const Collective& ours, const NoteHeader& theirs) {
    mesh_.Deliver(theirs);
    Exchange exchange(workspace_, ours);
    const absl::Status status = exchange.ReceiveNote(1).status();
    if (status.ok()) return "";
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_EQ(CulpritRank(status), 1);
    return std::string(status.message());
  }
  std::string Mismatch(const Collective& ours, const Collective& theirs) {
    return Mismatch(ours, NoteHeader::Of(theirs));
  }

  std::vector<float> values_ = std::vector<float>(4);
  TapeMesh mesh_;
  Workspace workspace_{mesh_};
};

TEST_F(ExchangeTest, NoteIsNotOverwrittenBeforeItHasLeft) {
  Exchange exchange(workspace_, Barrier());
  ASSERT_TRUE(exchange.SendNote(1, "a", 1).ok());
  ASSERT_TRUE(exchange.SendNote(1, "b", 1).ok());
  EXPECT_THAT(mesh_.TakeTape(),
              ElementsAre("send a from 0", "sent 0", "send b from 0"));
}

TEST_F(ExchangeTest, FinishedExchangeHasSentAllAndAnnouncedTwoAhead) {
  {
    Exchange exchange(workspace_, Barrier());
    mesh_.Deliver(NoteHeader::Of(Barrier()), "x");
    ASSERT_TRUE(exchange.SendNote(1, "a", 1).ok());
    const auto payload = exchange.ReceiveNote(1);
    ASSERT_TRUE(payload.ok()) << payload.status();
    EXPECT_EQ(static_cast<char>(**payload), 'x');
    EXPECT_THAT(mesh_.TakeTape(), ElementsAre("send a from 0", "announce 1",
                                              "announce 2", "take 1"));
    // The payload stays until here.
    ASSERT_TRUE(exchange.Finish().ok());
    EXPECT_THAT(mesh_.TakeTape(), ElementsAre("announce 1", "sent 0"));
  }
  Exchange exchange(workspace_, Barrier());
  for (const char* payload : {"y", "z"}) {
    mesh_.Deliver(NoteHeader::Of(Barrier()), payload);
    EXPECT_EQ(static_cast<char>(**exchange.ReceiveNote(1)), *payload);
  }
  ASSERT_TRUE(exchange.Finish().ok());
  // In the order in which the notes will come.
  EXPECT_THAT(mesh_.TakeTape(),
              ElementsAre("take 2", "take 1", "announce 2", "announce 1"));
}

TEST_F(ExchangeTest, HandshakeSendsToAllBeforeItWaits) {
  Exchange exchange(workspace_, Barrier());
  mesh_.Deliver(NoteHeader::Of(Barrier()));
  ASSERT_TRUE(exchange.Handshake({1}, {1}).ok());
  EXPECT_THAT(mesh_.TakeTape(), ElementsAre("send  from 0", "announce 1",
                                            "announce 2", "take 1"));
}

TEST_F(ExchangeTest, CollectivesThatDifferInWhatTheyUseAreAMismatch) {
  EXPECT_EQ(Mismatch(Barrier(), Barrier()), "");
  Collective later = Barrier();
  later.sequence = 8;
  EXPECT_EQ(Mismatch(Barrier(), later),
            "rank 1 runs barrier #8, rank 0 barrier #7");
  EXPECT_EQ(Mismatch(AllReduce(), Barrier()),
            "rank 1 runs barrier #7, rank 0 all_reduce #7 of 4 float32 sum");
  EXPECT_EQ(Mismatch(Broadcast(), AllReduce()),
            "rank 1 runs all_reduce #7 of 4 float32 sum, rank 0 broadcast #7 "
            "of 4 float32 root 0");

  std::vector<int32_t> integers(4);
  Collective of_integers = AllReduce();
  of_integers.tensors = {Tensor(integers)};
  EXPECT_EQ(Mismatch(AllReduce(), of_integers),
            "rank 1 runs all_reduce #7 of 4 int32 sum, rank 0 all_reduce #7 of "
            "4 float32 sum");
  Collective shorter = AllReduce();
  shorter.tensors = {Tensor(values_.data(), {3})};
  EXPECT_EQ(Mismatch(AllReduce(), shorter),
            "rank 1 runs all_reduce #7 of 3 float32 sum, rank 0 all_reduce #7 "
            "of 4 float32 sum");
  Collective maximum = AllReduce();
  maximum.reduce_op = ReduceOp::kMax;
  EXPECT_EQ(Mismatch(AllReduce(), maximum),
            "rank 1 runs all_reduce #7 of 4 float32 max, rank 0 all_reduce #7 "
            "of 4 float32 sum");
  Collective from_another = Broadcast();
  from_another.root = 1;
  EXPECT_EQ(Mismatch(Broadcast(), from_another),
            "rank 1 runs broadcast #7 of 4 float32 root 1, rank 0 broadcast #7 "
            "of 4 float32 root 0");
}

TEST_F(ExchangeTest, WhatACollectiveDoesNotUseIsNoMismatch) {
  Collective reduction = AllReduce();
  reduction.root = 1;
  reduction.caller_waits = true;
  reduction.tensors = {Tensor(values_.data(), {2, 2})};
  EXPECT_EQ(Mismatch(AllReduce(), reduction), "");
  Collective broadcast = Broadcast();
  broadcast.reduce_op = ReduceOp::kMax;
  EXPECT_EQ(Mismatch(Broadcast(), broadcast), "");
}

TEST_F(ExchangeTest, SizesGivenAndTakenAreCompared) {
  const Collective all_to_all = {.kind = CollectiveKind::kAllToAll,
                                 .inputs = {Tensor(values_)},
                                 .outputs = {Tensor(values_)},
                                 .sequence = 7};
  NoteHeader theirs = NoteHeader::Of(all_to_all);
  theirs.element_count = 5;
  for (const size_t taken : {5, 4}) {
    mesh_.Deliver(theirs);
    Exchange exchange(workspace_, all_to_all);
    const absl::Status status = exchange.ReceiveNote(1, taken).status();
    EXPECT_EQ(std::string(status.message()),
              taken == 5 ? ""
                         : "rank 1 gives rank 0 5 float32 in all_to_all #7, "
                           "rank 0 takes 4");
  }
}

TEST_F(ExchangeTest, SizesOfThirdRanksAreCompared) {
  std::vector<float> longer(5);
  Collective ours = {.kind = CollectiveKind::kAllGather,
                     .inputs = {Tensor(values_)},
                     .outputs = {Tensor(values_), Tensor(values_)},
                     .sequence = 7};
  Collective theirs = ours;
  EXPECT_EQ(Mismatch(ours, theirs), "");
  // In another order they are others.
  ours.outputs[0] = theirs.outputs[1] = Tensor(longer);
  EXPECT_EQ(Mismatch(ours, theirs),
            "rank 1 and rank 0 expect different sizes of other ranks in "
            "all_gather #7");
}

TEST_F(ExchangeTest, RubbishFromThePeerIsDescribed) {
  NoteHeader rubbish = NoteHeader::Of(AllReduce());
  rubbish.data_type = 99;
  rubbish.reduce_op = 77;
  EXPECT_EQ(Mismatch(AllReduce(), rubbish),
            "rank 1 runs all_reduce #7 of 4 type 99 unknown, rank 0 all_reduce "
            "#7 of 4 float32 sum");
  rubbish.kind = 55;
  EXPECT_EQ(Mismatch(AllReduce(), rubbish),
            "rank 1 runs unknown collective #7 of 4 type 99, rank 0 "
            "all_reduce #7 of 4 float32 sum");
}

}  // namespace
}  // namespace muster::dataplane::gloo_internal
