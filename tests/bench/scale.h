// Measures the cost of many waiters, sessions and members.

#ifndef MUSTER_TESTS_BENCH_SCALE_H_
#define MUSTER_TESTS_BENCH_SCALE_H_

#include <string>
#include <vector>

#include "tests/bench/figure.h"

namespace muster::bench {

struct ScaleOptions {
  std::string echo{};         // address
  std::string coordinator{};  // address
  int echo_pid = 0;
  int coordinator_pid = 0;
  int rounds = 3;
  int waiters = 512;
  int sessions = 1000;  // idle ones
  int members = 10'000;
};

// Sets one key for which `waiters` threads wait over 64 sessions, and over one
// session each; for comparison, releases as many parked calls of the bare echo.
// Measures the time until the last one returns.
std::vector<Figure> MeasureRelease(const ScaleOptions& options);

// The memory of the coordinator per idle session, on a connection of its own and
// through a relay, and that of the bare echo per stream.
std::vector<Figure> MeasureIdleSessions(const ScaleOptions& options);

// Members over 100 connections: their memory, a static rendezvous, a barrier,
// and the time until the report of a failure has reached all of them.
std::vector<Figure> MeasureMembers(const ScaleOptions& options);

// The same members: the cost of a failed barrier and of the end of the job, in
// which all leave: the time until the last one has its answer, and the events
// for each.
std::vector<Figure> MeasureEnd(const ScaleOptions& options);

}  // namespace muster::bench

#endif  // MUSTER_TESTS_BENCH_SCALE_H_
