#include "coordinator/server/grpc_log.h"

#include <chrono>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "base/text.h"
#include "coordinator/server/handshake_peer.h"
#include "coordinator/server/seldom_log.h"
#include "glog/logging.h"
#include "grpc/support/log.h"

namespace muster::coordinator {
namespace {

SeldomLog& FailedHandshakes() {
  static auto* const log =
      new SeldomLog("tls_handshakes_failed", std::chrono::seconds(10));
  return *log;
}

void Log(gpr_log_func_args* args) {
  const absl::string_view message = args->message;
  if (absl::StrContains(message, "Handshake failed")) {
    return FailedHandshakes().Add(
        absl::StrCat("peer=", base::LogValue(HandshakePeer()),
                     " cause=", base::Quote(message)),
        std::chrono::steady_clock::now());
  }
  LOG(WARNING) << "grpc: " << base::Printable(message);
}

}  // namespace

void TakeOverGrpcLog() { gpr_set_log_function(&Log); }

void TellOfFailedHandshakes(core::Instant now) { FailedHandshakes().Tell(now); }

}  // namespace muster::coordinator
