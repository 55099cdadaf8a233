// What a session shows of itself and asks of the coordinator: certificates and
// tokens.

#ifndef MUSTER_CLIENT_INTERNAL_CHANNEL_SECURITY_H_
#define MUSTER_CLIENT_INTERNAL_CHANNEL_SECURITY_H_

#include <functional>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "client/internal/endpoint.h"
#include "client/session.h"
#include "grpcpp/security/credentials.h"

namespace muster::internal {

// Of one connection.
struct ChannelSecurity {
  std::shared_ptr<grpc::ChannelCredentials> credentials;
  // The name that the certificate must bear; empty: the endpoint's.
  std::string server_name = {};
  // The value of the header of that name; empty: no token.
  std::string authorization = {};
};

// Takes from the environment (getenv, or a test's stand-in) what `options`
// leave empty: MUSTER_TLS_CA, MUSTER_TLS_CERT, MUSTER_TLS_KEY,
// MUSTER_TLS_SERVER_NAME, MUSTER_TOKEN, MUSTER_TOKEN_FILE, MUSTER_INSECURE.
// Errors: kInvalidArgument (MUSTER_INSECURE is no boolean).
absl::Status TakeSecurityFromEnvironment(
    const std::function<const char*(const char* name)>& environment,
    SessionOptions& options);

// The token that `options` mean, read anew; empty: none.
// Errors: kInvalidArgument (the file, or what it has; never the token).
absl::StatusOr<std::string> TokenOf(const SessionOptions& options);

// The token that the pages of a job's processes want, read anew:
// MUSTER_JOB_TOKEN, or what is in MUSTER_JOB_TOKEN_FILE; empty: neither is set.
// Errors: kInvalidArgument, as TokenOf; the text names the variables.
absl::StatusOr<std::string> JobTokenOf(
    const std::function<const char*(const char* name)>& environment);

// Reads the files.
// Errors: kInvalidArgument (a file, or options that do not fit together; the
//   text names option and path, and never a token).
absl::StatusOr<ChannelSecurity> LoadChannelSecurity(
    const SessionOptions& options, const Endpoint& endpoint);

// The end of a connection that was never one, with a hint at the option that is
// probably wrong: who refuses a handshake does not say why.
absl::Status WithHandshakeHint(const SessionOptions& options,
                               const absl::Status& failure);

}  // namespace muster::internal

#endif  // MUSTER_CLIENT_INTERNAL_CHANNEL_SECURITY_H_
