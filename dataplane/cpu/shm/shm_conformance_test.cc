#include "dataplane/testing/backend_conformance.h"
#include "gtest/gtest.h"

namespace muster::dataplane::testing {
namespace {

using ::testing::Combine;
using ::testing::Values;
using ::testing::ValuesIn;

INSTANTIATE_TEST_SUITE_P(Shm, ReductionConformance,
                         Combine(Values("shm"), ValuesIn(kWorldSizes),
                                 ValuesIn(kDataTypes)));

INSTANTIATE_TEST_SUITE_P(Shm, BackendConformance,
                         Combine(Values("shm"), ValuesIn(kWorldSizes)));

INSTANTIATE_TEST_SUITE_P(Shm, FailureConformance,
                         Combine(Values("shm"), Values(2, 3, 4, 8)));

INSTANTIATE_TEST_SUITE_P(Shm, PointToPointConformance,
                         Combine(Values("shm"), Values(2, 3, 4, 8)));

INSTANTIATE_TEST_SUITE_P(Shm, DisagreementConformance,
                         Combine(Values("shm"), Values(2, 3, 5)));

INSTANTIATE_TEST_SUITE_P(Shm, ProgramConformance,
                         Combine(Values("shm"), Values(1, 2, 3, 4, 5)));

}  // namespace
}  // namespace muster::dataplane::testing
