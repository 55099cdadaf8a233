#ifndef MUSTER_COORDINATOR_SERVER_AUTH_AUTH_H_
#define MUSTER_COORDINATOR_SERVER_AUTH_AUTH_H_

#include <cstdint>
#include <memory>
#include <string>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "coordinator/server/auth/tokens.h"
#include "coordinator/server/method.h"
#include "grpcpp/server_context.h"
#include "muster/base/mutex.h"
#include "muster/base/status.h"
#include "muster/base/thread_annotations.h"

namespace muster::coordinator {

// Auth decides which caller may make which call. It reads the tokens of a file,
// which may change, and finds a caller's token in the headers of a call. A
// server whose Auth is null allows every call. Thread-safe.
class Auth {
 public:
  // The result of a check, for Renew.
  struct Pass {
    TokenDigest digest;
    absl::Time until;
    uint64_t version = 0;  // of the token table
    // The token also allows changes in the job, and so may create it.
    bool member = false;
  };

  // Errors: INVALID_ARGUMENT (the file or a line of it; the text names it).
  static StatusOr<std::unique_ptr<Auth>> Load(const std::string& path);

  Auth(const Auth&) = delete;
  Auth& operator=(const Auth&) = delete;

  // Reads the file again. A file that cannot be read or parsed changes nothing;
  // that is logged once. Call it about once a second.
  void Reload();

  // The time when the next token expires.
  absl::Time NextExpiry() const;

  // Whether the file was refused at the last Reload.
  bool refused() const;

  // Whether the call has a token that the table knows, for any job.
  // Errors: UNAUTHENTICATED (none, malformed, unknown, expired).
  Status Know(const grpc::ServerContextBase& call) const;

  // Whether the call may do `method` in `job`. `as_member` says that it speaks
  // for a member, which the role kRead does not allow.
  // Errors: those of Know; PERMISSION_DENIED.
  StatusOr<Pass> Admit(const grpc::ServerContextBase& call, Method method,
                       absl::string_view job, bool as_member) const;

  // Repeats the check of Admit with the present file and time. Updates `pass`.
  Status Renew(Method method, absl::string_view job, Pass& pass) const;

 private:
  struct Snapshot {
    std::shared_ptr<const TokenTable> table;
    uint64_t version = 0;
  };

  Auth(std::string path, std::string text, TokenTable table);

  Snapshot Now() const;

  const std::string path_;
  mutable Mutex mu_;
  Snapshot now_ MUSTER_GUARDED_BY(mu_);
  // The result of the last Reload, so that a refusal is logged once.
  Status refused_ MUSTER_GUARDED_BY(mu_);

  // Used only by the thread that calls Reload.
  std::string text_;
};

}  // namespace muster::coordinator

#endif  // MUSTER_COORDINATOR_SERVER_AUTH_AUTH_H_
