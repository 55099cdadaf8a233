#ifndef MUSTER_DATAPLANE_TESTING_RANDOM_PROGRAM_H_
#define MUSTER_DATAPLANE_TESTING_RANDOM_PROGRAM_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "muster/dataplane/collective.h"
#include "muster/dataplane/tensor.h"

namespace muster::dataplane::testing {

// A part of one buffer of a rank.
struct Slice {
  size_t buffer = 0;
  size_t begin = 0;
  size_t count = 0;

  bool Overlaps(const Slice& other) const {
    return buffer == other.buffer && begin < other.begin + other.count &&
           other.begin < begin + count;
  }
};

// The largest number in a buffer at the beginning.
inline constexpr int kBeginningMax = 125;
// The number of types that programs use, from DataType's first on.
inline constexpr int kProgramTypes = 12;

// One instruction, which all ranks of one group run together.
struct Instruction {
  CollectiveKind kind = CollectiveKind::kBarrier;
  size_t group = 0;
  ReduceOp op = ReduceOp::kSum;
  int root = 0;
  // A send goes from rank `root` of the group to `peer`.
  int peer = 0;
  int tag = 0;
  // A kGather whose root receives from any rank the messages that the others
  // send with `tag`.
  bool from_any = false;
  // It is coalesced with the next one, which has the same kind, group and
  // operation.
  bool with_next = false;
  // The rank waits for it at once. Otherwise it waits when another instruction
  // needs the slices that this one reads or writes, or at the end.
  bool waits = false;
  // By rank in the group, then in the order of the collective's lists.
  std::vector<std::vector<Slice>> inputs = {};  // or in-place
  std::vector<std::vector<Slice>> outputs = {};

  // The slices that rank `rank` of the group reads or writes.
  std::vector<Slice> TouchedBy(size_t rank) const;

  std::string Describe() const;
};

// RandomProgram is a sequence of collectives of all kinds, of sends and of
// receives, on the whole world and on groups of some of its ranks. Their inputs
// are the outputs of earlier ones, so that results that are early, late, from
// another rank or in another order are detected. Equal seeds make equal
// programs.
//
// Some gathers consist of receives from any rank, and some collectives are
// coalesced. The seed chooses the type: twelve consecutive seeds use all types
// that every backend reduces.
//
// All results are exact in any order of the operands: floating-point sums and
// products stay in a range where every partial result can be represented.
struct RandomProgram {
  RandomProgram(uint64_t seed, int world_size);

  DataType type = DataType::kInt32;
  size_t buffer_count = 0;
  size_t buffer_size = 0;  // in elements
  // Ranks of the world, ascending. The first group is the world.
  std::vector<std::vector<int>> groups = {};
  std::vector<Instruction> instructions = {};
};

// Runs `program` on ranks of `backend` that are threads of this process, and
// compares the results with those of plain loops. Returns the difference, or
// "".
std::string RunProgram(const RandomProgram& program,
                       const std::string& backend);

}  // namespace muster::dataplane::testing

#endif  // MUSTER_DATAPLANE_TESTING_RANDOM_PROGRAM_H_
