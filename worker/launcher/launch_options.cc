#include "worker/launcher/launch_options.h"

#include <algorithm>
#include <csignal>
#include <cstddef>
#include <cstdint>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "absl/time/time.h"
#include "base/endpoint.h"
#include "base/options.h"
#include "base/process_limits.h"
#include "base/text.h"
#include "client/control/endpoint.h"
#include "muster/base/status.h"
#include "worker/launcher/numa.h"

namespace muster::worker {
namespace {

using Asked = base::Options::Asked;
using base::OptionValue;

constexpr int kNnodesMax = 65536;
constexpr int kNprocMax = 1024;
constexpr int kPortMax = 65535;
constexpr double kSecondsMax = 24 * 3600;
constexpr int kRestartsMax = 1000000;
constexpr size_t kJobBytesMax = 128;

Status Wrong(absl::string_view option, absl::string_view want,
             absl::string_view value) {
  return InvalidArgumentError(
      absl::StrCat(option, " must be ", want, ", got ", base::Quote(value)));
}

// Parses a bit set (0 to 3) of streams.
bool ReadBits(absl::string_view text, int& bits) {
  return absl::SimpleAtoi(text, &bits) && bits >= 0 && bits <= 3;
}

}  // namespace

StatusOr<NodeCount> ParseNodeCount(absl::string_view option,
                                   absl::string_view value) {
  NodeCount count;
  const std::vector<absl::string_view> parts = absl::StrSplit(value, ':');
  const bool numbers = parts.size() <= 2 &&
                       absl::SimpleAtoi(parts.front(), &count.min) &&
                       absl::SimpleAtoi(parts.back(), &count.max);
  if (!numbers || count.min < 1 || count.max > kNnodesMax ||
      count.min > count.max) {
    return Wrong(option,
                 absl::StrCat("N or MIN:MAX, of 1 to ", kNnodesMax, " hosts"),
                 value);
  }
  return count;
}

Devices DevicesOfHost(const Environment& environment) {
  return {.cpus = UsableProcessors(),
          .gpus = static_cast<int>(GpuNodes("", environment).size())};
}

StatusOr<int> ParseNproc(absl::string_view option, absl::string_view value,
                         const Devices& devices) {
  if (value == "cpu" || (value == "auto" && devices.gpus == 0)) {
    return std::min(devices.cpus, kNprocMax);
  }
  if (value == "gpu" && devices.gpus == 0) {
    return InvalidArgumentError(absl::StrCat(
        option,
        "=gpu: this host has no GPU, or CUDA_VISIBLE_DEVICES hides it"));
  }
  if (value == "gpu" || value == "auto") {
    return std::min(devices.gpus, kNprocMax);
  }
  int nproc = 0;
  if (!absl::SimpleAtoi(value, &nproc) || nproc < 1 || nproc > kNprocMax) {
    return Wrong(option, absl::StrCat("1 to ", kNprocMax, ", auto, cpu or gpu"),
                 value);
  }
  return nproc;
}

int Streams::Of(int local_rank) const {
  const auto found = by_rank_.find(local_rank);
  return found == by_rank_.end() ? all_ : found->second;
}

StatusOr<Streams> Streams::Parse(absl::string_view option,
                                 absl::string_view value) {
  int all = 0;
  if (ReadBits(value, all)) return Streams(all);
  Streams streams;
  for (const absl::string_view part : absl::StrSplit(value, ',')) {
    const std::pair<absl::string_view, absl::string_view> pair =
        absl::StrSplit(part, absl::MaxSplits(':', 1));
    int rank = 0;
    int bits = 0;
    if (!absl::SimpleAtoi(pair.first, &rank) || rank < 0 ||
        !ReadBits(pair.second, bits)) {
      return Wrong(option,
                   "0 to 3 (1: standard output, 2: standard error, 3: both), "
                   "or LOCAL_RANK:0 to 3 with commas between",
                   value);
    }
    streams.by_rank_[rank] = bits;
  }
  return streams;
}

StatusOr<std::vector<int>> ParseLocalRanks(absl::string_view option,
                                           absl::string_view value) {
  std::vector<int> ranks;
  if (value.empty()) return ranks;
  for (const absl::string_view part : absl::StrSplit(value, ',')) {
    int rank = 0;
    if (!absl::SimpleAtoi(part, &rank) || rank < 0) {
      return Wrong(option, "local ranks with commas between", value);
    }
    ranks.push_back(rank);
  }
  std::sort(ranks.begin(), ranks.end());
  ranks.erase(std::unique(ranks.begin(), ranks.end()), ranks.end());
  return ranks;
}

StatusOr<std::vector<int>> ParseSignals(absl::string_view option,
                                        absl::string_view value) {
  constexpr absl::string_view kWant =
      "names of signals with commas between, such as SIGTERM,SIGUSR1, not "
      "SIGKILL, SIGSTOP, SIGCHLD, SIGSEGV and their like";
  std::vector<int> signals;
  for (absl::string_view part :
       absl::StrSplit(value, ',', absl::SkipWhitespace())) {
    const std::string name = absl::AsciiStrToUpper(
        absl::StripAsciiWhitespace(absl::StripPrefix(part, "SIG")));
    int found = 0;
    for (int signal = 1; signal < NSIG; ++signal) {
      const char* const abbreviation = sigabbrev_np(signal);
      if (abbreviation != nullptr && name == abbreviation) found = signal;
    }
    switch (found) {
      case 0:
      case SIGKILL:
      case SIGSTOP:
      case SIGCHLD:
      case SIGPIPE:
      case SIGSEGV:
      case SIGBUS:
      case SIGFPE:
      case SIGILL:
      case SIGABRT:
      case SIGTRAP:
        return Wrong(option, kWant, value);
      default:
        signals.push_back(found);
    }
  }
  if (signals.empty()) return Wrong(option, kWant, value);
  return signals;
}

StatusOr<RendezvousTimes> ParseRendezvousConf(absl::string_view option,
                                              absl::string_view value) {
  RendezvousTimes times;
  for (const absl::string_view part :
       absl::StrSplit(value, ',', absl::SkipEmpty())) {
    const std::pair<absl::string_view, absl::string_view> pair =
        absl::StrSplit(part, absl::MaxSplits('=', 1));
    const absl::string_view key = absl::StripAsciiWhitespace(pair.first);
    std::chrono::milliseconds* target = nullptr;
    // torchrun's c10d and static rendezvous have different names for it.
    if (key == "join_timeout" || key == "timeout") target = &times.join_timeout;
    if (key == "last_call_timeout") target = &times.last_call;
    if (target == nullptr) {
      return InvalidArgumentError(absl::StrCat(
          option, " has no ", base::Quote(key),
          "; it has join_timeout (or timeout) and last_call_timeout, in "
          "seconds"));
    }
    double seconds = 0;
    if (!absl::SimpleAtod(pair.second, &seconds) || !(seconds >= 0) ||
        seconds > kSecondsMax) {
      return Wrong(absl::StrCat(option, ": ", key), "0 to 86400 seconds",
                   pair.second);
    }
    *target = std::chrono::milliseconds(static_cast<int64_t>(seconds * 1000));
  }
  return times;
}

namespace {

Status CheckRange(absl::string_view option, int value, int min, int max) {
  if (value >= min && value <= max) return OkStatus();
  return InvalidArgumentError(
      absl::StrCat(option, " must be ", min, " to ", max, ", got ", value));
}

Status CheckWord(absl::string_view option, const std::string& value,
                 const std::vector<std::string>& words) {
  if (value.empty() ||
      std::find(words.begin(), words.end(), value) != words.end()) {
    return OkStatus();
  }
  return Wrong(option, absl::StrCat("one of ", absl::StrJoin(words, ", ")),
               value);
}

Status Exclude(const std::string& one, const std::string& other) {
  return InvalidArgumentError(
      absl::StrCat(one, " and ", other, " exclude each other"));
}

OptionValue Range(int initial, int min, int max, int* target = nullptr) {
  return {initial, [=](absl::string_view name, int value) {
            if (target != nullptr) *target = value;
            return CheckRange(name, value, min, max);
          }};
}

OptionValue MakeChoice(std::vector<std::string> words,
                       std::string* target = nullptr) {
  return {"", [target, words = std::move(words)](absl::string_view name,
                                                 const std::string& value) {
            if (target != nullptr) *target = value;
            return CheckWord(name, value, words);
          }};
}

OptionValue Restart(LaunchOptions::Restart* target) {
  return {"all", [=](absl::string_view name, const std::string& value) {
            if (value == "rank") *target = LaunchOptions::Restart::kRank;
            if (value == "none") *target = LaunchOptions::Restart::kNone;
            return CheckWord(name, value, {"all", "rank", "none"});
          }};
}

OptionValue Grace(std::chrono::milliseconds* target) {
  return {
      absl::FromChrono(*target),
      [=](absl::string_view name, absl::Duration value) -> Status {
        if (value < absl::ZeroDuration() || value > absl::Hours(24)) {
          return InvalidArgumentError(absl::StrCat(
              name, " must be 0s to 24h, got ", absl::FormatDuration(value)));
        }
        *target = absl::ToChronoMilliseconds(value);
        return OkStatus();
      }};
}

Status CheckInterval(absl::string_view name, double interval) {
  if (interval >= 0 && interval <= kSecondsMax) return OkStatus();
  return InvalidArgumentError(absl::StrCat(name, " must be 0 to ", kSecondsMax,
                                           " seconds, got ", interval));
}

std::string ErrorText(const base::OptionError& error) {
  return absl::StrCat(base::ToText(error),
                      error.kind == base::OptionError::kUnknown
                          ? " (options of the program go after its name)"
                          : "");
}

// Stores the values in `options`. The function is one table.
// NOLINTNEXTLINE(readability-function-size)
base::Options Table(const Environment& environment, LaunchOptions& options) {
  std::vector<base::Option> table = {
      {"standalone", "", false,
       "serve a coordinator for this job alone, on a free port of this host; "
       "the default without --rdzv-endpoint, --master-addr and --master-port"},
      {"nproc_per_node", "N",
       base::Parsed(
           "1",
           [&environment](absl::string_view name, const std::string& text) {
             return ParseNproc(name, text, DevicesOfHost(environment));
           },
           &options.nproc_per_node),
       "ranks to start on this host: 1 to 1024, cpu (one for each that it may "
       "use, by affinity and CPU quota), gpu (one for each), or auto (gpu "
       "where there are any, else cpu)"},
      {"nnodes", "N", base::Parsed("1", ParseNodeCount, &options.nnodes),
       "hosts of the job, each with a muster-run: N, or MIN:MAX for a job that "
       "goes on when hosts come and go"},
      {"node_rank", "K", &options.node_rank,
       "which host this is, 0 to nnodes - 1; -1: any that is free. A job of "
       "MIN:MAX hosts gives the numbers itself"},
      {"rdzv_endpoint", "HOST:PORT", std::string(),
       "HOST:PORT (or HOST, port 7070) of an external coordinator, or several "
       "with commas between, of which the job's is found"},
      {"rdzv_id", "JOB", &options.rendezvous_id,
       "the job's name on the coordinator, the same on every host: 1 to 128 of "
       "A-Z a-z 0-9 . _ -; needed with --rdzv-endpoint"},
      {"rdzv_conf", "CONF",
       base::Parsed("", ParseRendezvousConf, &options.rendezvous_times),
       "KEY=SECONDS with commas between: join_timeout (or timeout; 600), how "
       "long to wait for the other hosts; last_call_timeout (30), how long for "
       "more than MIN of them"},
      {"rdzv_backend", "NAME", MakeChoice({"static", "c10d", "muster"}),
       "c10d: the first muster-run on the host of --rdzv-endpoint serves a "
       "coordinator there, unless one is there; static and muster: one is "
       "there"},
      {"master_addr", "HOST", std::string(),
       "without --rdzv-endpoint and --standalone: the host of node rank 0, "
       "whose muster-run serves the coordinator there: with TLS where "
       "MUSTER_TLS_CA, MUSTER_TLS_CERT and MUSTER_TLS_KEY are all set, else in "
       "plain text"},
      {"master_port", "PORT", Range(29500, 1, kPortMax),
       "the port of that coordinator"},
      {"local_addr", "HOST", &options.local_addr,
       "what the other hosts know this one by; its host name otherwise"},
      {"max_restarts", "N", Range(0, 0, kRestartsMax, &options.max_restarts),
       "how often all ranks of the job are started again after a failure; "
       "restarts because hosts came or went do not count"},
      {"restart", "WHAT", Restart(&options.restart),
       "what a failure does. all: all ranks of the job are started again; "
       "rank: only the one that failed, and the others have to recover by "
       "themselves (one host only); none: the others go on without it"},
      {"monitor_interval", "SECONDS", OptionValue(0.1, CheckInterval),
       "no effect: the end of a rank is noticed at once. Scripts for torchrun "
       "may give it"},
      {"no_python", "", false,
       "no effect: PROGRAM is run as it is. Scripts for torchrun give it"},
      {"use_env", "", &options.use_env,
       "a rank finds its number on this host in LOCAL_RANK alone. "
       "--use-env=false: also as its last argument, --local-rank=N, as "
       "torch.distributed.launch gives it"},
      {"relay", "", &options.relay,
       "carry the ranks' sessions to an external coordinator over one "
       "connection, if there are several ranks. --relay=false: each rank "
       "connects by itself"},
      {"role", "NAME", &options.role, "ROLE_NAME of the ranks"},
      {"log_dir", "FOLDER", &options.log_dir,
       "folder for the ranks' output: "
       "LOG_DIR/RDZV_ID/attempt_K/RANK/stdout.log and stderr.log. Without "
       "--redirects and --tee, of a copy of all of it. Either of them without "
       "a folder gets a new one below TMPDIR, which is named and stays"},
      {"redirects", "STREAMS",
       base::Parsed("0", Streams::Parse, &options.redirects),
       "what goes to the log folder alone: 0 nothing, 1 standard output, 2 "
       "standard error, 3 both; or by local rank, such as 0:3,1:1",
       'r'},
      {"tee", "STREAMS", base::Parsed("0", Streams::Parse, &options.tee),
       "what is printed and goes there, too, in the same form; it counts for "
       "what --redirects has as well",
       't'},
      {"local_ranks_filter", "RANKS",
       base::Parsed("", ParseLocalRanks, &options.local_ranks_filter),
       "the local ranks whose output is printed, such as 0,2; the log folder "
       "has it of all"},
      {"metrics_port_base", "PORT", &options.metrics_port_base,
       "the ranks of this host serve metrics and debug pages on this port and "
       "those after it, one each in the order of LOCAL_RANK; 0: as "
       "MUSTER_HTTP_PORT says, or any free ones"},
      {"signals_to_handle", "SIGNALS",
       base::Parsed("SIGTERM,SIGINT,SIGHUP,SIGQUIT", ParseSignals,
                    &options.signals),
       "the signals that are passed on to the ranks, which then have "
       "--stop-grace. Without this option one that was ignored at the start "
       "(nohup) stays ignored"},
      {"numa_binding", "WHAT",
       MakeChoice({"node", "socket", "exclusive", "core-complex"},
                  &options.numa_binding),
       "the CPUs of each rank: node (those of one NUMA node), socket, "
       "exclusive (cores of a node that no other rank has), core-complex "
       "(those that share a last-level cache)"},
      {"failure_grace", "DURATION", Grace(&options.failure_grace),
       "after a rank failed, how long the others may take to report and end by "
       "themselves before SIGTERM (duration, such as 500ms or 5s)"},
      {"stop_grace", "DURATION", Grace(&options.stop_grace),
       "how long ranks may take after SIGTERM before SIGKILL (duration)"},
      {"hang_timeout", "DURATION", Grace(&options.hang_timeout),
       "a rank that others have waited for so long, in the rendezvous, a "
       "collective, a send, a receive or a monitored barrier, while it was in "
       "code of its own, hangs and is killed, a quarter later at most "
       "(duration; less than the timeout of the process groups, which ends the "
       "wait); 0: never"},
  };
  return base::Options(std::move(table), {.words_last = true,
                                          .variables = {"MUSTER_", "PET_"},
                                          .to_text = ErrorText});
}

// Parses HOST, HOST:PORT, [V6]:PORT or [V6], or several with commas between.
// Ports are at least `port_min`.
Status ReadEndpoint(const base::Options& given, const std::string& endpoint,
                    int port_min, LaunchOptions& options) {
  StatusOr<std::vector<base::Endpoint>> parsed = internal::ParseEndpoints(
      given.Name("rdzv_endpoint"), endpoint, internal::kDefaultPort);
  if (!parsed.ok() && absl::StrContains(endpoint, ',')) return parsed.status();
  if (!parsed.ok() ||
      std::any_of(parsed->begin(), parsed->end(),
                  [&](const auto& each) { return each.port < port_min; })) {
    return InvalidArgumentError(absl::StrCat(
        given.Name("rdzv_endpoint"),
        " must be HOST:PORT (an IPv6 host in brackets, a port of ", port_min,
        " to ", kPortMax, "), got ", base::Quote(endpoint)));
  }
  if (parsed->size() > 1 && options.rendezvous_on_its_host) {
    return InvalidArgumentError(
        absl::StrCat(given.NameAndValue("rdzv_backend"),
                     " serves a coordinator at one "
                     "address, and --rdzv-endpoint has ",
                     parsed->size(), ": ", base::Quote(endpoint)));
  }
  options.rendezvous_host = parsed->front().host;
  options.rendezvous_port = parsed->front().port;
  parsed->erase(parsed->begin());
  options.rendezvous_others = *std::move(parsed);
  return OkStatus();
}

// Without an endpoint the job has a coordinator of its own.
Status ReadMaster(const base::Options& given, LaunchOptions& options) {
  const std::string& master = given.Get<std::string>("master_addr");
  const std::string nnodes = given.NameAndValue("nnodes");
  const bool standalone = given.Get<bool>("standalone");
  if (!options.several_hosts() &&
      (standalone || (master.empty() && !given.IsGiven("master_port")))) {
    return OkStatus();
  }
  if (standalone) {
    return Exclude(given.Name("standalone"), nnodes);
  }
  if (options.nnodes.min != options.nnodes.max) {
    return InvalidArgumentError(
        absl::StrCat(nnodes,
                     " needs --rdzv-endpoint, a coordinator that every "
                     "host reaches (with --rdzv-backend=c10d, a host "
                     "that serves one)"));
  }
  if (options.several_hosts()) {
    if (master.empty()) {
      return InvalidArgumentError(absl::StrCat(
          nnodes,
          " needs --rdzv-endpoint, a coordinator that every host reaches, or "
          "--master-addr, the host of node rank 0"));
    }
    if (options.node_rank < 0) {
      return InvalidArgumentError(
          absl::StrCat(given.NameAndValue("master_addr"),
                       " needs --node-rank: number 0 serves the coordinator"));
    }
  } else {
    options.node_rank = 0;
  }
  options.rendezvous_host =
      master.empty() ? "127.0.0.1" : internal::WithoutBrackets(master);
  options.rendezvous_port = given.Get<int>("master_port");
  options.rendezvous_on_node_0 = true;
  if (options.rendezvous_id.empty()) options.rendezvous_id = "default";
  return OkStatus();
}

Status ReadRendezvous(const base::Options& given, LaunchOptions& options) {
  const bool fits = options.rendezvous_id.size() <= kJobBytesMax;
  for (const char c : options.rendezvous_id) {
    if (!fits || !(absl::ascii_isalnum(static_cast<unsigned char>(c)) ||
                   c == '.' || c == '_' || c == '-')) {
      return InvalidArgumentError(absl::StrCat(
          given.Name("rdzv_id"), " must be 1 to ", kJobBytesMax,
          " of A-Z a-z 0-9 . _ -, got ", base::Quote(options.rendezvous_id)));
    }
  }
  // It names a folder in --log-dir.
  if (options.rendezvous_id == "." || options.rendezvous_id == "..") {
    return InvalidArgumentError(absl::StrCat(
        given.Name("rdzv_id"), " must not be ",
        base::Quote(options.rendezvous_id), ", which is no folder's name"));
  }
  const std::string& endpoint = given.Get<std::string>("rdzv_endpoint");
  // A cluster may set the variable for all programs.
  const bool standalone = given.Get<bool>("standalone") &&
                          !given.IsFromEnvironment("standalone") &&
                          given.IsFromEnvironment("rdzv_endpoint");
  if (endpoint.empty() || standalone) return ReadMaster(given, options);
  const std::string name = given.NameAndValue("rdzv_endpoint");
  if (given.Get<bool>("standalone")) {
    return Exclude(given.Name("standalone"), name);
  }
  options.rendezvous_on_its_host =
      given.Get<std::string>("rdzv_backend") == "c10d";
  // torchrun's port 0 means any free port.
  const bool may_be_any =
      options.rendezvous_on_its_host && !options.several_hosts();
  Status status = ReadEndpoint(given, endpoint, may_be_any ? 0 : 1, options);
  if (status.ok() && options.rendezvous_port == 0) {
    options.rendezvous_host.clear();
    options.rendezvous_on_its_host = false;
    return status;
  }
  if (status.ok() && options.rendezvous_id.empty()) {
    return InvalidArgumentError(absl::StrCat(
        name, " needs --rdzv-id: the job's name on that coordinator"));
  }
  return status;
}

Status CheckNodeRank(const base::Options& given, const LaunchOptions& options) {
  if (options.node_rank == -1) return OkStatus();
  Status status = CheckRange(given.Name("node_rank"), options.node_rank, 0,
                             options.nnodes.max - 1);
  if (status.ok() && options.nnodes.min != options.nnodes.max) {
    return InvalidArgumentError(absl::StrCat(
        given.NameAndValue("node_rank"), " and ", given.NameAndValue("nnodes"),
        " exclude each other: hosts that come and go get their numbers from "
        "the rendezvous"));
  }
  return status;
}

Status CheckRestarts(const base::Options& given, const LaunchOptions& options) {
  using Restart = LaunchOptions::Restart;
  if (options.restart == Restart::kRank && options.several_hosts()) {
    return Exclude(given.NameAndValue("restart"), given.NameAndValue("nnodes"));
  }
  if (options.restart == Restart::kNone && options.max_restarts > 0) {
    return Exclude(given.NameAndValue("restart"),
                   given.NameAndValue("max_restarts"));
  }
  return OkStatus();
}

// Checks that a local rank in a list of streams exists.
Status CheckLocalRank(const std::string& name, int rank,
                      const LaunchOptions& options) {
  if (rank < options.nproc_per_node) return OkStatus();
  return InvalidArgumentError(
      absl::StrCat(name, " must be of local ranks 0 to ",
                   options.nproc_per_node - 1, ", got ", rank));
}

Status ReadOutput(const base::Options& given, LaunchOptions& options) {
  if (options.redirects.empty() && options.tee.empty() &&
      !options.log_dir.empty()) {
    options.tee = Streams::Both();
  }
  const std::vector<int>& filter = options.local_ranks_filter;
  Status status = CheckLocalRank(given.Name("redirects"),
                                 options.redirects.last_rank(), options);
  status.Update(
      CheckLocalRank(given.Name("tee"), options.tee.last_rank(), options));
  if (!filter.empty()) {
    status.Update(CheckLocalRank(given.Name("local_ranks_filter"),
                                 filter.back(), options));
  }
  return status;
}

Status Finish(base::Options& given, LaunchOptions& options) {
  Status status = given.Finish();
  if (status.ok()) status = CheckNodeRank(given, options);
  if (status.ok()) status = ReadRendezvous(given, options);
  if (status.ok()) status = CheckRestarts(given, options);
  if (status.ok()) status = ReadOutput(given, options);
  options.signals_given = given.IsGiven("signals_to_handle");
  if (status.ok() && options.metrics_port_base != 0) {
    status =
        CheckRange(given.Name("metrics_port_base"), options.metrics_port_base,
                   1, kPortMax + 1 - options.nproc_per_node);
  }
  if (status.ok() && options.command.empty()) {
    return InvalidArgumentError(
        "no program given: muster-run [OPTIONS] [--] PROGRAM [ARGUMENTS]");
  }
  return status;
}

}  // namespace

StatusOr<LaunchOptions> ParseLaunchOptions(
    const std::vector<std::string>& arguments, const Environment& environment) {
  LaunchOptions options;
  base::Options table = Table(environment, options);
  Status status = table.ReadEnvironment(environment);
  if (!status.ok()) return status;
  const StatusOr<Asked> asked = table.Read(arguments, options.command);
  if (!asked.ok()) return asked.status();
  options.help = *asked == Asked::kHelp;
  options.version = *asked == Asked::kVersion;
  if (*asked != Asked::kNothing) return options;
  status = Finish(table, options);
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
  LaunchOptions defaults;
  text += Table({}, defaults).Help();
  absl::StrAppend(
      &text,
      "\n  --help\n      this text\n"
      "\n  --version\n      the version\n"
      "\n"
      "Every rank gets RANK, LOCAL_RANK, WORLD_SIZE, LOCAL_WORLD_SIZE,\n"
      "GROUP_RANK, GROUP_WORLD_SIZE, ROLE_RANK, ROLE_NAME, ROLE_WORLD_SIZE,\n"
      "MASTER_ADDR, MASTER_PORT and TORCHELASTIC_*; OMP_NUM_THREADS=1 and\n"
      "MUSTER_HTTP_PORT=0 unless they are set. MUSTER_HOST_RELAY names the\n"
      "relay, if there is one. Its standard input is empty.\n"
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
