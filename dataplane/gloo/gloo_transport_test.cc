#include "dataplane/gloo/gloo_transport.h"

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdlib>
#include <future>
#include <memory>
#include <numeric>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "dataplane/cpu/engine/cpu_backend.h"
#include "dataplane/cpu/transport/tcp_transport.h"
#include "dataplane/culprit.h"
#include "dataplane/testing/in_memory_store.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "muster/base/clock.h"
#include "muster/base/status.h"

namespace muster::dataplane::cpu {
namespace {

using ::testing::HasSubstr;
using TransportPtr = std::unique_ptr<Transport>;

class GlooTransportTest : public ::testing::Test {
 protected:
  GlooTransportTest() { unsetenv("GLOO_DEVICE_TRANSPORT"); }
  ~GlooTransportTest() override {
    unsetenv("GLOO_DEVICE_TRANSPORT");
    unsetenv("MUSTER_CPU_TRANSPORT");
  }

  BackendOptions MakeOptions(int rank) const {
    return {.rank = rank,
            .world_size = 2,
            .group_name = "g",
            .store = store_,
            .deadline = Clock::now() + std::chrono::seconds(60),
            .local_address = "127.0.0.1"};
  }

  // Rank 0 and rank 1.
  std::array<TransportPtr, 2> ConnectBoth() {
    auto first = std::async(std::launch::async, [&] {
      return ConnectGloo("gloo", MakeOptions(0)).value();
    });
    TransportPtr second = ConnectGloo("gloo", MakeOptions(1)).value();
    return {first.get(), std::move(second)};
  }

