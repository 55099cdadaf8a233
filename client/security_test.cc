// Sessions over TLS and with tokens: who may connect, the errors for the
// others, and files that are replaced during use.

#include <chrono>
#include <cstdlib>
#include <future>
#include <memory>
#include <string>

#include "coordinator/server/auth/test_certificates.h"
#include "coordinator/server/server.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "muster/errors.h"
#include "muster/session.h"
#include "muster/store.h"

namespace muster {
namespace {

using coordinator::ReadTestFile;
using coordinator::Server;
using coordinator::ServerOptions;
using coordinator::TestAuthority;
using coordinator::TestIdentity;
using coordinator::TestPath;
using coordinator::TestTokenLine;
using coordinator::WriteTestFile;
using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

// How long a client that must fail tries.
constexpr milliseconds kInVain{1'500};

std::unique_ptr<Server> StartServer(const ServerOptions& options) {
  auto server = Server::Start(options);
  EXPECT_TRUE(server.ok()) << server.status();
  return server.ok() ? *std::move(server) : nullptr;
}

// Sets a key and reads it.
void Use(const std::shared_ptr<Session>& session, const std::string& key) {
  CoordinatorStore store(session);
  store.Set(key, "v");
  EXPECT_EQ(store.Get(key), "v");
}

template <typename Error>
std::string ConnectError(const SessionOptions& options) {
  try {
    Session::Connect(options);
  } catch (const Error& error) {
    return error.what();
  }
  ADD_FAILURE() << "nothing was thrown";
  return "";
}

class SecurityTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    authority_ = new TestAuthority("authority");
    stranger_ = new TestAuthority("stranger");
    server_identity_ = authority_->Issue("server");
    client_identity_ = authority_->Issue("client");
  }

  // Options of a server that requires clients' certificates.
  static ServerOptions MutualTls() {
    ServerOptions options;
    options.tls_cert = server_identity_.cert;
    options.tls_key = server_identity_.key;
    options.tls_client_ca = authority_->ca();
    return options;
  }

  static SessionOptions Client(const Server& server,
                               const TestIdentity& identity) {
    SessionOptions options;
    options.address = "127.0.0.1:" + std::to_string(server.port());
    options.job = "job";
    options.connect_timeout = seconds(20);
    options.tls_ca = authority_->ca();
    options.tls_cert = identity.cert;
    options.tls_key = identity.key;
    return options;
  }

  // Returns the error of a client that tries for a while.
  static std::string Refusal(SessionOptions options) {
    options.connect_timeout = kInVain;
    return ConnectError<DistNetworkError>(options);
  }

