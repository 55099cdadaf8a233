#ifndef MUSTER_COORDINATOR_SERVER_AUTH_AUTH_H_
#define MUSTER_COORDINATOR_SERVER_AUTH_AUTH_H_

#include <cstdint>
#include <memory>
#include <string>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "base/mutex.h"
#include "base/status.h"
#include "base/thread_annotations.h"
#include "coordinator/server/auth/tokens.h"
#include "coordinator/server/method.h"
#include "grpcpp/server_context.h"

namespace muster::coordinator {

// Auth decides which caller may make which call. It reads the tokens of a file,
// which may change, and finds a caller's token in the headers of a call. A
// server whose Auth is null allows every call. Thread-safe.
class Auth {
 public:
  // What a call was let in with, so that it can be looked at again.
  struct Pass {
    TokenDigest digest;
    absl::Time until;
    uint64_t version = 0;  // of the table
    // It may also change things there, and so bring a job into being.
    bool member = false;
  };

  // Errors: INVALID_ARGUMENT (the file or a line of it; the text names it).
  static StatusOr<std::unique_ptr<Auth>> Load(const std::string& path);

  Auth(const Auth&) = delete;
  Auth& operator=(const Auth&) = delete;

  // Looks at the file again. A file that cannot be read or parsed changes
  // nothing; that is logged once. Call it about once a second.
  void Reload();

  // When the next token expires.
  absl::Time NextExpiry() const;

  // Whether the file is refused as it is now.
  bool refused() const;

  // Whether the call brings a token that counts for anything.
  // Errors: UNAUTHENTICATED (none, malformed, unknown, expired).
  Status Know(const grpc::ServerContextBase& call) const;

  // Whether the call may do `method` in `job`; `as_member` says that it speaks
  // for a member, which reading alone does not allow.
  // Errors: as Know; PERMISSION_DENIED.
  StatusOr<Pass> Admit(const grpc::ServerContextBase& call, Method method,
                       absl::string_view job, bool as_member) const;

  // The same for who was let in before, by the file and the time of now.
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
  // Of the last Reload; kept so that it is told once.
  Status refused_ MUSTER_GUARDED_BY(mu_);

  // Of the thread that reloads.
  std::string text_;
};

}  // namespace muster::coordinator

#endif  // MUSTER_COORDINATOR_SERVER_AUTH_AUTH_H_
