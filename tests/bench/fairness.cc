#include "tests/bench/fairness.h"

#include <poll.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <iostream>
#include <latch>
#include <memory>
#include <stdexcept>
#include <thread>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "muster/errors.h"
#include "muster/session.h"
#include "muster/store.h"
#include "tests/bench/child.h"

namespace muster::bench {
namespace {

using std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;

// The largest accepted slowdown of a Set by another job's flood.
constexpr double kRatioMax = 1.2;

// The pause between two Sets, which keeps their load small.
void Pause() { poll(nullptr, 0, /*timeout=*/1); }

std::shared_ptr<Session> Connect(const std::string& address,
                                 const std::string& job,
                                 const std::string& member) {
  return Session::Connect({.address = address, .job = job, .member = member});
}

// The repeated step of one thread of a flood.
using Step = std::function<void()>;

// Writes `count` keys from `prefix`0 on, in batches.
void Fill(CoordinatorStore& store, const std::string& prefix, int count) {
  std::vector<std::string> keys;
  for (int i = 0; i < count; ++i) {
    keys.push_back(absl::StrCat(prefix, i));
    if (keys.size() < 1000 && i + 1 < count) continue;
    store.MultiSet(keys, std::vector<std::string>(keys.size()));
    keys.clear();
  }
}

Step List(std::shared_ptr<CoordinatorStore> store, int caller, int keys) {
  if (caller == 0) Fill(*store, "listed/", keys);
  return [store] { store->ListKeys(""); };
}

Step Watch(std::shared_ptr<CoordinatorStore> store, int caller, int) {
  if (caller == 0) {
    return [store, n = 0]() mutable {
      store->Set(absl::StrCat("hot/", n++ % 10), "value");
    };
  }
  const auto watch = [store] {
    return std::shared_ptr<StoreWatch>(store->Watch("hot/", {.prefix = true}));
  };
  return [watch, open = watch()]() mutable {
    try {
      open->Next(milliseconds(100));
    } catch (const DistStoreError&) {
      open = watch();  // More has changed than the history keeps.
    }
  };
}

Step SetMany(std::shared_ptr<CoordinatorStore> store, int caller, int) {
  std::vector<std::string> keys;
  for (int i = 0; i < 1000; ++i) keys.push_back(absl::StrCat(caller, "/", i));
  const std::vector<std::string> values(keys.size(), std::string(64, 'v'));
  return [store, keys, values] { store->MultiSet(keys, values); };
}

Step SetOne(std::shared_ptr<CoordinatorStore> store, int caller, int) {
  return [store, key = absl::StrCat("key/", caller)] {
    store->Set(key, std::string(64, 'v'));
  };
}

// A flood of one job.
struct FloodKind {
  std::string name;
  std::string words;
  int sessions = 1;
  Step (*step)(std::shared_ptr<CoordinatorStore> store, int caller, int keys);
};

const FloodKind& GetKind(const std::string& name) {
  static const auto* const kinds = new std::vector<FloodKind>{
      {"list", "8 clients that list many keys", 8, &List},
      {"watch", "40 watchers of one prefix", 41, &Watch},
      {"multiset", "4 sessions of MultiSet of 1000", 4, &SetMany},
      {"set", "8 sessions of Set", 8, &SetOne}};
  for (const FloodKind& kind : *kinds) {
    if (kind.name == name) return kind;
  }
  throw std::runtime_error(absl::StrCat("there is no flood \"", name, "\""));
}

double Quantile(std::vector<double>& values, double quantile) {
  std::sort(values.begin(), values.end());
  const auto last = static_cast<double>(values.size() - 1);
  return values[static_cast<size_t>(quantile * last + 0.5)];
}

// A caller that sets one key in one coordinator.
class Victim {
 public:
  explicit Victim(const std::string& address)
      : store_(Connect(address, "victim", "victim")) {}

