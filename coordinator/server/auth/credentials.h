#ifndef MUSTER_COORDINATOR_SERVER_AUTH_CREDENTIALS_H_
#define MUSTER_COORDINATOR_SERVER_AUTH_CREDENTIALS_H_

#include <cstdint>
#include <memory>
#include <string>

#include "absl/time/time.h"
#include "base/mutex.h"
#include "base/status.h"
#include "base/thread_annotations.h"
#include "grpc/grpc_security.h"
#include "grpcpp/security/server_credentials.h"

namespace muster::coordinator {

// The PEM files of a server's TLS configuration.
struct TlsFiles {
  std::string cert;       // its certificate, and those that lead to the root
  std::string key;        // the private key of that certificate
  std::string client_ca;  // who signs clients' certificates; empty: not asked
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
  // Errors: as LoadTlsMaterial.
  static StatusOr<std::unique_ptr<TlsIdentity>> Load(TlsFiles files);

  TlsIdentity(const TlsIdentity&) = delete;
  TlsIdentity& operator=(const TlsIdentity&) = delete;

  // Looks at the files again. Logs when something new counts from now on, once
  // when it is refused, and when the certificate that counts has ended. A
  // certificate that has ended is refused as long as the one before has not.
  // Call it about once a second.
  void Reload();

  // When the certificate that counts now ends.
  absl::Time expiry();

  // Whether the files are refused as they are now.
  bool refused();

  // What counts now.
  TlsMaterial material();

  // Of a server that this identity outlives.
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
  // Of the last Reload; kept so that it is told once.
  Status refused_ MUSTER_GUARDED_BY(mu_);
};

}  // namespace muster::coordinator

#endif  // MUSTER_COORDINATOR_SERVER_AUTH_CREDENTIALS_H_
