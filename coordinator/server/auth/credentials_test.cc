// Tests which TLS files a server refuses, and how they are replaced.
// security_test tests the clients' side.

#include "coordinator/server/auth/credentials.h"

#include <sys/stat.h>

#include <string>

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "coordinator/server/auth/test_certificates.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace muster::coordinator {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

class CredentialsTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    authority_ = new TestAuthority("authority");
    first_ = authority_->Issue("first");
    second_ = authority_->Issue("second");
  }

  static std::string Error(const TlsFiles& files) {
    const StatusOr<TlsMaterial> material = LoadTlsMaterial(files);
    EXPECT_EQ(material.status().code(), StatusCode::kInvalidArgument);
    return std::string(material.status().message());
  }

  static TestAuthority* authority_;
  static TestIdentity first_;
  static TestIdentity second_;
};
TestAuthority* CredentialsTest::authority_;
TestIdentity CredentialsTest::first_;
TestIdentity CredentialsTest::second_;

TEST_F(CredentialsTest, GoodFilesAreTaken) {
  EXPECT_TRUE(LoadTlsMaterial({first_.cert, first_.key, ""}).ok());
  EXPECT_TRUE(
      LoadTlsMaterial({first_.cert, first_.key, authority_->ca()}).ok());
}

TEST_F(CredentialsTest, FilesThatCannotBeReadAreNamedWithTheirOption) {
  const std::string absent = TestPath("absent.pem");
  EXPECT_EQ(Error({absent, first_.key, ""}),
            "tls_cert \"" + absent + "\": no such file or directory");
  EXPECT_EQ(Error({first_.cert, absent, ""}),
            "tls_key \"" + absent + "\": no such file or directory");
  EXPECT_EQ(Error({first_.cert, first_.key, absent}),
            "tls_client_ca \"" + absent + "\": no such file or directory");
  EXPECT_EQ(Error({first_.cert, ::testing::TempDir(), ""}),
            "tls_key \"" + ::testing::TempDir() + "\": is a directory");
  EXPECT_EQ(Error({"/dev/zero", first_.key, ""}),
            "tls_cert \"/dev/zero\": not a regular file");
  const std::string pipe = TestPath("pipe");
  ASSERT_EQ(mkfifo(pipe.c_str(), 0600), 0);
  EXPECT_EQ(Error({pipe, first_.key, ""}),
            "tls_cert \"" + pipe + "\": not a regular file");
}

TEST_F(CredentialsTest, FilesOfAnotherKindAreNamedAndNotShown) {
  EXPECT_THAT(Error({first_.key, first_.key, ""}),
              AllOf(HasSubstr("tls_cert"), HasSubstr("no certificate"),
                    Not(HasSubstr("BEGIN"))));
  EXPECT_THAT(Error({first_.cert, first_.cert, ""}),
              AllOf(HasSubstr("tls_key"), HasSubstr("no private key")));
  EXPECT_THAT(Error({first_.cert, first_.key, first_.key}),
              AllOf(HasSubstr("tls_client_ca"), HasSubstr("no certificate")));
}

TEST_F(CredentialsTest, AKeyOfAnotherCertificateIsRefused) {
  EXPECT_EQ(Error({first_.cert, second_.key, ""}),
            "tls_key \"" + second_.key +
                "\": is not the key of the certificate in tls_cert \"" +
                first_.cert + "\"");
}

TEST_F(CredentialsTest, ACertificateThatIsNoneForServersIsRefused) {
  for (const char* const usage : {"", "clientAuth"}) {
    const TestIdentity member = authority_->Issue("member", {.usage = usage});
    EXPECT_THAT(
        Error({member.cert, member.key, ""}),
        AllOf(HasSubstr("tls_cert \"" + member.cert), HasSubstr("serverAuth")));
  }
}

// The files in use are those of the next handshake.
TEST_F(CredentialsTest, ACertificateWithoutItsKeyYetIsNotTaken) {
  const TlsFiles files{TestPath("c.pem"), TestPath("c.key"), ""};
  WriteTestFile(files.cert, ReadTestFile(first_.cert));
  WriteTestFile(files.key, ReadTestFile(first_.key));
  const auto identity = TlsIdentity::Load(files);
  ASSERT_TRUE(identity.ok()) << identity.status();
  WriteTestFile(files.cert, ReadTestFile(second_.cert));
  (*identity)->Reload();
  EXPECT_EQ((*identity)->material().cert, ReadTestFile(first_.cert));
  WriteTestFile(files.key, ReadTestFile(second_.key));
  (*identity)->Reload();
  EXPECT_EQ((*identity)->material().cert, ReadTestFile(second_.cert));
  EXPECT_EQ((*identity)->material().key, ReadTestFile(second_.key));
}

TEST_F(CredentialsTest, AnExpiredCertificateDoesNotReplaceAGoodOne) {
  const TestIdentity expired = authority_->Issue("expired", {.expired = true});
  const TlsFiles files{TestPath("e.pem"), TestPath("e.key"), ""};
  WriteTestFile(files.cert, ReadTestFile(first_.cert));
  WriteTestFile(files.key, ReadTestFile(first_.key));
  const auto identity = TlsIdentity::Load(files);
  ASSERT_TRUE(identity.ok()) << identity.status();
  EXPECT_GT((*identity)->expiry(), absl::Now());
  WriteTestFile(files.key, ReadTestFile(expired.key));
  WriteTestFile(files.cert, ReadTestFile(expired.cert));
  (*identity)->Reload();
  EXPECT_EQ((*identity)->material().cert, ReadTestFile(first_.cert));
  EXPECT_TRUE((*identity)->refused());
  WriteTestFile(files.cert, ReadTestFile(first_.cert));
  WriteTestFile(files.key, ReadTestFile(first_.key));
  (*identity)->Reload();
  EXPECT_FALSE((*identity)->refused());
  // Better than no certificate.
  EXPECT_TRUE(TlsIdentity::Load({expired.cert, expired.key, ""}).ok());
}

}  // namespace
}  // namespace muster::coordinator
