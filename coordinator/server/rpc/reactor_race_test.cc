// Sessions, unary calls and watches whose reactions come from several threads
// at once, with cancellations, takeovers, deadlines and a drain in between. A
// fake replaces gRPC: the packaged one is not instrumented for ThreadSanitizer.

#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <future>
#include <map>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "coordinator/server/jobs/driver.h"
#include "coordinator/server/jobs/fair_queue.h"
#include "coordinator/server/ops/metrics.h"
#include "coordinator/server/rpc/open_calls.h"
#include "coordinator/server/rpc/relay_stream.h"
#include "coordinator/server/rpc/server_session.h"
#include "coordinator/server/rpc/session_service.h"
#include "coordinator/server/rpc/session_stream.h"
#include "coordinator/server/rpc/unary.h"
#include "coordinator/server/rpc/unsent_answers.h"
#include "coordinator/server/rpc/watch_call.h"
#include "google/protobuf/message_lite.h"
#include "grpcpp/support/byte_buffer.h"
#include "grpcpp/support/slice.h"
#include "gtest/gtest.h"
#include "muster/base/mutex.h"
#include "muster/base/status.h"
#include "muster/base/thread_annotations.h"

namespace muster::coordinator {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

// The threads that run reactions.
class Pool {
 public:
  explicit Pool(int threads) {
    for (int i = 0; i < threads; ++i) {
      threads_.emplace_back([this] { Loop(); });
    }
  }
  ~Pool() {
    {
      MutexLock lock(mu_);
      stopping_ = true;
    }
    wakes_.NotifyAll();
    for (std::thread& thread : threads_) thread.join();
  }

  void Post(std::function<void()> task) {
    {
      MutexLock lock(mu_);
      tasks_.push_back(std::move(task));
    }
    wakes_.NotifyOne();
  }

 private:
  void Loop() {
    while (true) {
      std::function<void()> task;
      {
        MutexLock lock(mu_);
        while (tasks_.empty() && !stopping_) wakes_.Wait(mu_);
        if (tasks_.empty()) return;
        task = std::move(tasks_.front());
        tasks_.pop_front();
      }
      task();
    }
  }

  Mutex mu_;
  CondVar wakes_;
  std::deque<std::function<void()>> tasks_ MUSTER_GUARDED_BY(mu_);
  bool stopping_ MUSTER_GUARDED_BY(mu_) = false;
  std::vector<std::thread> threads_;
};

grpc::ByteBuffer ToByteBuffer(const google::protobuf::MessageLite& message) {
  const grpc::Slice slice(message.SerializeAsString());
  return grpc::ByteBuffer(&slice, 1);
}

// Decides when OnDone is called, as gRPC does: after Finish and all reactions
// to started operations, and not before the handler has returned (Bound).
class FakeCall {
 public:
  void AwaitDone() {
    MutexLock lock(mu_);
    while (!done_) changed_.Wait(mu_);
  }

 protected:
  FakeCall(Pool& pool, std::function<void()> on_done)
      : pool_(pool), on_done_(std::move(on_done)) {}
  ~FakeCall() = default;

  void Bound() { Release(); }

  void React(std::function<void()> reaction)
      MUSTER_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    ++pending_;
    pool_.Post([this, reaction = std::move(reaction)] {
      reaction();
      Release();
    });
  }

  Mutex mu_;
  bool finished_ MUSTER_GUARDED_BY(mu_) = false;
  bool done_ MUSTER_GUARDED_BY(mu_) = false;

 private:
  void Release() {
    MutexLock lock(mu_);
    if (--pending_ > 0 || !finished_ || on_done_posted_) return;
    on_done_posted_ = true;
    pool_.Post([this] {
      on_done_();
      MutexLock lock(mu_);
      done_ = true;
      changed_.NotifyAll();
    });
  }

  Pool& pool_;
  const std::function<void()> on_done_;
  CondVar changed_;
  bool on_done_posted_ MUSTER_GUARDED_BY(mu_) = false;
  int pending_ MUSTER_GUARDED_BY(mu_) = 1;  // the handler
};

// Behaves like gRPC's stream: reactions to started operations, OnDone after
// Finish and all other reactions. Checks gRPC's requirements on its user.
class FakeStream : public FakeCall, public SessionStream {
 public:
  FakeStream(Pool& pool, SessionTable& sessions, const ServiceContext& context)
      : FakeCall(pool, [this] { std::exchange(session_, nullptr)->OnDone(); }),
        session_(std::make_shared<ServerSession>(sessions, context, *this)) {
    session_->Start();
    Bound();
  }

