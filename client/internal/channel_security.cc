#include "client/internal/channel_security.h"

#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "absl/cleanup/cleanup.h"
#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "openssl/bio.h"
#include "openssl/err.h"
#include "openssl/evp.h"
#include "openssl/pem.h"
#include "openssl/x509.h"

namespace muster::internal {
namespace {

constexpr size_t kFileBytesMax = 1 << 20;
// The coordinator takes no longer ones: all headers of a call have 8 KiB.
constexpr size_t kTokenBytesMax = 4096;

absl::StatusOr<std::string> ReadFile(absl::string_view option,
                                     const std::string& path) {
  const auto failure = [&](std::string why) {
    why[0] = absl::ascii_tolower(why[0]);
    return absl::InvalidArgumentError(
        absl::StrCat(option, " \"", path, "\": ", why));
  };
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) return failure(strerror(errno));
  const absl::Cleanup closer = [fd] { close(fd); };
  struct stat info = {};
  if (fstat(fd, &info) != 0) return failure(strerror(errno));
  if (!S_ISREG(info.st_mode)) return failure("not a regular file");
  std::string content;
  char buffer[4096];
  while (content.size() <= kFileBytesMax) {
    const ssize_t bytes = read(fd, buffer, sizeof(buffer));
    if (bytes == 0) return content;
    if (bytes > 0) {
      content.append(buffer, static_cast<size_t>(bytes));
    } else if (errno != EINTR) {
      return failure(strerror(errno));
    }
  }
  return failure(absl::StrCat("more than ", kFileBytesMax, " bytes"));
}

absl::StatusOr<std::string> ReadPem(absl::string_view option,
                                    const std::string& path,
                                    absl::string_view kind) {
  absl::StatusOr<std::string> content = ReadFile(option, path);
  if (content.ok() && !absl::StrContains(*content, kind)) {
    return absl::InvalidArgumentError(absl::StrCat(
        option, " \"", path, "\": holds no \"", kind, "\" in PEM form"));
  }
  return content;
}

// Whether the first certificate of the one is for the private key in the other.
// The transport only fails, and says nothing of it.
bool KeyFits(const std::string& certificates, const std::string& key) {
  const auto reader = [](const std::string& text) {
    return std::unique_ptr<BIO, decltype(&BIO_free)>(
        BIO_new_mem_buf(text.data(), static_cast<int>(text.size())), BIO_free);
  };
  // Else the library would ask for a passphrase on the terminal.
  const auto no_passphrase = [](char*, int, int, void*) { return -1; };
  const std::unique_ptr<X509, decltype(&X509_free)> certificate(
      PEM_read_bio_X509(reader(certificates).get(), nullptr, no_passphrase,
                        nullptr),
      X509_free);
  const std::unique_ptr<EVP_PKEY, decltype(&EVP_PKEY_free)> private_key(
      PEM_read_bio_PrivateKey(reader(key).get(), nullptr, no_passphrase,
                              nullptr),
      EVP_PKEY_free);
  const bool fits =
      certificate != nullptr && private_key != nullptr &&
      X509_check_private_key(certificate.get(), private_key.get()) == 1;
  // They are of this thread, and somebody else might take them for its own.
  ERR_clear_error();
  return fits;
}

absl::Status CheckTokenIsSafe(const SessionOptions& options,
                              const Endpoint& endpoint) {
  if (options.insecure || endpoint.host == "localhost" ||
      IsLoopback(endpoint.host)) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "a token for ", endpoint.ToString(),
      " would go there in plain text, for everybody on the way to read: give "
      "SessionOptions::tls_ca (MUSTER_TLS_CA), or SessionOptions::insecure "
      "(MUSTER_INSECURE=1) if the network is trusted"));
}

absl::Status CheckTls(const SessionOptions& options) {
  if (options.tls_cert.empty() != options.tls_key.empty()) {
    return absl::InvalidArgumentError(
        options.tls_key.empty()
            ? absl::StrCat("tls_cert is \"", options.tls_cert,
                           "\", but there is no tls_key (MUSTER_TLS_KEY)")
            : absl::StrCat("tls_key is \"", options.tls_key,
                           "\", but there is no tls_cert (MUSTER_TLS_CERT)"));
  }
  if (options.tls_ca.empty() && !options.tls_cert.empty()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "tls_cert is \"", options.tls_cert,
        "\", but there is no tls_ca (MUSTER_TLS_CA) to know the coordinator "
        "by"));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status TakeSecurityFromEnvironment(
    const std::function<const char*(const char* name)>& environment,
    SessionOptions& options) {
  const auto take = [&](const char* name, std::string& option) {
    const char* const value = environment(name);
    if (option.empty() && value != nullptr) option = value;
  };
  take("MUSTER_TLS_CA", options.tls_ca);
  take("MUSTER_TLS_CERT", options.tls_cert);
  take("MUSTER_TLS_KEY", options.tls_key);
  take("MUSTER_TLS_SERVER_NAME", options.tls_server_name);
  // A token in a file is as explicit as one in a variable: the option wins.
  if (options.token_file.empty()) take("MUSTER_TOKEN", options.token);
  if (options.token.empty()) take("MUSTER_TOKEN_FILE", options.token_file);
  std::string insecure;
  take("MUSTER_INSECURE", insecure);
  bool value = false;
  if (!insecure.empty() && !absl::SimpleAtob(insecure, &value)) {
    return absl::InvalidArgumentError(
        absl::StrCat("environment variable MUSTER_INSECURE=\"", insecure,
                     "\" is neither true nor false"));
  }
  options.insecure = options.insecure || value;
  return absl::OkStatus();
}

