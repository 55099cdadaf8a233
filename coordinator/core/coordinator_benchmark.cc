// The cost of an operation in the core alone: admission, deduplication, the
// store and the answer.

#include <string>
#include <vector>

#include "benchmark/benchmark.h"
#include "coordinator/core/coordinator.h"

namespace muster::coordinator::core {
namespace {

constexpr int kKeys = 10000;
const Instant t0{std::chrono::seconds(1000)};

// A coordinator with `members` registered members and kKeys keys.
class Fixture {
 public:
  explicit Fixture(int members) {
    for (int i = 0; i < members; ++i) {
      coordinator_.Register(MemberCall(i), {.host = "h"}, t0, out_);
    }
    for (int i = 0; i < kKeys; ++i) {
      keys_.push_back("job/group/key-" + std::to_string(i * 7919 % kKeys));
      Set(Call(), keys_.back(), std::string(100, 'v'));
    }
    out_.Clear();
  }

  Call MemberCall(int i) {
    Call call;
    call.member = MemberId("trainer-" + std::to_string(i));
    call.incarnation = Incarnation(1);
    return call;
  }

  void Set(const Call& call, const std::string& key, std::string value) {
    coordinator_.Mutate(call, "Set", t0, out_, [&](StoreEngine& store) {
      store.Set(call, key, std::move(value), {}, t0, out_);
    });
  }
  void Get(const Call& call, const std::string& key) {
    coordinator_.Read(call, t0, out_, [&](StoreEngine& store) {
      store.Get(call, key, std::chrono::seconds(1), t0, out_);
    });
  }

  const std::string& NextKey() { return keys_[next_++ % kKeys]; }

  Coordinator coordinator_{CoordinatorEpoch(1), CoordinatorOptions()};
  Outbox out_;

