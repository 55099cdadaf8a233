#include "coordinator/flags.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/flags/parse.h"
#include "absl/flags/reflection.h"
#include "absl/flags/usage_config.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "absl/time/time.h"
#include "base/text.h"
#include "base/version.h"
#include "coordinator/core/limits.h"
#include "coordinator/server/jobs/memory_limit.h"
#include "coordinator/storage/rocksdb_storage.h"

ABSL_FLAG(std::string, listen, "127.0.0.1:7070",
          "host:port of the gRPC endpoint; port 0 takes any free one");
ABSL_FLAG(std::string, http_listen, "127.0.0.1:7071",
          "host:port of /metrics, /healthz, /readyz and the status page; port "
          "0 takes any free one, an empty value serves no HTTP");
ABSL_FLAG(bool, insecure, false,
          "allow plain text on an address that other hosts can reach");
ABSL_FLAG(std::string, tls_cert, "",
          "file of the certificate of the gRPC endpoint (PEM, with those that "
          "lead to its root); with it and --tls_key it speaks TLS only. Like "
          "the next two, replaced while it runs it counts for new connections");
ABSL_FLAG(std::string, tls_key, "",
          "file of the private key of --tls_cert (PEM, no passphrase)");
ABSL_FLAG(std::string, tls_client_ca, "",
          "file of the authorities of clients' certificates (PEM); with it "
          "clients must show one");
ABSL_FLAG(std::string, token_file, "",
          "file of the tokens that calls need, and what each allows: lines of "
          "<SHA-256 of the token> <read|member|admin> <job or beginning*> "
          "[expires=TIME]; replaced while it runs it counts at once. Without "
          "it everybody who can connect may do everything");
ABSL_FLAG(absl::Duration, lease, absl::Seconds(10),
          "a member that is silent for this long is lost (10s, 500ms)");
ABSL_FLAG(absl::Duration, reconnect_grace, absl::Milliseconds(250),
          "a member may be without its stream for this long before it is lost: "
          "long enough for a live one to connect again, and all that passes "
          "before the others learn of one that died");
ABSL_FLAG(absl::Duration, drain_timeout, absl::Seconds(10),
          "how long SIGTERM waits for calls to end before it cuts them off");
ABSL_FLAG(std::string, storage, "memory",
          "where jobs are kept: memory (they end with the process) or rocksdb "
          "(a restarted coordinator goes on with them)");
ABSL_FLAG(std::string, storage_path, "",
          "folder of the database; needed with --storage=rocksdb");
ABSL_FLAG(std::string, sync, "always",
          "when what is acknowledged is on the disk: always (before, so the "
          "end of the machine loses nothing) or interval (--sync_interval "
          "later; the end of the process still loses nothing)");
ABSL_FLAG(absl::Duration, sync_interval, absl::Milliseconds(100),
          "how often --sync=interval writes to the disk");
ABSL_FLAG(absl::Duration, idle_job_retention, absl::Hours(1),
          "a job without members and calls is forgotten after this, keys "
          "included; a name that was only asked for, after a second or two");
ABSL_FLAG(int, limit_jobs, 1000, "the most jobs at one time");
ABSL_FLAG(int, limit_jobs_per_token, 0,
          "the most of them that one token has brought into being; 0: half of "
          "--limit_jobs");
ABSL_FLAG(int64_t, limit_total_bytes, 0,
          "the most bytes that all jobs hold together: keys and values, the "
          "past changes that watches go back to, answers kept for retries, "
          "what members tell of their groups, and about what each key, item, "
          "waiting call, kept answer and member takes up beside. One job has "
          "at most half of it. While all are within it, a job is not refused "
          "its share: a sixteenth of the other half, or less where more than "
          "16 jobs hold more than a thousandth of that half. 0: three eighths "
          "of the memory that the process may use by its control group or, "
          "without one, of the machine's");
ABSL_FLAG(int, limit_sessions, 20000, "the most open streams, of all jobs");
ABSL_FLAG(int64_t, limit_unsent_bytes, 0,
          "the most bytes of unary answers that clients have not taken yet, of "
          "all jobs; 0: a sixteenth of the memory (as --limit_total_bytes), at "
          "most 1 GiB");
ABSL_FLAG(int64_t, limit_inbound_bytes, 0,
          "the most bytes of messages that are on their way in, of all "
          "connections; 0: an eighth of the memory (as --limit_total_bytes), "
          "at most 4 GiB");
