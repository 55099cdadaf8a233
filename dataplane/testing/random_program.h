#ifndef MUSTER_DATAPLANE_TESTING_RANDOM_PROGRAM_H_
#define MUSTER_DATAPLANE_TESTING_RANDOM_PROGRAM_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "dataplane/collective.h"
#include "dataplane/tensor.h"

namespace muster::dataplane::testing {

// Part of one of a rank's buffers.
struct Slice {
  size_t buffer = 0;
  size_t begin = 0;
  size_t count = 0;

  bool Overlaps(const Slice& other) const {
    return buffer == other.buffer && begin < other.begin + other.count &&
           other.begin < begin + count;
  }
};

// No number of a buffer is larger in the beginning.
inline constexpr int kBeginningMax = 125;
// Those from the first on.
inline constexpr int kProgramTypes = 12;

// One instruction: what the ranks of one group do together.
struct Instruction {
  CollectiveKind kind = CollectiveKind::kBarrier;
  size_t group = 0;
  ReduceOp op = ReduceOp::kSum;
  int root = 0;
  // Of a send: rank `root` of the group sends to `peer`.
  int peer = 0;
  int tag = 0;
  // A kGather whose root receives from any rank, with `tag`, what the others
  // send it.
  bool from_any = false;
  // It is started together with the next one, which is of the same kind, group
  // and operation.
  bool with_next = false;
  // Who waits for it at once. The others do when something else needs what it
  // reads or writes, or at the end.
  bool waits = false;
  // By rank in the group, and there in the order of the collective's lists.
  std::vector<std::vector<Slice>> inputs = {};  // or what it works on in place
  std::vector<std::vector<Slice>> outputs = {};

  // What rank `rank` of the group reads or writes.
  std::vector<Slice> TouchedBy(size_t rank) const;

  std::string Describe() const;
};

// RandomProgram is a sequence of collectives of all kinds, of sends and of
// receives, on the whole world and on groups of some of its ranks, whose inputs
// are the outputs of earlier ones: so what comes too early, too late, from
// somebody else or in another order shows. Equal seeds make equal programs.
//
// Some gathers are made of receives from any rank, and some collectives are
// coalesced. The type is the seed's: twelve in a row have all that every
// backend reduces.
//
// All results are exact, whatever the order of the operands: sums and products
// of floating point stay where each partial result has a number of its own.
struct RandomProgram {
  RandomProgram(uint64_t seed, int world_size);

  DataType type = DataType::kInt32;
  size_t buffer_count = 0;
  size_t buffer_size = 0;  // in elements
  // Ranks of the world, ascending. The first is the world.
  std::vector<std::vector<int>> groups = {};
  std::vector<Instruction> instructions = {};
};

// Runs `program` on ranks of `backend` that are threads of this process, and
// computes by plain loops what must come out. Empty, or what is different.
std::string RunProgram(const RandomProgram& program,
                       const std::string& backend);

}  // namespace muster::dataplane::testing

#endif  // MUSTER_DATAPLANE_TESTING_RANDOM_PROGRAM_H_
