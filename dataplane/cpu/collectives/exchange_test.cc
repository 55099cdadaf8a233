// Tests notes over a transport without a network. It records its calls and
// delivers the notes that the test has put into its inbox.

#include "dataplane/cpu/collectives/exchange.h"

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "dataplane/cpu/transport/fake_transport.h"
#include "dataplane/culprit.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "muster/base/status.h"

namespace muster::dataplane::cpu {
namespace {

using ::testing::ElementsAre;

class TapeMesh : public FakeTransport {
 public:
  TapeMesh() : FakeTransport(/*rank=*/0, /*world_size=*/2) {}

  Status Write(int, const void*, size_t, const void* body,
               size_t body_bytes) override {
    tape_.push_back(absl::StrCat(
        "send ", std::string(static_cast<const char*>(body), body_bytes)));
    return OkStatus();
  }
  Status Read(int, void* data, size_t bytes) override {
    tape_.push_back(absl::StrCat("read ", bytes));
    if (bytes > 0) std::memcpy(data, inbox_.data(), bytes);
    inbox_.erase(0, bytes);
    return OkStatus();
  }
  void Abort(const Status&) override {}
  Status abort_cause() const override { return OkStatus(); }
  Status CheckPeers() override { return OkStatus(); }
  Status Gone(int) override { return OkStatus(); }
  void Close(const Status&) override {}

  // Puts the next note of the peer into the inbox. `payload_bytes`: the size
  // that the note claims.
  void Deliver(const MessageHeader& header, const std::string& payload,
               uint64_t payload_bytes) {
    inbox_.append(reinterpret_cast<const char*>(&header), sizeof(header));
    inbox_.append(reinterpret_cast<const char*>(&payload_bytes),
                  sizeof(payload_bytes));
    inbox_ += payload;
  }
  void Deliver(const MessageHeader& header, const std::string& payload = "") {
    Deliver(header, payload, payload.size());
  }

  // The recorded calls since the last TakeTape.
  std::vector<std::string> TakeTape() { return std::exchange(tape_, {}); }

 private:
  std::string inbox_;
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

  // The error of this rank, which runs `ours`, for a peer that runs `theirs`.
  std::string Mismatch(const Collective& ours, const MessageHeader& theirs) {
    transport_.Deliver(theirs);
    Exchange exchange(workspace_, ours);
    const Status status = exchange.ReceiveNote(1).status();
    if (status.ok()) return "";
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
    EXPECT_EQ(CulpritRank(status), 1);
    return std::string(status.message());
  }
  std::string Mismatch(const Collective& ours, const Collective& theirs) {
    return Mismatch(ours, MessageHeader::Of(theirs));
  }

  std::vector<float> values_ = std::vector<float>(4);
  TapeMesh transport_;
  Workspace workspace_{transport_};
};

TEST_F(ExchangeTest, PayloadComesAfterItsHeader) {
  Exchange exchange(workspace_, Barrier());
  for (const std::string payload : {"x", "yz"}) {
    transport_.Deliver(MessageHeader::Of(Barrier()), payload);
    const auto received = exchange.ReceiveNote(1);
    ASSERT_TRUE(received.ok()) << received.status();
    EXPECT_EQ(std::memcmp(*received, payload.data(), payload.size()), 0);
  }
  EXPECT_THAT(transport_.TakeTape(),
              ElementsAre("read 40", "read 1", "read 40", "read 2"));
}

TEST_F(ExchangeTest, PayloadThatIsTooLargeIsAnErrorAndNotRead) {
  Exchange exchange(workspace_, Barrier());
  transport_.Deliver(MessageHeader::Of(Barrier()), "",
                     kNotePayloadBytesMax + 1);
  const Status status = exchange.ReceiveNote(1).status();
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(CulpritRank(status), 1);
  EXPECT_THAT(transport_.TakeTape(), ElementsAre("read 40"));
}

TEST_F(ExchangeTest, HandshakeSendsToAllBeforeItWaits) {
  Exchange exchange(workspace_, Barrier());
  transport_.Deliver(MessageHeader::Of(Barrier()));
  ASSERT_TRUE(exchange.Handshake({1}, {1}).ok());
  EXPECT_THAT(transport_.TakeTape(), ElementsAre("send ", "read 40", "read 0"));
}

TEST_F(ExchangeTest, CollectivesThatDifferInWhatTheyUseAreAMismatch) {
  EXPECT_EQ(Mismatch(Barrier(), Barrier()), "");
  Collective forming = Barrier();
  forming.step = Step::kFormGroup;
  forming.sequence = 0;
  EXPECT_EQ(Mismatch(forming, AllReduce()),
            "rank 1 runs all_reduce #7 of 4 float32 sum, rank 0 form_group");
  Collective allocation = forming;
  allocation.step = Step::kAllocateSymmetric;
  EXPECT_EQ(Mismatch(forming, allocation),
            "rank 1 runs allocate_symmetric, rank 0 form_group");
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
  MessageHeader theirs = MessageHeader::Of(all_to_all);
  theirs.element_count = 5;
  for (const size_t taken : {5, 4}) {
    transport_.Deliver(theirs);
    Exchange exchange(workspace_, all_to_all);
    const Status status = exchange.ReceiveNote(1, taken).status();
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
  // The same sizes in another order differ, too.
  ours.outputs[0] = theirs.outputs[1] = Tensor(longer);
  EXPECT_EQ(Mismatch(ours, theirs),
            "rank 1 and rank 0 expect different sizes of other ranks in "
            "all_gather #7");
}

TEST_F(ExchangeTest, RubbishFromThePeerIsDescribed) {
  MessageHeader rubbish = MessageHeader::Of(AllReduce());
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
}  // namespace muster::dataplane::cpu
