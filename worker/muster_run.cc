// muster-run: starts the ranks of one host. LaunchHelpText() is its manual.

#include <fcntl.h>
#include <glog/logging.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_format.h"
#include "client/internal/embedded_coordinator.h"
#include "client/version.h"
#include "worker/launch_options.h"
#include "worker/launcher.h"
#include "worker/rank_environment.h"

namespace {

using ::muster::internal::EmbeddedCoordinator;
using ::muster::worker::CoordinatorAddress;
using ::muster::worker::Environment;
using ::muster::worker::LaunchOptions;

constexpr std::chrono::seconds kDrainTime(2);

Environment OwnEnvironment() {
  Environment environment;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string text = *entry;
    const size_t equals = text.find('=');
    if (equals == std::string::npos) continue;
    environment[text.substr(0, equals)] = text.substr(equals + 1);
  }
  return environment;
}

// Without this a pipe could become descriptor 1 of a caller that closed it.
void OpenStandardDescriptors() {
  int fd = 0;
  do {
    fd = open("/dev/null", O_RDWR);
  } while (fd >= 0 && fd <= STDERR_FILENO);
  if (fd >= 0) close(fd);
}

// In this thread and all that it starts.
void BlockSignals(const std::vector<int>& handled) {
  sigset_t signals;
  sigemptyset(&signals);
  for (const int signal : handled) sigaddset(&signals, signal);
  sigaddset(&signals, SIGCHLD);
  sigprocmask(SIG_BLOCK, &signals, nullptr);
  // An ignored SIGCHLD, which a parent may hand down, would lose the ranks'
  // exit statuses.
  std::signal(SIGCHLD, SIG_DFL);
  std::signal(SIGPIPE, SIG_IGN);
}

// Serves the coordinator when `options` name none. Exits on an error.
std::unique_ptr<EmbeddedCoordinator> ServeCoordinator(
    const LaunchOptions& options, CoordinatorAddress& address) {
  address = {options.rendezvous_host, options.rendezvous_port,
             options.rendezvous_id};
  if (address.job.empty()) {
    std::random_device random;
    address.job = absl::StrFormat("standalone-%08x", random());
  }
  const bool serves = address.host.empty() ||
                      (options.rendezvous_on_node_0 && options.node_rank == 0);
  if (!serves) return nullptr;
  muster::internal::EmbeddedCoordinatorOptions embedded;
  if (options.rendezvous_on_node_0) {
    embedded.listen = absl::StrFormat("[::]:%d", address.port);
  }
  auto coordinator = EmbeddedCoordinator::Start(embedded);
  if (!coordinator.ok()) {
    std::fprintf(stderr, "muster-run: cannot serve a coordinator: %s\n",
                 std::string(coordinator.status().message()).c_str());
    std::exit(1);
  }
  if (address.host.empty()) {
    address.host = "127.0.0.1";
    address.port = (*coordinator)->port();
  }
  return *std::move(coordinator);
}

}  // namespace

int main(int argc, char** argv) {
  OpenStandardDescriptors();
  Environment environment = OwnEnvironment();
  const auto options = muster::worker::ParseLaunchOptions(
      std::vector<std::string>(argv + 1, argv + argc), environment);
  if (!options.ok()) {
    std::fprintf(stderr, "muster-run: %s; see muster-run --help\n",
                 std::string(options.status().message()).c_str());
    return 2;
  }
  if (options->help) {
    std::fputs(muster::worker::LaunchHelpText().c_str(), stdout);
    return 0;
  }
  if (options->version) {
    std::printf("muster-run %s\n", muster::kVersion);
    return 0;
  }
  BlockSignals(options->signals);
  FLAGS_logtostderr = true;
  // What a coordinator of our own sees of a failure, the ranks say with more
  // of its circumstances. Of another one it is to be seen whether it answers.
  FLAGS_minloglevel =
      options->several_hosts() ? google::GLOG_WARNING : google::GLOG_ERROR;
  google::InitGoogleLogging(argv[0]);
  CoordinatorAddress address;
  const auto coordinator = ServeCoordinator(*options, address);
  if (coordinator != nullptr || options->rendezvous_on_node_0) {
    // A muster-run's coordinator speaks plain text and knows no tokens.
    for (const char* const name :
         {"MUSTER_TLS_CA", "MUSTER_TLS_CERT", "MUSTER_TLS_KEY", "MUSTER_TOKEN",
          "MUSTER_TOKEN_FILE"}) {
      environment.erase(name);
      unsetenv(name);
    }
  }
  const int status = muster::worker::Launch(*options, address, environment);
  // The other hosts may still be about to leave.
  if (coordinator != nullptr && options->rendezvous_on_node_0) {
    coordinator->Drain(kDrainTime);
  }
  return status;
}
