// A server that is no coordinator, with a certificate of the right authority.

#include "client/control/channel_security.h"

#include <chrono>
#include <memory>
#include <string>

#include "client/control/admin_client.h"
#include "coordinator/server/auth/test_certificates.h"
#include "gmock/gmock.h"
#include "grpcpp/grpcpp.h"
#include "gtest/gtest.h"
#include "muster/base/status.h"
#include "muster/session.h"
#include "muster/v1/admin.pb.h"

namespace muster::internal {
namespace {

using coordinator::ReadTestFile;
using coordinator::TestAuthority;
using coordinator::TestIdentity;
using ::testing::AllOf;
using ::testing::HasSubstr;

// A server that only makes handshakes with this certificate.
class Impostor {
 public:
  explicit Impostor(const TestIdentity& identity) {
    grpc::SslServerCredentialsOptions tls;
    tls.pem_key_cert_pairs.push_back(
        {ReadTestFile(identity.key), ReadTestFile(identity.cert)});
    grpc::ServerBuilder builder;
    builder.AddListeningPort("127.0.0.1:0", grpc::SslServerCredentials(tls),
                             &port_);
    queue_ = builder.AddCompletionQueue();
    server_ = builder.BuildAndStart();
  }
  ~Impostor() {
    server_->Shutdown();
    queue_->Shutdown();
    void* tag = nullptr;
    bool ok = false;
    while (queue_->Next(&tag, &ok)) {
    }
  }

  // Returns the error of a client that connects to it.
  Status Ask(const TestAuthority& authority) const {
    SessionOptions options;
    options.address = "127.0.0.1:" + std::to_string(port_);
    options.connect_timeout = std::chrono::seconds(20);
    options.tls_ca = authority.ca();
    const auto control = AdminClient::Open(options);
    if (!control.ok()) return control.status();
    v1::ListJobsResponse response;
    return (*control)->ListJobs({}, &response);
  }

 private:
  int port_ = 0;
  std::unique_ptr<grpc::ServerCompletionQueue> queue_;
  std::unique_ptr<grpc::Server> server_;
};

TEST(ChannelSecurityTest, AClientsCertificateIsNoneForAServer) {
  TestAuthority authority("authority");
  // OpenSSL itself checks this.
  const Status status =
      Impostor(authority.Issue("member", {.usage = "clientAuth"}))
          .Ask(authority);
  EXPECT_EQ(status.code(), StatusCode::kUnavailable);
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("certificate verify failed"));
  // This certificate does not list its uses.
  const Status bare =
      Impostor(authority.Issue("member", {.usage = ""})).Ask(authority);
  EXPECT_EQ(bare.code(), StatusCode::kUnavailable);
  EXPECT_THAT(std::string(bare.message()),
              AllOf(HasSubstr("the certificate there (member) is none for a "
                              "server"),
                    HasSubstr("serverAuth")));
}

}  // namespace
}  // namespace muster::internal
