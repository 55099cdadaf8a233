#include "coordinator/server/auth/credentials.h"

#include <ctime>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "base/small_file.h"
#include "base/text.h"
#include "coordinator/server/auth/tokens.h"
#include "glog/logging.h"
#include "grpc/grpc.h"
#include "openssl/bio.h"
#include "openssl/err.h"
#include "openssl/evp.h"
#include "openssl/pem.h"
#include "openssl/x509.h"
#include "openssl/x509v3.h"

namespace muster::coordinator {
namespace {

template <auto kFree>
struct Deleter {
  template <typename T>
  void operator()(T* object) const {
    kFree(object);
  }
};
using Bio = std::unique_ptr<BIO, Deleter<BIO_free>>;
using Certificate = std::unique_ptr<X509, Deleter<X509_free>>;
using PrivateKey = std::unique_ptr<EVP_PKEY, Deleter<EVP_PKEY_free>>;

Bio Reader(const std::string& text) {
  return Bio(BIO_new_mem_buf(text.data(), static_cast<int>(text.size())));
}

// Prevents the library from asking for a passphrase on the terminal.
int NoPassphrase(char*, int, int, void*) { return -1; }

Status Refusal(absl::string_view option, absl::string_view path,
               absl::string_view why) {
  // Drops OpenSSL's own description, which may contain bytes of the file.
  ERR_clear_error();
  return InvalidArgumentError(
      absl::StrCat(option, " ", base::Quote(path), ": ", why));
}

StatusOr<Certificate> FirstCertificate(absl::string_view option,
                                       const std::string& path,
                                       const std::string& text) {
  Certificate certificate(
      PEM_read_bio_X509(Reader(text).get(), nullptr, NoPassphrase, nullptr));
  if (certificate != nullptr) return certificate;
  return Refusal(option, path, "holds no certificate in PEM form");
}

Status CheckMaterial(const TlsFiles& files, const TlsMaterial& material) {
  const StatusOr<Certificate> certificate =
      FirstCertificate("tls_cert", files.cert, material.cert);
  if (!certificate.ok()) return certificate.status();
  if ((X509_get_extension_flags(certificate->get()) & EXFLAG_XKUSAGE) == 0 ||
      (X509_get_extended_key_usage(certificate->get()) & XKU_SSL_SERVER) == 0) {
    return Refusal("tls_cert", files.cert,
                   "its extended key usage does not say serverAuth, so clients "
                   "would refuse it (openssl x509 -ext extendedKeyUsage shows "
                   "it)");
  }
  const PrivateKey key(PEM_read_bio_PrivateKey(Reader(material.key).get(),
                                               nullptr, NoPassphrase, nullptr));
  if (key == nullptr) {
    return Refusal("tls_key", files.key,
                   "holds no private key in PEM form without a passphrase");
  }
  if (X509_check_private_key(certificate->get(), key.get()) != 1) {
    return Refusal(
        "tls_key", files.key,
        absl::StrCat("is not the key of the certificate in tls_cert ",
                     base::Quote(files.cert)));
  }
  if (files.client_ca.empty()) return OkStatus();
  return FirstCertificate("tls_client_ca", files.client_ca, material.client_ca)
      .status();
}

// The time when the certificate expires.
absl::Time GetExpiry(const TlsMaterial& material) {
  const StatusOr<Certificate> certificate =
      FirstCertificate("", "", material.cert);
  std::tm end = {};
  if (!certificate.ok() ||
      ASN1_TIME_to_tm(X509_get0_notAfter(certificate->get()), &end) != 1) {
    return absl::InfiniteFuture();
  }
  return absl::FromTM(end, absl::UTCTimeZone());
}

void LogLoaded(const TlsFiles& files, const TlsMaterial& material) {
  const absl::Time end = GetExpiry(material);
  const std::string what = absl::StrCat(
      "cert=", base::LogValue(files.cert),
      " expires=", absl::FormatTime(end, absl::UTCTimeZone()), " client_ca=",
      files.client_ca.empty() ? "none" : base::LogValue(files.client_ca));
  if (end <= absl::Now()) {
    LOG(WARNING) << "tls_certificate_expired: " << what;
  } else {
    LOG(INFO) << "tls_loaded: " << what;
  }
}

// grpc::SslServerCredentials cannot replace its certificates, and gRPC's own
// file watcher takes a new certificate without its key, after which every
// handshake fails until the key comes. The C interface asks before each
// handshake.
class FetchingCredentials final : public grpc::ServerCredentials {
 public:
  explicit FetchingCredentials(grpc_server_credentials* credentials)
      : credentials_(credentials) {}
  ~FetchingCredentials() override {
    grpc_server_credentials_release(credentials_);
  }

