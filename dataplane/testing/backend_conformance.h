// The conformance suites that every backend must pass, parameterised. A
// backend's test links this library and instantiates them:
//   INSTANTIATE_TEST_SUITE_P(Gloo, BackendConformance,
//                            Combine(Values("gloo"), ValuesIn(kWorldSizes)));

#ifndef MUSTER_DATAPLANE_TESTING_BACKEND_CONFORMANCE_H_
#define MUSTER_DATAPLANE_TESTING_BACKEND_CONFORMANCE_H_

#include <string>
#include <tuple>
#include <vector>

#include "dataplane/testing/local_world.h"
#include "gtest/gtest.h"
#include "muster/dataplane/collective.h"
#include "muster/dataplane/tensor.h"

namespace muster::dataplane::testing {

inline const std::vector<int> kWorldSizes = {1, 2, 3, 4, 7, 8};

// Element counts: none, one, odd, large enough for a stream; around the size at
// which gloo changes its algorithm for 4-byte elements; uneven parts.
inline const std::vector<size_t> kCounts = {0,    1,    13,   9001,
                                            1023, 8192, 8193, 100'003};
// Several segments per part. Used for a few 4-byte (or smaller) types and up to
// 4 ranks; larger than every size at which gloo changes its algorithm.
inline constexpr size_t kLargeCount = 2'200'001;
// As kLargeCount, for the part that one rank sends to another.
inline constexpr size_t kLargePart = 600'001;
inline constexpr int kLargePartRanksMax = 4;
inline bool IsTriedLarge(DataType type) {
  return type == DataType::kFloat32 || type == DataType::kBfloat16;
}

inline const std::vector<DataType> kDataTypes = {
    DataType::kUint8,    DataType::kInt8,      DataType::kInt16,
    DataType::kInt32,    DataType::kInt64,     DataType::kFloat16,
    DataType::kBfloat16, DataType::kFloat32,   DataType::kFloat64,
    DataType::kBool,     DataType::kComplex64, DataType::kComplex128,
    DataType::kUint16,   DataType::kUint32,    DataType::kUint64};

// Not every backend reduces these.
inline const std::vector<DataType> kFloat8Types = {DataType::kFloat8E4m3fn,
                                                   DataType::kFloat8E5m2};

// Whether the world's backend supports this reduction. Some backends lack
// reductions that Validate accepts.
bool CanReduce(LocalWorld& world, ReduceOp op, DataType type);

// How a backend's library differs from Reduction if there are several ranks.
struct Arithmetic {
  // 8 and 16 bit numbers are rounded at each rank.
  bool rounds_at_each_rank = false;
  // MIN and MAX may drop a NaN, on all ranks alike.
  bool may_drop_nan = false;
};
void SetArithmetic(const std::string& backend, const Arithmetic& arithmetic);
Arithmetic GetArithmetic(const std::string& backend);

// Parameters: backend name, world size. Tests results and ordering.
class BackendConformance
    : public ::testing::TestWithParam<std::tuple<std::string, int>> {
 protected:
  std::string backend() const { return std::get<0>(GetParam()); }
  int world_size() const { return std::get<1>(GetParam()); }
};

// Parameters: backend name, world size, element type.
class ReductionConformance
    : public ::testing::TestWithParam<std::tuple<std::string, int, DataType>> {
 protected:
  std::string backend() const { return std::get<0>(GetParam()); }
  int world_size() const { return std::get<1>(GetParam()); }
  DataType data_type() const { return std::get<2>(GetParam()); }
};

// Parameters: backend name, world size of at least 2. Tests failures.
class FailureConformance : public BackendConformance {};

// Same parameters. Tests ranks that start different collectives.
class DisagreementConformance : public BackendConformance {};

// Same parameters. Tests sends and receives.
class PointToPointConformance : public BackendConformance {};

// Parameters: backend name, world size. Runs random programs.
class ProgramConformance : public BackendConformance {};

}  // namespace muster::dataplane::testing

#endif  // MUSTER_DATAPLANE_TESTING_BACKEND_CONFORMANCE_H_
