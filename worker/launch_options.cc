#include "worker/launch_options.h"

#include <algorithm>
#include <cstddef>
#include <optional>
#include <utility>

#include "absl/flags/commandlineflag.h"
#include "absl/flags/flag.h"
#include "absl/flags/reflection.h"
#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "absl/time/time.h"

ABSL_FLAG(bool, standalone, false,
          "serve a coordinator for this job alone, on a free port of this "
          "host; the default without --rdzv-endpoint");
ABSL_FLAG(
    std::string, nproc_per_node, "1",
    "ranks to start on this host: 1 to 1024, cpu (one for each), gpu (one "
    "for each), or auto (gpu where there are any, else cpu)");
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
          "static, c10d or muster, which are the same here: scripts for "
          "torchrun may give it");
ABSL_FLAG(std::string, master_addr, "",
          "without --rdzv-endpoint: the host of node rank 0, whose muster-run "
          "serves the coordinator there (in plain text)");
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
ABSL_FLAG(std::string, role, "default", "ROLE_NAME of the ranks");
ABSL_FLAG(std::string, log_dir, "",
          "folder for the ranks' output: "
          "LOG_DIR/RDZV_ID/attempt_K/RANK/stdout.log and stderr.log. Without "
          "--redirects and --tee, of a copy of all of it");
ABSL_FLAG(std::string, redirects, "0",
          "what goes to the log folder alone: 0 nothing, 1 standard output, 2 "
          "standard error, 3 both; or by local rank, such as 0:3,1:1");
ABSL_FLAG(std::string, tee, "0", "what goes there, too, in the same form");
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
          "--stop-grace");
ABSL_FLAG(std::string, numa_binding, "",
          "the CPUs of each rank: node (those of one NUMA node), socket, "
          "exclusive (cores of a node that no other rank has), core-complex "
          "(those that share a last-level cache)");
ABSL_FLAG(absl::Duration, failure_grace, absl::Seconds(5),
          "after a rank failed, how long the others may take to report and end "
          "by themselves before SIGTERM (duration, such as 500ms or 5s)");
ABSL_FLAG(absl::Duration, stop_grace, absl::Seconds(10),
          "how long ranks may take after SIGTERM before SIGKILL (duration)");

