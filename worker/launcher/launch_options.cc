#include "worker/launcher/launch_options.h"

#include <algorithm>
#include <cstddef>
#include <utility>

#include "absl/flags/flag.h"
#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "absl/time/time.h"
#include "base/text.h"
#include "client/control/endpoint.h"

ABSL_FLAG(bool, standalone, false,
          "serve a coordinator for this job alone, on a free port of this "
          "host; the default without --rdzv-endpoint, --master-addr and "
          "--master-port");
ABSL_FLAG(
    std::string, nproc_per_node, "1",
    "ranks to start on this host: 1 to 1024, cpu (one for each that it may "
    "use, by affinity and CPU quota), gpu (one for each), or auto (gpu where "
    "there are any, else cpu)");
ABSL_FLAG(std::string, nnodes, "1",
          "hosts of the job, each with a muster-run: N, or MIN:MAX for a job "
          "that goes on when hosts come and go");
ABSL_FLAG(int, node_rank, -1,
          "which host this is, 0 to nnodes - 1; -1: any that is free. A job of "
          "MIN:MAX hosts gives the numbers itself");
ABSL_FLAG(std::string, rdzv_endpoint, "",
          "HOST:PORT (or HOST, port 7070) of an external coordinator");
ABSL_FLAG(std::string, rdzv_id, "",
          "the job's name on the coordinator, the same on every host: 1 to 128 "
          "of A-Z a-z 0-9 . _ -; needed with --rdzv-endpoint");
ABSL_FLAG(
    std::string, rdzv_conf, "",
    "KEY=SECONDS with commas between: join_timeout (or timeout; 600), how "
    "long to wait for the other hosts; last_call_timeout (30), how long "
    "for more than MIN of them");
ABSL_FLAG(std::string, rdzv_backend, "",
          "c10d: the first muster-run on the host of --rdzv-endpoint serves a "
          "coordinator there, unless one is there; static and "
          "muster: one is there");
ABSL_FLAG(std::string, master_addr, "",
          "without --rdzv-endpoint and --standalone: the host of node rank 0, "
          "whose muster-run serves the coordinator there: with TLS where "
          "MUSTER_TLS_CA, MUSTER_TLS_CERT and MUSTER_TLS_KEY are all set, else "
          "in plain text");
ABSL_FLAG(int, master_port, 29500, "the port of that coordinator");
ABSL_FLAG(int, max_restarts, 0,
          "how often all ranks of the job are started again after a failure; "
          "restarts because hosts came or went do not count");
ABSL_FLAG(std::string, restart, "all",
          "what a failure does. all: all ranks of the job are started again; "
          "rank: only the one that failed, and the others have to recover by "
          "themselves (one host only); none: the others go on without it");
ABSL_FLAG(double, monitor_interval, 0.1,
          "no effect: the end of a rank is noticed at once. Scripts for "
          "torchrun may give it");
ABSL_FLAG(bool, no_python, false,
          "no effect: PROGRAM is run as it is. Scripts for torchrun give it");
ABSL_FLAG(bool, use_env, true,
          "a rank finds its number on this host in LOCAL_RANK alone. "
          "--use-env=false: also as its last argument, --local-rank=N, as "
          "torch.distributed.launch gives it");
ABSL_FLAG(std::string, role, "default", "ROLE_NAME of the ranks");
ABSL_FLAG(
    std::string, log_dir, "",
    "folder for the ranks' output: "
    "LOG_DIR/RDZV_ID/attempt_K/RANK/stdout.log and stderr.log. Without "
    "--redirects and --tee, of a copy of all of it. Either of them without a "
    "folder gets a new one below TMPDIR, which is named and stays");
ABSL_FLAG(std::string, redirects, "0",
          "what goes to the log folder alone: 0 nothing, 1 standard output, 2 "
          "standard error, 3 both; or by local rank, such as 0:3,1:1");
ABSL_FLAG(std::string, tee, "0",
          "what is printed and goes there, too, in the same form; it counts "
          "for what --redirects has as well");
ABSL_FLAG(
    std::string, local_ranks_filter, "",
    "the local ranks whose output is printed, such as 0,2; the log folder "
    "has it of all");