ABSL_FLAG(int, limit_message_bytes, 64 << 20,
          "the most bytes of one request or answer");
ABSL_FLAG(int64_t, limit_keys, muster::coordinator::core::Limits().keys,
          "the most keys of one job");
ABSL_FLAG(int64_t, limit_value_bytes,
          muster::coordinator::core::Limits().value_bytes,
          "the most bytes of one value");
ABSL_FLAG(int64_t, limit_store_bytes,
          muster::coordinator::core::Limits().store_bytes,
          "the most bytes of all keys and values of one job");
ABSL_FLAG(int64_t, limit_queue_items,
          muster::coordinator::core::Limits().queue_items,
          "the most items in all queues of one job");
ABSL_FLAG(int64_t, limit_watch_history_changes,
          muster::coordinator::core::Limits().watch_history_changes,
          "how many changes of one job a watch can catch up with");
ABSL_FLAG(int64_t, limit_watch_history_bytes,
          muster::coordinator::core::Limits().watch_history_bytes,
          "the same in bytes of keys and values, the old ones included");
ABSL_FLAG(int64_t, limit_waiters, muster::coordinator::core::Limits().waiters,
          "the most waiting calls of one job");
ABSL_FLAG(int64_t, limit_waiter_bytes,
          muster::coordinator::core::Limits().waiter_bytes,
          "the most bytes of the keys that the calls of one job wait for");
ABSL_FLAG(int64_t, limit_members, muster::coordinator::core::Limits().members,
          "the most members of one job");
ABSL_FLAG(int64_t, limit_groups, muster::coordinator::core::Limits().groups,
          "the most process groups of one job");

namespace muster::coordinator {
namespace {

constexpr char kUsage[] =
    "usage: muster-coordinator [--listen=HOST:PORT] [--http_listen=HOST:PORT] "
    "...\n"
    "\n"
    "The coordinator of distributed jobs: key-value store, membership,\n"
    "rendezvous and monitored barriers over gRPC.\n"
    "\n"
    "The first line on standard output says where it listens:\n"
    "  listening grpc=127.0.0.1:7070 http=127.0.0.1:7071\n"
    "SIGTERM and SIGINT drain it; a second one ends it at once. Each flag can\n"
    "also be set by an environment variable: --listen is\n"
    "MUSTER_COORDINATOR_LISTEN. The command line wins.\n"
    "\n"
    "Flags:\n";

// Whether the flag is one of this file, and not of a library.
bool IsOwn(absl::string_view file) {
  return absl::EndsWith(file, "coordinator/flags.cc");
}

bool AsksForHelp(int argc, char** argv) {
  return std::any_of(argv + 1, argv + argc, [](absl::string_view argument) {
    return argument == "--help" || argument == "-help" || argument == "-h";
  });
}

// Of the flags of this file, by name.
std::string HelpText() {
  std::map<std::string, const absl::CommandLineFlag*> flags;
  for (const auto& [name, flag] : absl::GetAllFlags()) {
    if (IsOwn(flag->Filename())) flags.emplace(name, flag);
  }
  std::string text = kUsage;
  for (const auto& [name, flag] : flags) {
    absl::StrAppend(&text, "\n  --", name, "\n");
    // Words, broken before column 78.
    std::string line = "     ";
    const std::string value = flag->DefaultValue();
    for (const absl::string_view word :
         absl::StrSplit(absl::StrCat(flag->Help(), "; default ", value), ' ')) {
      if (line.size() + 1 + word.size() > 78) {
        absl::StrAppend(&text, line, "\n");
        line = "     ";
      }
      absl::StrAppend(&line, " ", word);
    }
    absl::StrAppend(&text, line, "\n");
  }
  absl::StrAppend(&text, "\n  --help\n      this text\n",
                  "\n  --version\n      the version\n");
  return text;
}

// Not MUSTER_ alone: MUSTER_TLS_CERT, MUSTER_TOKEN_FILE and MUSTER_INSECURE are
// the clients', and both may run in one shell.
constexpr char kVariablePrefix[] = "MUSTER_COORDINATOR_";

absl::Status ReadEnvironment() {
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::pair<absl::string_view, absl::string_view> variable =
        absl::StrSplit(*entry, absl::MaxSplits('=', 1));
    absl::string_view name = variable.first;
    if (!absl::ConsumePrefix(&name, kVariablePrefix)) continue;
    // Kubernetes sets these in pods beside a service muster-coordinator.
    if (absl::StartsWith(name, "SERVICE_") || absl::StartsWith(name, "PORT")) {
      continue;
    }
    absl::CommandLineFlag* const flag =
        absl::FindCommandLineFlag(absl::AsciiStrToLower(name));
    if (flag == nullptr || !IsOwn(flag->Filename())) {
      return absl::InvalidArgumentError(absl::StrCat(
          "environment variable ", variable.first,
          ": there is no "
          "--",
          absl::AsciiStrToLower(name), "; --help lists the flags"));
    }
    std::string error;
    if (!flag->ParseFrom(variable.second, &error)) {
      return absl::InvalidArgumentError(
          absl::StrCat("environment variable ", variable.first, "=",
                       base::Quote(variable.second), " does not parse as --",
                       flag->Name(), ": ", error));
    }
  }
  return absl::OkStatus();
}

// The flags that are not at their defaults, as they could be given.
std::string SettingsText() {
  std::vector<std::string> settings;
  for (const auto& [name, flag] : absl::GetAllFlags()) {
    if (!IsOwn(flag->Filename())) continue;
    const std::string value = flag->CurrentValue();
    if (value != flag->DefaultValue()) {
      settings.push_back(absl::StrCat("--", name, "=", value));
    }
  }
  std::sort(settings.begin(), settings.end());
  return absl::StrJoin(settings, " ");
}

absl::Status CheckLimits() {
  for (const auto& [name, flag] : absl::GetAllFlags()) {
    if (!IsOwn(flag->Filename()) || !absl::StartsWith(name, "limit_")) continue;
    int64_t value = 0;
    // 0 by default: it depends on others, or on the machine.
    const int64_t least = flag->DefaultValue() == "0" ? 0 : 1;
    if (!absl::SimpleAtoi(flag->CurrentValue(), &value) || value < least) {
      return absl::InvalidArgumentError(
          absl::StrCat("--", name, " is ", flag->CurrentValue(),
                       ", must be at least ", least));
    }
  }
  return absl::OkStatus();
}

absl::Status OneOf(absl::string_view flag, absl::string_view value,
                   absl::string_view one, absl::string_view other) {
  if (value == one || value == other) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("--", flag, " is ", base::Quote(value), ", must be ", one,
                   " or ", other));
}

