// Failures of groups with a coordinator that does not know ReportGroupFailure,
// or refuses it.

#include <atomic>
#include <chrono>
#include <memory>
#include <string>
#include <utility>

#include "client/control/stream_session.h"
#include "client/groups/error_resolver.h"
#include "client/groups/group_state.h"
#include "dataplane/testing/fake_backend.h"
#include "gmock/gmock.h"
#include "grpcpp/grpcpp.h"
#include "gtest/gtest.h"
#include "muster/base/status.h"
#include "muster/session.h"
#include "muster/v1/session.grpc.pb.h"

namespace muster::internal {
namespace {

using std::chrono::milliseconds;
using ::testing::HasSubstr;

// Accepts reports of failures, and sends them back as the generation's end.
class OlderCoordinator final : public v1::SessionService::Service {
 public:
  OlderCoordinator() {
    grpc::ServerBuilder builder;
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(),
                             &port_);
    builder.RegisterService(this);
    server_ = builder.BuildAndStart();
  }
  ~OlderCoordinator() override {
    server_->Shutdown(std::chrono::system_clock::now());
  }

  // Ends the session of a rank that reports the failure of a group.
  std::atomic<bool> judges_groups{false};

  std::string address() const { return "127.0.0.1:" + std::to_string(port_); }

  grpc::Status Stream(
      grpc::ServerContext*,
      grpc::ServerReaderWriter<v1::StreamResponse, v1::StreamRequest>* stream)
      override {
    v1::StreamRequest request;
    while (stream->Read(&request)) {
      v1::StreamResponse response;
      if (request.has_hello()) {
        response.mutable_welcome()->set_coordinator_epoch(1);
        response.mutable_welcome()->set_judges_groups(judges_groups);
      }
      for (const v1::Operation& operation : request.operations()) {
        if (operation.has_report_group_failure()) {
          return {grpc::StatusCode::FAILED_PRECONDITION, "declared lost"};
        }
        if (!operation.has_report_failure()) {
          return {grpc::StatusCode::INVALID_ARGUMENT,
                  "operation has no request"};
        }
        v1::MemberEvent& event = *response.add_events();
        event.mutable_member()->set_state(v1::MEMBER_STATE_FAILED);
        event.mutable_member()->set_cause(operation.report_failure().error());
        event.set_generation(1);
        event.set_generation_ended(true);
        event.set_code(operation.report_failure().code());
        v1::Result& result = *response.add_results();
        result.set_id(operation.id());
        result.mutable_report_failure();
      }
      if (response.ByteSizeLong() > 0) stream->Write(response);
    }
    return grpc::Status::OK;
  }

 private:
  int port_ = 0;
  std::unique_ptr<grpc::Server> server_;
};

class OlderCoordinatorTest : public ::testing::Test {
 protected:
  // Returns the error of the group after a connection has broken.
  Status FailGroup(ErrorResolver::Options resolving, bool is_world) {
    resolving.verdict_timeout = milliseconds(1);
    const auto resolver = std::make_shared<ErrorResolver>(std::move(resolving));
    session_ =
        Session::Connect({.address = coordinator_.address(),
                          .on_event = [resolver](const MemberEvent& event) {
                            resolver->OnEvent(event);
                          }});
    GroupStateOptions options;
    options.name = "group";
    options.generation = 1;
    options.seats = {{.rank = 0}};
    options.rank = 0;
    options.is_world = is_world;
    return GroupState::Create(
               options, std::make_unique<dataplane::testing::FakeBackend>(),
               session_, resolver)
        ->Explain(UnavailableError("connection closed"));
  }

  OlderCoordinator coordinator_;
  std::shared_ptr<Session> session_;
};

TEST_F(OlderCoordinatorTest, EndsTheGenerationWithTheFirstReport) {
  const Status error = FailGroup({}, /*is_world=*/true);
  EXPECT_EQ(error.message(), "connection closed");
  EXPECT_TRUE(IsUnavailable(error));
}

TEST_F(OlderCoordinatorTest, IsNotAskedAboutOtherGroups) {
  const Status error = FailGroup({.ranks = {0}}, /*is_world=*/false);
  EXPECT_THAT(std::string(error.message()),
              HasSubstr("; the coordinator cannot be asked who is to blame"));
  EXPECT_TRUE(session_->stream().status().ok());
}

// The session's end, which the resolver hears of later, says more.
TEST_F(OlderCoordinatorTest, ThatEndsTheSessionHasNotRefusedToJudge) {
  coordinator_.judges_groups.store(true);
  const Status error = FailGroup({.ranks = {0}}, /*is_world=*/false);
  EXPECT_FALSE(session_->stream().status().ok());
  EXPECT_THAT(std::string(error.message()),
              HasSubstr("; the coordinator cannot be asked who is to blame"));
}

}  // namespace
}  // namespace muster::internal