 private:
  std::vector<std::string> keys_;
  size_t next_ = 0;
};

void BM_Set(benchmark::State& state) {
  Fixture fixture(64);
  Call call = fixture.MemberCall(17);
  uint64_t sequence = 0;
  for (auto _ : state) {
    call.sequence = SequenceNumber(++sequence);
    call.acknowledged_through =
        SequenceNumber(sequence > 16 ? sequence - 16 : 0);
    fixture.Set(call, fixture.NextKey(), std::string(100, 'w'));
    fixture.out_.Clear();
  }
  state.SetItemsProcessed(state.iterations());
}
BENCHMARK(BM_Set);

void BM_Get(benchmark::State& state) {
  Fixture fixture(64);
  const Call call = fixture.MemberCall(17);
  for (auto _ : state) {
    fixture.Get(call, fixture.NextKey());
    fixture.out_.Clear();
  }
  state.SetItemsProcessed(state.iterations());
}
BENCHMARK(BM_Get);

void BM_Add(benchmark::State& state) {
  Fixture fixture(64);
  Call call = fixture.MemberCall(17);
  uint64_t sequence = 0;
  for (auto _ : state) {
    call.sequence = SequenceNumber(++sequence);
    call.acknowledged_through = SequenceNumber(sequence - 1);
    fixture.coordinator_.Mutate(call, "Add", t0, fixture.out_,
                                [&](StoreEngine& store) {
                                  store.Add(call, "counter", 1, fixture.out_);
                                });
    fixture.out_.Clear();
  }
  state.SetItemsProcessed(state.iterations());
}
BENCHMARK(BM_Add);

// One key releases many parked calls.
void BM_Release(benchmark::State& state) {
  Fixture fixture(0);
  const int64_t waiters = state.range(0);
  uint64_t waiter = 0;
  for (auto _ : state) {
    for (int64_t i = 0; i < waiters; ++i) {
      Call call;
      call.waiter = WaiterId(++waiter);
      fixture.Get(call, "new");
    }
    fixture.Set(Call(), "new", "v");
    fixture.coordinator_.Mutate(Call(), "Delete", t0, fixture.out_,
                                [&](StoreEngine& store) {
                                  store.DeleteKey(Call(), "new", fixture.out_);
                                });
    fixture.out_.Clear();
  }
  state.SetItemsProcessed(state.iterations() * waiters);
}
BENCHMARK(BM_Release)->Arg(512);

// Registration, rendezvous and one barrier of many members.
void BM_RendezvousAndBarrier(benchmark::State& state) {
  const int members = static_cast<int>(state.range(0));
  for (auto _ : state) {
    Fixture fixture(members);
    uint64_t waiter = 0;
    for (int i = 0; i < members; ++i) {
      Call call = fixture.MemberCall(i);
      call.waiter = WaiterId(++waiter);
      fixture.coordinator_.Join(call,
                                {.rank = Rank(i),
                                 .world_size = members,
                                 .timeout = std::chrono::seconds(30)},
                                t0, fixture.out_);
    }
    BarrierRequest request;
    request.barrier = "b";
    request.timeout = std::chrono::seconds(30);
    for (int i = 0; i < members; ++i) {
      Call call = fixture.MemberCall(i);
      call.waiter = WaiterId(++waiter);
      request.rank = Rank(i);
      fixture.coordinator_.Arrive(call, request, t0, fixture.out_);
    }
  }
  state.SetItemsProcessed(state.iterations() * members);
}
BENCHMARK(BM_RendezvousAndBarrier)->Arg(1000)->Unit(benchmark::kMillisecond);

// Each of n members watches a key of its own; all keys are set at once.
void BM_WatchesOfManyKeys(benchmark::State& state) {
  Fixture fixture(0);
  const int64_t watches = state.range(0);
  std::vector<std::string> keys;
  for (int64_t i = 0; i < watches; ++i) {
    keys.push_back("watched-" + std::to_string(i));
  }
  Call call;
  for (auto _ : state) {
    const int64_t revision = fixture.coordinator_.Snapshot(t0).revision;
    for (const std::string& key : keys) {
      call.waiter = WaiterId(call.waiter.value() + 1);
      fixture.coordinator_.Read(
          call, t0, fixture.out_, [&](StoreEngine& store) {
            store.Watch(call, {{key, false}, revision, std::chrono::seconds(1)},
                        t0, fixture.out_);
          });
    }
    fixture.coordinator_.Mutate(
        call, "MultiSet", t0, fixture.out_, [&](StoreEngine& store) {
          store.MultiSet(call, keys, std::vector<std::string>(keys.size(), "v"),
                         fixture.out_);
        });
    fixture.out_.Clear();
  }
  state.SetItemsProcessed(state.iterations() * watches);
}
BENCHMARK(BM_WatchesOfManyKeys)->Arg(1000)->Arg(10000);

// An elastic world of n loses a member: n spares and n - 1 members wait for the
// last one.
void BM_ElasticJoinsWithSpares(benchmark::State& state) {
  const int32_t seats = static_cast<int32_t>(state.range(0));
  for (auto _ : state) {
    Fixture fixture(2 * seats);
    const auto join = [&](int32_t i) {
      Call call = fixture.MemberCall(i);
      call.waiter = WaiterId(static_cast<uint64_t>(i) + 1);
      fixture.coordinator_.Join(call,
                                {.timeout = std::chrono::seconds(30),
                                 .min_world_size = seats,
                                 .max_world_size = seats},
                                t0, fixture.out_);
    };
    for (int32_t i = 0; i < seats; ++i) join(i);
    fixture.coordinator_.ReportFailure(fixture.MemberCall(0),
                                       {.text = "broken"}, t0, fixture.out_);
    for (int32_t i = seats; i < 2 * seats; ++i) join(i);
    for (int32_t i = 1; i < seats - 1; ++i) join(i);
  }
  state.SetItemsProcessed(state.iterations() * 3 * seats);
}
BENCHMARK(BM_ElasticJoinsWithSpares)
    ->Arg(1000)
    ->Arg(4000)
    ->Unit(benchmark::kMillisecond);

// All members of a job leave within a second.
void BM_EndOfJob(benchmark::State& state) {
  const int32_t members = static_cast<int32_t>(state.range(0));
  for (auto _ : state) {
    Fixture fixture(members);
    for (int32_t i = 0; i < members; ++i) {
      fixture.coordinator_.Join(fixture.MemberCall(i),
                                {.rank = Rank(i),
                                 .world_size = members,
                                 .timeout = std::chrono::seconds(30)},
                                t0, fixture.out_);
    }
    for (int32_t i = 0; i < members; ++i) {
      fixture.coordinator_.Leave(
          fixture.MemberCall(i), "finished",
          t0 + i * Duration(std::chrono::seconds(1)) / members, fixture.out_);
    }
  }
  state.SetItemsProcessed(state.iterations() * members);
}
BENCHMARK(BM_EndOfJob)->Arg(800)->Arg(10000)->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace muster::coordinator::core

BENCHMARK_MAIN();
