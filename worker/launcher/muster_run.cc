// muster-run: starts the ranks of one host. LaunchHelpText() is its manual.

#include <fcntl.h>
#include <glog/logging.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "base/logging.h"
#include "base/options.h"
#include "client/control/channel.h"
#include "client/control/channel_security.h"
#include "client/control/relay.h"
#include "muster/base/status.h"
#include "muster/version.h"
#include "worker/launcher/launch_options.h"
#include "worker/launcher/launcher.h"
#include "worker/launcher/own_coordinator.h"
#include "worker/launcher/rank_environment.h"
#include "worker/launcher/scratch_folder.h"
#include "worker/launcher/signal_plan.h"

namespace {

using ::muster::internal::ChannelSecurity;
using ::muster::internal::Relay;
using ::muster::worker::CoordinatorAddress;
using ::muster::worker::Environment;
using ::muster::worker::LaunchOptions;
using ::muster::worker::SignalPlan;

constexpr std::chrono::seconds kDrainTime(2);

// Otherwise a pipe could become descriptor 1 if the caller has closed that.
void OpenStandardDescriptors() {
  int fd = 0;
  do {
    fd = open("/dev/null", O_RDWR);
  } while (fd >= 0 && fd <= STDERR_FILENO);
  if (fd >= 0) close(fd);
}

bool IsIgnored(int signal) {
  struct sigaction action = {};
  return sigaction(signal, nullptr, &action) == 0 &&
         action.sa_handler == SIG_IGN;
}

// Decides what happens with signals. A signal that is ignored at the start
// (nohup, or a shell's background job) is ignored by the ranks, too.
SignalPlan PlanSignals(const LaunchOptions& options) {
  SignalPlan plan;
  for (const int signal : options.signals) {
    if (options.signals_given || !IsIgnored(signal)) {
      plan.stop.push_back(signal);
    }
  }
  for (const int signal : {SIGUSR1, SIGUSR2}) {
    if (!plan.Stops(signal) && !IsIgnored(signal)) plan.pass.push_back(signal);
  }
  for (const int signal : {SIGHUP, SIGINT, SIGQUIT, SIGUSR1, SIGUSR2}) {
    if (!plan.Stops(signal) && IsIgnored(signal)) {
      plan.ignored.push_back(signal);
    }
  }
  return plan;
}

// Blocks the signals in this thread and all threads that it starts.
void BlockSignals(const SignalPlan& plan) {
  sigset_t signals;
  sigemptyset(&signals);
  for (const int signal : plan.stop) sigaddset(&signals, signal);
  for (const int signal : plan.pass) sigaddset(&signals, signal);
  sigaddset(&signals, SIGCHLD);
  sigprocmask(SIG_BLOCK, &signals, nullptr);
  // An ignored signal may be lost before it is read.
  for (const int signal : plan.stop) std::signal(signal, SIG_DFL);
  // With an ignored SIGCHLD, which a parent may hand down, the ranks' exit
  // statuses would be lost.
  std::signal(SIGCHLD, SIG_DFL);
  // A failed write is reported and does not end the process.
  std::signal(SIGPIPE, SIG_IGN);
  std::signal(SIGXFSZ, SIG_IGN);
}

// Creates a folder for the ranks' output if needed, as torchrun does. Makes the
// path absolute, because error files are in it and ranks may change their
// working directory.
bool GiveLogFolder(muster::worker::LaunchOptions& options) {
  if (!options.log_dir.empty()) {
    std::error_code error;
    const auto path = std::filesystem::absolute(options.log_dir, error);
    if (!error) options.log_dir = path.lexically_normal().string();
    return true;
  }
  if (options.redirects.empty() && options.tee.empty()) return true;
  muster::StatusOr<std::string> folder =
      muster::worker::MakeFolderToKeep("muster-logs.", "the ranks' output");
  if (!folder.ok()) {
    std::fprintf(stderr, "muster-run: %s (--log-dir names another one)\n",
                 folder.status().message().c_str());
    return false;
  }
  options.log_dir = *std::move(folder);
  std::fprintf(stderr, "muster-run: the ranks' output goes to \"%s\"\n",
               options.log_dir.c_str());
  return true;
}

// Serves a relay to the ranks. Null: they connect to the coordinator by
// themselves, because they have one in this process, because there is only one
// rank, or because of an error, which is told.
std::unique_ptr<Relay> ServeRelay(
    const LaunchOptions& options, CoordinatorAddress& address,
    std::optional<muster::worker::ScratchFolder>& folder) {
  if (!options.relay || options.nproc_per_node < 2) return nullptr;
  const auto start = [&]() -> muster::StatusOr<std::unique_ptr<Relay>> {
    auto made = muster::worker::ScratchFolder::Create();
    if (!made.ok()) return made.status();
    folder.emplace(*std::move(made));
    auto security = ChannelSecurity::Take({});
    if (!security.ok()) return security.status();
    const std::string socket = folder->path() + "/relay";
    address.relay = address.HostPort() + "@" + socket;
    return Relay::Start(socket, *std::move(security));
  };
  auto relay = start();
  if (!relay.ok()) {
    address.relay.clear();
    std::fprintf(stderr,
                 "muster-run: each rank connects to the coordinator by itself: "
                 "%s\n",
                 relay.status().message().c_str());
    return nullptr;
  }
  return *std::move(relay);
}

}  // namespace

