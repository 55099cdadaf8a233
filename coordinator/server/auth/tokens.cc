#include "coordinator/server/auth/tokens.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "base/text.h"
#include "coordinator/server/auth/job_name.h"
#include "openssl/crypto.h"
#include "openssl/sha.h"

namespace muster::coordinator {
namespace {

static_assert(SHA256_DIGEST_LENGTH == std::tuple_size_v<TokenDigest>);

constexpr std::pair<Role, absl::string_view> kRoles[] = {
    {Role::kRead, "read"}, {Role::kMember, "member"}, {Role::kAdmin, "admin"}};

absl::string_view GetName(Role role) {
  return kRoles[static_cast<int>(role)].second;
}

bool Matches(absl::string_view jobs, absl::string_view job) {
  if (absl::ConsumeSuffix(&jobs, "*")) return absl::StartsWith(job, jobs);
  return jobs == job;
}

std::string Format(absl::Time time) {
  return absl::FormatTime("%Y-%m-%d%ET%H:%M:%SZ", time, absl::UTCTimeZone());
}

// `jobs` is a job's name, or a prefix of one (possibly empty) and a *.
Status CheckJobs(absl::string_view jobs) {
  absl::string_view name = jobs;
  if (absl::ConsumeSuffix(&name, "*") && name.empty()) return OkStatus();
  return CheckJobName(name);
}

}  // namespace

TokenDigest ComputeDigest(absl::string_view token) {
  TokenDigest digest;
  SHA256(reinterpret_cast<const unsigned char*>(token.data()), token.size(),
         digest.data());
  return digest;
}

StatusOr<TokenTable::Grant> TokenTable::ParseLine(absl::string_view line) {
  const std::vector<absl::string_view> fields =
      absl::StrSplit(line, absl::ByAnyChar(" \t\r"), absl::SkipEmpty());
  const absl::string_view digest = fields[0];
  if (digest.size() != 2 * std::tuple_size_v<TokenDigest> ||
      !std::all_of(digest.begin(), digest.end(), absl::ascii_isxdigit)) {
    // Does not show the field, which may be the token itself.
    return InvalidArgumentError(absl::StrCat(
        "the first field is not the SHA-256 of a token, 64 hexadecimal digits "
        "(it has ",
        digest.size(), " characters)"));
  }
  if (fields.size() < 3 || fields.size() > 4) {
    return InvalidArgumentError(
        absl::StrCat(fields.size(),
                     " fields, must be: SHA-256, role, jobs, and maybe "
                     "expires=TIME"));
  }
  Grant grant;
  const std::string bytes = absl::HexStringToBytes(digest);
  std::copy(bytes.begin(), bytes.end(), grant.digest.begin());
  const auto* const role = std::find_if(
      std::begin(kRoles), std::end(kRoles),
      [&](const auto& known) { return known.second == fields[1]; });
  if (role == std::end(kRoles)) {
    return InvalidArgumentError(absl::StrCat("role ", base::Quote(fields[1]),
                                             " is not read, member or admin"));
  }
  grant.role = role->first;
  Status status = CheckJobs(fields[2]);
  if (!status.ok()) return status;
  grant.jobs = std::string(fields[2]);
  if (fields.size() == 4) {
    absl::string_view time = fields[3];
    if (!absl::ConsumePrefix(&time, "expires=") ||
        !absl::ParseTime(absl::RFC3339_full, time, &grant.expires, nullptr)) {
      return InvalidArgumentError(
          absl::StrCat(base::Quote(fields[3]),
                       " is not expires=TIME with a time such as "
                       "2031-12-31T23:59:59Z"));
    }
  }
  return grant;
}

absl::Time TokenTable::NextExpiry(absl::Time now) const {
  absl::Time next = absl::InfiniteFuture();
  for (const Grant& grant : grants_) {
    if (grant.expires > now) next = std::min(next, grant.expires);
  }
  return next;
}

StatusOr<TokenTable> TokenTable::Parse(absl::string_view text) {
  TokenTable table;
  int number = 0;
  for (absl::string_view line : absl::StrSplit(text, '\n')) {
    ++number;
    line = absl::StripAsciiWhitespace(line.substr(0, line.find('#')));
    if (line.empty()) continue;
    StatusOr<Grant> grant = ParseLine(line);
    if (!grant.ok()) {
      return InvalidArgumentError(
          absl::StrCat("line ", number, ": ", grant.status().message()));
    }
    table.grants_.push_back(*std::move(grant));
  }
  return table;
}

std::vector<const TokenTable::Grant*> TokenTable::FindGrants(
    const TokenDigest& digest) const {
  std::vector<const Grant*> grants;
  for (const Grant& grant : grants_) {
    if (CRYPTO_memcmp(grant.digest.data(), digest.data(), digest.size()) == 0) {
      grants.push_back(&grant);
    }
  }
  return grants;
}

Status TokenTable::Know(const TokenDigest& digest, absl::Time now) const {
  absl::Time last = absl::InfinitePast();
  for (const Grant* const grant : FindGrants(digest)) {
    last = std::max(last, grant->expires);
  }
  if (last == absl::InfinitePast()) {
    return UnauthenticatedError("the token is not known here");
  }
  if (last <= now) {
    return UnauthenticatedError(
        absl::StrCat("the token expired at ", Format(last)));
  }
  return OkStatus();
}

StatusOr<absl::Time> TokenTable::Allow(const TokenDigest& digest, Role role,
                                       absl::string_view job,
                                       absl::string_view what,
                                       absl::Time now) const {
  Status known = Know(digest, now);
  if (!known.ok()) return known;
  absl::Time until = absl::InfinitePast();
  std::optional<Role> has;
  for (const Grant* const grant : FindGrants(digest)) {
    if (grant->expires <= now || !Matches(grant->jobs, job)) continue;
    has = std::max(has.value_or(Role::kRead), grant->role);
    if (grant->role >= role) until = std::max(until, grant->expires);
  }
  if (until > now) return until;
  // Shows only the beginning, because `job` may be no valid name.
  const std::string where =
      job.empty() ? "for all jobs"
                  : absl::StrCat("in job ", base::Quote(job.substr(0, 128)));
  return PermissionDeniedError(absl::StrCat(
      what, " needs role ", GetName(role), " ", where, ", the token has ",
      has.has_value() ? absl::StrCat("role ", GetName(*has), " there")
                      : "no role there"));
}

}  // namespace muster::coordinator
