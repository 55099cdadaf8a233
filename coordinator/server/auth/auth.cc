#include "coordinator/server/auth/auth.h"

#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "absl/time/clock.h"
#include "base/small_file.h"
#include "base/text.h"
#include "glog/logging.h"

namespace muster::coordinator {
namespace {

constexpr char kHeader[] = "authorization";

StatusOr<TokenTable> ParseFile(const std::string& path,
                               const std::string& text) {
  StatusOr<TokenTable> table = TokenTable::Parse(text);
  if (table.ok()) return table;
  return InvalidArgumentError(absl::StrCat("token_file ", base::Quote(path),
                                           " ", table.status().message()));
}

StatusOr<TokenDigest> CallersDigest(const grpc::ServerContextBase& call) {
  const auto [first, end] = call.client_metadata().equal_range(kHeader);
  if (first == end) {
    return UnauthenticatedError(
        "no token: a call needs the header \"authorization: Bearer TOKEN\", "
        "which muster's clients take from MUSTER_TOKEN or MUSTER_TOKEN_FILE");
  }
  absl::string_view value(first->second.data(), first->second.size());
  // Schemes are case-insensitive.
  constexpr absl::string_view kScheme = "bearer ";
  if (std::next(first) != end || !absl::StartsWithIgnoreCase(value, kScheme)) {
    return UnauthenticatedError(
        "the header \"authorization\" is not one \"Bearer TOKEN\"");
  }
  value.remove_prefix(kScheme.size());
  return ComputeDigest(absl::StripAsciiWhitespace(value));
}

Role RoleFor(Method method) {
  static constexpr Role kRoles[kMethodCount] = {
#define MUSTER_OPERATION(service, name, field, role, ...) Role::role,
#define MUSTER_RPC(service, name, role) Role::role,
#include "proto/muster/v1/verbs.inc"
  };
  return kRoles[static_cast<int>(method)];
}

void LogLoaded(const std::string& path, size_t lines) {
  if (lines == 0) {
    LOG(WARNING) << "tokens_loaded: file=" << base::LogValue(path)
                 << " lines=0: nobody is let in";
  } else {
    LOG(INFO) << "tokens_loaded: file=" << base::LogValue(path)
              << " lines=" << lines;
  }
}

}  // namespace

StatusOr<std::unique_ptr<Auth>> Auth::Load(const std::string& path) {
  StatusOr<std::string> text =
      base::ReadSmallFile("token_file", path, kAuthFileBytesMax);
  if (!text.ok()) return text.status();
  StatusOr<TokenTable> table = ParseFile(path, *text);
  if (!table.ok()) return table.status();
  LogLoaded(path, table->size());
  return std::unique_ptr<Auth>(
      new Auth(path, *std::move(text), *std::move(table)));
}

Auth::Auth(std::string path, std::string text, TokenTable table)
    : path_(std::move(path)),
      now_{std::make_shared<const TokenTable>(std::move(table)), 1},
      text_(std::move(text)) {}

void Auth::Reload() {
  StatusOr<std::string> text =
      base::ReadSmallFile("token_file", path_, kAuthFileBytesMax);
  Status status = text.status();
  const bool same = status.ok() && *text == text_;
  StatusOr<TokenTable> table;
  if (status.ok() && !same) {
    table = ParseFile(path_, *text);
    status = table.status();
  }
  size_t lines = 0;
  {
    MutexLock lock(mu_);
    const Status before = std::exchange(refused_, status);
    if (status == before && (same || !status.ok())) return;
    if (status.ok() && !same) {
      now_.table = std::make_shared<const TokenTable>(*std::move(table));
      ++now_.version;
    }
    lines = now_.table->size();
  }
  if (!status.ok()) {
    LOG(ERROR) << "tokens_refused: cause=" << base::Quote(status.message())
               << " the tokens of before stay until the process ends: it does "
                  "not start with this file";
    return;
  }
  text_ = *std::move(text);
  LogLoaded(path_, lines);
}

absl::Time Auth::NextExpiry() const {
  return Now().table->NextExpiry(absl::Now());
}

bool Auth::refused() const {
  MutexLock lock(mu_);
  return !refused_.ok();
}

Auth::Snapshot Auth::Now() const {
  MutexLock lock(mu_);
  return now_;
}

Status Auth::Know(const grpc::ServerContextBase& call) const {
  const StatusOr<TokenDigest> digest = CallersDigest(call);
  if (!digest.ok()) return digest.status();
  return Now().table->Know(*digest, absl::Now());
}

StatusOr<Auth::Pass> Auth::Admit(const grpc::ServerContextBase& call,
                                 Method method, absl::string_view job,
                                 bool as_member) const {
  const StatusOr<TokenDigest> digest = CallersDigest(call);
  if (!digest.ok()) return digest.status();
  const Snapshot now = Now();
  const StatusOr<absl::Time> until =
      now.table->Allow(*digest, as_member ? Role::kMember : RoleFor(method),
                       job, MethodName(method), absl::Now());
  if (!until.ok()) return until.status();
  const bool member =
      now.table
          ->Allow(*digest, Role::kMember, job, MethodName(method), absl::Now())
          .ok();
  return Pass{*digest, *until, now.version, member};
}

Status Auth::Renew(Method method, absl::string_view job, Pass& pass) const {
  const Snapshot now = Now();
  const absl::Time time = absl::Now();
  if (pass.version == now.version && time < pass.until) return OkStatus();
  const StatusOr<absl::Time> until = now.table->Allow(
      pass.digest, RoleFor(method), job, MethodName(method), time);
  if (!until.ok()) return until.status();
  pass.until = *until;
  pass.version = now.version;
  return OkStatus();
}

}  // namespace muster::coordinator