namespace muster::worker {
namespace {

constexpr int kDefaultPort = 7070;
constexpr int kPortMax = 65535;
constexpr int kRestartsMax = 1000000;
constexpr size_t kJobBytesMax = 128;

struct Option {
  absl::CommandLineFlag* flag;
  const char* placeholder;  // empty: a switch
};

const std::vector<Option>& Options() {
  static const auto* const kOptions = new std::vector<Option>{
      {absl::FindCommandLineFlag("standalone"), ""},
      {absl::FindCommandLineFlag("nproc_per_node"), "N"},
      {absl::FindCommandLineFlag("nnodes"), "N"},
      {absl::FindCommandLineFlag("node_rank"), "K"},
      {absl::FindCommandLineFlag("rdzv_endpoint"), "HOST:PORT"},
      {absl::FindCommandLineFlag("rdzv_id"), "JOB"},
      {absl::FindCommandLineFlag("rdzv_conf"), "CONF"},
      {absl::FindCommandLineFlag("rdzv_backend"), "NAME"},
      {absl::FindCommandLineFlag("master_addr"), "HOST"},
      {absl::FindCommandLineFlag("master_port"), "PORT"},
      {absl::FindCommandLineFlag("local_addr"), "HOST"},
      {absl::FindCommandLineFlag("max_restarts"), "N"},
      {absl::FindCommandLineFlag("restart"), "WHAT"},
      {absl::FindCommandLineFlag("monitor_interval"), "SECONDS"},
      {absl::FindCommandLineFlag("role"), "NAME"},
      {absl::FindCommandLineFlag("log_dir"), "FOLDER"},
      {absl::FindCommandLineFlag("redirects"), "STREAMS"},
      {absl::FindCommandLineFlag("tee"), "STREAMS"},
      {absl::FindCommandLineFlag("local_ranks_filter"), "RANKS"},
      {absl::FindCommandLineFlag("metrics_port_base"), "PORT"},
      {absl::FindCommandLineFlag("signals_to_handle"), "SIGNALS"},
      {absl::FindCommandLineFlag("numa_binding"), "WHAT"},
      {absl::FindCommandLineFlag("failure_grace"), "DURATION"},
      {absl::FindCommandLineFlag("stop_grace"), "DURATION"},
  };
  return *kOptions;
}

// As people write it: "--nproc-per-node".
std::string Spelling(const Option& option) {
  return absl::StrCat("--",
                      absl::StrReplaceAll(option.flag->Name(), {{"_", "-"}}));
}

const Option* FindOption(absl::string_view name) {
  const std::string canonical = absl::StrReplaceAll(name, {{"-", "_"}});
  for (const Option& option : Options()) {
    if (option.flag->Name() == canonical) return &option;
  }
  return nullptr;
}

absl::Status Assign(const Option& option, absl::string_view value,
                    absl::string_view source) {
  std::string ignored;
  if (option.flag->ParseFrom(value, &ignored)) return absl::OkStatus();
  absl::string_view want = "true or false";
  if (option.flag->IsOfType<int>() || option.flag->IsOfType<double>()) {
    want = "a number";
  }
  if (option.flag->IsOfType<absl::Duration>()) {
    want = "a duration such as 500ms or 5s";
  }
  return absl::InvalidArgumentError(
      absl::StrCat(source, " must be ", want, ", got \"", value, "\""));
}

absl::Status ReadEnvironment(const Environment& environment) {
  for (const Option& option : Options()) {
    const std::string suffix = absl::AsciiStrToUpper(option.flag->Name());
    for (const char* prefix : {"MUSTER_", "PET_"}) {
      const std::string name = prefix + suffix;
      const auto found = environment.find(name);
      if (found == environment.end() || found->second.empty()) continue;
      absl::Status status = Assign(option, found->second, name);
      if (!status.ok()) return status;
      break;
    }
  }
  return absl::OkStatus();
}

// Assigns the options at the head of `arguments` and puts the rest into
// `options`.
absl::Status ReadArguments(const std::vector<std::string>& arguments,
                           LaunchOptions& options) {
  size_t next = 0;
  while (next < arguments.size()) {
    const std::string& argument = arguments[next];
    if (argument.size() < 2 || argument[0] != '-') break;
    ++next;
    if (argument == "--") break;
    if (argument == "-h" || argument == "--help" || argument == "-help") {
      options.help = true;
      return absl::OkStatus();
    }
    if (argument == "--version" || argument == "-version") {
      options.version = true;
      return absl::OkStatus();
    }
    absl::string_view name = argument;
    absl::ConsumePrefix(&name, "-");
    absl::ConsumePrefix(&name, "-");
    std::optional<absl::string_view> value;
    const size_t equals = name.find('=');
    if (equals != absl::string_view::npos) {
      value = name.substr(equals + 1);
      name = name.substr(0, equals);
    }
    const Option* const option = FindOption(name);
    if (option == nullptr) {
      return absl::InvalidArgumentError(
          absl::StrCat("unknown option \"", argument,
                       "\" (options of the program go after "
                       "its name)"));
    }
    if (!value.has_value()) {
      if (option->flag->IsOfType<bool>()) {
        value = "true";
      } else if (next < arguments.size()) {
        value = arguments[next++];
      } else {
        return absl::InvalidArgumentError(
            absl::StrCat(Spelling(*option), " needs a value"));
      }
    }
    absl::Status status = Assign(*option, *value, Spelling(*option));
    if (!status.ok()) return status;
  }
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
                                                 ", got \"", value, "\""));
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

// HOST, HOST:PORT, [V6]:PORT or [V6].
absl::Status ReadEndpoint(const std::string& endpoint, LaunchOptions& options) {
  const auto error = [&] {
    return absl::InvalidArgumentError(
        absl::StrCat("--rdzv-endpoint must be HOST:PORT (an IPv6 host in "
                     "brackets, a port of 1 to 65535), got \"",
                     endpoint, "\""));
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
      options.rendezvous_port < 1 || options.rendezvous_port > 65535) {
    return error();
  }
  return absl::OkStatus();
}

// Without an endpoint: the coordinator is one of the job's own.
absl::Status ReadMaster(LaunchOptions& options) {
  const std::string master = absl::GetFlag(FLAGS_master_addr);
  if (!options.several_hosts() || absl::GetFlag(FLAGS_standalone)) {
    if (!options.several_hosts()) return absl::OkStatus();
    return absl::InvalidArgumentError(
        absl::StrCat("--standalone and --nnodes=", absl::GetFlag(FLAGS_nnodes),
                     " exclude each other"));
  }
  if (master.empty()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "--nnodes=", absl::GetFlag(FLAGS_nnodes),
        " needs --rdzv-endpoint, a coordinator that every host reaches, or "
        "--master-addr, the host of node rank 0"));
  }
  if (options.node_rank < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("--master-addr=", master,
                     " needs --node-rank: number 0 serves the coordinator"));
  }
  options.rendezvous_host = master;
  options.rendezvous_port = absl::GetFlag(FLAGS_master_port);
  options.rendezvous_on_node_0 = true;
  if (options.rendezvous_id.empty()) options.rendezvous_id = "default";
  return CheckRange("--master-port", options.rendezvous_port, 1, 65535);
}

