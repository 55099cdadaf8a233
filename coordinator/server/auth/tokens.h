#ifndef MUSTER_COORDINATOR_SERVER_AUTH_TOKENS_H_
#define MUSTER_COORDINATOR_SERVER_AUTH_TOKENS_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "base/status.h"

namespace muster::coordinator {

// Files of certificates, keys and tokens may be so large. The server rereads
// them once a second and compares their contents: modification times are too
// coarse to show every change.
inline constexpr size_t kAuthFileBytesMax = 16 << 20;

// The permissions of a token. Each role includes those before it.
enum class Role : uint8_t {
  kRead,    // to look at keys and at the state of jobs
  kMember,  // everything that a job does
  kAdmin,   // the coordinator itself
};

// A token is known by its SHA-256 alone: neither the file nor the memory of a
// coordinator holds one.
using TokenDigest = std::array<uint8_t, 32>;

TokenDigest DigestOf(absl::string_view token);

// TokenTable is the contents of a token file. Each line is
//   <SHA-256 of the token, hexadecimal> <role> <jobs> [expires=<RFC 3339>]
// where the role is read, member or admin, and jobs is the name of one job, or
// a prefix of names followed by *. A # starts a comment. A token may have
// several lines; each applies independently. Immutable; the caller passes the
// time in.
class TokenTable {
 public:
  // Errors: INVALID_ARGUMENT `line 3: ...`, which shows nothing of the token.
  static StatusOr<TokenTable> Parse(absl::string_view text);

  // Whether the token counts at all.
  // Errors: UNAUTHENTICATED (unknown, or expired at all its lines).
  Status Know(const TokenDigest& digest, absl::Time now) const;

  // Whether the token allows `what`, a call that needs `role` in `job`; an
  // empty one stands for all jobs. Returns until when. Errors: as Know;
  // PERMISSION_DENIED (the text names call, role and job).
  StatusOr<absl::Time> Allow(const TokenDigest& digest, Role role,
                             absl::string_view job, absl::string_view what,
                             absl::Time now) const;

  // The first line to expire after `now`; infinite when none does.
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
  // Looks at every line, whichever match: how long it takes tells nothing.
  std::vector<const Grant*> GrantsOf(const TokenDigest& digest) const;

  std::vector<Grant> grants_;
};

}  // namespace muster::coordinator

#endif  // MUSTER_COORDINATOR_SERVER_AUTH_TOKENS_H_
