#ifndef MUSTER_COORDINATOR_SERVER_AUTH_TOKENS_H_
#define MUSTER_COORDINATOR_SERVER_AUTH_TOKENS_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "muster/base/status.h"

namespace muster::coordinator {

// The largest size of files of certificates, keys and tokens. The server
// rereads them once a second and compares their contents: modification times
// are too coarse to show every change.
inline constexpr size_t kAuthFileBytesMax = 16 << 20;

// The permissions of a token. Each role includes those before it.
enum class Role : uint8_t {
  kRead,    // reads keys and the state of jobs
  kMember,  // everything that a job does
  kAdmin,   // the coordinator itself
};

// A token is known by its SHA-256 alone: the token itself is neither in the
// file nor in the coordinator's memory.
using TokenDigest = std::array<uint8_t, 32>;

TokenDigest ComputeDigest(absl::string_view token);

// TokenTable is the contents of a token file. Each line is
//   <SHA-256 of the token, hexadecimal> <role> <jobs> [expires=<RFC 3339>]
// where the role is read, member or admin, and jobs is the name of one job, or
// a prefix of names followed by *. A # starts a comment. A token may have
// several lines; each applies independently. Immutable; the caller passes the
// time in.
class TokenTable {
 public:
  // Errors: INVALID_ARGUMENT `line 3: ...`, which shows no part of the token.
  static StatusOr<TokenTable> Parse(absl::string_view text);

  // Whether the token is known and valid for any job.
  // Errors: UNAUTHENTICATED (unknown, or all its lines have expired).
  Status Know(const TokenDigest& digest, absl::Time now) const;

  // Whether the token allows `what`, a call that needs `role` in `job`; an
  // empty `job` stands for all jobs. Returns until when.
  // Errors: those of Know; PERMISSION_DENIED (the text names call, role and
  //   job).
  StatusOr<absl::Time> Allow(const TokenDigest& digest, Role role,
                             absl::string_view job, absl::string_view what,
                             absl::Time now) const;

  // The time when the next line expires after `now`; infinite: none does.
  absl::Time NextExpiry(absl::Time now) const;

  size_t size() const { return grants_.size(); }

 private:
  struct Grant {
    TokenDigest digest;
    Role role = Role::kRead;
    std::string jobs;
    absl::Time expires = absl::InfiniteFuture();
  };

  static StatusOr<Grant> ParseLine(absl::string_view line);
  // Compares with every line, so that the time taken tells nothing about them.
  std::vector<const Grant*> FindGrants(const TokenDigest& digest) const;

  std::vector<Grant> grants_;
};

}  // namespace muster::coordinator

#endif  // MUSTER_COORDINATOR_SERVER_AUTH_TOKENS_H_
