#ifndef MUSTER_TESTS_BENCH_LOAD_H_
#define MUSTER_TESTS_BENCH_LOAD_H_

#include <chrono>
#include <functional>
#include <string>
#include <vector>

namespace muster::bench {

// One synchronous operation of one caller; throws on failure.
using Operation = std::function<void()>;

// A load to measure. `connect(caller)` makes the operation of caller 0, 1, ...;
// it is called once for each before the clock starts.
struct Load {
  std::string name;
  int callers = 1;
  std::function<Operation(int caller)> connect;
  // The process that answers, for its processor time; 0: none.
  int server_pid = 0;
};

// The results of one round of a load.
struct Figures {
  double operations_per_second = 0;
  double p50_us = 0;
  double p99_us = 0;
  // Processor time of this process and of the server per operation. On a busy
  // machine these vary less than the other figures.
  double client_cpu_us = 0;
  double server_cpu_us = 0;
};

// Runs `load` for `warm_up`, whose operations do not count, and then for
// `duration`, with one thread per caller, each as fast as it can. Rethrows an
// operation's exception.
Figures RunLoad(const Load& load, std::chrono::milliseconds warm_up,
                std::chrono::milliseconds duration);

// The median of each figure over rounds; `rounds` is not empty.
Figures Median(const std::vector<Figures>& rounds);

}  // namespace muster::bench

#endif  // MUSTER_TESTS_BENCH_LOAD_H_
