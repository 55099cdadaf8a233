#ifndef MUSTER_COORDINATOR_SERVER_AUTH_CREDENTIALS_H_
#define MUSTER_COORDINATOR_SERVER_AUTH_CREDENTIALS_H_

#include <cstdint>
#include <memory>
#include <string>

#include "absl/time/time.h"
#include "grpc/grpc_security.h"
#include "grpcpp/security/server_credentials.h"
#include "muster/base/mutex.h"
#include "muster/base/status.h"
#include "muster/base/thread_annotations.h"

namespace muster::coordinator {

// The PEM files of a server's TLS configuration.
struct TlsFiles {
  std::string cert;       // the certificate and its chain to the root
  std::string key;        // the private key of that certificate
  std::string client_ca;  // signs clients' certificates; empty: none needed
};

// The contents of the files.
struct TlsMaterial {
  std::string cert;
  std::string key;
  std::string client_ca;

  friend bool operator==(const TlsMaterial& a, const TlsMaterial& b) {
    return a.cert == b.cert && a.key == b.key && a.client_ca == b.client_ca;
  }
};

// Reads and checks the files.
// Errors: INVALID_ARGUMENT (missing, unreadable, not PEM, the key is not that
//   of the certificate, the certificate does not say serverAuth; the text names
//   option and path, and nothing secret).
StatusOr<TlsMaterial> LoadTlsMaterial(const TlsFiles& files);

// TlsIdentity supplies a server's certificates for new handshakes and follows
// its files as they are replaced. Open connections are unaffected. Contents
// that fail the checks, such as a new certificate whose key has not been
// written yet, are ignored: handshakes go on with the last good state.
// Thread-safe.
class TlsIdentity {
 public:
  // Errors: those of LoadTlsMaterial.
  static StatusOr<std::unique_ptr<TlsIdentity>> Load(TlsFiles files);

  TlsIdentity(const TlsIdentity&) = delete;
  TlsIdentity& operator=(const TlsIdentity&) = delete;

  // Reads the files again. Logs when new ones are used from now on, once when
  // they are refused, and when the certificate in use has expired. An expired
  // certificate is refused while the one in use has not expired. Call it about
  // once a second.
  void Reload();

  // The time when the certificate in use expires.
  absl::Time expiry();

  // Whether the files were refused at the last Reload.
  bool refused();

  // The material in use.
  TlsMaterial material();

  // For a server, which this identity must outlive.
  std::shared_ptr<grpc::ServerCredentials> NewCredentials();

 private:
  TlsIdentity(TlsFiles files, TlsMaterial material);

  static grpc_ssl_certificate_config_reload_status Fetch(
      void* self, grpc_ssl_server_certificate_config** config);

  const TlsFiles files_;
  Mutex mu_;
  TlsMaterial material_ MUSTER_GUARDED_BY(mu_);
  absl::Time expiry_ MUSTER_GUARDED_BY(mu_);
  bool expiry_told_ MUSTER_GUARDED_BY(mu_) = false;
  // Whether the transport has `material_`.
  bool fetched_ MUSTER_GUARDED_BY(mu_) = false;
  // The result of the last Reload, so that a refusal is logged once.
  Status refused_ MUSTER_GUARDED_BY(mu_);
};

}  // namespace muster::coordinator

#endif  // MUSTER_COORDINATOR_SERVER_AUTH_CREDENTIALS_H_
