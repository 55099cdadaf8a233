#include "client/tools/musterctl/options.h"

#include <algorithm>
#include <cstddef>
#include <initializer_list>
#include <iterator>
#include <map>
#include <set>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/time/time.h"
#include "base/options.h"
#include "base/text.h"
#include "client/control/endpoint.h"
#include "muster/base/status.h"

namespace muster::tools {
namespace {

using Asked = base::Options::Asked;
using std::chrono::milliseconds;

constexpr char kDefaultCoordinator[] = "127.0.0.1:7070";

struct Command {
  const char* name;
  const char* arguments;  // "KEY [VALUE]"
  size_t arguments_min;
  size_t arguments_max;
  const char* options;  // "interval count"
  const char* help;
};

constexpr Command kCommands[] = {
    {"status", "", 0, 0, "", "whether the coordinator serves, and what"},
    {"jobs", "", 0, 0, "names", "the jobs and how they stand"},
    {"members", "[JOB]", 0, 1, "", "who is in a job, and who is gone why"},
    {"groups", "[JOB]", 0, 1, "", "its process groups, and who is missing"},
    {"barriers", "[JOB]", 0, 1, "", "the open barriers, and who is missing"},
    {"top", "[JOB]", 0, 1, "interval count",
     "the jobs, or one with its members and barriers, again and again"},
    {"diagnose", "[JOB]", 0, 1, "stuck_after interval stacks",
     "which rank keeps which collective from going on, and why, and who waits "
     "for a group, a barrier or a key; exit status 3 when something is stuck "
     "or the coordinator does not know"},
    {"flight-recorder", "[JOB]", 0, 1, "output",
     "the flight recorders of all ranks, merged, as JSON"},
    {"trace", "[JOB]", 0, 1, "output per_rank",
     "the collectives of all ranks as one trace for Perfetto or "
     "chrome://tracing, their clocks aligned"},
    {"kv get", "KEY", 1, 1, "wait", "print the value of a key"},
    {"kv set", "KEY VALUE", 2, 2, "ttl",
     "set a key; a VALUE - is read from standard input"},
    {"kv list", "[PREFIX]", 0, 1, "", "the keys, by name"},
    {"kv watch", "KEY", 1, 1, "prefix after",
     "print each change of a key as it happens"},
    {"kv delete", "KEY", 1, 1, "prefix", "delete a key"},
    {"close", "[JOB]", 0, 1, "reason",
     "close a job's rendezvous: nobody joins it any more"},
    {"cluster", "", 0, 0, "",
     "the coordinators that share the jobs; exit status 3 when jobs have no "
     "coordinator or one is not ready"},
    {"move", "JOB", 1, 1, "to",
     "let another coordinator serve a job, and the other jobs of its shard"},
    {"drain", "", 0, 0, "reason",
     "take the coordinator out of service, which gives its jobs to the others; "
     "its process ends"},
    {"completion", "SHELL", 1, 1, "",
     "what bash or zsh is to source for completion"},
    {"version", "", 0, 0, "verbose", "print the version of this program"},
    {"help", "[COMMAND]", 0, 2, "", "print this text, or that of a command"},
};

std::vector<absl::string_view> GetOptions(const Command& command) {
  return absl::StrSplit(command.options, ' ', absl::SkipEmpty());
}

const Command* FindCommand(absl::string_view name) {
  for (const Command& command : kCommands) {
    if (command.name == name) return &command;
  }
  return nullptr;
}

// Whether `word` is the first word of a command with two.
bool IsFamily(absl::string_view word) {
  const std::string start = absl::StrCat(word, " ");
  return std::any_of(std::begin(kCommands), std::end(kCommands),
                     [&](const Command& command) {
                       return absl::StartsWith(command.name, start);
                     });
}

std::string ListMembers(absl::string_view family) {
  std::vector<absl::string_view> names;
  for (const Command& command : kCommands) {
    const absl::string_view name = command.name;
    if (absl::StartsWith(name, absl::StrCat(family, " "))) {
      names.push_back(name.substr(family.size() + 1));
    }
  }
  return absl::StrJoin(names, ", ");
}

Status Misuse(std::string text) {
  return InvalidArgumentError(std::move(text));
}

Status NoCommand(absl::string_view name) {
  return Misuse(absl::StrCat("unknown command ", base::Quote(name),
                             "; musterctl help lists them"));
}

StatusOr<milliseconds> ParseMilliseconds(absl::string_view source,
                                         const std::string& value) {
  absl::Duration duration;
  if (!absl::ParseDuration(value, &duration) ||
      duration < absl::ZeroDuration() || duration > absl::Hours(24 * 365)) {
    return Misuse(absl::StrCat(source,
                               " must be a duration such as 500ms or 10s, got ",
                               base::Quote(value)));
  }
  return absl::ToChronoMilliseconds(duration);
}

StatusOr<int64_t> ParseNumber(absl::string_view source,
                              const std::string& value) {
  int64_t number = 0;
  if (!absl::SimpleAtoi(value, &number) || number < 0) {
    return Misuse(absl::StrCat(source, " must be a number from 0, got ",
                               base::Quote(value)));
  }
  return number;
}

StatusOr<milliseconds> ParseTimeout(absl::string_view source,
                                    const std::string& value) {
  StatusOr<milliseconds> timeout = ParseMilliseconds(source, value);
  if (timeout.ok() && *timeout <= milliseconds(0)) {
    return Misuse(absl::StrCat(source, " must be above 0, got ", value));
  }
  return timeout;
}

// The first options are those of every command.
constexpr size_t kCommonOptions = 5;

std::string ErrorText(const base::OptionError& error) {
  if (error.kind != base::OptionError::kUnknown) return base::ToText(error);
  return absl::StrCat("unknown option ",
                      error.source.substr(0, error.source.find('=')),
                      "; what follows -- is never an option");
}

// Stores the values in `options`.
base::Options Table(CtlOptions& options) {
  std::vector<base::Option> table = {
      {"coordinator", "HOST:PORT", &options.coordinator,
       "where the coordinator listens, or several with commas between, of "
       "which the job's is found; without it $MUSTER_COORDINATOR, "
       "$MUSTER_RDZV_ENDPOINT, $PET_RDZV_ENDPOINT, $MASTER_ADDR and "
       "$MASTER_PORT, 127.0.0.1:7070"},
      {"job", "JOB", &options.job,
       "the job, where none is named as an argument; without it $MUSTER_JOB, "
       "$TORCHELASTIC_RUN_ID, the only one that there is"},
      {"json", "", &options.json,
       "print the coordinator's answer as JSON; bytes are base64"},
      {"timeout", "DURATION",
       base::Parsed("10s", ParseTimeout, &options.timeout),
       "of each call, such as 500ms or 10s (10s)"},
      {"help", "", &options.help, "print this text, or that of the command",
       'h'},
      {"names", "", &options.names, "print the names alone"},
      {"prefix", "", &options.prefix, "all keys that begin with KEY"},
      {"after", "REVISION", base::Parsed("", ParseNumber, &options.after),
       "first the changes since that revision"},
      {"wait", "DURATION", base::Parsed("", ParseMilliseconds, &options.wait),
       "wait so long until the key is there"},
      {"ttl", "DURATION", base::Parsed("", ParseMilliseconds, &options.ttl),
       "the key is gone after this"},
      {"interval", "DURATION",
       base::Parsed("2s", ParseMilliseconds, &options.interval),
       "between two looks (2s)"},
      {"count", "N", base::Parsed("0", ParseNumber, &options.count),
       "end after N looks; 0: when it is interrupted"},
      {"reason", "TEXT", &options.reason, "why, for people"},
      {"to", "HOST:PORT", &options.to,
       "the coordinator, as cluster shows it; without it the coordinators "
       "choose again"},
      {"stuck_after", "DURATION",
       base::Parsed("5s", ParseMilliseconds, &options.stuck_after),
       "what takes longer is stuck (5s)"},
      {"stacks", "", &options.stacks,
       "also the stacks of those that are to blame"},
      {"verbose", "", &options.verbose,
       "also what of CUDA and NCCL this machine has, or why none of it can be "
       "used"},
      {"output", "FILE", &options.output,
       "where to write it; without it standard output"},
      {"per_rank", "FOLDER", &options.per_rank,
       "also a trace of each rank, in its own clock: FOLDER/rank-3.json"},
  };
  return base::Options(std::move(table), {.style = base::Options::Style::kGnu,
                                          .to_text = ErrorText});
}

Status CheckCommand(const base::Options& given, const CtlOptions& options) {
  const Command* const command = FindCommand(options.command);
  if (command == nullptr) {
    if (IsFamily(options.command)) {
      return Misuse(absl::StrCat(options.command, " needs one of ",
                                 ListMembers(options.command)));
    }
    return NoCommand(options.command);
  }
  if (options.help) return OkStatus();
  for (size_t i = kCommonOptions; i < given.table().size(); ++i) {
    const std::string& name = given.table()[i].name;
    if (given.IsGiven(name) &&
        !absl::c_linear_search(GetOptions(*command), name)) {
      return Misuse(
          absl::StrCat(command->name, " has no option ", given.Spelling(name)));
    }
  }
  const size_t count = options.arguments.size();
  if (count < command->arguments_min) {
    return Misuse(absl::StrCat(command->name, " needs ", command->arguments));
  }
  if (count > command->arguments_max) {
    return Misuse(absl::StrCat(
        command->name,
        command->arguments_max == 0
            ? " takes no argument"
            : absl::StrCat(" takes ", command->arguments, " alone"),
        ", got ", base::Quote(options.arguments[command->arguments_max])));
  }
  return OkStatus();
}

Status TakeFromEnvironment(const base::Environment& environment,
                           CtlOptions& options) {
  const auto value = [&](const char* name) {
    const auto found = environment.find(name);
    return found == environment.end() ? "" : found->second;
  };
  const auto first = [&](std::string& option,
                         std::initializer_list<const char*> names) {
    for (const char* const name : names) {
      if (option.empty()) option = value(name);
    }
  };
  first(options.coordinator,
        {"MUSTER_COORDINATOR", "MUSTER_RDZV_ENDPOINT", "PET_RDZV_ENDPOINT"});
  const std::string master = value("MASTER_ADDR");
  const std::string port = value("MASTER_PORT");
  if (options.coordinator.empty() && !master.empty() && !port.empty()) {
    const bool brackets = absl::StrContains(master, ':');
    options.coordinator =
        absl::StrCat(brackets ? "[" : "", master, brackets ? "]:" : ":", port);
  }
  if (options.coordinator.empty()) options.coordinator = kDefaultCoordinator;
  first(options.job, {"MUSTER_JOB", "TORCHELASTIC_RUN_ID"});
  // Hosts may stand without a port, as in muster-run.
  const auto parsed = internal::ParseEndpoints(
      "coordinator address", options.coordinator, internal::kDefaultPort);
  if (!parsed.ok()) return parsed.status();
  options.coordinator = internal::JoinEndpoints(*parsed);
  return OkStatus();
}

// Formats an entry of a list: `what` and its meaning.
std::string Entry(absl::string_view what, absl::string_view help) {
  return absl::StrFormat("  %-22s  %s", what, base::FillLines(help, 26, 80));
}

std::string OptionHelp(const base::Options& table, const base::Option& option) {
  return Entry(
      absl::StrCat(table.Spelling(option.name),
                   option.placeholder.empty() ? "" : "=", option.placeholder),
      option.help);
}

std::string CommonOptionsHelp(const base::Options& table) {
  std::string text;
  for (size_t i = 0; i < kCommonOptions; ++i) {
    text += OptionHelp(table, table.table()[i]);
  }
  return text;
}

// Returns "kv get KEY".
std::string Usage(const Command& command) {
  return absl::StrCat(command.name, *command.arguments == '\0' ? "" : " ",
                      command.arguments);
}

std::string CommandHelp(const Command& command, const base::Options& table) {
  std::string text =
      absl::StrCat("usage: musterctl ", Usage(command), " [OPTIONS]\n\n",
                   base::FillLines(command.help, 0, 80), "\nOptions:\n");
  for (const absl::string_view name : GetOptions(command)) {
    text += OptionHelp(table, *table.Find(name));
  }
  return text + CommonOptionsHelp(table);
}

}  // namespace

StatusOr<CtlOptions> ParseCtlOptions(const std::vector<std::string>& arguments,
                                     const base::Environment& environment) {
  CtlOptions options;
  std::vector<std::string> words;
  base::Options table = Table(options);
  const StatusOr<Asked> asked = table.Read(arguments, words);
  if (!asked.ok()) return asked.status();
  if (*asked == Asked::kVersion) words = {"version"};
  Status status = table.Finish();
  if (!status.ok()) return status;
  if (words.empty()) {
    if (!options.help) return Misuse("no command; musterctl help lists them");
    options.command = "help";
    return options;
  }
  options.command = words.front();
  words.erase(words.begin());
  if (IsFamily(options.command) && !words.empty()) {
    absl::StrAppend(&options.command, " ", words.front());
    words.erase(words.begin());
  }
  options.arguments = std::move(words);
  if (options.help && IsFamily(options.command)) {
    options.arguments = {options.command};
    options.command = "help";
    options.help = false;
  }
  status = CheckCommand(table, options);
  if (!status.ok()) return status;
  if (options.help) {
    options.arguments = {options.command};
    options.command = "help";
  }
  Status taken = TakeFromEnvironment(environment, options);
  // These do not ask the coordinator.
  const bool is_local = options.command == "help" ||
                        options.command == "completion" ||
                        options.command == "version";
  if (!taken.ok() && !is_local) return taken;
  return options;
}

StatusOr<std::string> CtlHelp(absl::string_view name) {
  CtlOptions defaults;
  const base::Options table = Table(defaults);
  const Command* const found = FindCommand(name);
  if (found != nullptr) return CommandHelp(*found, table);
  if (!name.empty() && !IsFamily(name)) return NoCommand(name);
  std::string text =
      "usage: musterctl COMMAND [ARGUMENTS] [OPTIONS]\n"
      "\n"
      "Looks at a muster coordinator and its jobs.\n"
      "\n"
      "Commands:\n";
  for (const Command& command : kCommands) {
    if (!absl::StartsWith(command.name, name)) continue;
    text += Entry(Usage(command), command.help);
  }
  absl::StrAppend(&text, "\nOptions of every command:\n",
                  CommonOptionsHelp(table));
  absl::StrAppend(
      &text,
      "\nCertificates and tokens come from the environment, as for the SDK: "
      "MUSTER_TLS_CA,\nMUSTER_TLS_CERT, MUSTER_TLS_KEY, "
      "MUSTER_TLS_SERVER_NAME, MUSTER_TOKEN,\nMUSTER_TOKEN_FILE, "
      "MUSTER_INSECURE (client/README.md). The debug pages of a job's\n"
      "processes, whose addresses come from the job itself, are shown "
      "MUSTER_JOB_TOKEN\n(or what is in MUSTER_JOB_TOKEN_FILE) alone: the "
      "token that those processes have,\nunder the same names.\n"
      "\n"
      "Exit status: 0: done; 1: the coordinator refused or did not answer; 2: "
      "a wrong\ncommand line; 3: diagnose or cluster found something wrong, or "
      "nothing "
      "known.\n");
  return text;
}

StatusOr<std::string> CtlCompletion(absl::string_view shell) {
  if (shell != "bash" && shell != "zsh") {
    return Misuse(
        absl::StrCat("completion knows bash and zsh, got \"", shell, "\""));
  }
  CtlOptions defaults;
  const base::Options table = Table(defaults);
  const auto spellings = [&](auto names) {
    return absl::StrJoin(names, " ", [&](std::string* out, const auto& name) {
      *out += table.Spelling(name);
    });
  };
  std::set<std::string> first;
  std::map<std::string, std::vector<std::string>> second;
  std::string options;
  for (const Command& command : kCommands) {
    const std::vector<std::string> words = absl::StrSplit(command.name, ' ');
    first.insert(words[0]);
    if (words.size() > 1) second[words[0]].push_back(words[1]);
    if (!GetOptions(command).empty()) {
      absl::StrAppend(&options, "    \"", command.name, "\"*) options+=\" ",
                      spellings(GetOptions(command)), "\" ;;\n");
    }
  }
  std::vector<std::string> common;
  for (size_t i = 0; i < kCommonOptions; ++i) {
    common.push_back(table.table()[i].name);
  }
  std::string families;
  for (const auto& [family, words] : second) {
    absl::StrAppend(&families, "    ", family, ") candidates=\"",
                    absl::StrJoin(words, " "), "\" ;;\n");
  }
  return absl::StrCat(
      shell == "zsh" ? "autoload -U +X bashcompinit && bashcompinit\n" : "",
      "# musterctl completion ", shell, "\n",
      "_musterctl() {\n"
      "  local current=${COMP_WORDS[COMP_CWORD]} word words=() candidates\n"
      "  for word in \"${COMP_WORDS[@]:1:COMP_CWORD-1}\"; do\n"
      "    [[ $word == -* ]] || words+=(\"$word\")\n"
      "  done\n"
      "  local options=\"",
      spellings(common),
      "\"\n"
      "  case \"${words[*]}\" in\n",
      options,
      "  esac\n"
      "  case \"${words[*]}\" in\n"
      "    \"\") candidates=\"",
      absl::StrJoin(first, " "), "\" ;;\n", families,
      "    "
      "members|groups|barriers|top|diagnose|flight-recorder|trace|close|move)\n"
      "      candidates=$(musterctl jobs --names --timeout=1s 2>/dev/null) ;;\n"
      "    help) candidates=\"",
      absl::StrJoin(first, " "),
      "\" ;;\n"
      "    completion) candidates=\"bash zsh\" ;;\n"
      "  esac\n"
      "  [[ $current == -* ]] && candidates=$options\n"
      "  COMPREPLY=($(compgen -W \"$candidates\" -- \"$current\"))\n"
      "}\n"
      "complete -F _musterctl musterctl\n");
}

}  // namespace muster::tools