int main(int argc, char** argv) {
  OpenStandardDescriptors();
  Environment environment = muster::base::OwnEnvironment();
  auto options = muster::worker::ParseLaunchOptions(
      std::vector<std::string>(argv + 1, argv + argc), environment);
  if (!options.ok()) {
    std::fprintf(stderr, "muster-run: %s; see muster-run --help\n",
                 options.status().message().c_str());
    return 2;
  }
  if (options->help) {
    std::fputs(muster::worker::LaunchHelpText().c_str(), stdout);
    return 0;
  }
  if (options->version) {
    std::printf("muster-run %s\n", MUSTER_VERSION);
    return 0;
  }
  const SignalPlan signals = PlanSignals(*options);
  BlockSignals(signals);
  FLAGS_logtostderr = true;
  // With an own coordinator the ranks report failures in more detail. With
  // another one the log shows whether it answers.
  FLAGS_minloglevel =
      options->several_hosts() ? google::GLOG_WARNING : google::GLOG_ERROR;
  muster::base::InitLogging(argv[0]);
  // Checked here, because a thread that cannot start aborts the process.
  const muster::Status limits = muster::internal::CheckProcessLimits();
  if (!limits.ok()) {
    std::fprintf(stderr, "muster-run: %s\n", limits.message().c_str());
    return 1;
  }
  CoordinatorAddress address;
  const auto coordinator =
      muster::worker::ServeOwnCoordinator(*options, address, environment);
  if (!coordinator.ok()) {
    std::fprintf(stderr, "muster-run: cannot serve a coordinator: %s\n",
                 coordinator.status().message().c_str());
    return 1;
  }
  if (*coordinator != nullptr && options->rendezvous_host.empty()) {
    // At any free port.
    std::fprintf(stderr,
                 "muster-run: serving the coordinator of job %s at %s\n",
                 address.job.c_str(), address.HostPort().c_str());
  }
  if (!GiveLogFolder(*options)) return 1;
  std::optional<muster::worker::ScratchFolder> relay_folder;
  std::unique_ptr<Relay> relay;
  if (*coordinator == nullptr) {
    relay = ServeRelay(*options, address, relay_folder);
  }
  const int status =
      muster::worker::Launch(*options, signals, address, environment);
  relay.reset();
  // The other hosts may be about to leave.
  if (*coordinator != nullptr && options->several_hosts()) {
    (*coordinator)->Drain(kDrainTime);
  }
  return status;
}
