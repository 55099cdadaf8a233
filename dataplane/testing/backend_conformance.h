// What every backend has to pass, as suites with values as parameters. A
// backend's test links this library and says which values:
//
//   INSTANTIATE_TEST_SUITE_P(Gloo, BackendConformance,
//                            Combine(Values("gloo"), ValuesIn(kWorldSizes)));

#ifndef MUSTER_DATAPLANE_TESTING_BACKEND_CONFORMANCE_H_
#define MUSTER_DATAPLANE_TESTING_BACKEND_CONFORMANCE_H_

#include <string>
#include <tuple>
#include <vector>

#include "dataplane/collective.h"
#include "dataplane/tensor.h"
#include "dataplane/testing/local_world.h"
#include "gtest/gtest.h"

namespace muster::dataplane::testing {

inline const std::vector<int> kWorldSizes = {1, 2, 3, 4, 7, 8};

// None, one, odd, a stream; around where gloo changes the algorithm for 4-byte
// elements; uneven parts.
inline const std::vector<size_t> kCounts = {0,    1,    13,   9001,
                                            1023, 8192, 8193, 100'003};
// Several segments per part, for types that stand for the others: of 4 bytes,
// and with up to 4 ranks, beyond every size at which gloo goes another way.
inline constexpr size_t kLargeCount = 2'200'001;
// The same of what one rank gives another one.
inline constexpr size_t kLargePart = 600'001;
inline constexpr int kLargePartRanksMax = 4;
inline bool IsTriedLarge(DataType type) {
  return type == DataType::kFloat32 || type == DataType::kBfloat16;
}

inline const std::vector<DataType> kDataTypes = {
    DataType::kUint8,    DataType::kInt8,      DataType::kInt16,
    DataType::kInt32,    DataType::kInt64,     DataType::kFloat16,
    DataType::kBfloat16, DataType::kFloat32,   DataType::kFloat64,
    DataType::kBool,     DataType::kComplex64, DataType::kComplex128};

// Which not every backend reduces.
inline const std::vector<DataType> kFloat8Types = {DataType::kFloat8E4m3fn,
                                                   DataType::kFloat8E5m2};

// Whether the world's backend can reduce this at all: not all can do all that
// Validate lets pass.
bool CanReduce(LocalWorld& world, ReduceOp op, DataType type);

// What a backend's library does otherwise than Reduction, of several ranks.
struct Arithmetic {
  // It rounds 8 and 16 bit numbers at each rank.
  bool rounds_at_each_rank = false;
  // MIN and MAX may drop a NaN, on all ranks alike.
  bool may_drop_nan = false;
};
void SetArithmetic(const std::string& backend, const Arithmetic& arithmetic);
Arithmetic ArithmeticOf(const std::string& backend);

// Name of the backend, world size. Results and ordering.
class BackendConformance
    : public ::testing::TestWithParam<std::tuple<std::string, int>> {
 protected:
  std::string backend() const { return std::get<0>(GetParam()); }
  int world_size() const { return std::get<1>(GetParam()); }
};

// Name of the backend, world size, element type.
class ReductionConformance
    : public ::testing::TestWithParam<std::tuple<std::string, int, DataType>> {
 protected:
  std::string backend() const { return std::get<0>(GetParam()); }
  int world_size() const { return std::get<1>(GetParam()); }
  DataType data_type() const { return std::get<2>(GetParam()); }
};

// Name of the backend, world size of at least 2. What happens when something
// goes wrong.
class FailureConformance : public BackendConformance {};

// The same: what happens when ranks do not start the same.
class DisagreementConformance : public BackendConformance {};

// The same: sends and receives.
class PointToPointConformance : public BackendConformance {};

// Name of the backend, world size. Random programs.
class ProgramConformance : public BackendConformance {};

}  // namespace muster::dataplane::testing

#endif  // MUSTER_DATAPLANE_TESTING_BACKEND_CONFORMANCE_H_
