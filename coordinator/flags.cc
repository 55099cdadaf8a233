#include "coordinator/flags.h"

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <utility>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "absl/time/time.h"
#include "base/options.h"
#include "base/text.h"
#include "coordinator/core/limits.h"
#include "coordinator/server/endpoint.h"
#include "coordinator/server/jobs/memory_limit.h"
#include "coordinator/storage/etcd/etcd_fleet.h"
#include "coordinator/storage/rocksdb_storage.h"
#include "muster/version.h"

namespace muster::coordinator {
namespace {

using Asked = base::Options::Asked;
using base::OptionValue;

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

// MUSTER_ alone is the clients' prefix (MUSTER_TLS_CERT, MUSTER_TOKEN_FILE,
// MUSTER_INSECURE), and both may run in one shell.
constexpr char kVariablePrefix[] = "MUSTER_COORDINATOR_";

// One of `choices`, of which the first is the default.
OptionValue MakeChoice(std::vector<std::string> choices) {
  const std::string usual = choices.front();
  return {usual, [choices = std::move(choices)](absl::string_view flag,
                                                const std::string& value) {
            if (absl::c_linear_search(choices, value)) return OkStatus();
            const std::string last = choices.back();
            return InvalidArgumentError(absl::StrCat(
                flag, " is ", base::Quote(value), ", must be ",
                absl::StrJoin(choices.begin(), choices.end() - 1, ", "), " or ",
                last));
          }};
}

OptionValue Milliseconds(std::chrono::milliseconds* target) {
  return {absl::FromChrono(*target), [=](auto, absl::Duration value) {
            *target =
                std::chrono::milliseconds(absl::ToInt64Milliseconds(value));
            return OkStatus();
          }};
}

template <typename T>
OptionValue Limit(T* target) {
  // A limit that is 0 by default depends on other settings or on the machine.
  const T least = *target == 0 ? 0 : 1;
  return {*target, [=](absl::string_view flag, T value) {
            *target = value;
            if (value >= least) return OkStatus();
            return InvalidArgumentError(absl::StrCat(
                flag, " is ", value, ", must be at least ", least));
          }};
}

// The same texts as Abseil's flags.
std::string ErrorText(const base::OptionError& error) {
  std::string wrong = absl::StrCat("Illegal value '", error.value,
                                   "' specified for flag '", error.name, "'");
  if (absl::StartsWith(error.source, kVariablePrefix)) {
    return absl::StrCat("environment variable ", error.source, "=",
                        base::Quote(error.value), " does not parse as --",
                        error.name, ": ", wrong);
  }
  if (error.kind == base::OptionError::kUnknown) {
    return absl::StrCat("Unknown command line flag '", error.name, "'");
  }
  if (error.kind == base::OptionError::kWrongValue) return wrong;
  return absl::StrCat("Missing the value for the flag '", error.name,
                      "'\nERROR: ", wrong);
}

// The options by name, as in --help. Their values go to `line`. The function is
// one table.
// NOLINTNEXTLINE(readability-function-size)
base::Options Table(CommandLine& line) {
  ServerOptions& server = line.server;
  server.listen = "127.0.0.1:7070";
  server.http_listen = "127.0.0.1:7071";
  // FitToMemory replaces 0.
  server.unsent_bytes_max = 0;
  server.inbound_bytes_max = 0;
  std::vector<base::Option> table = {
      {"advertise", "", &server.advertise,
       "host:port at which clients and the other coordinators reach the gRPC "
       "endpoint, with --storage=etcd; empty: that of --listen or, if it is "
       "all addresses, the host's name"},
      {"drain_timeout", "", &line.drain_timeout,
       "how long SIGTERM waits for calls to end before it cuts them off"},
      {"etcd_ca", "", std::string(),
       "file of the authorities of etcd's certificates (PEM); with it "
       "connections to etcd speak TLS"},
      {"etcd_cert", "", std::string(),
       "file of the certificate that etcd is shown (PEM)"},
      {"etcd_endpoints", "", std::string(),
       "host:port of etcd's members, separated by commas; needed with "
       "--storage=etcd"},
      {"etcd_key", "", std::string(),
       "file of the private key of --etcd_cert (PEM, no passphrase)"},
      {"etcd_lease", "", absl::Seconds(5),
       "whole seconds after which others have the jobs of a coordinator that "
       "has died"},
      {"etcd_prefix", "", std::string("/muster/"),
       "the beginning of all keys in etcd; coordinators with the same one "
       "share "
       "their jobs"},
      {"etcd_user", "", std::string(),
       "name:password, if etcd asks for it; better given by the environment, "
       "because others of this host can read a command line"},
      {"http_listen", "", &server.http_listen,
       "host:port of /metrics, /healthz, /readyz and the status page; port 0 "
       "takes any free one, an empty value serves no HTTP"},
      {"idle_job_retention", "", Milliseconds(&server.idle_job_retention),
       "a job without members and calls is forgotten after this, keys "
       "included; a name that was only asked for, after a second or two"},
      {"insecure", "", &server.insecure,
       "allow plain text on an address that other hosts can reach"},
      {"lease", "", Milliseconds(&server.lease),
       "a member that is silent for this long is lost (10s, 500ms)"},
      {"limit_groups", "", Limit(&server.limits.groups),
       "the most process groups of one job"},
      {"limit_inbound_bytes", "", Limit(&server.inbound_bytes_max),
       "the most bytes of messages that are on their way in, of all "
       "connections; 0: an eighth of the memory (as --limit_total_bytes), at "
       "most 4 GiB"},
      {"limit_jobs", "", Limit(&server.jobs_max), "the most jobs at one time"},
      {"limit_jobs_per_token", "", Limit(&server.jobs_per_token_max),
       "the most of them that one token has brought into being; 0: half of "
       "--limit_jobs"},
      {"limit_keys", "", Limit(&server.limits.keys),
       "the most keys of one job"},
      {"limit_members", "", Limit(&server.limits.members),
       "the most members of one job"},
      {"limit_message_bytes", "", Limit(&server.message_bytes_max),
       "the most bytes of one request or answer"},
      {"limit_queue_items", "", Limit(&server.limits.queue_items),
       "the most items in all queues of one job"},
      {"limit_sessions", "", Limit(&server.sessions_max),
       "the most open streams, of all jobs"},
      {"limit_store_bytes", "", Limit(&server.limits.store_bytes),
       "the most bytes of all keys and values of one job"},
      {"limit_total_bytes", "", Limit(&server.total_bytes_max),
       "the most bytes that all jobs hold together: keys and values, the past "
       "changes that watches go back to, answers kept for retries, what "
       "members tell of their groups, and about what each key, item, waiting "
       "call, kept answer and member takes up beside. One job has at most half "
       "of it. While all are within it, a job is not refused its share: a "
       "sixteenth of the other half, or less where more than 16 jobs hold more "
       "than a thousandth of that half. 0: three eighths of the memory that "
       "the process may use by its control group or, without one, of the "
       "machine's"},
      {"limit_unsent_bytes", "", Limit(&server.unsent_bytes_max),
       "the most bytes of unary answers that clients have not taken yet, of "
       "all jobs; 0: a sixteenth of the memory (as --limit_total_bytes), at "
       "most 1 GiB"},
      {"limit_value_bytes", "", Limit(&server.limits.value_bytes),
       "the most bytes of one value"},
      {"limit_waiter_bytes", "", Limit(&server.limits.waiter_bytes),
       "the most bytes of the keys that the calls of one job wait for"},
      {"limit_waiters", "", Limit(&server.limits.waiters),
       "the most waiting calls of one job"},
      {"limit_watch_history_bytes", "",
       Limit(&server.limits.watch_history_bytes),
       "the same in bytes of keys and values, the old ones included"},
      {"limit_watch_history_changes", "",
       Limit(&server.limits.watch_history_changes),
       "how many changes of one job a watch can catch up with"},
      {"listen", "", &server.listen,
       "host:port of the gRPC endpoint; port 0 takes any free one"},
      {"reconnect_grace", "", Milliseconds(&server.reconnect_grace),
       "a member may be without its stream for this long before it is lost: "
       "long enough for a live one to connect again, and all that passes "
       "before the others learn of one that died"},
      {"storage", "", MakeChoice({"memory", "rocksdb", "etcd"}),
       "where jobs are kept: memory (they end with the process), rocksdb (a "
       "restarted coordinator goes on with them) or etcd (several coordinators "
       "share them, and go on with those of one that has died)"},
      {"storage_path", "", std::string(),
       "folder of the database; needed with --storage=rocksdb"},
      {"sync", "", MakeChoice({"always", "interval"}),
       "when what is acknowledged is on the disk: always (before, so the end "
       "of the machine loses nothing) or interval (--sync_interval later; the "
       "end of the process still loses nothing)"},
      {"sync_interval", "", absl::Milliseconds(100),
       "how often --sync=interval writes to the disk"},
      {"tls_cert", "", &server.tls_cert,
       "file of the certificate of the gRPC endpoint (PEM, with those that "
       "lead to its root); with it and --tls_key it speaks TLS only. Like the "
       "next two, replaced while it runs it counts for new connections"},
      {"tls_client_ca", "", &server.tls_client_ca,
       "file of the authorities of clients' certificates (PEM); with it "
       "clients must show one"},
      {"tls_key", "", &server.tls_key,
       "file of the private key of --tls_cert (PEM, no passphrase)"},
      {"token_file", "", &server.token_file,
       "file of the tokens that calls need, and what each allows: lines of "
       "<SHA-256 of the token> <read|member|admin> <job or beginning*> "
       "[expires=TIME]; replaced while it runs it counts at once. Without it "
       "everybody who can connect may do everything"},
  };
  return base::Options(std::move(table),
                       {.style = base::Options::Style::kAbseil,
                        .separator = '_',
                        .variables = {kVariablePrefix},
                        .to_text = ErrorText});
}

bool AsksForHelp(const std::vector<std::string>& arguments) {
  return std::any_of(
      arguments.begin(), arguments.end(), [](const auto& argument) {
        return argument == "--help" || argument == "-help" || argument == "-h";
      });
}

// Rejects a variable with our prefix that names no flag: it is a mistake.
Status CheckVariables(const base::Environment& environment,
                      const base::Options& flags) {
  for (const auto& [variable, value] : environment) {
    absl::string_view name = variable;
    if (!absl::ConsumePrefix(&name, kVariablePrefix)) continue;
    // Kubernetes sets these in pods beside a service named muster-coordinator.
    if (absl::StartsWith(name, "SERVICE_") || absl::StartsWith(name, "PORT")) {
      continue;
    }
    const std::string flag = absl::AsciiStrToLower(name);
    if (flags.Find(flag) == nullptr) {
      return InvalidArgumentError(
          absl::StrCat("environment variable ", variable, ": there is no --",
                       flag, "; --help lists the flags"));
    }
  }
  return OkStatus();
}

// Ends the process after --version, or if a flag is wrong.
Status ReadArguments(const std::vector<std::string>& arguments,
                     base::Options& flags) {
  std::vector<std::string> words;
  const StatusOr<Asked> asked = flags.Read(arguments, words);
  if (!asked.ok()) {
    fprintf(stderr, "ERROR: %s\n", asked.status().message().c_str());
    exit(EXIT_FAILURE);
  }
  if (*asked == Asked::kVersion) {
    printf("muster-coordinator %s\n", MUSTER_VERSION);
    exit(EXIT_SUCCESS);
  }
  if (words.empty()) return OkStatus();
  return InvalidArgumentError(absl::StrCat("unexpected argument ",
                                           base::Quote(words[0]),
                                           "; --help lists the flags"));
}

// The flags that are not at their defaults, as a command line.
std::string SettingsText(const base::Options& flags) {
  std::string settings;
  for (const base::Option& flag : flags.table()) {
    const std::string value = flag.value.Text();
    if (value == flag.value.default_text()) continue;
    // It has a password.
    const bool is_secret = flag.name == "etcd_user";
    absl::StrAppend(&settings, settings.empty() ? "" : " ", "--", flag.name,
                    "=", is_secret ? "..." : value);
  }
  return settings;
}

Status ReadEtcd(const base::Options& flags, CommandLine& line) {
  const std::string& endpoints = flags.Get<std::string>("etcd_endpoints");
  if (flags.Get<std::string>("storage") != "etcd") {
    for (const char* const flag : {"etcd_endpoints", "advertise"}) {
      const std::string& value = flags.Get<std::string>(flag);
      if (value.empty()) continue;
      return InvalidArgumentError(absl::StrCat("--", flag, " is ",
                                               base::Quote(value),
                                               ", but --storage is not etcd"));
    }
    return OkStatus();
  }
  if (endpoints.empty()) {
    return InvalidArgumentError(
        "--storage=etcd needs --etcd_endpoints, host:port of etcd's members");
  }
  if (!line.server.advertise.empty()) {
    const StatusOr<Endpoint> advertised =
        ParseEndpoint("advertise", line.server.advertise);
    if (!advertised.ok()) return advertised.status();
    if (advertised->port == 0) {
      return InvalidArgumentError(
          absl::StrCat("--advertise is ", base::Quote(line.server.advertise),
                       ", which has no port that others can reach"));
    }
  }
  EtcdOptions client;
  client.endpoints = absl::StrSplit(endpoints, ',');
  client.ca = flags.Get<std::string>("etcd_ca");
  client.cert = flags.Get<std::string>("etcd_cert");
  client.key = flags.Get<std::string>("etcd_key");
  client.user = flags.Get<std::string>("etcd_user");
  EtcdFleetOptions etcd;
  etcd.prefix = flags.Get<std::string>("etcd_prefix");
  if (etcd.prefix.empty() || etcd.prefix.back() != '/') {
    return InvalidArgumentError(absl::StrCat(
        "--etcd_prefix is ", base::Quote(etcd.prefix), ", must end in /"));
  }
  const absl::Duration lease = flags.Get<absl::Duration>("etcd_lease");
  if (lease < absl::Seconds(1) || lease > absl::Hours(1) ||
      lease % absl::Seconds(1) != absl::ZeroDuration()) {
    return InvalidArgumentError(
        absl::StrCat("--etcd_lease is ", absl::FormatDuration(lease),
                     ", must be whole seconds, 1s to 1h"));
  }
  etcd.lease = absl::ToChronoSeconds(lease);
  line.server.open_fleet =
      MakeOpenEtcdFleet(std::move(client), std::move(etcd));
  return OkStatus();
}

Status ReadStorage(const base::Options& flags, ServerOptions& options) {
  const std::string& storage = flags.Get<std::string>("storage");
  const std::string& path = flags.Get<std::string>("storage_path");
  if (storage == "rocksdb" && path.empty()) {
    return InvalidArgumentError(
        "--storage=rocksdb needs --storage_path, the folder of the database");
  }
  if (storage != "rocksdb" && !path.empty()) {
    return InvalidArgumentError(
        absl::StrCat("--storage_path is ", base::Quote(path),
                     ", but --storage=", storage, " keeps nothing there"));
  }
  const absl::Duration interval = flags.Get<absl::Duration>("sync_interval");
  if (interval < absl::Milliseconds(1)) {
    return InvalidArgumentError(absl::StrCat("--sync_interval is ",
                                             absl::FormatDuration(interval),
                                             ", must be at least 1ms"));
  }
  if (storage == "rocksdb") {
    options.open_storage = [path] { return OpenRocksDb(path); };
  }
  if (flags.Get<std::string>("sync") == "interval") {
    options.storage_sync_interval =
        std::chrono::milliseconds(absl::ToInt64Milliseconds(interval));
  }
  return OkStatus();
}

// Sets the limits that are not given and depend on the memory. Leaves room for
// the program itself and for running calls.
void FitToMemory(int64_t memory, ServerOptions& options) {
  constexpr int64_t kGiB = int64_t{1} << 30;
  const int64_t message = options.message_bytes_max;
  if (options.total_bytes_max == 0) options.total_bytes_max = memory / 8 * 3;
  if (options.inbound_bytes_max == 0) {
    // Room for two messages, so that a slow one does not stop all others.
    options.inbound_bytes_max =
        std::min(4 * kGiB, std::max(memory / 8, 2 * message));
  }
  if (options.unsent_bytes_max == 0) {
    options.unsent_bytes_max =
        std::min(kGiB, std::max(memory / 16, 2 * message));
  }
}

}  // namespace

StatusOr<CommandLine> ReadCommandLine(int argc, char** argv) {
  const std::vector<std::string> arguments(argv + 1, argv + argc);
  CommandLine line;
  base::Options flags = Table(line);
  if (AsksForHelp(arguments)) {
    printf(
        "%s%s\n  --help\n      this text\n\n  --version\n      the version\n",
        kUsage, flags.Help().c_str());
    exit(EXIT_SUCCESS);
  }
  const base::Environment environment = base::OwnEnvironment();
  Status status = CheckVariables(environment, flags);
  if (status.ok()) status = flags.ReadEnvironment(environment);
  if (status.ok()) status = ReadArguments(arguments, flags);
  if (status.ok()) status = flags.Finish();
  if (status.ok()) status = ReadStorage(flags, line.server);
  if (status.ok()) status = ReadEtcd(flags, line);
  if (!status.ok()) return status;
  ServerOptions& server = line.server;
  if (server.jobs_per_token_max == 0) {
    server.jobs_per_token_max = std::max(1, server.jobs_max / 2);
  }
  FitToMemory(MemoryLimit(), server);
  line.settings = SettingsText(flags);
  if (line.drain_timeout < absl::ZeroDuration()) {
    return InvalidArgumentError(absl::StrCat(
        "drain_timeout is ", absl::FormatDuration(line.drain_timeout),
        ", must not be negative"));
  }
  core::limits_have_flags = true;
  return line;
}

}  // namespace muster::coordinator
