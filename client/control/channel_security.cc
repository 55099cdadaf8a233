#include "client/control/channel_security.h"

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/small_file.h"
#include "base/text.h"
#include "grpcpp/security/tls_certificate_provider.h"
#include "grpcpp/security/tls_certificate_verifier.h"
#include "grpcpp/security/tls_credentials_options.h"
#include "muster/base/status.h"
#include "openssl/bio.h"
#include "openssl/err.h"
#include "openssl/evp.h"
#include "openssl/pem.h"
#include "openssl/x509.h"
#include "openssl/x509v3.h"

namespace muster::internal {
namespace {

// How long to wait for the first bytes of another kind of server.
constexpr std::chrono::milliseconds kStrangerTime{2'000};
constexpr size_t kFileBytesMax = 1 << 20;
// The coordinator accepts no longer ones: all headers of a call have 8 KiB.
constexpr size_t kTokenBytesMax = 4096;

StatusOr<std::string> ReadPem(absl::string_view option, const std::string& path,
                              absl::string_view kind) {
  StatusOr<std::string> content =
      base::ReadSmallFile(option, path, kFileBytesMax);
  if (content.ok() && !absl::StrContains(*content, kind)) {
    return InvalidArgumentError(absl::StrCat(option, " ", base::Quote(path),
                                             ": holds no ", base::Quote(kind),
                                             " in PEM form"));
  }
  return content;
}

using Certificate = std::unique_ptr<X509, decltype(&X509_free)>;

std::unique_ptr<BIO, decltype(&BIO_free)> Reader(absl::string_view text) {
  return {BIO_new_mem_buf(text.data(), static_cast<int>(text.size())),
          BIO_free};
}

// Without it OpenSSL would ask on the terminal.
int NoPassphrase(char*, int, int, void*) { return -1; }

// Returns the first certificate in `pem`, or null.
Certificate FirstCertificate(absl::string_view pem) {
  return {PEM_read_bio_X509(Reader(pem).get(), nullptr, NoPassphrase, nullptr),
          X509_free};
}

// Whether the first certificate belongs to the private key. If not, the
// transport fails without a reason.
bool KeyFits(const std::string& certificates, const std::string& key) {
  const Certificate certificate = FirstCertificate(certificates);
  const std::unique_ptr<EVP_PKEY, decltype(&EVP_PKEY_free)> private_key(
      PEM_read_bio_PrivateKey(Reader(key).get(), nullptr, NoPassphrase,
                              nullptr),
      EVP_PKEY_free);
  const bool fits =
      certificate != nullptr && private_key != nullptr &&
      X509_check_private_key(certificate.get(), private_key.get()) == 1;
  // Other code of this thread might take these errors for its own.
  ERR_clear_error();
  return fits;
}

// Whether the certificate lists its uses, and `usage` (XKU_SSL_...) is one.
bool SaysUsage(const Certificate& certificate, uint32_t usage) {
  return certificate != nullptr &&
         (X509_get_extension_flags(certificate.get()) & EXFLAG_XKUSAGE) != 0 &&
         (X509_get_extended_key_usage(certificate.get()) & usage) != 0;
}

// A coordinator refuses such a certificate without a reason.
bool IsForServersAlone(const std::string& certificates) {
  const Certificate certificate = FirstCertificate(certificates);
  const bool servers_alone = SaysUsage(certificate, XKU_SSL_SERVER) &&
                             !SaysUsage(certificate, XKU_SSL_CLIENT);
  ERR_clear_error();
  return servers_alone;
}

// Checks a server's certificate that one of our authorities has signed. Without
// this check, a client's certificate that lists no uses would be valid for a
// server, and its owner could impersonate the coordinator.
class ServerVerifier final
    : public grpc::experimental::ExternalCertificateVerifier {
 public:
  using Request = grpc::experimental::TlsCustomVerificationCheckRequest;

  bool Verify(Request* request, std::function<void(grpc::Status)>,
              grpc::Status* result) override {
    const auto text = [](const grpc::string_ref& part) {
      return absl::string_view(part.data(), part.size());
    };
    const bool serves =
        SaysUsage(FirstCertificate(text(request->peer_cert())), XKU_SSL_SERVER);
    ERR_clear_error();
    if (!serves) {
      *result = grpc::Status(
          grpc::StatusCode::UNAUTHENTICATED,
          absl::StrCat("the certificate there (", text(request->common_name()),
                       ") is none for a server: its extended key usage does "
                       "not say serverAuth"));
      return true;
    }
    if (!names_.Verify(request, nullptr, result) || result->ok()) return true;
    std::vector<std::string> names;
    for (const auto& list : {request->dns_names(), request->ip_names()}) {
      for (const grpc::string_ref& name : list) names.emplace_back(text(name));
    }
    *result = grpc::Status(
        grpc::StatusCode::UNAUTHENTICATED,
        absl::StrCat("the certificate there is for ",
                     names.empty() ? "nobody" : absl::StrJoin(names, ", "),
                     ", not for ", text(request->target_name()),
                     " (tls_server_name, MUSTER_TLS_SERVER_NAME, says by which "
                     "name the coordinator is known)"));
    return true;
  }

  void Cancel(Request*) override {}

 private:
  grpc::experimental::HostNameCertificateVerifier names_;
};

// All are PEM texts; `certificate` may be empty.
std::shared_ptr<grpc::ChannelCredentials> TlsCredentials(
    const std::string& authorities, const std::string& certificate,
    const std::string& key) {
  using grpc::experimental::IdentityKeyCertPair;
  using grpc::experimental::StaticDataCertificateProvider;
  std::vector<IdentityKeyCertPair> identity;
  if (!certificate.empty()) identity.push_back({key, certificate});
  grpc::experimental::TlsChannelCredentialsOptions options;
  options.set_certificate_provider(
      std::make_shared<StaticDataCertificateProvider>(authorities, identity));
  options.watch_root_certs();
  if (!certificate.empty()) options.watch_identity_key_cert_pairs();
  options.set_certificate_verifier(
      grpc::experimental::ExternalCertificateVerifier::Create<
          ServerVerifier>());
  // The verified name need not be that of the calls.
  options.set_check_call_host(false);
  return grpc::experimental::TlsCredentials(options);
}

StatusOr<std::string> ReadToken(const std::string& given,
                                const std::string& file) {
  std::string token = given;
  if (token.empty() && !file.empty()) {
    StatusOr<std::string> content =
        base::ReadSmallFile("token_file", file, kFileBytesMax);
    if (!content.ok()) return content.status();
    token = std::string(absl::StripAsciiWhitespace(*content));
    if (token.empty()) {
      return InvalidArgumentError(
          absl::StrCat("token_file ", base::Quote(file), ": is empty"));
    }
  }
  // The transport would abort the process for a line break in a header.
  if (token.size() > kTokenBytesMax ||
      !std::all_of(token.begin(), token.end(), absl::ascii_isgraph)) {
    return InvalidArgumentError(absl::StrCat(
        "token of ", token.size(), " bytes is malformed: 1 to ", kTokenBytesMax,
        " visible ASCII characters without spaces"));
  }
  return token;
}

// Why a connection failed. gRPC has only kUnavailable for it, and does not pass
// OpenSSL's codes on.
enum class HandshakeFailure { kOther, kNotTls, kNotVerified, kClosed };

HandshakeFailure FailureIn(absl::string_view grpc_text) {
  const auto has = [&](absl::string_view words) {
    return absl::StrContains(grpc_text, words);
  };
  if (has("wrong version number")) return HandshakeFailure::kNotTls;
  if (has("certificate verify failed")) return HandshakeFailure::kNotVerified;
  return has("failed to connect") && has("Socket closed")
             ? HandshakeFailure::kClosed
             : HandshakeFailure::kOther;
}

}  // namespace

const char* ReadEnvironment(const char* name) { return std::getenv(name); }

StatusOr<ChannelSecurity> ChannelSecurity::Take(
    const SessionOptions& options, const EnvironmentReader& environment) {
  ChannelSecurity security;
  security.tls_ca_ = options.tls_ca;
  security.tls_cert_ = options.tls_cert;
  security.tls_key_ = options.tls_key;
  security.tls_server_name_ = options.tls_server_name;
  security.use_token_ = options.use_token;
  security.token_ = options.token;
  security.token_file_ = options.token_file;
  const auto take = [&](const char* name, std::string& option) {
    const char* const value = environment(name);
    if (option.empty() && value != nullptr) option = value;
  };
  take("MUSTER_TLS_CA", security.tls_ca_);
  take("MUSTER_TLS_CERT", security.tls_cert_);
  take("MUSTER_TLS_KEY", security.tls_key_);
  take("MUSTER_TLS_SERVER_NAME", security.tls_server_name_);
  // A token in a file is as explicit as a token in a variable: options come
  // first.
  if (options.token_file.empty()) take("MUSTER_TOKEN", security.token_);
  if (options.token.empty()) take("MUSTER_TOKEN_FILE", security.token_file_);
  std::string insecure;
  take("MUSTER_INSECURE", insecure);
  bool value = false;
  if (!insecure.empty() && !absl::SimpleAtob(insecure, &value)) {
    return InvalidArgumentError(absl::StrCat(
        "environment variable MUSTER_INSECURE=", base::Quote(insecure),
        " is neither true nor false"));
  }
  security.insecure_ = options.insecure || value;
  Status status = security.CheckTls();
  if (!status.ok()) return status;
  return security;
}

Status ChannelSecurity::CheckTls() const {
  if (tls_cert_.empty() != tls_key_.empty()) {
    return InvalidArgumentError(
        tls_key_.empty()
            ? absl::StrCat("tls_cert is ", base::Quote(tls_cert_),
                           ", but there is no tls_key (MUSTER_TLS_KEY)")
            : absl::StrCat("tls_key is ", base::Quote(tls_key_),
                           ", but there is no tls_cert (MUSTER_TLS_CERT)"));
  }
  if (!tls_ca_.empty()) return OkStatus();
  const auto without_ca = [](absl::string_view option,
                             const std::string& value) {
    return InvalidArgumentError(absl::StrCat(
        option, " is ", base::Quote(value),
        ", but there is no tls_ca (MUSTER_TLS_CA) to know the coordinator "
        "by"));
  };
  if (!tls_cert_.empty()) return without_ca("tls_cert", tls_cert_);
  if (!tls_server_name_.empty()) {
    return without_ca("tls_server_name (MUSTER_TLS_SERVER_NAME)",
                      tls_server_name_);
  }
  return OkStatus();
}

StatusOr<std::string> ChannelSecurity::Token() const {
  if (!use_token_) return std::string();
  return ReadToken(token_, token_file_);
}

StatusOr<std::string> JobToken(const EnvironmentReader& environment) {
  const char* const token = environment("MUSTER_JOB_TOKEN");
  const char* const file = environment("MUSTER_JOB_TOKEN_FILE");
  StatusOr<std::string> found =
      ReadToken(token == nullptr ? "" : token, file == nullptr ? "" : file);
  if (found.ok()) return found;
  return Status(found.status().code(),
                absl::StrCat("MUSTER_JOB_TOKEN, MUSTER_JOB_TOKEN_FILE: ",
                             found.status().message()));
}

StatusOr<ConnectionSecurity> ChannelSecurity::Load(
    const Endpoint& endpoint) const {
  ConnectionSecurity security;
  const StatusOr<std::string> token = Token();
  if (!token.ok()) return token.status();
  if (!token->empty()) {
    security.authorization_ = absl::StrCat("Bearer ", *token);
  }
  if (tls_ca_.empty()) {
    if (!token->empty() && !insecure_ && endpoint.host != "localhost" &&
        !IsLoopback(endpoint.host)) {
      return InvalidArgumentError(absl::StrCat(
          "a token for ", endpoint.ToString(),
          " would go there in plain text, for everybody on the way to read: "
          "give SessionOptions::tls_ca (MUSTER_TLS_CA), or "
          "SessionOptions::insecure (MUSTER_INSECURE=1) if the network is "
          "trusted"));
    }
    security.credentials_ = grpc::InsecureChannelCredentials();
    return security;
  }
  std::string authorities, certificate, key;
  const struct {
    const char* option;
    const std::string& path;
    const char* kind;
    std::string* content;
  } parts[] = {{"tls_ca", tls_ca_, "CERTIFICATE", &authorities},
               {"tls_cert", tls_cert_, "CERTIFICATE", &certificate},
               {"tls_key", tls_key_, "PRIVATE KEY", &key}};
  for (const auto& part : parts) {
    if (part.path.empty()) continue;
    StatusOr<std::string> content = ReadPem(part.option, part.path, part.kind);
    if (!content.ok()) return content.status();
    *part.content = *std::move(content);
  }
  if (!tls_key_.empty() && !KeyFits(certificate, key)) {
    return InvalidArgumentError(absl::StrCat(
        "tls_key ", base::Quote(tls_key_),
        ": is not, without a passphrase, the key of the certificate in "
        "tls_cert ",
        base::Quote(tls_cert_)));
  }
  if (IsForServersAlone(certificate)) {
    return InvalidArgumentError(absl::StrCat(
        "tls_cert ", base::Quote(tls_cert_),
        ": is for servers alone: its extended key usage does not say "
        "clientAuth"));
  }
  security.credentials_ = TlsCredentials(authorities, certificate, key);
  security.server_name_ = tls_server_name_;
  return security;
}

Status ChannelSecurity::Explain(const Status& failure,
                                const Endpoint& endpoint) const {
  if (IsUnimplemented(failure)) {
    return Status(failure.code(),
                  "what answers there does not know this call of "
                  "muster.v1: it is no muster coordinator, or one of "
                  "another version");
  }
  // Not if the TLS handshake got further: then it is a coordinator.
  const bool may_be_stranger =
      tls_ca_.empty() || !IsUnavailable(failure) ||
      FailureIn(failure.message()) == HandshakeFailure::kNotTls;
  if (may_be_stranger) {
    const std::string stranger = DescribeStranger(endpoint, kStrangerTime);
    if (!stranger.empty()) return UnavailableError(stranger);
  }
  return WithHandshakeHint(failure);
}

Status ChannelSecurity::WithHandshakeHint(const Status& failure) const {
  const absl::string_view text = failure.message();
  const HandshakeFailure why = FailureIn(text);
  absl::string_view hint;
  if (why == HandshakeFailure::kNotTls) {
    hint = "does it speak plain text? then unset tls_ca (MUSTER_TLS_CA)";
  } else if (why == HandshakeFailure::kNotVerified) {
    hint =
        "has its certificate expired, or did no authority in tls_ca "
        "(MUSTER_TLS_CA) sign it?";
  } else if (why == HandshakeFailure::kOther) {
    return failure;
  } else if (tls_ca_.empty()) {
    hint =
        "does it speak TLS? then set tls_ca (MUSTER_TLS_CA); has it no file "
        "descriptor left? its log says connections_refused";
  } else if (tls_cert_.empty()) {
    hint =
        "does it ask for a certificate? then set tls_cert and tls_key "
        "(MUSTER_TLS_CERT, MUSTER_TLS_KEY)";
  } else {
    hint = "does it refuse the certificate in tls_cert (MUSTER_TLS_CERT)?";
  }
  return Status(failure.code(), absl::StrCat(text, " (", hint, ")"));
}

}  // namespace muster::internal