  // The client's side.
  void Send(const v1::StreamRequest& request) {
    MutexLock lock(mu_);
    inbound_.push_back(ToByteBuffer(request));
    MaybeRead();
  }
  void HalfClose() {
    MutexLock lock(mu_);
    half_closed_ = true;
    MaybeRead();
  }
  void Cancel() {
    MutexLock lock(mu_);
    if (finished_ || cancelled_) return;
    cancelled_ = true;
    React([this] { session_->OnCancel(); });
    MaybeRead();
  }
  int64_t results() {
    MutexLock lock(mu_);
    return results_;
  }
  // Called for every message with results, on the thread that writes it.
  void OnResults(std::function<void()> look) {
    MutexLock lock(mu_);
    on_results_ = std::move(look);
  }

 private:
  const grpc::ServerContextBase& call() const override { return call_; }
  void Reset() override { ADD_FAILURE() << "not used"; }

  Read StartRead(grpc::ByteBuffer* request) override {
    MutexLock lock(mu_);
    EXPECT_EQ(reading_, nullptr) << "two reads at a time";
    EXPECT_FALSE(finished_) << "a read after Finish";
    reading_ = request;
    MaybeRead();
    return Read::kLater;
  }

  void StartWrite(const v1::StreamResponse* response) override {
    MutexLock lock(mu_);
    EXPECT_FALSE(writing_) << "two writes at a time";
    EXPECT_FALSE(finished_) << "a write after Finish";
    results_ += response->results_size();
    if (response->results_size() > 0 && on_results_ != nullptr) on_results_();
    writing_ = true;
    React([this] {
      {
        MutexLock lock(mu_);
        writing_ = false;
      }
      session_->OnWriteDone(true);
    });
  }

  void Finish(const Status&) override {
    MutexLock lock(mu_);
    EXPECT_FALSE(finished_) << "a second Finish";
    finished_ = true;
    MaybeRead();
    // The completion of Finish itself.
    React([] {});
  }

  void MaybeRead() MUSTER_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    if (reading_ == nullptr) return;
    const bool over = finished_ || cancelled_;
    if (!over && inbound_.empty() && !half_closed_) return;
    grpc::ByteBuffer* const into = std::exchange(reading_, nullptr);
    const bool ok = !over && !inbound_.empty();
    if (ok) {
      into->Swap(&inbound_.front());
      inbound_.pop_front();
    }
    React([this, ok] { session_->OnReadDone(ok); });
  }

  const grpc::CallbackServerContext call_;
  std::shared_ptr<ServerSession> session_;
  std::deque<grpc::ByteBuffer> inbound_ MUSTER_GUARDED_BY(mu_);
  grpc::ByteBuffer* reading_ MUSTER_GUARDED_BY(mu_) = nullptr;
  bool writing_ MUSTER_GUARDED_BY(mu_) = false;
  bool half_closed_ MUSTER_GUARDED_BY(mu_) = false;
  bool cancelled_ MUSTER_GUARDED_BY(mu_) = false;
  int64_t results_ MUSTER_GUARDED_BY(mu_) = 0;
  std::function<void()> on_results_ MUSTER_GUARDED_BY(mu_);
};