ABSL_FLAG(std::string, local_addr, "",
          "what the other hosts know this one by; its host name otherwise");
ABSL_FLAG(int, metrics_port_base, 0,
          "the ranks of this host serve metrics and debug pages on this port "
          "and those after it, one each in the order of LOCAL_RANK; 0: as "
          "MUSTER_HTTP_PORT says, or any free ones");
ABSL_FLAG(std::string, signals_to_handle, "SIGTERM,SIGINT,SIGHUP,SIGQUIT",
          "the signals that are passed on to the ranks, which then have "
          "--stop-grace. Without this option one that was ignored at the start "
          "(nohup) stays ignored");
ABSL_FLAG(std::string, numa_binding, "",
          "the CPUs of each rank: node (those of one NUMA node), socket, "
          "exclusive (cores of a node that no other rank has), core-complex "
          "(those that share a last-level cache)");
ABSL_FLAG(absl::Duration, failure_grace, absl::Seconds(5),
          "after a rank failed, how long the others may take to report and end "
          "by themselves before SIGTERM (duration, such as 500ms or 5s)");
ABSL_FLAG(absl::Duration, stop_grace, absl::Seconds(10),
          "how long ranks may take after SIGTERM before SIGKILL (duration)");
ABSL_FLAG(
    absl::Duration, hang_timeout, absl::ZeroDuration(),
    "a rank that others have waited for so long, in the rendezvous, a "
    "collective, a send, a receive or a monitored barrier, while it was in "
    "code of its own, hangs and is killed, a quarter later at most (duration; "
    "less than the timeout of the process groups, which ends the wait); 0: "
    "never");

namespace muster::worker {
namespace {

constexpr int kDefaultPort = 7070;
constexpr int kPortMax = 65535;
constexpr double kSecondsMax = 24 * 3600;
constexpr int kRestartsMax = 1000000;
constexpr size_t kJobBytesMax = 128;

OptionTable Table() {
  return OptionTable(
      {
          {"standalone", ""},
          {"nproc_per_node", "N"},
          {"nnodes", "N"},
          {"node_rank", "K"},
          {"rdzv_endpoint", "HOST:PORT"},
          {"rdzv_id", "JOB"},
          {"rdzv_conf", "CONF"},
          {"rdzv_backend", "NAME"},
          {"master_addr", "HOST"},
          {"master_port", "PORT"},
          {"local_addr", "HOST"},
          {"max_restarts", "N"},
          {"restart", "WHAT"},
          {"monitor_interval", "SECONDS"},
          {"no_python", ""},
          {"use_env", ""},
          {"role", "NAME"},
          {"log_dir", "FOLDER"},
          {"redirects", "STREAMS", 'r'},
          {"tee", "STREAMS", 't'},
          {"local_ranks_filter", "RANKS"},
          {"metrics_port_base", "PORT"},
          {"signals_to_handle", "SIGNALS"},
          {"numa_binding", "WHAT"},
          {"failure_grace", "DURATION"},
          {"stop_grace", "DURATION"},
          {"hang_timeout", "DURATION"},
      },
      {.variables = {"MUSTER_", "PET_"},
       .hint = "options of the program go after its name"});
}

// Assigns the options at the head of `arguments` and puts the rest into
// `options`.
absl::Status ReadArguments(const std::vector<std::string>& arguments,
                           OptionTable& table, LaunchOptions& options) {
  size_t next = 0;
  while (next < arguments.size()) {
    const absl::StatusOr<OptionTable::Argument> read =
        table.ReadArgument(arguments, next);
    if (!read.ok()) return read.status();
    options.help = *read == OptionTable::Argument::kHelp;
    options.version = *read == OptionTable::Argument::kVersion;
    if (options.help || options.version) return absl::OkStatus();
    if (*read == OptionTable::Argument::kOther) break;
  }
  if (next < arguments.size() && arguments[next] == "--") ++next;
  options.command.assign(arguments.begin() + static_cast<ptrdiff_t>(next),
                         arguments.end());
  return absl::OkStatus();
}

absl::Status CheckRange(absl::string_view option, int value, int min, int max) {
  if (value >= min && value <= max) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(option, " must be ", min, " to ", max, ", got ", value));
}

absl::Status CheckWord(absl::string_view option, const std::string& value,
                       const std::vector<std::string>& words) {
  if (value.empty() ||
      std::find(words.begin(), words.end(), value) != words.end()) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrCat(option, " must be one of ",
                                                 absl::StrJoin(words, ", "),
                                                 ", got ", base::Quote(value)));
}