absl::Status CheckStorage() {
  const std::string storage = absl::GetFlag(FLAGS_storage);
  const std::string path = absl::GetFlag(FLAGS_storage_path);
  absl::Status status = OneOf("storage", storage, "memory", "rocksdb");
  if (!status.ok()) return status;
  if (storage == "rocksdb" && path.empty()) {
    return absl::InvalidArgumentError(
        "--storage=rocksdb needs --storage_path, the folder of the database");
  }
  if (storage == "memory" && !path.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat("--storage_path is ", base::Quote(path),
                     ", but --storage=memory keeps nothing there"));
  }
  status = OneOf("sync", absl::GetFlag(FLAGS_sync), "always", "interval");
  if (!status.ok()) return status;
  const absl::Duration interval = absl::GetFlag(FLAGS_sync_interval);
  if (interval >= absl::Milliseconds(1)) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("--sync_interval is ",
                                                 absl::FormatDuration(interval),
                                                 ", must be at least 1ms"));
}

std::chrono::milliseconds Milliseconds(absl::Duration duration) {
  return std::chrono::milliseconds(absl::ToInt64Milliseconds(duration));
}

// The limits that are not set and depend on the memory that there is. They
// leave room for the program itself, and for what is being worked on.
void FitToMemory(int64_t memory, ServerOptions& options) {
  constexpr int64_t kGiB = int64_t{1} << 30;
  const int64_t message = options.message_bytes_max;
  if (options.total_bytes_max == 0) options.total_bytes_max = memory / 8 * 3;
  if (options.inbound_bytes_max == 0) {
    // Two messages, so that one that is slow does not stop all others.
    options.inbound_bytes_max =
        std::min(4 * kGiB, std::max(memory / 8, 2 * message));
  }
  if (options.unsent_bytes_max == 0) {
    options.unsent_bytes_max =
        std::min(kGiB, std::max(memory / 16, 2 * message));
  }
}

