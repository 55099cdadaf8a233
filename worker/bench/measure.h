#ifndef MUSTER_WORKER_BENCH_MEASURE_H_
#define MUSTER_WORKER_BENCH_MEASURE_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "worker/bench/memory_use.h"
#include "worker/bench/operation.h"
#include "worker/bench/options.h"
#include "worker/bench/peer.h"

namespace muster::worker::bench {

// The results of one case run by one program.
struct Figures {
  // What ran it, and by which algorithm; empty: not known.
  std::string backend = {};
  std::string algorithm = {};
  // Microseconds a call, one for each cycle; none: it does not have it.
  std::vector<double> cycles_us = {};
  // Elements that were wrong, of all ranks; -1: not looked at.
  int64_t wrong = -1;

  double Min() const;
  double Median() const;
  double Max() const;
};

// A case with its results: this program's first, then the peers'.
struct Row {
  Case measured = {};
  int world_size = 0;
  DeviceType device = DeviceType::kCpu;
  std::vector<Figures> figures = {};
  // This rank's, with the tensors still there, if it was asked for.
  MemoryUse memory = {};

  // Median over the cycles of this program's time divided by that of peer
  // `index`, of the same cycle; 0 if the peer does not have it.
  double RatioTo(size_t index) const;
};

// Where this rank's tensors are. Throws DistError (kInvalidArgument): nccl
// needs a device for each rank.
Device DeviceOf(const BenchOptions& options);

// Measures `measured`, with all other ranks. Throws DistError; absl's status of
// a peer that fails, as DistError, too.
Row Measure(const Case& measured, const BenchOptions& options,
            const std::vector<std::unique_ptr<Peer>>& peers);

// What each rank says of itself, in the order of ranks. All ranks call it.
std::vector<MemoryUse> MemoryOfRanks(const MemoryUse& own);

}  // namespace muster::worker::bench

#endif  // MUSTER_WORKER_BENCH_MEASURE_H_