  void SetAuthMetadataProcessor(
      const std::shared_ptr<grpc::AuthMetadataProcessor>&) override {
    LOG(FATAL) << "tokens are looked at in the services";
  }

 private:
  int AddPortToServer(const std::string& address,
                      grpc_server* server) override {
    return grpc_server_add_http2_port(server, address.c_str(), credentials_);
  }

  grpc_server_credentials* const credentials_;
};

}  // namespace

StatusOr<TlsMaterial> LoadTlsMaterial(const TlsFiles& files) {
  TlsMaterial material;
  const struct {
    const char* option;
    const std::string& path;
    std::string* content;
  } parts[] = {{"tls_cert", files.cert, &material.cert},
               {"tls_key", files.key, &material.key},
               {"tls_client_ca", files.client_ca, &material.client_ca}};
  for (const auto& part : parts) {
    if (part.path.empty()) continue;
    StatusOr<std::string> content =
        base::ReadSmallFile(part.option, part.path, kAuthFileBytesMax);
    if (!content.ok()) return content.status();
    *part.content = *std::move(content);
  }
  Status status = CheckMaterial(files, material);
  if (!status.ok()) return status;
  return material;
}

StatusOr<std::unique_ptr<TlsIdentity>> TlsIdentity::Load(TlsFiles files) {
  StatusOr<TlsMaterial> material = LoadTlsMaterial(files);
  if (!material.ok()) return material.status();
  LogLoaded(files, *material);
  return std::unique_ptr<TlsIdentity>(
      new TlsIdentity(std::move(files), *std::move(material)));
}

TlsIdentity::TlsIdentity(TlsFiles files, TlsMaterial material)
    : files_(std::move(files)),
      material_(std::move(material)),
      expiry_(GetExpiry(material_)),
      expiry_told_(expiry_ <= absl::Now()) {}

void TlsIdentity::Reload() {
  StatusOr<TlsMaterial> material = LoadTlsMaterial(files_);
  const absl::Time now = absl::Now();
  bool news = false;
  {
    MutexLock lock(mu_);
    if (material.ok() && GetExpiry(*material) <= now && expiry_ > now) {
      material =
          Refusal("tls_cert", files_.cert, "the certificate has expired");
    }
    const Status before = std::exchange(refused_, material.status());
    if (!material.ok()) {
      news = refused_ != before;
    } else if (*material == material_) {
      // The files are good again, or the certificate has just expired.
      news = !before.ok() || (!expiry_told_ && expiry_ <= now);
    } else {
      material_ = *material;
      expiry_ = GetExpiry(material_);
      fetched_ = false;
      news = true;
    }
    if (news && material.ok()) expiry_told_ = expiry_ <= now;
  }
  if (!news) return;
  if (material.ok()) return LogLoaded(files_, *material);
  LOG(ERROR) << "tls_refused: cause="
             << base::Quote(material.status().message())
             << " the last good files stay in use until the process ends: "
                "it does not start with these";
}

absl::Time TlsIdentity::expiry() {
  MutexLock lock(mu_);
  return expiry_;
}

bool TlsIdentity::refused() {
  MutexLock lock(mu_);
  return !refused_.ok();
}

TlsMaterial TlsIdentity::material() {
  MutexLock lock(mu_);
  return material_;
}

std::shared_ptr<grpc::ServerCredentials> TlsIdentity::NewCredentials() {
  return std::make_shared<FetchingCredentials>(
      grpc_ssl_server_credentials_create_with_options(
          grpc_ssl_server_credentials_create_options_using_config_fetcher(
              files_.client_ca.empty()
                  ? GRPC_SSL_DONT_REQUEST_CLIENT_CERTIFICATE
                  : GRPC_SSL_REQUEST_AND_REQUIRE_CLIENT_CERTIFICATE_AND_VERIFY,
              &TlsIdentity::Fetch, this)));
}

grpc_ssl_certificate_config_reload_status TlsIdentity::Fetch(
    void* self, grpc_ssl_server_certificate_config** config) {
  auto* const identity = static_cast<TlsIdentity*>(self);
  MutexLock lock(identity->mu_);
  if (identity->fetched_) return GRPC_SSL_CERTIFICATE_CONFIG_RELOAD_UNCHANGED;
  const TlsMaterial material = identity->material_;
  const grpc_ssl_pem_key_cert_pair pair = {material.key.c_str(),
                                           material.cert.c_str()};
  // The library requires CA certificates even if clients need no certificate.
  const std::string& authorities =
      material.client_ca.empty() ? material.cert : material.client_ca;
  *config =
      grpc_ssl_server_certificate_config_create(authorities.c_str(), &pair, 1);
  identity->fetched_ = true;
  return GRPC_SSL_CERTIFICATE_CONFIG_RELOAD_NEW;
}

}  // namespace muster::coordinator