  static TestAuthority* authority_;
  static TestAuthority* stranger_;
  static TestIdentity server_identity_;
  static TestIdentity client_identity_;
};
TestAuthority* SecurityTest::authority_;
TestAuthority* SecurityTest::stranger_;
TestIdentity SecurityTest::server_identity_;
TestIdentity SecurityTest::client_identity_;

TEST_F(SecurityTest, MutualTlsCarriesASession) {
  const auto server = StartServer(MutualTls());
  Use(Session::Connect(Client(*server, client_identity_)), "k");
}

TEST_F(SecurityTest, WithoutAuthoritiesTheServerAsksForNoCertificate) {
  ServerOptions options = MutualTls();
  options.tls_client_ca = "";
  // It needs no permission to listen beyond loopback.
  options.listen = "0.0.0.0:0";
  const auto server = StartServer(options);
  Use(Session::Connect(Client(*server, {})), "k");
}

TEST_F(SecurityTest, WhoCannotShowWhatIsAskedForIsRefused) {
  const auto server = StartServer(MutualTls());
  const auto honest = Session::Connect(Client(*server, client_identity_));

  EXPECT_THAT(Refusal(Client(*server, {})), HasSubstr("set tls_cert"));
  EXPECT_THAT(Refusal(Client(*server, stranger_->Issue("client"))),
              HasSubstr("refuse the certificate"));
  EXPECT_THAT(
      Refusal(Client(*server, authority_->Issue("old", {.expired = true}))),
      HasSubstr("refuse the certificate"));
  SessionOptions plain = Client(*server, {});
  plain.tls_ca = "";
  EXPECT_THAT(Refusal(plain), HasSubstr("set tls_ca (MUSTER_TLS_CA)"));

  Use(honest, "k");
}

TEST_F(SecurityTest, AServerThatIsNotTheRightOneIsRefused) {
  const auto server = StartServer(MutualTls());
  SessionOptions client = Client(*server, client_identity_);
  client.tls_ca = stranger_->ca();
  EXPECT_THAT(Refusal(client), AllOf(HasSubstr("certificate verify failed"),
                                     HasSubstr("MUSTER_TLS_CA")));

  ServerOptions expired = MutualTls();
  const TestIdentity old = authority_->Issue("old_server", {.expired = true});
  expired.tls_cert = old.cert;
  expired.tls_key = old.key;
  const auto expired_server = StartServer(expired);
  EXPECT_THAT(Refusal(Client(*expired_server, client_identity_)),
              HasSubstr("certificate verify failed"));

  const auto plain_server = StartServer({});
  EXPECT_THAT(Refusal(Client(*plain_server, client_identity_)),
              HasSubstr("unset tls_ca (MUSTER_TLS_CA)"));
}

TEST_F(SecurityTest, TheNameInTheCertificateCounts) {
  const TestIdentity named =
      authority_->Issue("named", {.names = "DNS:coordinator.example"});
  ServerOptions options = MutualTls();
  options.tls_cert = named.cert;
  options.tls_key = named.key;
  const auto server = StartServer(options);
  SessionOptions client = Client(*server, client_identity_);
  EXPECT_THAT(Refusal(client),
              AllOf(HasSubstr("is for coordinator.example, not for 127.0.0.1"),
                    HasSubstr("MUSTER_TLS_SERVER_NAME")));
  client.tls_server_name = "coordinator.example";
  Use(Session::Connect(client), "k");
}

TEST_F(SecurityTest, WhatACertificateIsGoodForCounts) {
  const auto server = StartServer(MutualTls());
  const auto issue = [&](const char* usage) {
    return authority_->Issue("usage", {.usage = usage});
  };
  Use(Session::Connect(Client(*server, issue("clientAuth"))), "k");
  // A certificate that does not list its uses is valid for clients.
  Use(Session::Connect(Client(*server, issue(""))), "k");
  EXPECT_THAT(Refusal(Client(*server, issue("codeSigning"))),
              HasSubstr("refuse the certificate in tls_cert"));
  EXPECT_THAT(ConnectError<DistError>(Client(*server, issue("serverAuth"))),
              AllOf(HasSubstr("tls_cert"), HasSubstr("clientAuth")));
}

TEST_F(SecurityTest, FilesAreReplacedWhileASessionLives) {
  ServerOptions options;
  options.tls_cert = TestPath("rotated.pem");
  options.tls_key = TestPath("rotated.key");
  options.tls_client_ca = TestPath("rotated_ca.pem");
  WriteTestFile(options.tls_cert, ReadTestFile(server_identity_.cert));
  WriteTestFile(options.tls_key, ReadTestFile(server_identity_.key));
  WriteTestFile(options.tls_client_ca, ReadTestFile(authority_->ca()));
  const auto server = StartServer(options);
  const auto first = Session::Connect(Client(*server, client_identity_));
  Use(first, "before");

  TestAuthority next("next");
  const TestIdentity next_server = next.Issue("server");
  SessionOptions next_client = Client(*server, next.Issue("client"));
  next_client.tls_ca = next.ca();
  WriteTestFile(options.tls_client_ca, ReadTestFile(next.ca()));
  WriteTestFile(options.tls_cert, ReadTestFile(next_server.cert));
  // Until both are replaced, the old pair serves (credentials_test).
  WriteTestFile(options.tls_key, ReadTestFile(next_server.key));
  // Tries until the coordinator has read the files.
  const auto second = Session::Connect(next_client);
  Use(first, "after");
  Use(second, "after");
  EXPECT_THAT(Refusal(Client(*server, client_identity_)),
              HasSubstr("certificate verify failed"));
}

TEST_F(SecurityTest, OptionsThatDoNotFitTogetherAreNamed) {
  const auto server = StartServer(MutualTls());
  const SessionOptions good = Client(*server, client_identity_);
  SessionOptions options = good;
  options.tls_key = "";
  EXPECT_THAT(ConnectError<DistError>(options),
              AllOf(HasSubstr("tls_cert"), HasSubstr("MUSTER_TLS_KEY")));
  options = good;
  options.tls_ca = "";
  EXPECT_THAT(ConnectError<DistError>(options), HasSubstr("MUSTER_TLS_CA"));
  options = good;
  options.tls_ca = options.tls_cert = options.tls_key = "";
  options.tls_server_name = "coordinator.example";
  EXPECT_THAT(ConnectError<DistError>(options),
              AllOf(HasSubstr("MUSTER_TLS_SERVER_NAME) is "
                              "\"coordinator.example\""),
                    HasSubstr("MUSTER_TLS_CA")));
  options = good;
  options.tls_ca = TestPath("absent");
  EXPECT_EQ(ConnectError<DistError>(options),
            "tls_ca \"" + TestPath("absent") + "\": no such file or directory");
  options = good;
  options.tls_ca = client_identity_.key;
  EXPECT_THAT(ConnectError<DistError>(options),
              AllOf(HasSubstr("tls_ca"), HasSubstr("CERTIFICATE")));
  options = good;
  options.tls_key = server_identity_.key;
  EXPECT_EQ(ConnectError<DistError>(options),
            "tls_key \"" + options.tls_key +
                "\": is not, without a passphrase, the key of the certificate "
                "in tls_cert \"" +
                options.tls_cert + "\"");
}

TEST_F(SecurityTest, TheEnvironmentFillsInWhatTheOptionsLeaveOut) {
  const auto server = StartServer(MutualTls());
  const SessionOptions full = Client(*server, client_identity_);
  SessionOptions bare = full;
  bare.tls_ca = bare.tls_cert = bare.tls_key = "";
  setenv("MUSTER_TLS_CA", full.tls_ca.c_str(), 1);
  setenv("MUSTER_TLS_CERT", full.tls_cert.c_str(), 1);
  setenv("MUSTER_TLS_KEY", full.tls_key.c_str(), 1);
  Use(Session::Connect(bare), "k");
  unsetenv("MUSTER_TLS_CA");
  unsetenv("MUSTER_TLS_CERT");
  unsetenv("MUSTER_TLS_KEY");
}

// A server with tokens, in plain text on loopback.
class TokenTest : public ::testing::Test {
 protected:
  TokenTest()
      : file_(TestPath(
            ::testing::UnitTest::GetInstance()->current_test_info()->name())) {
    WriteTestFile(file_, TestTokenLine("first-token", "member job"));
    ServerOptions options;
    options.token_file = file_;
    server_ = StartServer(options);
  }

