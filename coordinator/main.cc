// muster-coordinator: a coordinator in a process of its own.

#include <signal.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "base/logging.h"
#include "base/text.h"
#include "coordinator/flags.h"
#include "coordinator/server/endpoint.h"
#include "coordinator/server/server.h"
#include "glog/logging.h"
#include "muster/base/status.h"
#include "muster/version.h"

namespace muster::coordinator {
namespace {

int Fail(const Status& status) {
  const absl::string_view text = status.message();
  fprintf(stderr, "muster-coordinator: %.*s\n", static_cast<int>(text.size()),
          text.data());
  return EXIT_FAILURE;
}

// The requested address with the actual port.
std::string Listening(const std::string& listen, int port) {
  StatusOr<Endpoint> endpoint = ParseEndpoint("listen", listen);
  if (!endpoint.ok()) return listen;
  endpoint->port = port;
  return endpoint->ToString();
}

void ExitAtOnce(int signal_number) { _exit(128 + signal_number); }

// From now on SIGTERM and SIGINT end the process at once.
void LetSignalsEndTheProcess(const sigset_t& signals) {
  struct sigaction action = {};
  action.sa_handler = ExitAtOnce;
  sigaction(SIGTERM, &action, nullptr);
  sigaction(SIGINT, &action, nullptr);
  pthread_sigmask(SIG_UNBLOCK, &signals, nullptr);
}

// Every connection takes a descriptor, and shells allow few.
void RaiseDescriptorLimit() {
  rlimit limit = {};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  limit.rlim_cur = limit.rlim_max;
  setrlimit(RLIMIT_NOFILE, &limit);
}

int Run(int argc, char** argv) {
  StatusOr<CommandLine> command_line = ReadCommandLine(argc, argv);
  if (!command_line.ok()) return Fail(command_line.status());
  FLAGS_logtostderr = true;
  base::InitLogging(argv[0]);

  // Debian's Abseil searches for cycles at every lock that gRPC takes, which
  // costs a few percent of all the coordinator's time.
  absl::SetMutexDeadlockDetectionMode(absl::OnDeadlockCycle::kIgnore);

  // Before the first thread, so that all threads inherit the mask and only
  // sigwait gets the signals.
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGTERM);
  sigaddset(&signals, SIGINT);
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  signal(SIGPIPE, SIG_IGN);
  RaiseDescriptorLimit();

  command_line->server.on_storage_failure = [](const Status& status) {
    LOG(ERROR) << "storage_failed: cause=" << base::Quote(status.message())
               << " the process ends: it holds more than is stored";
    // Without destructors, because none may answer a call.
    _exit(EXIT_FAILURE);
  };
  // Handled by the thread in sigwait, like a signal from outside.
  static std::atomic<bool> asked = false;
  command_line->server.on_drain_request = [] {
    asked = true;
    kill(getpid(), SIGTERM);
  };
  StatusOr<std::unique_ptr<Server>> server =
      Server::Start(command_line->server);
  if (!server.ok()) return Fail(server.status());
  const ServerOptions& options = command_line->server;
  std::string line = absl::StrCat("listening grpc=",
                                  Listening(options.listen, (*server)->port()));
  if (!options.http_listen.empty()) {
    absl::StrAppend(&line, " http=",
                    Listening(options.http_listen, (*server)->http_port()));
  }
  printf("%s\n", line.c_str());
  fflush(stdout);
  LOG(INFO) << "started: version=" << MUSTER_VERSION
            << " epoch=" << (*server)->epoch() << " " << line
            << " limit_total_bytes=" << command_line->server.total_bytes_max
            << " settings=" << base::Quote(command_line->settings);

  int signal_number = 0;
  sigwait(&signals, &signal_number);
  LetSignalsEndTheProcess(signals);
  LOG(INFO) << "draining: "
            << (asked ? "asked_by=operator"
                      : absl::StrCat("signal=", signal_number))
            << " timeout=" << absl::FormatDuration(command_line->drain_timeout);
  const absl::Duration longest = absl::Hours(24);
  (*server)->Drain(absl::ToChronoMilliseconds(
      std::min(command_line->drain_timeout, longest)));
  server->reset();
  LOG(INFO) << "drained";
  return EXIT_SUCCESS;
}

}  // namespace
}  // namespace muster::coordinator

int main(int argc, char** argv) { return muster::coordinator::Run(argc, argv); }