absl::Status Exclude(const std::string& one, const std::string& other) {
  return absl::InvalidArgumentError(
      absl::StrCat(one, " and ", other, " exclude each other"));
}

// Puts what was parsed into `out`.
template <typename T>
absl::Status Take(absl::StatusOr<T> parsed, T& out) {
  if (!parsed.ok()) return parsed.status();
  out = *std::move(parsed);
  return absl::OkStatus();
}

absl::Status ReadDuration(absl::string_view option, absl::Duration value,
                          std::chrono::milliseconds& out) {
  if (value < absl::ZeroDuration() || value > absl::Hours(24)) {
    return absl::InvalidArgumentError(absl::StrCat(
        option, " must be 0s to 24h, got ", absl::FormatDuration(value)));
  }
  out = absl::ToChronoMilliseconds(value);
  return absl::OkStatus();
}

// HOST, HOST:PORT, [V6]:PORT or [V6]. The port is at least `port_min`.
absl::Status ReadEndpoint(const OptionTable& given, const std::string& endpoint,
                          int port_min, LaunchOptions& options) {
  const auto error = [&] {
    return absl::InvalidArgumentError(absl::StrCat(
        given.Name("rdzv_endpoint"),
        " must be HOST:PORT (an IPv6 host in brackets, a port of ", port_min,
        " to ", kPortMax, "), got ", base::Quote(endpoint)));
  };
  absl::string_view rest = endpoint;
  if (absl::ConsumePrefix(&rest, "[")) {
    const size_t close = rest.find(']');
    if (close == absl::string_view::npos) return error();
    options.rendezvous_host = std::string(rest.substr(0, close));
    rest = rest.substr(close + 1);
  } else {
    const size_t colon = rest.find(':');
    options.rendezvous_host = std::string(rest.substr(0, colon));
    rest = colon == absl::string_view::npos ? "" : rest.substr(colon);
  }
  if (options.rendezvous_host.empty()) return error();
  options.rendezvous_port = kDefaultPort;
  if (rest.empty()) return absl::OkStatus();
  if (!absl::ConsumePrefix(&rest, ":") ||
      !absl::SimpleAtoi(rest, &options.rendezvous_port) ||
      options.rendezvous_port < port_min ||
      options.rendezvous_port > kPortMax) {
    return error();
  }
  return absl::OkStatus();
}

// Without an endpoint: the coordinator is one of the job's own.
absl::Status ReadMaster(const OptionTable& given, LaunchOptions& options) {
  const std::string master = absl::GetFlag(FLAGS_master_addr);
  const std::string nnodes =
      absl::StrCat(given.Name("nnodes"), "=", absl::GetFlag(FLAGS_nnodes));
  const bool standalone = absl::GetFlag(FLAGS_standalone);
  if (!options.several_hosts() &&
      (standalone || (master.empty() && !given.IsGiven("master_port")))) {
    return absl::OkStatus();
  }
  if (standalone) {
    return Exclude(given.Name("standalone"), nnodes);
  }
  if (options.nnodes.min != options.nnodes.max) {
    return absl::InvalidArgumentError(
        absl::StrCat(nnodes,
                     " needs --rdzv-endpoint, a coordinator that every "
                     "host reaches (with --rdzv-backend=c10d, a host "
                     "that serves one)"));
  }
  if (options.several_hosts()) {
    if (master.empty()) {
      return absl::InvalidArgumentError(absl::StrCat(
          nnodes,
          " needs --rdzv-endpoint, a coordinator that every host reaches, or "
          "--master-addr, the host of node rank 0"));
    }
    if (options.node_rank < 0) {
      return absl::InvalidArgumentError(
          absl::StrCat(given.Name("master_addr"), "=", master,
                       " needs --node-rank: number 0 serves the coordinator"));
    }
  } else {
    options.node_rank = 0;
  }
  options.rendezvous_host =
      master.empty() ? "127.0.0.1" : internal::WithoutBrackets(master);
  options.rendezvous_port = absl::GetFlag(FLAGS_master_port);
  options.rendezvous_on_node_0 = true;
  if (options.rendezvous_id.empty()) options.rendezvous_id = "default";
  return absl::OkStatus();
}

