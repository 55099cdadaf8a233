// How sends and receives of CUDA tensors use the host, on the fake CUDA.
// staging_conformance_test tests their results.

#include "dataplane/cuda/staged_messages.h"

#include <algorithm>
#include <chrono>
#include <future>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "dataplane/cuda/staging.h"
#include "dataplane/cuda/stream.h"
#include "dataplane/cuda/testing/host_cuda.h"
#include "dataplane/failed_call.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "muster/base/mutex.h"

namespace muster::dataplane::cuda {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::IsEmpty;
using testing::Launch;

// The inner backend: the test completes what is started.
class Network {
 public:
  struct Started {
    std::string what;  // "send to 1 tag 0: 5", "recv from 1 tag 0"
    Collective collective;
    std::shared_ptr<PromisedWork> work;
  };

  // Waits for the next start.
  Started Take() {
    MutexLock lock(mutex_);
    while (started_.empty()) changed_.Wait(mutex_);
    Started first = std::move(started_.front());
    started_.erase(started_.begin());
    return first;
  }

  std::shared_ptr<Work> Start(const Collective& collective) {
    const bool sends = collective.kind == CollectiveKind::kSend;
    Started started = {
        .what = absl::StrCat(sends ? "send to " : "recv from ", collective.peer,
                             " tag ", collective.tag),
        .collective = collective,
        .work = std::make_shared<PromisedWork>(collective.Describe())};
    if (sends) {
      absl::StrAppend(&started.what, ": ",
                      *static_cast<const float*>(collective.inputs[0].data()));
    }
    MutexLock lock(mutex_);
    if (!aborted_.ok()) started.work->Complete(aborted_);
    all_.push_back(started.work);
    started_.push_back(started);
    changed_.NotifyAll();
    return started.work;
  }

  void Abort(const Status& cause) {
    std::vector<std::shared_ptr<PromisedWork>> all;
    {
      MutexLock lock(mutex_);
      aborted_ = cause;
      all = all_;
    }
    for (const auto& work : all) work->Complete(cause);
  }

 private:
  Mutex mutex_;
  CondVar changed_;
  std::vector<Started> started_;
  std::vector<std::shared_ptr<PromisedWork>> all_;
  Status aborted_;
};

class NetworkBackend : public Backend {
 public:
  explicit NetworkBackend(Network& network) : network_(network) {}

  std::string name() const override { return "gloo"; }
  std::span<const DeviceType> devices() const override { return {}; }
  Status Supports(const Collective&) const override { return OkStatus(); }
  std::shared_ptr<Work> Start(const Collective& collective) override {
    return network_.Start(collective);
  }
  void Abort(Status cause) override { network_.Abort(cause); }

 private:
  Network& network_;
};

class StagedMessagesTest : public ::testing::Test {
 protected:
  StagedMessagesTest() {
    backend_ = CreateStaging(api_, std::make_unique<NetworkBackend>(network_),
                             {.group_name = "world"});
    for (Stream& stream : streams_) {
      EXPECT_EQ(api_.StreamCreateWithPriority(&stream, 0, 0), kSuccess);
    }
    SetCurrentStream(0, streams_[0]);
  }

  ~StagedMessagesTest() override {
    backend_.reset();
    SetCurrentStream(0, nullptr);
    for (const Stream stream : streams_) {
      EXPECT_EQ(api_.StreamDestroy(stream), kSuccess);
    }
    for (void* const data : memory_) EXPECT_EQ(api_.Free(data), kSuccess);
    EXPECT_THAT(testing::TakeMisuses(), IsEmpty());
    EXPECT_EQ(testing::CountLeaks().streams, 0U);
    EXPECT_EQ(testing::CountLeaks().events, 0U);
    EXPECT_EQ(testing::CountLeaks().memory, 0U);
  }

  Tensor OnDevice(float value, int64_t count = 4) {
    void* data = nullptr;
    EXPECT_EQ(api_.Malloc(&data, static_cast<size_t>(count) * 4), kSuccess);
    memory_.push_back(data);
    std::fill_n(static_cast<float*>(data), count, value);
    return Tensor(data, DataType::kFloat32, {count}, {DeviceType::kCuda, 0});
  }

  // Makes the current stream wait for `go` and then call `then`.
  static void Hold(
      std::promise<void>& go, std::function<void()> then = [] {}) {
    Launch(CurrentStream(0), [going = go.get_future().share(), then] {
      going.wait();
      then();
    });
  }

  std::shared_ptr<Work> Send(const Tensor& tensor, int tag = 0) {
    return Start({.kind = CollectiveKind::kSend,
                  .inputs = {tensor},
                  .peer = 1,
                  .tag = tag});
  }
  std::shared_ptr<Work> Receive(
      const Tensor& tensor,
      std::chrono::milliseconds timeout = std::chrono::minutes(1)) {
    return Start({.kind = CollectiveKind::kRecv,
                  .outputs = {tensor},
                  .peer = 1,
                  .timeout = timeout});
  }
  std::shared_ptr<Work> Start(Collective collective) {
    if (collective.timeout.count() == 0) {
      collective.timeout = std::chrono::minutes(1);
    }
    collective.deadline = Clock::now() + collective.timeout;
    collective.sequence = 3;
    return backend_->Start(collective);
  }

