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

// The head of the table, with the peers' names, and one of its lines. A line
// begins with the time of its measurement if `timestamp` is not empty.
std::string HeadText(const std::vector<std::string>& peers,
                     bool has_timestamps = false);
std::string LineText(const Line& line, absl::string_view timestamp = "");

// The memory use of each rank, by rank.
std::string MemoryText(const std::vector<MemoryUse>& ranks);

// A list with one object for each row and program: {op, backend, device,
// algorithm, ranks, datatype, redop, bytes, in_place, time_us {min, median,
// max}, algbw_gbps, busbw_gbps, wrong}. `backend` and `algorithm` are those
// that ran; for a peer its name and "". Peers also have `ratio`, this program's
// time divided by theirs. Then {rank, resident_max_bytes, shared_bytes} for
// each of `memory`, with null for unknown values.
std::string JsonText(const std::vector<Row>& rows,
                     const std::vector<MemoryUse>& memory = {});

}  // namespace muster::worker::bench

#endif  // MUSTER_WORKER_BENCH_REPORT_H_
