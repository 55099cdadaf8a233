#include "coordinator/server/ops/library_log.h"

#include <chrono>
#include <string>

#include "glog/logging.h"
#include "gmock/gmock.h"
#include "google/protobuf/stubs/logging.h"
#include "grpc/support/log.h"
#include "gtest/gtest.h"

namespace muster::coordinator {
namespace {

using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::Not;

// Returns the standard error of `write` and of a check a minute later.
template <typename Write>
std::string CaptureLog(Write write) {
  FLAGS_logtostderr = true;
  // The same as grpc_init() sets it.
  gpr_set_log_verbosity(GPR_LOG_SEVERITY_ERROR);
  TakeOverLibraryLogs();
  testing::internal::CaptureStderr();
  write();
  TellOfLibraries(std::chrono::steady_clock::now() + std::chrono::minutes(1));
  return testing::internal::GetCapturedStderr();
}

TEST(LibraryLogTest, ManyErrorsOfGrpcAreTwoLines) {
  const std::string log = CaptureLog([] {
    for (int i = 1; i <= 50; ++i) {
      gpr_log(GPR_ERROR, "from a stranger: \"\u202E\n%d\"", i);
    }
  });
  EXPECT_THAT(log, ContainsRegex("] grpc_errors: count=1 cause=\"from"));
  EXPECT_THAT(log, HasSubstr("] grpc_errors: count=49 cause=\"from a stranger: "
                             "\\\"\\xe2\\x80\\xae\\n50\\\"\"\n"));
  EXPECT_THAT(log, Not(HasSubstr("2\\\"\"")));
}

TEST(LibraryLogTest, ManyErrorsOfProtobufAreTwoLines) {
  const std::string log = CaptureLog([] {
    for (int i = 1; i <= 50; ++i) GOOGLE_LOG(ERROR) << "cannot parse " << i;
  });
  EXPECT_THAT(log, HasSubstr("] protobuf_errors: count=1 cause=\"cannot parse "
                             "1\"\n"));
  EXPECT_THAT(log, HasSubstr("] protobuf_errors: count=49 cause=\"cannot parse "
                             "50\"\n"));
  EXPECT_THAT(log, Not(HasSubstr("libprotobuf")));
}

TEST(LibraryLogTest, FailedHandshakesHaveALineOfTheirOwn) {
  const std::string log =
      CaptureLog([] { gpr_log(GPR_ERROR, "Handshake failed with x"); });
  EXPECT_THAT(log, HasSubstr("] tls_handshakes_failed: count=1 peer="));
  EXPECT_THAT(log, HasSubstr("cause=\"Handshake failed with x\""));
}

}  // namespace
}  // namespace muster::coordinator