absl::Status ReadRendezvous(const OptionTable& given, LaunchOptions& options) {
  options.rendezvous_id = absl::GetFlag(FLAGS_rdzv_id);
  const bool fits = options.rendezvous_id.size() <= kJobBytesMax;
  for (const char c : options.rendezvous_id) {
    if (!fits || !(absl::ascii_isalnum(static_cast<unsigned char>(c)) ||
                   c == '.' || c == '_' || c == '-')) {
      return absl::InvalidArgumentError(absl::StrCat(
          given.Name("rdzv_id"), " must be 1 to ", kJobBytesMax,
          " of A-Z a-z 0-9 . _ -, got ", base::Quote(options.rendezvous_id)));
    }
  }
  // A folder of --log-dir has this name.
  if (options.rendezvous_id == "." || options.rendezvous_id == "..") {
    return absl::InvalidArgumentError(absl::StrCat(
        given.Name("rdzv_id"), " must not be ",
        base::Quote(options.rendezvous_id), ", which is no folder's name"));
  }
  const std::string endpoint = absl::GetFlag(FLAGS_rdzv_endpoint);
  // A cluster sets the variable for all that runs there.
  const bool standalone = absl::GetFlag(FLAGS_standalone) &&
                          !given.IsFromEnvironment("standalone") &&
                          given.IsFromEnvironment("rdzv_endpoint");
  if (endpoint.empty() || standalone) return ReadMaster(given, options);
  const std::string name =
      absl::StrCat(given.Name("rdzv_endpoint"), "=", endpoint);
  if (absl::GetFlag(FLAGS_standalone)) {
    return Exclude(given.Name("standalone"), name);
  }
  options.rendezvous_on_its_host = absl::GetFlag(FLAGS_rdzv_backend) == "c10d";
  // Torchrun's way to say "any free port".
  const bool may_be_any =
      options.rendezvous_on_its_host && !options.several_hosts();
  absl::Status status =
      ReadEndpoint(given, endpoint, may_be_any ? 0 : 1, options);
  if (status.ok() && options.rendezvous_port == 0) {
    options.rendezvous_host.clear();
    options.rendezvous_on_its_host = false;
    return status;
  }
  if (status.ok() && options.rendezvous_id.empty()) {
    return absl::InvalidArgumentError(absl::StrCat(
        name, " needs --rdzv-id: the job's name on that coordinator"));
  }
  return status;
}

absl::Status ReadHosts(const OptionTable& given, const Environment& environment,
                       LaunchOptions& options) {
  absl::Status status =
      Take(ParseNodeCount(given.Name("nnodes"), absl::GetFlag(FLAGS_nnodes)),
           options.nnodes);
  status.Update(Take(ParseNproc(given.Name("nproc_per_node"),
                                absl::GetFlag(FLAGS_nproc_per_node),
                                DevicesOfHost(environment)),
                     options.nproc_per_node));
  if (!status.ok()) return status;
  options.node_rank = absl::GetFlag(FLAGS_node_rank);
  if (options.node_rank != -1) {
    const std::string name = given.Name("node_rank");
    status = CheckRange(name, options.node_rank, 0, options.nnodes.max - 1);
    if (options.nnodes.min != options.nnodes.max) {
      status.Update(absl::InvalidArgumentError(absl::StrCat(
          name, "=", options.node_rank, " and ", given.Name("nnodes"), "=",
          absl::GetFlag(FLAGS_nnodes),
          " exclude each other: hosts that come and go get their numbers from "
          "the rendezvous")));
    }
  }
  status.Update(CheckRange(given.Name("master_port"),
                           absl::GetFlag(FLAGS_master_port), 1, kPortMax));
  status.Update(CheckWord(given.Name("rdzv_backend"),
                          absl::GetFlag(FLAGS_rdzv_backend),
                          {"static", "c10d", "muster"}));
  status.Update(Take(ParseRendezvousConf(given.Name("rdzv_conf"),
                                         absl::GetFlag(FLAGS_rdzv_conf)),
                     options.rendezvous_times));
  options.local_addr = absl::GetFlag(FLAGS_local_addr);
  if (status.ok()) status = ReadRendezvous(given, options);
  return status;
}