// Behaves like gRPC's call of Relay, whose client credits what it gets.
class FakeRelay : public FakeCall,
                  public grpc::ServerCallbackReaderWriter<grpc::ByteBuffer,
                                                          v1::RelayResponse> {
 public:
  FakeRelay(Pool& pool, SessionTable& sessions, const ServiceContext& context)
      : FakeCall(pool, [this] { relay_->OnDone(); }) {
    const auto relay = std::make_shared<RelayStream>(sessions, context, &call_);
    relay_ = relay.get();
    relay->Start();
    BindReactor(relay_);
    Bound();
  }

  // The relay's side.
  void Send(const v1::RelayRequest& request) {
    MutexLock lock(mu_);
    inbound_.push_back(ToByteBuffer(request));
    MaybeRead();
  }
  void HalfClose() {
    MutexLock lock(mu_);
    half_closed_ = true;
    MaybeRead();
  }
  void Cancel() {
    MutexLock lock(mu_);
    if (finished_ || cancelled_) return;
    cancelled_ = true;
    React([this] { relay_->OnCancel(); });
    MaybeRead();
  }

 private:
  grpc::internal::ServerReactor* reactor() override { return relay_; }
  void CallOnDone() override {}
  void SendInitialMetadata() override {}
  void WriteAndFinish(const v1::RelayResponse*, grpc::WriteOptions,
                      grpc::Status) override {
    ADD_FAILURE() << "not used";
  }

  void Read(grpc::ByteBuffer* request) override {
    MutexLock lock(mu_);
    EXPECT_EQ(reading_, nullptr) << "two reads at a time";
    EXPECT_FALSE(finished_) << "a read after Finish";
    reading_ = request;
    MaybeRead();
  }

  void Write(const v1::RelayResponse* response, grpc::WriteOptions) override {
    MutexLock lock(mu_);
    EXPECT_FALSE(writing_) << "two writes at a time";
    EXPECT_FALSE(finished_) << "a write after Finish";
    v1::RelayRequest credits;
    for (const v1::RelayFrame& frame : response->frames()) {
      EXPECT_FALSE(ended_.contains(frame.session())) << "a frame after the end";
      if (frame.has_end()) ended_.insert(frame.session());
      if (!frame.has_part() && !frame.has_last_part()) continue;
      credits.add_frames()->set_session(frame.session());
      credits.mutable_frames()->rbegin()->set_credit(static_cast<uint32_t>(
          frame.part().size() + frame.last_part().size() + 16));
    }
    if (credits.frames_size() > 0 && !half_closed_) {
      inbound_.push_back(ToByteBuffer(credits));
    }
    writing_ = true;
    React([this] {
      {
        MutexLock lock(mu_);
        writing_ = false;
      }
      relay_->OnWriteDone(true);
    });
    MaybeRead();
  }

  void Finish(grpc::Status) override {
    MutexLock lock(mu_);
    EXPECT_FALSE(finished_) << "a second Finish";
    finished_ = true;
    MaybeRead();
    React([] {});
  }

  void MaybeRead() MUSTER_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    if (reading_ == nullptr) return;
    const bool over = finished_ || cancelled_;
    if (!over && inbound_.empty() && !half_closed_) return;
    grpc::ByteBuffer* const into = std::exchange(reading_, nullptr);
    const bool ok = !over && !inbound_.empty();
    if (ok) {
      into->Swap(&inbound_.front());
      inbound_.pop_front();
    }
    React([this, ok] { relay_->OnReadDone(ok); });
  }

  grpc::CallbackServerContext call_;
  RelayStream* relay_ = nullptr;
  std::deque<grpc::ByteBuffer> inbound_ MUSTER_GUARDED_BY(mu_);
  std::set<uint64_t> ended_ MUSTER_GUARDED_BY(mu_);
  grpc::ByteBuffer* reading_ MUSTER_GUARDED_BY(mu_) = nullptr;
  bool writing_ MUSTER_GUARDED_BY(mu_) = false;
  bool half_closed_ MUSTER_GUARDED_BY(mu_) = false;
  bool cancelled_ MUSTER_GUARDED_BY(mu_) = false;
};

// Behaves like gRPC's unary call.
template <typename Request, typename Response>
class FakeUnary : public FakeCall, public grpc::ServerCallbackUnary {
 public:
  // `on_finish` is called with the answer.
  FakeUnary(Pool& pool, const ServiceContext& context, Method method,
            const Request& request, std::function<void()> on_finish = nullptr)
      : FakeCall(pool, [this] { reactor_->OnDone(); }),
        on_finish_(std::move(on_finish)),
        request_(ToByteBuffer(request)) {
    auto call = std::make_shared<UnaryCall<Request, Response>>(
        context, method, nullptr, &response_);
    reactor_ = call.get();
    call->Start(&request_);
    BindReactor(reactor_);
    Bound();
  }

  void Cancel() {
    MutexLock lock(mu_);
    if (!finished_) React([this] { reactor_->OnCancel(); });
  }

 private:
  grpc::internal::ServerReactor* reactor() override { return reactor_; }
  void CallOnDone() override {}
  void SendInitialMetadata() override {}
  void Finish(grpc::Status) override {
    if (on_finish_ != nullptr) on_finish_();
    MutexLock lock(mu_);
    EXPECT_FALSE(finished_) << "a second Finish";
    finished_ = true;
    React([] {});
  }

  const std::function<void()> on_finish_;
  grpc::ByteBuffer request_;
  Response response_;
  grpc::ServerUnaryReactor* reactor_ = nullptr;
};

class FakeGet : public FakeUnary<v1::GetRequest, v1::GetResponse> {
 public:
  FakeGet(Pool& pool, const ServiceContext& context, const std::string& job,
          const std::string& key)
      : FakeUnary(pool, context, Method::kGet, RequestFor(job, key)) {}

 private:
  static v1::GetRequest RequestFor(const std::string& job,
                                   const std::string& key) {
    v1::GetRequest request;
    request.mutable_caller()->set_job(job);
    request.set_key(key);
    return request;
  }
};

