// Callers of one job, for fleet_bench.py: threads with a session each, which
// set a key in a loop.
//
//   fleet_caller ADDRESSES JOB SESSIONS
//
// Prints "ready" and, for each line that it reads, what happened since the line
// before: `OPERATIONS P50_US P99_US GAP_MS`. GAP_MS is the longest time between
// two answers to one thread.

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <iostream>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "muster/session.h"
#include "muster/store.h"

namespace muster::bench {
namespace {

using Clock = std::chrono::steady_clock;

class Results {
 public:
  void Add(std::chrono::duration<double> latency,
           std::chrono::duration<double> gap) {
    const std::lock_guard<std::mutex> lock(mutex_);
    latencies_us_.push_back(latency.count() * 1e6);
    gap_ms_ = std::max(gap_ms_, gap.count() * 1e3);
  }

  std::string Take() {
    std::vector<double> latencies_us;
    double gap_ms = 0;
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      std::swap(latencies_us, latencies_us_);
      std::swap(gap_ms, gap_ms_);
    }
    std::sort(latencies_us.begin(), latencies_us.end());
    const auto quantile = [&](double part) {
      if (latencies_us.empty()) return 0.0;
      const auto last = static_cast<double>(latencies_us.size() - 1);
      return latencies_us[static_cast<size_t>(part * last + 0.5)];
    };
    return absl::StrFormat("%d %f %f %f", latencies_us.size(), quantile(0.5),
                           quantile(0.99), gap_ms);
  }

 private:
  std::mutex mutex_;
  std::vector<double> latencies_us_;
  double gap_ms_ = 0;
};

[[noreturn]] void SetForever(Store& store, const std::string& key,
                             Results& results) {
  const std::string value(100, 'v');
  Clock::time_point last = Clock::now();
  while (true) {
    const Clock::time_point start = Clock::now();
    store.Set(key, value);
    const Clock::time_point end = Clock::now();
    results.Add(end - start, end - last);
    last = end;
  }
}

void Serve(const std::string& addresses, const std::string& job, int sessions) {
  // Never freed: the threads end with the process.
  auto* const results = new Results();
  for (int i = 0; i < sessions; ++i) {
    const std::string name = absl::StrCat("caller", i);
    const auto store = std::make_shared<CoordinatorStore>(
        Session::Connect({.address = addresses, .job = job, .member = name}));
    store->Set(name, "");
    std::thread([store, name, results] {
      SetForever(*store, name, *results);
    }).detach();
  }
  std::cout << "ready" << std::endl;
  for (std::string line; std::getline(std::cin, line);) {
    std::cout << results->Take() << std::endl;
  }
}

}  // namespace
}  // namespace muster::bench

int main(int argc, char** argv) {
  if (argc != 4) {
    std::cerr << "usage: fleet_caller ADDRESSES JOB SESSIONS\n";
    return 2;
  }
  try {
    muster::bench::Serve(argv[1], argv[2], std::atoi(argv[3]));
  } catch (const std::exception& error) {
    std::cerr << "fleet_caller: " << error.what() << "\n";
    return 1;
  }
  std::_Exit(0);
}
