#ifndef MUSTER_COORDINATOR_SERVER_AUTH_TEST_CERTIFICATES_H_
#define MUSTER_COORDINATOR_SERVER_AUTH_TEST_CERTIFICATES_H_

#include <map>
#include <string>
#include <vector>

namespace muster::coordinator {

// The paths of a certificate and its key, PEM files.
struct TestIdentity {
  std::string cert;
  std::string key;
};

struct TestIssue {
  bool expired = false;
  // The subjectAltName, in openssl's syntax.
  std::string names = "IP:127.0.0.1,DNS:localhost";
  // The extendedKeyUsage, in openssl's syntax; empty: none.
  std::string usage = "serverAuth,clientAuth";
};

// A certificate authority for one test, made by the openssl command in the
// test's folder. `name` must be unique in the test.
class TestAuthority {
 public:
  explicit TestAuthority(const std::string& name);

  // The path of its own certificate.
  const std::string& ca() const { return self_.cert; }

  // Makes a new certificate in new files.
  TestIdentity Issue(const std::string& name, const TestIssue& issue = {});

 private:
  const std::string folder_;
  const TestIdentity self_;
};

// A line of a token file: the digest of `token`, and `rest`.
std::string TestTokenLine(const std::string& token, const std::string& rest);

// The files of a coordinator on 127.0.0.1 that requires certificates and
// tokens, and of its clients. At most one per test.
class TestProtection {
 public:
  // Clients may do everything in `jobs`, for example "job*".
  explicit TestProtection(const std::string& jobs);

  // The coordinator's flags.
  std::vector<std::string> flags() const;
  // The clients' environment variables.
  std::map<std::string, std::string> environment() const;
  // Makes this process a client.
  void SetEnvironment() const;

 private:
  TestAuthority authority_;
  const TestIdentity server_;
  const TestIdentity client_;
  const std::string tokens_;
};

std::string ReadTestFile(const std::string& path);
// Replaces the file in one step.
void WriteTestFile(const std::string& path, const std::string& content);
// A path in the test's folder.
std::string TestPath(const std::string& name);

}  // namespace muster::coordinator

#endif  // MUSTER_COORDINATOR_SERVER_AUTH_TEST_CERTIFICATES_H_