// Behaves like gRPC's call of Watch, for all keys.
class FakeWatch : public FakeCall,
                  public grpc::ServerCallbackWriter<v1::WatchResponse> {
 public:
  FakeWatch(Pool& pool, const ServiceContext& context, const std::string& job)
      : FakeCall(pool, [this] { reactor_->OnDone(); }) {
    v1::WatchRequest request;
    request.mutable_caller()->set_job(job);
    request.set_prefix(true);
    // Short, so that the watch is answered, written and repeated all the time.
    request.mutable_timeout()->set_nanos(1'000'000);
    // Operations that were started before BindReactor wait for it.
    grpc::ByteBuffer bytes = ToByteBuffer(request);
    reactor_ = StartWatch(context, nullptr, &bytes);
    BindReactor(reactor_);
    Bound();
  }

  void Cancel() {
    MutexLock lock(mu_);
    if (!finished_) React([this] { reactor_->OnCancel(); });
  }

 private:
  grpc::internal::ServerReactor* reactor() override { return reactor_; }
  void CallOnDone() override {}
  void SendInitialMetadata() override {}
  void WriteAndFinish(const v1::WatchResponse*, grpc::WriteOptions,
                      grpc::Status) override {
    ADD_FAILURE() << "not used";
  }
  void Write(const v1::WatchResponse* response, grpc::WriteOptions) override {
    MutexLock lock(mu_);
    EXPECT_FALSE(writing_) << "two writes at a time";
    EXPECT_FALSE(finished_) << "a write after Finish";
    EXPECT_GE(response->revision(), revision_);
    for (const v1::KeyChange& change : response->changes()) {
      EXPECT_GT(change.revision(), revision_) << "told twice";
      EXPECT_LE(change.revision(), response->revision());
    }
    revision_ = response->revision();
    writing_ = true;
    React([this] {
      {
        MutexLock lock(mu_);
        writing_ = false;
      }
      reactor_->OnWriteDone(true);
    });
  }
  void Finish(grpc::Status) override {
    MutexLock lock(mu_);
    EXPECT_FALSE(finished_) << "a second Finish";
    finished_ = true;
    React([] {});
  }

  grpc::ServerWriteReactor<v1::WatchResponse>* reactor_ = nullptr;
  bool writing_ MUSTER_GUARDED_BY(mu_) = false;
  int64_t revision_ MUSTER_GUARDED_BY(mu_) = 0;
};

Driver::Options DriverOptions(Metrics* metrics, FairQueue* fair_queue) {
  Driver::Options options;
  options.core.membership.lease = milliseconds(50);
  options.core.membership.reconnect_grace = milliseconds(5);
  options.epoch = core::CoordinatorEpoch(1);
  options.jobs_max = 10;
  options.log_notices = false;
  options.metrics = metrics;
  options.fair_queue = fair_queue;
  return options;
}

class ReactorRaceTest : public ::testing::Test {
 protected:
  ReactorRaceTest()
      : metrics_([] { return Gauges(); }),
        driver_(DriverOptions(&metrics_, &fair_queue_)),
        context_{&driver_,     &metrics_, &open_calls_, 1 << 20,
                 &fair_queue_, nullptr,   &unsent_},
        sessions_(context_, {1000, seconds(60)}) {
    driver_.Start([this](core::Instant now) { sessions_.Sweep(now); });
  }
  ~ReactorRaceTest() override { driver_.Stop(); }

  std::unique_ptr<FakeStream> NewStream(Pool& pool) {
    return std::make_unique<FakeStream>(pool, sessions_, context_);
  }

  // Runs one client, or one relay, from its first to its last call.
  void Live(Pool& pool, uint64_t seed);
  void LiveRelayed(Pool& pool, uint64_t seed);

  Metrics metrics_;
  FairQueue fair_queue_{2};
  Driver driver_;
  OpenCalls open_calls_;
  UnsentAnswers unsent_{1 << 30};
  const ServiceContext context_;
  SessionTable sessions_;
};

v1::StreamRequest Batch(std::mt19937_64& random, uint64_t* id) {
  v1::StreamRequest batch;
  const auto key = [&] { return "k" + std::to_string(random() % 8); };
  if (random() % 4 == 0) batch.mutable_heartbeat();
  // Sometimes more than may be done without a turn.
  for (uint64_t n = random() % 8 == 0 ? 1500 : random() % 6; n > 0; --n) {
    v1::Operation* operation = batch.add_operations();
    operation->set_id(++*id);
    switch (random() % 6) {
      case 0:
        operation->mutable_get()->set_key(key());
        operation->mutable_get()->mutable_timeout()->set_nanos(
            static_cast<int32_t>(random() % 5'000'000));
        break;
      case 1:
        operation->mutable_set()->set_key(key());
        operation->mutable_set()->set_value("v");
        break;
      case 2:
        operation->mutable_delete_()->set_key(key());
        break;
      case 3:
        operation->mutable_cancel()->set_id(random() % (*id + 1));
        break;
      case 4:
        operation->mutable_join()->set_rank(-1);
        operation->mutable_join()->set_world_size(2);
        operation->mutable_join()->mutable_timeout()->set_nanos(1'000'000);
        break;
      default:
        operation->mutable_await_barrier()->set_group("world");
        operation->mutable_await_barrier()->set_name("b");
        operation->mutable_await_barrier()->set_rank(
            static_cast<int32_t>(random() % 2));
        operation->mutable_await_barrier()->mutable_timeout()->set_nanos(
            1'000'000);
        break;
    }
  }
  return batch;
}