absl::Status ReadRendezvous(LaunchOptions& options) {
  options.rendezvous_id = absl::GetFlag(FLAGS_rdzv_id);
  const bool fits = options.rendezvous_id.size() <= kJobBytesMax;
  for (const char c : options.rendezvous_id) {
    if (!fits || !(absl::ascii_isalnum(static_cast<unsigned char>(c)) ||
                   c == '.' || c == '_' || c == '-')) {
      return absl::InvalidArgumentError(absl::StrCat(
          "--rdzv-id must be 1 to ", kJobBytesMax,
          " of A-Z a-z 0-9 . _ -, got \"", options.rendezvous_id, "\""));
    }
  }
  const std::string endpoint = absl::GetFlag(FLAGS_rdzv_endpoint);
  if (endpoint.empty()) return ReadMaster(options);
  if (absl::GetFlag(FLAGS_standalone)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "--standalone and --rdzv-endpoint=", endpoint, " exclude each other"));
  }
  if (options.rendezvous_id.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat("--rdzv-endpoint=", endpoint,
                     " needs --rdzv-id: the job's name on that coordinator"));
  }
  return ReadEndpoint(endpoint, options);
}

absl::Status ReadHosts(const Environment& environment, LaunchOptions& options) {
  absl::Status status = Take(
      ParseNodeCount("--nnodes", absl::GetFlag(FLAGS_nnodes)), options.nnodes);
  status.Update(
      Take(ParseNproc("--nproc-per-node", absl::GetFlag(FLAGS_nproc_per_node),
                      DevicesOfHost(environment)),
           options.nproc_per_node));
  if (!status.ok()) return status;
  options.node_rank = absl::GetFlag(FLAGS_node_rank);
  if (options.node_rank != -1) {
    status =
        CheckRange("--node-rank", options.node_rank, 0, options.nnodes.max - 1);
    if (options.nnodes.min != options.nnodes.max) {
      status.Update(absl::InvalidArgumentError(absl::StrCat(
          "--node-rank=", options.node_rank,
          " and --nnodes=", absl::GetFlag(FLAGS_nnodes),
          " exclude each other: hosts that come and go get their numbers from "
          "the rendezvous")));
    }
  }
  status.Update(CheckWord("--rdzv-backend", absl::GetFlag(FLAGS_rdzv_backend),
                          {"static", "c10d", "muster"}));
  status.Update(
      Take(ParseRendezvousConf("--rdzv-conf", absl::GetFlag(FLAGS_rdzv_conf)),
           options.rendezvous_times));
  options.local_addr = absl::GetFlag(FLAGS_local_addr);
  if (status.ok()) status = ReadRendezvous(options);
  return status;
}