absl::StatusOr<std::string> TokenOf(const SessionOptions& options) {
  if (!options.use_token) return std::string();
  std::string token = options.token;
  if (token.empty() && !options.token_file.empty()) {
    absl::StatusOr<std::string> content =
        ReadFile("token_file", options.token_file);
    if (!content.ok()) return content.status();
    token = std::string(absl::StripAsciiWhitespace(*content));
    if (token.empty()) {
      return absl::InvalidArgumentError(
          absl::StrCat("token_file \"", options.token_file, "\": is empty"));
    }
  }
  // The transport would end the process for a line break in a header.
  if (token.size() > kTokenBytesMax ||
      !std::all_of(token.begin(), token.end(), absl::ascii_isgraph)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "token of ", token.size(), " bytes is malformed: 1 to ", kTokenBytesMax,
        " visible ASCII characters without spaces"));
  }
  return token;
}

absl::StatusOr<std::string> JobTokenOf(
    const std::function<const char*(const char* name)>& environment) {
  SessionOptions options;
  const char* const token = environment("MUSTER_JOB_TOKEN");
  const char* const file = environment("MUSTER_JOB_TOKEN_FILE");
  if (token != nullptr) options.token = token;
  if (file != nullptr) options.token_file = file;
  absl::StatusOr<std::string> found = TokenOf(options);
  if (found.ok()) return found;
  return absl::Status(found.status().code(),
                      absl::StrCat("MUSTER_JOB_TOKEN, MUSTER_JOB_TOKEN_FILE: ",
                                   found.status().message()));
}

absl::StatusOr<ChannelSecurity> LoadChannelSecurity(
    const SessionOptions& options, const Endpoint& endpoint) {
  absl::Status status = CheckTls(options);
  if (!status.ok()) return status;
  ChannelSecurity security;
  const absl::StatusOr<std::string> token = TokenOf(options);
  if (!token.ok()) return token.status();
  if (!token->empty()) security.authorization = absl::StrCat("Bearer ", *token);
  if (options.tls_ca.empty()) {
    if (!token->empty()) status = CheckTokenIsSafe(options, endpoint);
    if (!status.ok()) return status;
    security.credentials = grpc::InsecureChannelCredentials();
    return security;
  }
  grpc::SslCredentialsOptions ssl;
  const struct {
    const char* option;
    const std::string& path;
    const char* kind;
    std::string* content;
  } parts[] = {
      {"tls_ca", options.tls_ca, "CERTIFICATE", &ssl.pem_root_certs},
      {"tls_cert", options.tls_cert, "CERTIFICATE", &ssl.pem_cert_chain},
      {"tls_key", options.tls_key, "PRIVATE KEY", &ssl.pem_private_key}};
  for (const auto& part : parts) {
    if (part.path.empty()) continue;
    absl::StatusOr<std::string> content =
        ReadPem(part.option, part.path, part.kind);
    if (!content.ok()) return content.status();
    *part.content = *std::move(content);
  }
  if (!options.tls_key.empty() &&
      !KeyFits(ssl.pem_cert_chain, ssl.pem_private_key)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "tls_key \"", options.tls_key,
        "\": is not, without a passphrase, the key of the certificate in "
        "tls_cert \"",
        options.tls_cert, "\""));
  }
  security.credentials = grpc::SslCredentials(ssl);
  security.server_name = options.tls_server_name;
  return security;
}

absl::Status WithHandshakeHint(const SessionOptions& options,
                               const absl::Status& failure) {
  const absl::string_view text = failure.message();
  absl::string_view hint;
  if (absl::StrContains(text, "wrong version number")) {
    hint = "does it speak plain text? then unset tls_ca (MUSTER_TLS_CA)";
  } else if (absl::StrContains(text, "certificate verify failed")) {
    hint =
        "has its certificate expired, or did no authority in tls_ca "
        "(MUSTER_TLS_CA) sign it?";
  } else if (absl::StrContains(text, "is not in peer certificate")) {
    hint =
        "tls_server_name (MUSTER_TLS_SERVER_NAME) says by which name it is "
        "known";
  } else if (!absl::StrContains(text, "failed to connect") ||
             !absl::StrContains(text, "Socket closed")) {
    return failure;
  } else if (options.tls_ca.empty()) {
    hint = "does it speak TLS? then set tls_ca (MUSTER_TLS_CA)";
  } else if (options.tls_cert.empty()) {
    hint =
        "does it ask for a certificate? then set tls_cert and tls_key "
        "(MUSTER_TLS_CERT, MUSTER_TLS_KEY)";
  } else {
    hint = "does it refuse the certificate in tls_cert (MUSTER_TLS_CERT)?";
  }
  return absl::Status(failure.code(), absl::StrCat(text, " (", hint, ")"));
}

}  // namespace muster::internal
