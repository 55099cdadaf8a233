// muster-run: starts the ranks of one host. LaunchHelpText() is its manual.

#include <fcntl.h>
#include <glog/logging.h>
#include <unistd.h>

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
#include "worker/process.h"
#include "worker/rank_environment.h"

namespace {

using ::muster::internal::EmbeddedCoordinator;
using ::muster::worker::CoordinatorAddress;
using ::muster::worker::Environment;
using ::muster::worker::LaunchOptions;

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

void BlockSignals() {
  sigset_t signals;
  sigemptyset(&signals);
  for (const int signal : {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGCHLD}) {
    sigaddset(&signals, signal);
  }
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
  if (!address.host.empty()) return nullptr;
  auto coordinator = EmbeddedCoordinator::Start({});
  if (!coordinator.ok()) {
    std::fprintf(stderr, "muster-run: cannot serve a coordinator: %s\n",
                 std::string(coordinator.status().message()).c_str());
    std::exit(1);
  }
  address.host = "127.0.0.1";
  address.port = (*coordinator)->port();
  return *std::move(coordinator);
}

}  // namespace

int main(int argc, char** argv) {
  OpenStandardDescriptors();
  BlockSignals();
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
  // Before any thread is started.
  auto group = muster::worker::ProcessGroup::Create();
  if (!group.ok()) {
    std::fprintf(stderr, "muster-run: %s\n",
                 std::string(group.status().message()).c_str());
    return 1;
  }
  FLAGS_logtostderr = true;
  // What a coordinator of our own sees of a failure, the ranks say with more
  // of its circumstances.
  FLAGS_minloglevel = google::GLOG_ERROR;
  google::InitGoogleLogging(argv[0]);
  CoordinatorAddress address;
  const auto coordinator = ServeCoordinator(*options, address);
  if (coordinator != nullptr) {
    // It speaks plain text, and on loopback alone.
    for (const char* const name :
         {"MUSTER_TLS_CA", "MUSTER_TLS_CERT", "MUSTER_TLS_KEY", "MUSTER_TOKEN",
          "MUSTER_TOKEN_FILE"}) {
      environment.erase(name);
    }
  }
  return muster::worker::Launch(*options, address, environment, *group);
}