absl::Status ReadOutput(LaunchOptions& options) {
  options.log_dir = absl::GetFlag(FLAGS_log_dir);
  absl::Status status =
      Take(Streams::Parse("--redirects", absl::GetFlag(FLAGS_redirects)),
           options.redirects);
  status.Update(
      Take(Streams::Parse("--tee", absl::GetFlag(FLAGS_tee)), options.tee));
  status.Update(Take(ParseLocalRanks("--local-ranks-filter",
                                     absl::GetFlag(FLAGS_local_ranks_filter)),
                     options.local_ranks_filter));
  if (!status.ok()) return status;
  if (options.redirects.empty() && options.tee.empty()) {
    if (!options.log_dir.empty()) options.tee = Streams::Both();
  } else if (options.log_dir.empty()) {
    return absl::InvalidArgumentError(absl::StrCat(
        options.tee.empty() ? "--redirects=" : "--tee=",
        absl::GetFlag(options.tee.empty() ? FLAGS_redirects : FLAGS_tee),
        " needs --log-dir: the folder of the output"));
  }
  for (const int rank : options.local_ranks_filter) {
    if (rank >= options.nproc_per_node) {
      return absl::InvalidArgumentError(
          absl::StrCat("--local-ranks-filter must be of 0 to ",
                       options.nproc_per_node - 1, ", got ", rank));
    }
  }
  return absl::OkStatus();
}

absl::Status ReadRestarts(LaunchOptions& options) {
  options.max_restarts = absl::GetFlag(FLAGS_max_restarts);
  const std::string restart = absl::GetFlag(FLAGS_restart);
  absl::Status status =
      CheckRange("--max-restarts", options.max_restarts, 0, kRestartsMax);
  status.Update(CheckWord("--restart", restart, {"all", "rank", "none"}));
  if (restart == "rank") options.restart = LaunchOptions::Restart::kRank;
  if (restart == "none") options.restart = LaunchOptions::Restart::kNone;
  if (restart == "rank" && options.several_hosts()) {
    status.Update(absl::InvalidArgumentError(absl::StrCat(
        "--restart=rank and --nnodes=", absl::GetFlag(FLAGS_nnodes),
        " exclude each other")));
  }
  if (restart == "none" && options.max_restarts > 0) {
    status.Update(absl::InvalidArgumentError(
        absl::StrCat("--restart=none and --max-restarts=", options.max_restarts,
                     " exclude each other")));
  }
  status.Update(ReadDuration("--failure-grace",
                             absl::GetFlag(FLAGS_failure_grace),
                             options.failure_grace));
  status.Update(ReadDuration("--stop-grace", absl::GetFlag(FLAGS_stop_grace),
                             options.stop_grace));
  return status;
}

absl::Status ReadFlags(const Environment& environment, LaunchOptions& options) {
  absl::Status status = ReadHosts(environment, options);
  status.Update(ReadRestarts(options));
  if (status.ok()) status = ReadOutput(options);
  options.role = absl::GetFlag(FLAGS_role);
  status.Update(Take(ParseSignals("--signals-to-handle",
                                  absl::GetFlag(FLAGS_signals_to_handle)),
                     options.signals));
  options.metrics_port_base = absl::GetFlag(FLAGS_metrics_port_base);
  if (options.metrics_port_base != 0) {
    status.Update(CheckRange("--metrics-port-base", options.metrics_port_base,
                             1, kPortMax + 1 - options.nproc_per_node));
  }
  options.numa_binding = absl::GetFlag(FLAGS_numa_binding);
  status.Update(CheckWord("--numa-binding", options.numa_binding,
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
  absl::Status status = ReadEnvironment(environment);
  if (status.ok()) status = ReadArguments(arguments, options);
  if (!status.ok()) return status;
  if (options.help || options.version) return options;
  status = ReadFlags(environment, options);
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
  for (const Option& option : Options()) {
    absl::StrAppend(&text, "\n  ", Spelling(option),
                    *option.placeholder == '\0' ? "" : "=", option.placeholder,
                    "\n");
    // Words, broken before column 78.
    std::string line = "     ";
    std::string help = option.flag->Help();
    if (*option.placeholder != '\0') {
      const std::string value = option.flag->DefaultValue();
      absl::StrAppend(&help, "; default ",
                      value.empty() || value == "\"\"" ? "none" : value);
    }
    while (!help.empty()) {
      const size_t space = help.find(' ');
      const std::string word = help.substr(0, space);
      help = space == std::string::npos ? "" : help.substr(space + 1);
      if (line.size() + 1 + word.size() > 78) {
        absl::StrAppend(&text, line, "\n");
        line = "     ";
      }
      absl::StrAppend(&line, " ", word);
    }
    absl::StrAppend(&text, line, "\n");
  }
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