  SessionOptions Client(const std::string& token) {
    SessionOptions options;
    options.address = "127.0.0.1:" + std::to_string(server_->port());
    options.job = "job";
    options.connect_timeout = seconds(20);
    options.token = token;
    return options;
  }

  // Returns the code and text of a refusal, which comes at once.
  static Status Refusal(const SessionOptions& options) {
    try {
      Session::Connect(options);
    } catch (const DistError& error) {
      return error.status();
    }
    return OkStatus();
  }

  const std::string file_;
  std::unique_ptr<Server> server_;
};

TEST_F(TokenTest, ATokenOpensItsJobAndNoOther) {
  Use(Session::Connect(Client("first-token")), "k");
  SessionOptions other = Client("first-token");
  other.job = "other";
  const Status status = Refusal(other);
  EXPECT_EQ(status.code(), StatusCode::kPermissionDenied);
  EXPECT_THAT(std::string(status.message()),
              AllOf(HasSubstr("job \"other\""), HasSubstr("role member")));
}

TEST_F(TokenTest, NoTokenAndAWrongOneAreToldApartAndNotShown) {
  const Status none = Refusal(Client(""));
  EXPECT_EQ(none.code(), StatusCode::kUnauthenticated);
  EXPECT_THAT(std::string(none.message()), HasSubstr("MUSTER_TOKEN"));
  const Status wrong = Refusal(Client("wrong-token"));
  EXPECT_EQ(wrong.code(), StatusCode::kUnauthenticated);
  EXPECT_THAT(std::string(wrong.message()),
              AllOf(HasSubstr("not known"), Not(HasSubstr("wrong-token"))));
  WriteTestFile(
      file_,
      TestTokenLine("old-token", "member job expires=2020-01-01T00:00:00Z"));
  ServerOptions options;
  options.token_file = file_;
  server_ = StartServer(options);
  const Status expired = Refusal(Client("old-token"));
  EXPECT_EQ(expired.code(), StatusCode::kUnauthenticated);
  EXPECT_THAT(std::string(expired.message()),
              HasSubstr("expired at 2020-01-01T00:00:00Z"));
}

TEST_F(TokenTest, ARemovedTokenEndsTheSession) {
  SessionOptions options = Client("first-token");
  std::promise<Status> over;
  options.on_over = [&](const Status& why) { over.set_value(why); };
  const auto session = Session::Connect(options);
  Use(session, "k");
  WriteTestFile(file_, TestTokenLine("second-token", "member job"));
  auto why = over.get_future();
  ASSERT_EQ(why.wait_for(seconds(20)), std::future_status::ready);
  EXPECT_EQ(why.get().code(), StatusCode::kUnauthenticated);
}

TEST_F(TokenTest, ATokenInAFileIsReplacedWhileTheSessionLives) {
  SessionOptions options = Client("");
  options.token_file = TestPath("client_token");
  WriteTestFile(options.token_file, "first-token\n");
  const auto session = Session::Connect(options);
  Use(session, "before");
  SessionOptions stale = Client("first-token");
  std::promise<void> over;
  stale.on_over = [&](const Status&) { over.set_value(); };
  const auto witness = Session::Connect(stale);
  WriteTestFile(options.token_file, "second-token\n");
  WriteTestFile(file_, TestTokenLine("second-token", "member job"));
  // By then the streams with the old token have ended.
  ASSERT_EQ(over.get_future().wait_for(seconds(20)), std::future_status::ready);
  Use(session, "after");
  EXPECT_TRUE(session->status().ok());
}

TEST_F(TokenTest, TheEnvironmentBringsOneToo) {
  setenv("MUSTER_TOKEN", "first-token", 1);
  Use(Session::Connect(Client("")), "k");
  SessionOptions without = Client("");
  without.use_token = false;
  EXPECT_TRUE(IsUnauthenticated(Refusal(without)));
  unsetenv("MUSTER_TOKEN");
}

TEST_F(TokenTest, ATokenDoesNotLeaveTheHostInPlainText) {
  SessionOptions options = Client("first-token");
  options.address = "192.0.2.1:7070";
  const Status refused = Refusal(options);
  EXPECT_EQ(refused.code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(refused.message()),
              AllOf(HasSubstr("192.0.2.1:7070"), HasSubstr("MUSTER_INSECURE"),
                    Not(HasSubstr("first-token"))));
}

TEST_F(TokenTest, MalformedTokensAreRefusedHere) {
  for (const char* const token : {"two words", "line\nbreak", "caf\xc3\xa9"}) {
    const Status refused = Refusal(Client(token));
    EXPECT_EQ(refused.code(), StatusCode::kInvalidArgument) << token;
    EXPECT_THAT(std::string(refused.message()), Not(HasSubstr(token)));
  }
}

}  // namespace
}  // namespace muster