ServerOptions OptionsFromFlags() {
  ServerOptions options;
  options.listen = absl::GetFlag(FLAGS_listen);
  options.http_listen = absl::GetFlag(FLAGS_http_listen);
  options.insecure = absl::GetFlag(FLAGS_insecure);
  options.tls_cert = absl::GetFlag(FLAGS_tls_cert);
  options.tls_key = absl::GetFlag(FLAGS_tls_key);
  options.tls_client_ca = absl::GetFlag(FLAGS_tls_client_ca);
  options.token_file = absl::GetFlag(FLAGS_token_file);
  options.lease = Milliseconds(absl::GetFlag(FLAGS_lease));
  options.reconnect_grace = Milliseconds(absl::GetFlag(FLAGS_reconnect_grace));
  options.idle_job_retention =
      Milliseconds(absl::GetFlag(FLAGS_idle_job_retention));
  if (absl::GetFlag(FLAGS_storage) == "rocksdb") {
    options.open_storage = [path = absl::GetFlag(FLAGS_storage_path)] {
      return OpenRocksDb(path);
    };
  }
  if (absl::GetFlag(FLAGS_sync) == "interval") {
    options.storage_sync_interval =
        Milliseconds(absl::GetFlag(FLAGS_sync_interval));
  }
  options.jobs_max = absl::GetFlag(FLAGS_limit_jobs);
  options.jobs_per_token_max = absl::GetFlag(FLAGS_limit_jobs_per_token);
  if (options.jobs_per_token_max == 0) {
    options.jobs_per_token_max = std::max(1, options.jobs_max / 2);
  }
  options.total_bytes_max = absl::GetFlag(FLAGS_limit_total_bytes);
  options.sessions_max = absl::GetFlag(FLAGS_limit_sessions);
  options.message_bytes_max = absl::GetFlag(FLAGS_limit_message_bytes);
  options.unsent_bytes_max = absl::GetFlag(FLAGS_limit_unsent_bytes);
  options.inbound_bytes_max = absl::GetFlag(FLAGS_limit_inbound_bytes);
  FitToMemory(MemoryLimit(), options);
  options.limits.keys = absl::GetFlag(FLAGS_limit_keys);
  options.limits.value_bytes = absl::GetFlag(FLAGS_limit_value_bytes);
  options.limits.store_bytes = absl::GetFlag(FLAGS_limit_store_bytes);
  options.limits.queue_items = absl::GetFlag(FLAGS_limit_queue_items);
  options.limits.watch_history_changes =
      absl::GetFlag(FLAGS_limit_watch_history_changes);
  options.limits.watch_history_bytes =
      absl::GetFlag(FLAGS_limit_watch_history_bytes);
  options.limits.waiters = absl::GetFlag(FLAGS_limit_waiters);
  options.limits.waiter_bytes = absl::GetFlag(FLAGS_limit_waiter_bytes);
  options.limits.members = absl::GetFlag(FLAGS_limit_members);
  options.limits.groups = absl::GetFlag(FLAGS_limit_groups);
  return options;
}

}  // namespace

absl::StatusOr<CommandLine> ReadCommandLine(int argc, char** argv) {
  // The library's own help exits with 1.
  if (AsksForHelp(argc, argv)) {
    fputs(HelpText().c_str(), stdout);
    exit(EXIT_SUCCESS);
  }
  absl::FlagsUsageConfig config;
  config.version_string = [] {
    return absl::StrCat("muster-coordinator ", kVersion, "\n");
  };
  absl::SetFlagsUsageConfig(config);
  const absl::Status status = ReadEnvironment();
  if (!status.ok()) return status;
  const std::vector<char*> arguments = absl::ParseCommandLine(argc, argv);
  if (arguments.size() > 1) {
    return absl::InvalidArgumentError(absl::StrCat("unexpected argument ",
                                                   base::Quote(arguments[1]),
                                                   "; --help lists the flags"));
  }
  const absl::Status limits = CheckLimits();
  if (!limits.ok()) return limits;
  const absl::Status storage = CheckStorage();
  if (!storage.ok()) return storage;
  CommandLine command_line;
  command_line.server = OptionsFromFlags();
  command_line.settings = SettingsText();
  command_line.drain_timeout = absl::GetFlag(FLAGS_drain_timeout);
  if (command_line.drain_timeout < absl::ZeroDuration()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "drain_timeout is ", absl::FormatDuration(command_line.drain_timeout),
        ", must not be negative"));
  }
  return command_line;
}

}  // namespace muster::coordinator