  const std::shared_ptr<testing::InMemoryStore> store_ =
      std::make_shared<testing::InMemoryStore>();
};

TEST_F(GlooTransportTest, NotesAreOneStreamOfBytes) {
  auto ranks = ConnectBoth();
  // More than one message holds.
  std::vector<char> note(100'000);
  std::iota(note.begin(), note.end(), 0);
  EXPECT_EQ(ranks[0]->Write(1, "head", 4, note.data(), note.size()),
            OkStatus());
  EXPECT_EQ(ranks[0]->Write(1, "tail", 4, nullptr, 0), OkStatus());
  std::vector<char> came(4 + note.size() + 4);
  const size_t half = came.size() / 2;
  EXPECT_EQ(ranks[1]->Read(0, came.data(), half), OkStatus());
  EXPECT_EQ(ranks[1]->Read(0, came.data() + half, came.size() - half),
            OkStatus());
  EXPECT_EQ(std::string(came.data(), 4), "head");
  EXPECT_EQ(std::vector<char>(came.begin() + 4, came.end() - 4), note);
  EXPECT_EQ(std::string(came.end() - 4, came.end()), "tail");
}

TEST_F(GlooTransportTest, NotesOfARankThatLeavesAreRead) {
  auto ranks = ConnectBoth();
  const std::vector<char> note(30'000, 'n');
  for (int i = 0; i < 4; ++i) {
    EXPECT_EQ(ranks[0]->Write(1, note.data(), note.size(), nullptr, 0),
              OkStatus());
  }
  auto closed = std::async(std::launch::async,
                           [&] { ranks[0]->Close(CancelledError("left")); });
  std::vector<char> came(4 * note.size());
  EXPECT_EQ(ranks[1]->Read(0, came.data(), came.size()), OkStatus());
  EXPECT_EQ(came, std::vector<char>(came.size(), 'n'));
  closed.get();
  const Status status = ranks[1]->Read(0, came.data(), 1);
  EXPECT_EQ(status.code(), StatusCode::kUnavailable) << status;
  EXPECT_EQ(CulpritRank(status), 0);
}

TEST_F(GlooTransportTest, AnAbortEndsAWait) {
  auto ranks = ConnectBoth();
  std::vector<char> data(1 << 20);
  const auto buffer = ranks[0]->CreateBuffer(data.data(), data.size());
  EXPECT_EQ(buffer->Receive(1, 0, data.size()), OkStatus());
  auto ended =
      std::async(std::launch::async, [&] { return buffer->WaitReceive(1); });
  while (ranks[0]->waiting_for() != 1) std::this_thread::yield();
  ranks[0]->Abort(InternalError("over"));
  EXPECT_EQ(ended.get(), InternalError("over"));
  EXPECT_EQ(buffer->WaitReceive(1), InternalError("over"));
}

TEST_F(GlooTransportTest, AWaitForARankThatHasFailedReturnsItsError) {
  auto ranks = ConnectBoth();
  std::vector<char> data(1 << 20);
  const auto buffer = ranks[0]->CreateBuffer(data.data(), data.size());
  EXPECT_EQ(buffer->Receive(1, 0, data.size()), OkStatus());
  ranks[1]->Abort(InternalError("disk full"));
  ranks[1]->Close(InternalError("disk full"));
  EXPECT_THAT(std::string(buffer->WaitReceive(1).message()),
              HasSubstr("disk full"));
}

// The library writes without MSG_NOSIGNAL.
TEST_F(GlooTransportTest, WritingToARankThatIsGoneIsAnError) {
  auto ranks = ConnectBoth();
  ranks[1]->Abort(InternalError("disk full"));
  ranks[1]->Close(InternalError("disk full"));
  Status status;
  while (status.ok()) status = ranks[0]->Write(1, "note", 4, nullptr, 0);
  EXPECT_THAT(std::string(status.message()), HasSubstr("disk full"));
}

TEST_F(GlooTransportTest, RanksOfAGroupHaveOneTransport) {
  auto first = std::async(std::launch::async, [&] {
    return ConnectGloo("gloo", MakeOptions(0)).status();
  });
  const Status second = ConnectTcp("gloo", MakeOptions(1)).status();
  EXPECT_EQ(std::string(second.message()),
            "rank 0 has transport \"gloo\", rank 1 \"tcp\": "
            "cpu_transport, MUSTER_CPU_TRANSPORT and GLOO_DEVICE_TRANSPORT "
            "must be the same on every rank");
  EXPECT_EQ(CulpritRank(first.get()), 1);
}

TEST_F(GlooTransportTest, TheVariableChoosesTheLibrary) {
  setenv("MUSTER_CPU_TRANSPORT", "gloo", /*overwrite=*/1);
  auto first = std::async(std::launch::async, [&] {
    return CreateGlooBackend(MakeOptions(0)).status();
  });
  const Status second = ConnectTcp("gloo", MakeOptions(1)).status();
  EXPECT_THAT(std::string(second.message()),
              HasSubstr("rank 0 has transport \"gloo\", rank 1 \"tcp\""));
  EXPECT_EQ(CulpritRank(first.get()), 1);
}

TEST_F(GlooTransportTest, AGroupChoosesForItself) {
  setenv("MUSTER_CPU_TRANSPORT", "tcp", /*overwrite=*/1);
  BackendOptions options = MakeOptions(0);
  options.cpu_transport = "gloo";
  auto first = std::async(std::launch::async,
                          [&] { return CreateGlooBackend(options).status(); });
  const Status second = ConnectTcp("gloo", MakeOptions(1)).status();
  EXPECT_THAT(std::string(second.message()),
              HasSubstr("rank 0 has transport \"gloo\", rank 1 \"tcp\""));
  EXPECT_EQ(CulpritRank(first.get()), 1);
}

TEST_F(GlooTransportTest, AnUnknownTransportIsRefused) {
  setenv("MUSTER_CPU_TRANSPORT", "ucx", /*overwrite=*/1);
  EXPECT_EQ(CreateGlooBackend(MakeOptions(0)).status(),
            InvalidArgumentError("environment variable MUSTER_CPU_TRANSPORT "
                                 "must be tcp or gloo but was \"ucx\""));
}

TEST_F(GlooTransportTest, AnUnknownDeviceIsRefused) {
  setenv("GLOO_DEVICE_TRANSPORT", "UV", /*overwrite=*/1);
  EXPECT_EQ(ConnectGloo("gloo", MakeOptions(0)).status(),
            InvalidArgumentError("environment variable GLOO_DEVICE_TRANSPORT "
                                 "must be TCP or IBVERBS but was \"UV\""));
}

TEST_F(GlooTransportTest, ADeviceThatIsNotThereIsNamed) {
  setenv("GLOO_DEVICE_TRANSPORT", "IBVERBS", /*overwrite=*/1);
  BackendOptions options = MakeOptions(0);
  options.world_size = 1;
  const Status status = ConnectGloo("gloo", options).status();
  // OK where there is InfiniBand.
  EXPECT_TRUE(status.ok() ||
              status.message().find("GLOO_DEVICE_TRANSPORT=IBVERBS") == 0)
      << status;
}

}  // namespace
}  // namespace muster::dataplane::cpu
