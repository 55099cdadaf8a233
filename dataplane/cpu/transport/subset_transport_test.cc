// Tests SubsetTransport over a transport without a network, which records the
// ranks of its calls.

#include "dataplane/cpu/transport/subset_transport.h"

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "dataplane/cpu/collectives/exchange.h"
#include "dataplane/culprit.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "muster/base/status.h"
#include "muster/dataplane/collective.h"

namespace muster::dataplane::cpu {
namespace {

using ::testing::HasSubstr;

Status Asked(int peer) {
  return UnavailableError(absl::StrCat("asked for rank ", peer));
}

class TellingBuffer : public Buffer {
 public:
  Status Receive(int peer, size_t, size_t) override { return Asked(peer); }
  Status Send(int peer, size_t, size_t) override { return Asked(peer); }
  Status WaitReceive(int peer) override { return Asked(peer); }
  Status WaitSend(int peer) override { return Asked(peer); }
};

// Rank 4 of 6.
class TellingMesh : public Transport {
 public:
  TellingMesh() : Transport(/*rank=*/4, /*world_size=*/6) {}

  std::unique_ptr<Buffer> CreateBuffer(void*, size_t) override {
    return std::make_unique<TellingBuffer>();
  }
  Status Write(int peer, const void*, size_t, const void*, size_t) override {
    return Asked(peer);
  }
  Status Read(int, void* data, size_t bytes) override {
    std::memcpy(data, inbox.data(), bytes);
    inbox.erase(0, bytes);
    return OkStatus();
  }
  void Abort(const Status&) override {}
  Status abort_cause() const override { return OkStatus(); }
  Status CheckPeers() override { return OkStatus(); }
  Status Gone(int peer) override { return Asked(peer); }
  void Close(const Status&) override {}

  std::string inbox;
};

class SubsetTransportTest : public ::testing::Test {
 protected:
  TellingMesh whole_;
  SubsetTransport part_{whole_, {1, 4, 5}};
};

TEST_F(SubsetTransportTest, ItsRanksHaveNumbersOfTheirOwn) {
  EXPECT_EQ(part_.rank(), 1);
  EXPECT_EQ(part_.world_size(), 3);
  EXPECT_EQ(part_.RankInGroup(2), 5);
}

TEST_F(SubsetTransportTest, AsksForTheRanksOfTheWholeMesh) {
  const Status asked = Asked(5);
  EXPECT_EQ(part_.Write(2, nullptr, 0, nullptr, 0), asked);
  EXPECT_EQ(part_.Gone(2), asked);
  const auto buffer = part_.CreateBuffer(nullptr, 0);
  EXPECT_EQ(buffer->Receive(2, 0, 0), asked);
  EXPECT_EQ(buffer->Send(2, 0, 0), asked);
  EXPECT_EQ(buffer->WaitReceive(2), asked);
  EXPECT_EQ(buffer->WaitSend(2), asked);
}

TEST_F(SubsetTransportTest, AStepIsComparedAsWhatItIsAStepOf) {
  std::vector<float> values(8);
  Collective meant = {.kind = CollectiveKind::kReduce,
                      .tensors = {Tensor(values)},
                      .sequence = 7};
  const MessageHeader ours = MessageHeader::Of(meant);
  MessageHeader theirs = ours;
  theirs.element_count = 9;
  const uint64_t payload_bytes = 0;
  whole_.inbox.append(reinterpret_cast<const char*>(&theirs), sizeof(theirs));
  whole_.inbox.append(reinterpret_cast<const char*>(&payload_bytes),
                      sizeof(payload_bytes));
  Workspace workspace(part_);
  Exchange exchange(workspace, {.kind = CollectiveKind::kBarrier}, ours);
  const Status status = exchange.ReceiveNote(2).status();
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("rank 5 runs reduce #7 of 9 float32 sum root 0, rank 4 "
                        "reduce #7 of 8 float32 sum root 0"));
  EXPECT_EQ(CulpritRank(status), 5);
}

}  // namespace
}  // namespace muster::dataplane::cpu