void ReactorRaceTest::Live(Pool& pool, uint64_t seed) {
  std::mt19937_64 random(seed);
  for (int round = 0; round < 15; ++round) {
    const std::unique_ptr<FakeStream> stream = NewStream(pool);
    v1::StreamRequest hello;
    v1::Caller* caller = hello.mutable_hello()->mutable_caller();
    caller->set_job(random() % 4 == 0 ? "other" : "j");
    if (random() % 4 != 0) {
      // Few names, so that streams and incarnations replace each other.
      caller->set_member("m" + std::to_string(random() % 3));
      caller->set_incarnation(1 + random() % 40);
      hello.mutable_hello()->mutable_registration()->set_host("h");
    }
    stream->Send(hello);
    uint64_t id = 0;
    for (uint64_t n = random() % 8; n > 0; --n) {
      stream->Send(Batch(random, &id));
    }
    FakeGet get(pool, context_, "j", "k" + std::to_string(random() % 8));
    FakeWatch watch(pool, context_, "j");
    if (random() % 2 == 0) stream->HalfClose();
    get.Cancel();
    get.AwaitDone();
    watch.Cancel();
    watch.AwaitDone();
    stream->Cancel();
    stream->AwaitDone();
  }
}

void ReactorRaceTest::LiveRelayed(Pool& pool, uint64_t seed) {
  std::mt19937_64 random(seed);
  for (int round = 0; round < 10; ++round) {
    FakeRelay relay(pool, sessions_, context_);
    constexpr uint64_t kSessions = 4;
    std::map<uint64_t, size_t> sent;
    v1::RelayRequest request;
    const auto add = [&](uint64_t session) {
      request.add_frames()->set_session(session);
      return &*request.mutable_frames()->rbegin();
    };
    const auto add_message = [&](uint64_t session,
                                 const v1::StreamRequest& message) {
      const std::string bytes = message.SerializeAsString();
      // Within the first window.
      if ((sent[session] += bytes.size() + 16) > 60'000) return;
      add(session)->set_last_part(bytes);
    };
    for (uint64_t n = 1; n <= kSessions; ++n) {
      add(n)->set_open(true);
      v1::StreamRequest hello;
      v1::Caller* caller = hello.mutable_hello()->mutable_caller();
      caller->set_job("j");
      if (random() % 4 != 0) {
        caller->set_member("m" + std::to_string(random() % 3));
        caller->set_incarnation(1 + random() % 40);
        hello.mutable_hello()->mutable_registration()->set_host("h");
      }
      add_message(n, hello);
    }
    uint64_t id = 0;
    for (uint64_t messages = random() % 12; messages > 0; --messages) {
      const uint64_t n = 1 + random() % kSessions;
      add_message(n, Batch(random, &id));
      if (random() % 2 == 0) {
        relay.Send(request);
        request.Clear();
      }
    }
    for (uint64_t n = 1; n <= kSessions; ++n) {
      const uint64_t how = random() % 3;
      if (how == 0) add(n)->mutable_end();
      if (how == 1) add(n)->set_half_close(true);
    }
    relay.Send(request);
    if (random() % 2 == 0) {
      relay.HalfClose();
    } else {
      relay.Cancel();
    }
    relay.AwaitDone();
  }
}

TEST_F(ReactorRaceTest, RelaysAndStreamsThatReplaceEachOther) {
  Pool pool(4);
  std::vector<std::thread> clients;
  for (uint64_t seed = 1; seed <= 4; ++seed) {
    clients.emplace_back([this, &pool, seed] { LiveRelayed(pool, seed); });
  }
  clients.emplace_back([this, &pool] { Live(pool, 5); });
  for (std::thread& client : clients) client.join();
  EXPECT_TRUE(
      open_calls_.AwaitNone(std::chrono::steady_clock::now() + seconds(30)));
  EXPECT_EQ(sessions_.size(), 0);
  EXPECT_EQ(sessions_.relays(), 0);
  for (const std::shared_ptr<Job>& job : driver_.Jobs()) {
    EXPECT_TRUE(job->ParkedSinks().empty());
  }
}

TEST_F(ReactorRaceTest, StreamsAndCallsThatComeGoAndReplaceEachOther) {
  Pool pool(4);
  std::vector<std::thread> clients;
  for (uint64_t seed = 1; seed <= 6; ++seed) {
    clients.emplace_back([this, &pool, seed] { Live(pool, seed); });
  }
  for (std::thread& client : clients) client.join();
  // A turn may be running when gRPC has finished its stream.
  EXPECT_TRUE(
      open_calls_.AwaitNone(std::chrono::steady_clock::now() + seconds(30)));
  EXPECT_EQ(sessions_.size(), 0);
  for (const std::shared_ptr<Job>& job : driver_.Jobs()) {
    EXPECT_TRUE(job->ParkedSinks().empty());
  }
}

TEST_F(ReactorRaceTest, DrainWhileEverybodyTalks) {
  Pool pool(4);
  std::vector<std::unique_ptr<FakeStream>> streams;
  std::vector<std::unique_ptr<FakeGet>> gets;
  std::vector<std::unique_ptr<FakeWatch>> watches;
  std::mt19937_64 random(7);
  uint64_t id = 0;
  for (int i = 0; i < 40; ++i) {
    streams.push_back(NewStream(pool));
    v1::StreamRequest hello;
    hello.mutable_hello()->mutable_caller()->set_job("j");
    streams.back()->Send(hello);
    for (int n = 0; n < 5; ++n) streams.back()->Send(Batch(random, &id));
    gets.push_back(std::make_unique<FakeGet>(pool, context_, "j", "never"));
    watches.push_back(std::make_unique<FakeWatch>(pool, context_, "j"));
  }
  const Status status = UnavailableError("the coordinator drains");
  sessions_.Drain(status);
  do {
    // A watch may have been between two waits.
    driver_.Drain(status);
  } while (!open_calls_.AwaitNone(std::chrono::steady_clock::now() +
                                  milliseconds(5)));
  for (const auto& stream : streams) stream->AwaitDone();
  for (const auto& get : gets) get->AwaitDone();
  for (const auto& watch : watches) watch->AwaitDone();
  EXPECT_EQ(sessions_.size(), 0);
  EXPECT_FALSE(driver_.GetJob("j").ok());
}

// Otherwise the client of an answered call would send it again, to a server
// that may never come.
TEST_F(ReactorRaceTest, ADrainSendsTheAnswersThatWait) {
  Pool pool(1);
  const auto waiting = NewStream(pool);
  const auto setter = NewStream(pool);
  std::promise<void> gate;
  pool.Post([&gate] { gate.get_future().wait(); });
  v1::StreamRequest get;
  get.mutable_hello()->mutable_caller()->set_job("j");
  get.add_operations()->mutable_set()->set_key("other");
  get.mutable_operations(0)->set_id(1);
  get.add_operations()->mutable_get()->set_key("k");
  get.mutable_operations(1)->set_id(2);
  waiting->Send(get);
  // The second call is answered while the first answer is being written.
  v1::StreamRequest set;
  set.mutable_hello()->mutable_caller()->set_job("j");
  set.add_operations()->mutable_set()->set_key("k");
  set.mutable_operations(0)->set_id(1);
  setter->Send(set);
  pool.Post(
      [this] { sessions_.Drain(UnavailableError("the coordinator drains")); });
  gate.set_value();
  waiting->AwaitDone();
  setter->AwaitDone();
  EXPECT_EQ(waiting->results(), 2);
  EXPECT_EQ(setter->results(), 1);
}

// The answer was in a step that was being stored when the drain ended the call.
TEST_F(ReactorRaceTest, AnAnswerToACallThatADrainHasEndedIsNotCounted) {
  Pool pool(1);
  FakeGet get(pool, context_, "j", "never");
  const std::vector<std::shared_ptr<Sink>> parked =
      (*driver_.FindJob("j"))->ParkedSinks();
  ASSERT_EQ(parked.size(), 1u);
  parked[0]->Close(UnavailableError("the coordinator drains"));
  get.AwaitDone();
  Answer answer;
  answer.payload = core::ValueReply{
      std::make_shared<const std::string>(UnsentAnswers::kBytesMin, 'v'), 1};
  parked[0]->Deliver(absl::MakeSpan(&answer, 1));
  EXPECT_EQ(unsent_.bytes(), 0);
}

// One session releases the waiters of many others, which write at the same
// time.
TEST_F(ReactorRaceTest, FanOutReachesEveryWaiterOnce) {
  Pool pool(4);
  constexpr int kStreams = 16;
  constexpr int kWaitersEach = 8;
  std::vector<std::unique_ptr<FakeStream>> streams;
  for (int i = 0; i < kStreams; ++i) {
    streams.push_back(NewStream(pool));
    v1::StreamRequest request;
    request.mutable_hello()->mutable_caller()->set_job("j");
    for (int n = 1; n <= kWaitersEach; ++n) {
      v1::Operation* operation = request.add_operations();
      operation->set_id(static_cast<uint64_t>(n));
      operation->mutable_get()->set_key("k");
    }
    streams.back()->Send(request);
    streams.back()->HalfClose();
  }
  const auto setter = NewStream(pool);
  v1::StreamRequest set;
  set.mutable_hello()->mutable_caller()->set_job("j");
  set.add_operations()->mutable_set()->set_key("k");
  setter->Send(set);
  setter->HalfClose();
  setter->AwaitDone();
  for (const auto& stream : streams) {
    stream->AwaitDone();
    EXPECT_EQ(stream->results(), kWaitersEach);
  }
}

// Makes each turn of a queue of one thread cost the same.
FairQueue::Clock EqualCosts() {
  return
      [time = core::Duration()]() mutable { return time += milliseconds(1); };
}

// Waits until every reaction that is posted now has run.
void AwaitReactions(Pool& pool) {
  std::promise<void> reached;
  pool.Post([&reached] { reached.set_value(); });
  reached.get_future().wait();
}

TEST_F(ReactorRaceTest, AFloodOfOneJobLeavesTheOthersTheirTurns) {
  Pool pool(1);
  FairQueue fair_queue(1, EqualCosts());
  const ServiceContext context{&driver_,    &metrics_, &open_calls_, 1 << 20,
                               &fair_queue, nullptr,   &unsent_};
  SessionTable sessions(context, {1000, seconds(60)});
  const auto open = [&](const std::string& job, int operations) {
    auto stream = std::make_unique<FakeStream>(pool, sessions, context);
    v1::StreamRequest request;
    request.mutable_hello()->mutable_caller()->set_job(job);
    for (int i = 1; i <= operations; ++i) {
      v1::Operation* operation = request.add_operations();
      operation->set_id(static_cast<uint64_t>(i));
      operation->mutable_set()->set_key("k");
    }
    stream->Send(request);
    stream->HalfClose();
    return stream;
  };
  // Until the messages of all streams have been read and wait.
  std::promise<void> released;
  fair_queue.Post(nullptr, nullptr,
                  [&released] { released.get_future().wait(); });
  std::vector<std::unique_ptr<FakeStream>> floods;
  floods.reserve(8);
  for (int i = 0; i < 8; ++i) floods.push_back(open("flood", 20'000));
  const auto honest = open("honest", 1'000);
  AwaitReactions(pool);
  AwaitReactions(pool);  // to the writes of the welcomes
  int64_t flooded = -1;
  honest->OnResults([&] {
    if (flooded < 0) flooded = (*driver_.FindJob("flood"))->operations().total;
  });
  released.set_value();
  honest->AwaitDone();
  for (const auto& flood : floods) flood->AwaitDone();
  EXPECT_EQ(honest->results(), 1'000);
  EXPECT_LE(flooded, 1024);  // one turn
  EXPECT_EQ((*driver_.FindJob("flood"))->operations().total, 8 * 20'000);
  fair_queue.Stop();
}

// Parsing counts towards the cost of a call.
TEST_F(ReactorRaceTest, LargeUnaryCallsOfOneJobLeaveTheOthersTheirTurns) {
  using FakeSet = FakeUnary<v1::SetRequest, v1::SetResponse>;
  Pool pool(1);
  FairQueue fair_queue(1, EqualCosts());
  const ServiceContext context{&driver_,    &metrics_, &open_calls_, 1 << 20,
                               &fair_queue, nullptr,   &unsent_};
  const auto set = [](const std::string& job) {
    v1::SetRequest request;
    request.mutable_caller()->set_job(job);
    request.set_key("k");
    request.set_value(std::string(FairQueue::kBytesWithoutTurn, 'v'));
    return request;
  };
  const std::shared_ptr<Job> flood_job = *driver_.GetJob("flood");
  ASSERT_TRUE(driver_.GetJob("honest").ok());
  // Until all calls wait.
  std::promise<void> released;
  fair_queue.Post(nullptr, nullptr,
                  [&released] { released.get_future().wait(); });
  std::vector<std::unique_ptr<FakeSet>> floods;
  for (int i = 0; i < 24; ++i) {
    floods.push_back(
        std::make_unique<FakeSet>(pool, context, Method::kSet, set("flood")));
  }
  int64_t flooded = -1;
  FakeSet honest(pool, context, Method::kSet, set("honest"),
                 [&] { flooded = flood_job->operations().total; });
  released.set_value();
  honest.AwaitDone();
  for (const auto& flood : floods) flood->AwaitDone();
  EXPECT_LE(flooded, 3);
  EXPECT_EQ(flood_job->operations().total, 24);
  fair_queue.Stop();
}

// A coordinator whose turns do not run until they are released, and whose
// reactions run one after another.
class NoTurnsTest : public ::testing::Test {
 protected:
  NoTurnsTest() {
    fair_queue_.Post(nullptr, nullptr,
                     [this] { released_.get_future().wait(); });
  }

  std::unique_ptr<FakeStream> Open(const std::string& job,
                                   const v1::StreamRequest& operations) {
    auto stream = std::make_unique<FakeStream>(pool_, sessions_, context_);
    v1::StreamRequest request = operations;
    request.mutable_hello()->mutable_caller()->set_job(job);
    stream->Send(request);
    stream->HalfClose();
    return stream;
  }

  static v1::StreamRequest Set(const std::string& key) {
    v1::StreamRequest request;
    request.add_operations()->mutable_set()->set_key(key);
    return request;
  }

  int64_t Operations(const std::string& job) {
    return (*driver_.FindJob(job))->operations().total;
  }

  Metrics metrics_{[] { return Gauges(); }};
  FairQueue fair_queue_{1};
  Driver driver_{DriverOptions(&metrics_, &fair_queue_)};
  OpenCalls open_calls_;
  UnsentAnswers unsent_{1 << 30};
  const ServiceContext context_{&driver_,     &metrics_, &open_calls_, 1 << 20,
                                &fair_queue_, nullptr,   &unsent_};
  SessionTable sessions_{context_, {1000, seconds(60)}};
  Pool pool_{1};
  std::promise<void> released_;
};

TEST_F(NoTurnsTest, WhatAsksForMuchWaitsForATurnAndASmallCallDoesNot) {
  v1::StreamRequest list;
  list.add_operations()->mutable_list_keys();
  v1::StreamRequest multi_get;
  multi_get.add_operations()->mutable_multi_get()->add_keys("k0");
  v1::StreamRequest multi_set;
  v1::MultiSetRequest& entries =
      *multi_set.add_operations()->mutable_multi_set();
  for (int i = 0; i < 1000; ++i) {
    v1::KeyValue& entry = *entries.add_entries();
    entry.set_key("k" + std::to_string(i));
    entry.set_value(std::string(64, 'v'));
  }
  std::vector<std::unique_ptr<FakeStream>> floods;
  for (const auto& request : {list, multi_get, multi_set}) {
    floods.push_back(Open("flood", request));
  }
  const auto honest = Open("honest", Set("k"));
  honest->AwaitDone();
  EXPECT_EQ(honest->results(), 1);
  EXPECT_EQ(Operations("flood"), 0);
  released_.set_value();
  for (const auto& flood : floods) {
    flood->AwaitDone();
    EXPECT_EQ(flood->results(), 1);
  }
  fair_queue_.Stop();
}

TEST_F(NoTurnsTest, WhatManyAreToldIsToldInTurns) {
  constexpr int kWaiters = 40;
  v1::StreamRequest get;
  get.add_operations()->mutable_get()->set_key("k");
  std::vector<std::unique_ptr<FakeStream>> waiters;
  for (int i = 0; i < kWaiters; ++i) waiters.push_back(Open("flood", get));
  const auto setter = Open("flood", Set("k"));
  const auto honest = Open("honest", Set("k"));
  honest->AwaitDone();
  EXPECT_EQ(honest->results(), 1);
  for (const auto& waiter : waiters) EXPECT_EQ(waiter->results(), 0);
  released_.set_value();
  setter->AwaitDone();
  for (const auto& waiter : waiters) {
    waiter->AwaitDone();
    EXPECT_EQ(waiter->results(), 1);
  }
  fair_queue_.Stop();
}

TEST_F(NoTurnsTest, NobodyWaitsForALongStepOnAThreadThatOthersNeed) {
  const std::shared_ptr<Job> job = *driver_.GetJob("flood");
  std::unique_ptr<FakeStream> flood;
  {
    const Job::LongStep step(*job);
    flood = Open("flood", Set("k"));
    const auto honest = Open("honest", Set("k"));
    honest->AwaitDone();
    EXPECT_EQ(job->operations().total, 0);
  }
  released_.set_value();
  flood->AwaitDone();
  EXPECT_EQ(flood->results(), 1);
  fair_queue_.Stop();
}

}  // namespace
}  // namespace muster::coordinator
