#include "coordinator/server/ops/library_log.h"

#include <chrono>
#include <cstddef>
#include <mutex>
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "base/text.h"
#include "coordinator/server/auth/handshake_peer.h"
#include "coordinator/server/ops/seldom_log.h"
#include "glog/logging.h"
#include "google/protobuf/stubs/logging.h"
#include "grpc/support/log.h"

namespace muster::coordinator {
namespace {

// The most bytes of one library text, which may contain a client's bytes.
constexpr size_t kTextBytesMax = 512;

struct Logs {
  SeldomLog failed_handshakes{"tls_handshakes_failed",
                              std::chrono::seconds(10)};
  SeldomLog grpc{"grpc_errors", std::chrono::seconds(20)};
  SeldomLog protobuf{"protobuf_errors", std::chrono::seconds(20)};
};

Logs& TheLogs() {
  static auto* const logs = new Logs;
  return *logs;
}

std::string Cause(absl::string_view message) {
  return absl::StrCat("cause=", base::Quote(message, kTextBytesMax));
}

void LogGrpc(gpr_log_func_args* args) {
  const absl::string_view message = args->message;
  const core::Instant now = std::chrono::steady_clock::now();
  // gRPC's log lines have no code.
  if (absl::StrContains(message, "Handshake failed")) {
    return TheLogs().failed_handshakes.Add(
        absl::StrCat("peer=", base::LogValue(HandshakePeer()), " ",
                     Cause(message)),
        now);
  }
  if (args->severity == GPR_LOG_SEVERITY_ERROR) {
    return TheLogs().grpc.Add(Cause(message), now);
  }
  LOG(WARNING) << "grpc: " << base::Printable(message);
}

void LogProtobuf(google::protobuf::LogLevel level, const char* /*filename*/,
                 int /*line*/, const std::string& message) {
  if (level == google::protobuf::LOGLEVEL_FATAL) {
    LOG(ERROR) << "protobuf_failed: " << Cause(message);
    return;
  }
  if (level == google::protobuf::LOGLEVEL_INFO) return;
  TheLogs().protobuf.Add(Cause(message), std::chrono::steady_clock::now());
}

}  // namespace

void TakeOverLibraryLogs() {
  static std::once_flag once;
  std::call_once(once, [] {
    gpr_set_log_function(&LogGrpc);
    google::protobuf::SetLogHandler(&LogProtobuf);
  });
}

void TellOfLibraries(core::Instant now) {
  Logs& logs = TheLogs();
  for (SeldomLog* const log :
       {&logs.failed_handshakes, &logs.grpc, &logs.protobuf}) {
    log->Tell(now);
  }
}

}  // namespace muster::coordinator
