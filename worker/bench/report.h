#ifndef MUSTER_WORKER_BENCH_REPORT_H_
#define MUSTER_WORKER_BENCH_REPORT_H_

#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "worker/bench/measure.h"
#include "worker/bench/memory_use.h"
#include "worker/bench/options.h"

namespace muster::worker::bench {

// The results for one size, out of place and in place; either may be missing.
struct Line {
  std::vector<Row> out_of_place;
  std::vector<Row> in_place;
};

// The head of the table, with the peers' names, and one of its lines, with the
// time at which it was measured, if that is not empty.
std::string HeadText(const std::vector<std::string>& peers,
                     bool has_timestamps = false);
std::string LineText(const Line& line, absl::string_view timestamp = "");

// How much memory each rank had, in the order of ranks.
std::string MemoryText(const std::vector<MemoryUse>& ranks);

// A list of {op, backend, device, algorithm, ranks, datatype, redop, bytes,
// in_place, time_us {min, median, max}, algbw_gbps, busbw_gbps, wrong}, one for
// each row and program; of peers also `ratio`, this program's time divided by
// theirs. `backend` and `algorithm` are what ran; of a peer its name, and "".
// Then one {rank, resident_max_bytes, shared_bytes} for each of `memory`, null
// for what is not known.
std::string JsonText(const std::vector<Row>& rows,
                     const std::vector<MemoryUse>& memory = {});

}  // namespace muster::worker::bench

#endif  // MUSTER_WORKER_BENCH_REPORT_H_
