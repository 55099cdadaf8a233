// The certificates and tokens with which a client authenticates itself and the
// coordinator.

#ifndef MUSTER_CLIENT_CONTROL_CHANNEL_SECURITY_H_
#define MUSTER_CLIENT_CONTROL_CHANNEL_SECURITY_H_

#include <functional>
#include <memory>
#include <string>

#include "client/control/endpoint.h"
#include "grpcpp/security/credentials.h"
#include "muster/base/status.h"
#include "muster/session.h"

namespace muster::internal {

// Returns the variable's value, or null: getenv, or a test's replacement.
using EnvironmentReader = std::function<const char*(const char* name)>;
const char* ReadEnvironment(const char* name);

// The credentials of one connection. Only ChannelSecurity makes it, and
// NewChannel requires one for every channel.
class ConnectionSecurity {
 public:
  const std::shared_ptr<grpc::ChannelCredentials>& credentials() const {
    return credentials_;
  }
  // The name that the certificate must bear; empty: the endpoint's.
  const std::string& server_name() const { return server_name_; }
  // The value of the "authorization" header; empty: no token.
  const std::string& authorization() const { return authorization_; }

 private:
  friend class ChannelSecurity;
  ConnectionSecurity() = default;

  std::shared_ptr<grpc::ChannelCredentials> credentials_;
  std::string server_name_;
  std::string authorization_;
};

// ChannelSecurity supplies the certificates and tokens of every client in this
// process. It takes them from the client's SessionOptions or, where these are
// empty, from the environment.
class ChannelSecurity {
 public:
  // Combines `options` with the environment, which supplies what they leave
  // empty: MUSTER_TLS_CA, MUSTER_TLS_CERT, MUSTER_TLS_KEY,
  // MUSTER_TLS_SERVER_NAME, MUSTER_TOKEN, MUSTER_TOKEN_FILE, MUSTER_INSECURE.
  // Errors: kInvalidArgument (MUSTER_INSECURE is no boolean, or the options
  //   contradict each other).
  static StatusOr<ChannelSecurity> Take(
      const SessionOptions& options,
      const EnvironmentReader& environment = ReadEnvironment);

  const std::string& tls_ca() const { return tls_ca_; }
  const std::string& tls_cert() const { return tls_cert_; }
  const std::string& tls_key() const { return tls_key_; }

  // Reads the token's file again. Returns "" if no token is set.
  // Errors: kInvalidArgument (the file or its content; the text never has the
  // token).
  StatusOr<std::string> Token() const;

  // Reads the files.
  // Errors: kInvalidArgument (a file, or a token that would go to `endpoint` in
  //   plain text; the text names option and path, and never a token).
  StatusOr<ConnectionSecurity> Load(const Endpoint& endpoint) const;

  // Adds to a handshake's failure the option that is probably wrong: a peer
  // that refuses a handshake does not say why.
  Status WithHandshakeHint(const Status& failure) const;

  // The same for an endpoint where no coordinator has answered before. Connects
  // once more, and says so if another kind of server listens there.
  Status Explain(const Status& failure, const Endpoint& endpoint) const;

 private:
  ChannelSecurity() = default;

  Status CheckTls() const;

  std::string tls_ca_;
  std::string tls_cert_;
  std::string tls_key_;
  std::string tls_server_name_;
  bool use_token_ = true;
  std::string token_;
  std::string token_file_;
  bool insecure_ = false;
};

// Returns the token that a request for the debug pages of a job's processes
// must have. Reads it again: MUSTER_JOB_TOKEN, or the content of
// MUSTER_JOB_TOKEN_FILE; empty if neither is set.
// Errors: kInvalidArgument, as ChannelSecurity::Token; the text names the
// variables.
StatusOr<std::string> JobToken(
    const EnvironmentReader& environment = ReadEnvironment);

}  // namespace muster::internal

#endif  // MUSTER_CLIENT_CONTROL_CHANNEL_SECURITY_H_
