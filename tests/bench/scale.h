// What many waiters, sessions and members cost.

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

// One key is set, and `waiters` threads wait for it over 64 sessions, and over
// one session each beside as many parked calls of the bare echo: until the last
// one is back.
std::vector<Figure> MeasureRelease(const ScaleOptions& options);

// What the coordinator's memory grows by with a session that does nothing, and
// the bare echo's with a stream.
std::vector<Figure> MeasureIdleSessions(const ScaleOptions& options);

// Members over 100 connections: their memory, a static rendezvous, a barrier,
// and how long the report of a failure takes to all of them.
std::vector<Figure> MeasureMembers(const ScaleOptions& options);

// The same members: what a barrier that fails costs, and the end of the job, in
// which all leave: until the last one has its answer, and what each was told.
std::vector<Figure> MeasureEnd(const ScaleOptions& options);

}  // namespace muster::bench

#endif  // MUSTER_TESTS_BENCH_SCALE_H_
