#include "coordinator/server/auth/test_certificates.h"

#include <sys/stat.h>

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <sstream>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "coordinator/server/auth/tokens.h"
#include "gtest/gtest.h"

namespace muster::coordinator {
namespace {

void Run(const std::string& command) {
  const std::string log = TestPath("openssl.log");
  EXPECT_EQ(system(absl::StrCat(command, " >", log, " 2>&1").c_str()), 0)
      << command << "\n"
      << ReadTestFile(log);
}

constexpr char kToken[] = "token-of-a-test";
constexpr char kNewKey[] =
    "-newkey ec -pkeyopt ec_paramgen_curve:prime256v1 "
    "-nodes";

}  // namespace

std::string TestPath(const std::string& name) {
  return absl::StrCat(::testing::TempDir(), "/", name);
}

std::string TestTokenLine(const std::string& token, const std::string& rest) {
  const TokenDigest digest = ComputeDigest(token);
  return absl::StrCat(
      absl::BytesToHexString(absl::string_view(
          reinterpret_cast<const char*>(digest.data()), digest.size())),
      " ", rest, "\n");
}

std::string ReadTestFile(const std::string& path) {
  std::ostringstream content;
  content << std::ifstream(path).rdbuf();
  return content.str();
}

void WriteTestFile(const std::string& path, const std::string& content) {
  const std::string next = path + ".next";
  std::ofstream(next) << content;
  EXPECT_EQ(rename(next.c_str(), path.c_str()), 0);
}

TestAuthority::TestAuthority(const std::string& name)
    : folder_(TestPath(name)), self_{folder_ + "/ca.pem", folder_ + "/ca.key"} {
  mkdir(folder_.c_str(), 0700);
  Run(absl::StrCat("openssl req -x509 -days 2 ", kNewKey, " -subj /CN=", name,
                   " -keyout ", self_.key, " -out ", self_.cert));
}

TestIdentity TestAuthority::Issue(const std::string& name,
                                  const TestIssue& issue) {
  const std::string base = absl::StrCat(folder_, "/", name);
  TestIdentity identity{base + ".pem", base + ".key"};
  WriteTestFile(base + ".ext",
                absl::StrCat("subjectAltName=", issue.names, "\n",
                             issue.usage.empty() ? "" : "extendedKeyUsage=",
                             issue.usage, "\n"));
  Run(absl::StrCat("openssl req -new ", kNewKey, " -subj /CN=", name,
                   " -keyout ", identity.key, " -out ", base, ".csr"));
  Run(absl::StrCat("openssl x509 -req -in ", base, ".csr -CA ", self_.cert,
                   " -CAkey ", self_.key, " -CAcreateserial -extfile ", base,
                   ".ext -days ", issue.expired ? -1 : 2, " -out ",
                   identity.cert));
  return identity;
}

TestProtection::TestProtection(const std::string& jobs)
    : authority_("protection"),
      server_(authority_.Issue("server", {.usage = "serverAuth"})),
      client_(authority_.Issue("client", {.usage = "clientAuth"})),
      tokens_(TestPath("protection.tokens")) {
  WriteTestFile(tokens_, TestTokenLine(kToken, absl::StrCat("member ", jobs)));
}

std::vector<std::string> TestProtection::flags() const {
  return {absl::StrCat("--tls_cert=", server_.cert),
          absl::StrCat("--tls_key=", server_.key),
          absl::StrCat("--tls_client_ca=", authority_.ca()),
          absl::StrCat("--token_file=", tokens_)};
}

std::map<std::string, std::string> TestProtection::environment() const {
  return {{"MUSTER_TLS_CA", authority_.ca()},
          {"MUSTER_TLS_CERT", client_.cert},
          {"MUSTER_TLS_KEY", client_.key},
          {"MUSTER_TOKEN", kToken}};
}

void TestProtection::SetEnvironment() const {
  for (const auto& [name, value] : environment()) {
    setenv(name.c_str(), value.c_str(), 1);
  }
}

}  // namespace muster::coordinator
