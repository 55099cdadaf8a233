#ifndef MUSTER_WORKER_BENCH_PATTERN_H_
#define MUSTER_WORKER_BENCH_PATTERN_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "muster/muster.hpp"

namespace muster::worker::bench {

// The sum as a function of the user.
ReduceFunction MakeSumFunction(DataType type);

// Pattern is an endless sequence of elements of one type with a prime period.
// It gives the ranks' inputs and the expected results. Filling and comparing
// memory with it is as fast as copying.
class Pattern {
 public:
  // The input of rank `rank` to a reduction by `op`, or to another operation.
  static Pattern Input(DataType type, ReduceOp op, int rank);

  // The reduction of the inputs of all ranks below `world_size`. Exact, then
  // rounded once to the type.
  static Pattern Reduced(DataType type, ReduceOp op, int world_size);

  // All zero.
  static Pattern Zero(DataType type);

  // Writes `count` elements, from element `first` on, to `to`.
  void Fill(std::byte* to, size_t count, size_t first = 0) const;

  // The number of elements at `from` that differ from the pattern's, from
  // element `first` on. Floating point may differ by `ulps` units in the last
  // place.
  int64_t CountWrong(const std::byte* from, size_t count, size_t first = 0,
                     int ulps = 0) const;

 private:
  explicit Pattern(DataType type);

  // Whether the elements differ by at most `ulps`.
  bool IsNear(const std::byte* got, const std::byte* expected, int ulps) const;

  const DataType type_;
  const size_t element_bytes_;
  std::vector<std::byte> bytes_;
};

// The factor of kPremulSum.
double GetFactor(int rank);

}  // namespace muster::worker::bench

#endif  // MUSTER_WORKER_BENCH_PATTERN_H_
