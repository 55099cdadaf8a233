#include "tests/bench/load.h"

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <ctime>
#include <exception>
#include <latch>
#include <thread>

namespace muster::bench {
namespace {

using Clock = std::chrono::steady_clock;

// The results of one caller.
struct Caller {
  std::vector<float> latencies_us;
  double operations = 0;  // warm-up included
  std::exception_ptr error;
};

void Call(const Operation& operation, std::latch& ready,
          Clock::time_point& start, std::chrono::milliseconds warm_up,
          std::chrono::milliseconds duration, Caller& caller) {
  caller.latencies_us.reserve(1 << 16);
  ready.arrive_and_wait();
  const Clock::time_point counted_from = start + warm_up;
  const Clock::time_point end = counted_from + duration;
  try {
    Clock::time_point before = Clock::now();
    while (before < end) {
      operation();
      caller.operations += 1;
      const Clock::time_point after = Clock::now();
      if (before >= counted_from) {
        caller.latencies_us.push_back(
            std::chrono::duration<float, std::micro>(after - before).count());
      }
      before = after;
    }
  } catch (...) {
    caller.error = std::current_exception();
  }
}

// Processor time of a process so far, in microseconds.
double GetCpuTime(clockid_t clock) {
  timespec time{};
  clock_gettime(clock, &time);
  return static_cast<double>(time.tv_sec) * 1e6 +
         static_cast<double>(time.tv_nsec) * 1e-3;
}

clockid_t GetClockId(int pid) {
  clockid_t clock = CLOCK_PROCESS_CPUTIME_ID;
  if (pid != 0) clock_getcpuclockid(pid, &clock);
  return clock;
}

double Quantile(std::vector<float>& sorted, double quantile) {
  if (sorted.empty()) return 0;
  const size_t index = static_cast<size_t>(
      quantile * static_cast<double>(sorted.size() - 1) + 0.5);
  return sorted[index];
}

double ComputeMedian(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

}  // namespace

Figures RunLoad(const Load& load, std::chrono::milliseconds warm_up,
                std::chrono::milliseconds duration) {
  std::vector<Operation> operations;
  for (int caller = 0; caller < load.callers; ++caller) {
    operations.push_back(load.connect(caller));
    operations.back()();  // Connects before the clock starts.
  }
  std::vector<Caller> callers(static_cast<size_t>(load.callers));
  // Counts this thread, too, which sets the start time.
  std::latch ready(load.callers + 1);
  Clock::time_point start;
  std::vector<std::thread> threads;
  for (size_t i = 0; i < callers.size(); ++i) {
    threads.emplace_back([&, i] {
      Call(operations[i], ready, start, warm_up, duration, callers[i]);
    });
  }
  const clockid_t server = GetClockId(load.server_pid);
  const double client_before = GetCpuTime(CLOCK_PROCESS_CPUTIME_ID);
  const double server_before = GetCpuTime(server);
  start = Clock::now();
  ready.arrive_and_wait();
  for (std::thread& thread : threads) thread.join();

  const double client_us = GetCpuTime(CLOCK_PROCESS_CPUTIME_ID) - client_before;
  const double server_us = GetCpuTime(server) - server_before;
  std::vector<float> all;
  double operations_done = 0;
  for (Caller& caller : callers) {
    operations_done += caller.operations;
    if (caller.error) std::rethrow_exception(caller.error);
    all.insert(all.end(), caller.latencies_us.begin(),
               caller.latencies_us.end());
  }
  std::sort(all.begin(), all.end());
  Figures figures;
  figures.operations_per_second =
      static_cast<double>(all.size()) /
      std::chrono::duration<double>(duration).count();
  figures.client_cpu_us = client_us / operations_done;
  figures.server_cpu_us = server_us / operations_done;
  figures.p50_us = Quantile(all, 0.50);
  figures.p99_us = Quantile(all, 0.99);
  return figures;
}

Figures Median(const std::vector<Figures>& rounds) {
  std::vector<double> rate, p50, p99, client, server;
  for (const Figures& round : rounds) {
    rate.push_back(round.operations_per_second);
    p50.push_back(round.p50_us);
    p99.push_back(round.p99_us);
    client.push_back(round.client_cpu_us);
    server.push_back(round.server_cpu_us);
  }
  return {ComputeMedian(rate), ComputeMedian(p50), ComputeMedian(p99),
          ComputeMedian(client), ComputeMedian(server)};
}

}  // namespace muster::bench
