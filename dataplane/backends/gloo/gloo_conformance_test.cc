#include "dataplane/testing/backend_conformance.h"
#include "gtest/gtest.h"

namespace muster::dataplane::testing {
namespace {

using ::testing::Combine;
using ::testing::Values;
using ::testing::ValuesIn;

INSTANTIATE_TEST_SUITE_P(Gloo, ReductionConformance,
                         Combine(Values("gloo"), ValuesIn(kWorldSizes),
                                 ValuesIn(kDataTypes)));

INSTANTIATE_TEST_SUITE_P(Gloo, BackendConformance,
                         Combine(Values("gloo"), ValuesIn(kWorldSizes)));

INSTANTIATE_TEST_SUITE_P(Gloo, FailureConformance,
                         Combine(Values("gloo"), Values(2, 3, 4, 8)));

INSTANTIATE_TEST_SUITE_P(Gloo, PointToPointConformance,
                         Combine(Values("gloo"), Values(2, 3, 4, 8)));

INSTANTIATE_TEST_SUITE_P(Gloo, DisagreementConformance,
                         Combine(Values("gloo"), Values(2, 3, 5)));

INSTANTIATE_TEST_SUITE_P(Gloo, ProgramConformance,
                         Combine(Values("gloo"), Values(1, 2, 3, 4, 5)));

}  // namespace
}  // namespace muster::dataplane::testing
