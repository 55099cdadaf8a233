#ifndef MUSTER_WORKER_BENCH_PATTERN_H_
#define MUSTER_WORKER_BENCH_PATTERN_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "client/muster.h"

namespace muster::worker::bench {

// Pattern is an endless sequence of elements of one type with a prime period.
// It gives the ranks' inputs and the expected results. Filling and comparing
// memory with it is as fast as copying.
class Pattern {
 public:
  // What rank `rank` brings to a reduction by `op`, or to anything else.
  static Pattern Input(DataType type, ReduceOp op, int rank);

  // The reduction of Input of all ranks below `world_size`. Exact, rounded to
  // the type once.
  static Pattern Reduced(DataType type, ReduceOp op, int world_size);

  // All zero.
  static Pattern Zero(DataType type);

  // Writes elements `first` and following to `to`.
  void Fill(std::byte* to, size_t count, size_t first = 0) const;

  // How many of the elements at `from` are not those from `first` on. Floating
  // point may be up to `ulps` units in the last place beside.
  int64_t CountWrong(const std::byte* from, size_t count, size_t first = 0,
                     int ulps = 0) const;

 private:
  explicit Pattern(DataType type);

  // Whether the element at `got` is near the one at `expected`.
  bool IsNear(const std::byte* got, const std::byte* expected, int ulps) const;

  const DataType type_;
  const size_t element_bytes_;
  std::vector<std::byte> bytes_;
};

// Of kPremulSum.
double FactorOf(int rank);

}  // namespace muster::worker::bench

#endif  // MUSTER_WORKER_BENCH_PATTERN_H_
