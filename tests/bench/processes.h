#ifndef MUSTER_TESTS_BENCH_PROCESSES_H_
#define MUSTER_TESTS_BENCH_PROCESSES_H_

#include <chrono>
#include <string>

#include "tests/bench/load.h"

namespace muster::bench {

// A load with one process per caller.
struct ProcessLoad {
  std::string kind;  // of MakeOperation
  std::string address;
  std::string payload;
  int processes = 1;
  int server_pid = 0;
};

// Like RunLoad. `self` is a program that calls DriveOneCaller with the argument
// of --drive=.
Figures RunProcesses(const std::string& self, const ProcessLoad& load,
                     std::chrono::milliseconds warm_up,
                     std::chrono::milliseconds duration);

// Runs in each process: connects, prints a line, waits for one, and prints its
// results. `what` is `KIND;ADDRESS;PAYLOAD BYTES;CALLER;WARM-UP;DURATION`.
void DriveOneCaller(const std::string& what);

}  // namespace muster::bench

#endif  // MUSTER_TESTS_BENCH_PROCESSES_H_