// What says of streams by local rank must be of ranks that there are.
absl::Status CheckLocalRank(const std::string& name, int rank,
                            const LaunchOptions& options) {
  if (rank < options.nproc_per_node) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(name, " must be of local ranks 0 to ",
                   options.nproc_per_node - 1, ", got ", rank));
}

absl::Status ReadOutput(const OptionTable& given, LaunchOptions& options) {
  options.log_dir = absl::GetFlag(FLAGS_log_dir);
  const std::string redirects = given.Name("redirects");
  const std::string tee = given.Name("tee");
  const std::string filter = given.Name("local_ranks_filter");
  absl::Status status =
      Take(Streams::Parse(redirects, absl::GetFlag(FLAGS_redirects)),
           options.redirects);
  status.Update(
      Take(Streams::Parse(tee, absl::GetFlag(FLAGS_tee)), options.tee));
  status.Update(
      Take(ParseLocalRanks(filter, absl::GetFlag(FLAGS_local_ranks_filter)),
           options.local_ranks_filter));
  if (!status.ok()) return status;
  if (options.redirects.empty() && options.tee.empty() &&
      !options.log_dir.empty()) {
    options.tee = Streams::Both();
  }
  status.Update(
      CheckLocalRank(redirects, options.redirects.last_rank(), options));
  status.Update(CheckLocalRank(tee, options.tee.last_rank(), options));
  if (!options.local_ranks_filter.empty()) {
    status.Update(
        CheckLocalRank(filter, options.local_ranks_filter.back(), options));
  }
  return status;
}

absl::Status ReadRestarts(const OptionTable& given, LaunchOptions& options) {
  options.max_restarts = absl::GetFlag(FLAGS_max_restarts);
  const std::string restart = absl::GetFlag(FLAGS_restart);
  const std::string name = given.Name("restart");
  absl::Status status = CheckRange(given.Name("max_restarts"),
                                   options.max_restarts, 0, kRestartsMax);
  status.Update(CheckWord(name, restart, {"all", "rank", "none"}));
  if (restart == "rank") options.restart = LaunchOptions::Restart::kRank;
  if (restart == "none") options.restart = LaunchOptions::Restart::kNone;
  if (restart == "rank" && options.several_hosts()) {
    status.Update(Exclude(
        absl::StrCat(name, "=rank"),
        absl::StrCat(given.Name("nnodes"), "=", absl::GetFlag(FLAGS_nnodes))));
  }
  if (restart == "none" && options.max_restarts > 0) {
    status.Update(Exclude(
        absl::StrCat(name, "=none"),
        absl::StrCat(given.Name("max_restarts"), "=", options.max_restarts)));
  }
  status.Update(ReadDuration(given.Name("failure_grace"),
                             absl::GetFlag(FLAGS_failure_grace),
                             options.failure_grace));
  status.Update(ReadDuration(given.Name("stop_grace"),
                             absl::GetFlag(FLAGS_stop_grace),
                             options.stop_grace));
  status.Update(ReadDuration(given.Name("hang_timeout"),
                             absl::GetFlag(FLAGS_hang_timeout),
                             options.hang_timeout));
  const double interval = absl::GetFlag(FLAGS_monitor_interval);
  if (!(interval >= 0 && interval <= kSecondsMax)) {
    status.Update(absl::InvalidArgumentError(
        absl::StrCat(given.Name("monitor_interval"), " must be 0 to ",
                     kSecondsMax, " seconds, got ", interval)));
  }
  return status;
}