  const Api api_ = testing::HostCudaApi();
  Network network_;
  std::unique_ptr<Backend> backend_;
  std::vector<Stream> streams_ = {nullptr, nullptr};
  std::vector<void*> memory_;
};

TEST_F(StagedMessagesTest, ASendsTensorIsFreeBeforeAnybodyReceives) {
  const Tensor tensor = OnDevice(1);
  std::promise<void> go;
  Hold(go, [tensor] { std::fill_n(static_cast<float*>(tensor.data()), 4, 5); });
  const auto work = Send(tensor);
  go.set_value();
  EXPECT_EQ(work->Synchronize(), OkStatus());
  Launch(streams_[0],
         [tensor] { std::fill_n(static_cast<float*>(tensor.data()), 4, 7); });
  const Network::Started sent = network_.Take();
  EXPECT_EQ(sent.what, "send to 1 tag 0: 5");
  EXPECT_FALSE(work->IsCompleted());
  sent.work->Complete(OkStatus());
  EXPECT_EQ(work->Wait(), OkStatus());
}

TEST_F(StagedMessagesTest, SendsWithOneTagKeepTheirOrderAndOthersDoNotWait) {
  std::promise<void> go;
  Hold(go);
  const auto first = Send(OnDevice(1));
  SetCurrentStream(0, streams_[1]);
  const auto second = Send(OnDevice(2));
  const auto other = Send(OnDevice(3), /*tag=*/8);
  EXPECT_EQ(network_.Take().what, "send to 1 tag 8: 3");
  EXPECT_EQ(second->Synchronize(), OkStatus());
  go.set_value();
  EXPECT_EQ(network_.Take().what, "send to 1 tag 0: 1");
  EXPECT_EQ(network_.Take().what, "send to 1 tag 0: 2");
}

TEST_F(StagedMessagesTest, AReceiveIsAskedForAtOnceAndCopiedBehindTheStream) {
  const Tensor tensor = OnDevice(1);
  std::promise<void> go;
  std::vector<float> before;
  const auto* const data = static_cast<const float*>(tensor.data());
  Hold(go, [&before, data] { before.assign(data, data + 4); });
  const auto work = Receive(tensor);
  const Network::Started received = network_.Take();
  EXPECT_EQ(received.what, "recv from 1 tag 0");
  std::fill_n(static_cast<float*>(received.collective.outputs[0].data()), 4, 9);
  received.work->SetSourceRank(1);
  received.work->Complete(OkStatus());
  go.set_value();
  EXPECT_EQ(work->Synchronize(), OkStatus());
  EXPECT_EQ(work->source_rank(), 1);
  std::vector<float> behind;
  Launch(streams_[0], [&behind, data] { behind.assign(data, data + 4); });
  EXPECT_EQ(api_.StreamSynchronize(streams_[0]), kSuccess);
  EXPECT_THAT(before, Each(1));
  EXPECT_THAT(behind, Each(9));
  EXPECT_EQ(work->Wait(), OkStatus());
}

TEST_F(StagedMessagesTest, AReceiveThatWaitsHoldsUpNothing) {
  const auto receive = Receive(OnDevice(1));
  network_.Take();
  const auto send = Send(OnDevice(2));
  network_.Take().work->Complete(OkStatus());
  EXPECT_EQ(send->Wait(), OkStatus());
  EXPECT_FALSE(receive->IsCompleted());
}

TEST_F(StagedMessagesTest, AStreamThatIsStuckIsATimeout) {
  std::promise<void> go;
  Hold(go);
  const auto work = Receive(OnDevice(1), std::chrono::milliseconds(20));
  network_.Take().work->Complete(OkStatus());
  const Status status = work->Wait();
  EXPECT_TRUE(IsDeadlineExceeded(status));
  EXPECT_EQ(status.message(),
            "recv #3: timed out after 20 ms waiting for what the current "
            "stream had been given before");
  const auto call = FindFailedCall(status);
  EXPECT_TRUE(call.has_value() && call->is_point_to_point);
  go.set_value();
}

TEST_F(StagedMessagesTest, AFailureEndsTheGroup) {
  const auto receive = Receive(OnDevice(1));
  network_.Take();
  const auto send = Send(OnDevice(2));
  const Status gone = UnavailableError("rank 1 is gone");
  network_.Take().work->Complete(gone);
  EXPECT_EQ(send->Wait(), gone);
  EXPECT_EQ(receive->Wait(), gone);
  EXPECT_EQ(Send(OnDevice(3))->Synchronize(), gone);
}

TEST_F(StagedMessagesTest, AnAbortEndsAllWhereverTheyAre) {
  std::promise<void> go;
  const auto receive = Receive(OnDevice(1));
  const auto sent = Send(OnDevice(1));
  network_.Take();
  Hold(go);
  const auto held = Send(OnDevice(2));
  const Status enough = AbortedError("enough");
  backend_->Abort(enough);
  EXPECT_EQ(receive->Wait(), enough);
  EXPECT_EQ(sent->Wait(), enough);
  EXPECT_EQ(held->Synchronize(), enough);
  go.set_value();
}

TEST_F(StagedMessagesTest, ATensorWithoutElementsGoes) {
  const Tensor none(nullptr, DataType::kFloat32, {0}, {DeviceType::kCuda, 0});
  const auto work = Receive(none);
  network_.Take().work->Complete(OkStatus());
  EXPECT_EQ(work->Wait(), OkStatus());
}

}  // namespace
}  // namespace muster::dataplane::cuda
