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
  // The backend and the algorithm that ran; empty: not known.
  std::string backend = {};
  std::string algorithm = {};
  // Microseconds per call, one value per cycle; empty: not supported.
  std::vector<double> cycles_us = {};
  // The number of wrong elements on all ranks; -1: not checked.
  int64_t wrong = -1;

  double Min() const;
  double Median() const;
  double Max() const;
};

// A case with its results: those of this program, then those of the peers.
struct Row {
  Case measured = {};
  int world_size = 0;
  DeviceType device = DeviceType::kCpu;
  std::vector<Figures> figures = {};
  // This rank's, while the tensors exist, if it was requested.
  MemoryUse memory = {};

  // The median, over the cycles, of this program's time divided by that of peer
  // `index` in the same cycle; 0 if the peer does not support the case.
  double RatioTo(size_t index) const;
};

// Returns the device of this rank's tensors. Throws DistError
// (kInvalidArgument) if nccl has no device for each rank.
Device ChooseDevice(const BenchOptions& options);

// Measures `measured` together with all other ranks. Throws DistError, also for
// a peer that fails.
Row Measure(const Case& measured, const BenchOptions& options,
            const std::vector<std::unique_ptr<Peer>>& peers);

// Returns every rank's memory use, by rank. Collective.
std::vector<MemoryUse> MemoryOfRanks(const MemoryUse& own);

}  // namespace muster::worker::bench

#endif  // MUSTER_WORKER_BENCH_MEASURE_H_