absl::Status ReadFlags(const OptionTable& given, const Environment& environment,
                       LaunchOptions& options) {
  absl::Status status = ReadHosts(given, environment, options);
  status.Update(ReadRestarts(given, options));
  if (status.ok()) status = ReadOutput(given, options);
  options.role = absl::GetFlag(FLAGS_role);
  options.use_env = absl::GetFlag(FLAGS_use_env);
  status.Update(Take(ParseSignals(given.Name("signals_to_handle"),
                                  absl::GetFlag(FLAGS_signals_to_handle)),
                     options.signals));
  options.signals_given = given.IsGiven("signals_to_handle");
  options.metrics_port_base = absl::GetFlag(FLAGS_metrics_port_base);
  if (options.metrics_port_base != 0) {
    status.Update(CheckRange(given.Name("metrics_port_base"),
                             options.metrics_port_base, 1,
                             kPortMax + 1 - options.nproc_per_node));
  }
  options.numa_binding = absl::GetFlag(FLAGS_numa_binding);
  status.Update(CheckWord(given.Name("numa_binding"), options.numa_binding,
                          {"node", "socket", "exclusive", "core-complex"}));
  if (status.ok() && options.command.empty()) {
    return absl::InvalidArgumentError(
        "no program given: muster-run [OPTIONS] [--] PROGRAM [ARGUMENTS]");
  }
  return status;
}

}  // namespace

absl::StatusOr<LaunchOptions> ParseLaunchOptions(
    const std::vector<std::string>& arguments, const Environment& environment) {
  LaunchOptions options;
  OptionTable table = Table();
  absl::Status status = table.ReadEnvironment(environment);
  if (status.ok()) status = ReadArguments(arguments, table, options);
  if (!status.ok()) return status;
  if (options.help || options.version) return options;
  status = ReadFlags(table, environment, options);
  if (!status.ok()) return status;
  return options;
}

std::string LaunchHelpText() {
  std::string text =
      "usage: muster-run [OPTIONS] [--] PROGRAM [ARGUMENTS]\n"
      "\n"
      "Starts PROGRAM once for every rank of this host, prefixes each line of\n"
      "its output with the rank, ends all ranks when one of them fails, and\n"
      "starts them again if it may.\n"
      "\n"
      "  muster-run --standalone --nproc-per-node=4 -- ./train --epochs=3\n"
      "  muster-run --rdzv-endpoint=coordinator:7070 --rdzv-id=job7 \\\n"
      "      --nnodes=2:4 --max-restarts=3 --nproc-per-node=4 -- ./train\n"
      "\n"
      "Options (also with underscores; a value may follow as the next\n"
      "argument; MUSTER_<OPTION> or PET_<OPTION> in the environment, such as\n"
      "PET_NPROC_PER_NODE, stands for one that is not given):\n";
  text += Table().Help();
  absl::StrAppend(
      &text,
      "\n  --help\n      this text\n"
      "\n  --version\n      the version\n"
      "\n"
      "Every rank gets RANK, LOCAL_RANK, WORLD_SIZE, LOCAL_WORLD_SIZE,\n"
      "GROUP_RANK, GROUP_WORLD_SIZE, ROLE_RANK, ROLE_NAME, ROLE_WORLD_SIZE,\n"
      "MASTER_ADDR, MASTER_PORT and TORCHELASTIC_*; OMP_NUM_THREADS=1 and\n"
      "MUSTER_HTTP_PORT=0 unless they are set. Its standard input is empty.\n"
      "\n"
      "Exit status: 0 when every rank exits with 0; else that of the rank "
      "that\n"
      "failed first (128 + number if a signal killed it). A rank that exits\n"
      "with 75 says that it ends because another one failed, and is not taken\n"
      "for the first. 75 when another host's ranks failed, 128 + number when\n"
      "muster-run itself was told to stop; 2\n"
      "for wrong options, 127 when there is no such program, 126 when it "
      "cannot\n"
      "be run, 1 when muster-run cannot do its work.\n");
  return text;
}

}  // namespace muster::worker
