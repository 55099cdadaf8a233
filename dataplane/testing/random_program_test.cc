// Random programs use all kinds, operations and types.

#include "dataplane/testing/random_program.h"

#include <cstddef>
#include <cstdint>
#include <map>
#include <set>

#include "gtest/gtest.h"
#include "muster/dataplane/collective.h"
#include "muster/dataplane/tensor.h"

namespace muster::dataplane::testing {
namespace {

// Few enough for every run; ProgramConformance runs as many by default.
constexpr uint64_t kPrograms = 10 * kProgramTypes;

// The number of operations for a reduction of this type.
size_t CountOperations(DataType type) {
  switch (type) {
    case DataType::kComplex64:
    case DataType::kComplex128:
      return 3;
    case DataType::kFloat16:
    case DataType::kBfloat16:
    case DataType::kFloat32:
    case DataType::kFloat64:
      return 6;
    case DataType::kBool:
      return 7;
    default:
      return 8;
  }
}

TEST(RandomProgramTest, HasEveryKindAndOperationOfEveryType) {
  std::set<CollectiveKind> kinds;
  std::map<DataType, std::set<ReduceOp>> operations;
  size_t from_any = 0;
  size_t coalesced = 0;
  for (uint64_t seed = 1; seed <= kPrograms; ++seed) {
    const RandomProgram program(seed, /*world_size=*/4);
    for (const Instruction& instruction : program.instructions) {
      kinds.insert(instruction.kind);
      if (IsReduction(instruction.kind)) {
        operations[program.type].insert(instruction.op);
      }
      from_any += instruction.from_any ? 1 : 0;
      coalesced += instruction.with_next ? 1 : 0;
    }
  }
  // A receive is part of a send.
  EXPECT_EQ(kinds.size(), size_t{kCollectiveKindCount - 1});
  for (int i = 0; i < kProgramTypes; ++i) {
    const auto type = static_cast<DataType>(i);
    EXPECT_EQ(operations[type].size(), CountOperations(type))
        << DataTypeName(type);
  }
  EXPECT_GT(from_any, kPrograms);
  EXPECT_GT(coalesced, kPrograms);
}

TEST(RandomProgramTest, EqualSeedsMakeEqualPrograms) {
  const RandomProgram one(7, /*world_size=*/3);
  const RandomProgram other(7, /*world_size=*/3);
  ASSERT_EQ(one.instructions.size(), other.instructions.size());
  for (size_t i = 0; i < one.instructions.size(); ++i) {
    EXPECT_EQ(one.instructions[i].Describe(), other.instructions[i].Describe());
  }
}

}  // namespace
}  // namespace muster::dataplane::testing