  void Set() {
    const Clock::time_point start = Clock::now();
    store_.Set("key", "value");
    latencies_us_.push_back(
        std::chrono::duration<double, std::micro>(Clock::now() - start)
            .count());
  }
  void Forget() { latencies_us_.clear(); }
  std::vector<double> Take() { return std::exchange(latencies_us_, {}); }

 private:
  CoordinatorStore store_;
  std::vector<double> latencies_us_;
};

// Results of all rounds.
struct Seen {
  std::vector<double> flooded_us;
  std::vector<double> undisturbed_us;
  double steps = 0;  // of the flood
};

void MeasureRound(const FairnessOptions& options, Seen& seen) {
  Victim flooded(options.flooded);
  Victim undisturbed(options.undisturbed);
  Child flood({options.self, absl::StrCat("--flood=", options.flood, ";",
                                          options.flooded, ";", options.keys)});
  flood.ReadLine();
  flooded.Set();
  undisturbed.Set();
  flooded.Forget();
  undisturbed.Forget();
  const Clock::time_point end = Clock::now() + options.round;
  do {
    flooded.Set();
    Pause();
    undisturbed.Set();
    Pause();
  } while (Clock::now() < end);
  // Throws if the flood has ended.
  flood.WriteLine("how much");
  seen.steps += std::stod(flood.ReadLine());
  const auto add = [](std::vector<double> from, std::vector<double>& to) {
    to.insert(to.end(), from.begin(), from.end());
  };
  add(flooded.Take(), seen.flooded_us);
  add(undisturbed.Take(), seen.undisturbed_us);
}

}  // namespace

std::vector<Figure> MeasureFairness(const FairnessOptions& options) {
  const FloodKind& kind = GetKind(options.flood);
  Seen seen;
  for (int round = 0; round < options.rounds; ++round) {
    MeasureRound(options, seen);
  }
  std::cout << absl::StrFormat(
      "fairness %s: the flood does %.0f a second\n", kind.name,
      1000 * seen.steps /
          static_cast<double>(options.round.count() * options.rounds));
  std::vector<Figure> figures;
  for (const auto& [words, quantile, target] :
       {std::tuple("p50", 0.5, 0.0), std::tuple("p99", 0.99, kRatioMax)}) {
    figures.push_back(
        {.name =
             absl::StrCat("fairness ", kind.name, ": another job's Set beside ",
                          kind.words, " ", words),
         .value = Quantile(seen.flooded_us, quantile),
         .unit = "us",
         .reference = "the same, in another coordinator",
         .reference_value = Quantile(seen.undisturbed_us, quantile),
         .target = target});
    std::cout << absl::StrFormat("%s: %.0f us, x %.2f\n", figures.back().name,
                                 figures.back().value, figures.back().Ratio());
  }
  return figures;
}

void Flood(const std::string& what) {
  const std::vector<std::string> words = absl::StrSplit(what, ';');
  if (words.size() != 3) {
    throw std::runtime_error(absl::StrCat("--flood: \"", what, "\""));
  }
  const FloodKind& kind = GetKind(words[0]);
  std::vector<Step> steps;
  for (int caller = 0; caller < kind.sessions; ++caller) {
    steps.push_back(
        kind.step(std::make_shared<CoordinatorStore>(Connect(
                      words[1], "flood", absl::StrCat("flood", caller))),
                  caller, std::stoi(words[2])));
  }
  std::atomic<int64_t> done = 0;
  std::latch begun(kind.sessions);
  std::vector<std::thread> threads;
  for (const Step& step : steps) {
    threads.emplace_back([&step, &done, &begun] {
      step();
      begun.count_down();
      while (true) {
        step();
        ++done;
      }
    });
  }
  begun.wait();
  done = 0;
  std::cout << "floods" << std::endl;
  std::string line;
  std::getline(std::cin, line);
  std::cout << done << std::endl;
  for (std::thread& thread : threads) thread.join();
}

}  // namespace muster::bench
