#include "client/tools/musterctl/options.h"

#include <algorithm>
#include <cstddef>
#include <map>
#include <set>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/time/time.h"
#include "base/text.h"

namespace muster::tools {
namespace {

using std::chrono::milliseconds;

constexpr char kDefaultCoordinator[] = "127.0.0.1:7070";
constexpr char kDefaultPort[] = ":7070";

struct Option {
  const char* name;
  const char* placeholder;  // empty: a switch
  const char* help;
};

constexpr Option kCommonOptions[] = {
    {"--coordinator", "HOST:PORT",
     "where the coordinator listens; without it $MUSTER_COORDINATOR, "
     "$MUSTER_RDZV_ENDPOINT, $PET_RDZV_ENDPOINT, $MASTER_ADDR and "
     "$MASTER_PORT, 127.0.0.1:7070"},
    {"--job", "JOB",
     "the job, where none is named as an argument; without it $MUSTER_JOB, "
     "$TORCHELASTIC_RUN_ID, the only one that there is"},
    {"--json", "", "print the coordinator's answer as JSON; bytes are base64"},
    {"--timeout", "DURATION", "of each call, such as 500ms or 10s (10s)"},
    {"--help", "", "print this text, or that of the command"},
};

constexpr Option kOptions[] = {
    {"--names", "", "print the names alone"},
    {"--prefix", "", "all keys that begin with KEY"},
    {"--after", "REVISION", "first the changes since that revision"},
    {"--wait", "DURATION", "wait so long until the key is there"},
    {"--ttl", "DURATION", "the key is gone after this"},
    {"--interval", "DURATION", "between two looks (2s)"},
    {"--count", "N", "end after N looks; 0: when it is interrupted"},
    {"--reason", "TEXT", "why, for people"},
    {"--stuck-after", "DURATION", "what takes longer is stuck (5s)"},
    {"--stacks", "", "also the stacks of those that are to blame"},
    {"--verbose", "",
     "also what of CUDA and NCCL this machine has, or why none of it can be "
     "used"},
    {"--output", "FILE", "where to write it; without it standard output"},
    {"--per-rank", "FOLDER",
     "also a trace of each rank, in its own clock: FOLDER/rank-3.json"},
};

struct Command {
  const char* name;
  const char* arguments;  // "KEY [VALUE]"
  size_t arguments_min;
  size_t arguments_max;
  std::vector<absl::string_view> options;
  const char* help;
};

const std::vector<Command>& Commands() {
  static const auto* const kCommands = new std::vector<Command>{
      {"status", "", 0, 0, {}, "whether the coordinator serves, and what"},
      {"jobs", "", 0, 0, {"--names"}, "the jobs and how they stand"},
      {"members", "[JOB]", 0, 1, {}, "who is in a job, and who is gone why"},
      {"groups", "[JOB]", 0, 1, {}, "its process groups, and who is missing"},
      {"barriers", "[JOB]", 0, 1, {}, "the open barriers, and who is missing"},
      {"top",
       "[JOB]",
       0,
       1,
       {"--interval", "--count"},
       "the jobs, or one with its members and barriers, again and again"},
      {"diagnose",
       "[JOB]",
       0,
       1,
       {"--stuck-after", "--interval", "--stacks"},
       "which rank keeps which collective from going on, and why, and who "
       "waits "
       "for a group, a barrier or a key; exit status 3 when something is stuck "
       "or the coordinator does not know"},
      {"flight-recorder",
       "[JOB]",
       0,
       1,
       {"--output"},
       "the flight recorders of all ranks, merged, as JSON"},
      {"trace",
       "[JOB]",
       0,
       1,
       {"--output", "--per-rank"},
       "the collectives of all ranks as one trace for Perfetto or "
       "chrome://tracing, their clocks aligned"},
      {"kv get", "KEY", 1, 1, {"--wait"}, "print the value of a key"},
      {"kv set",
       "KEY VALUE",
       2,
       2,
       {"--ttl"},
       "set a key; a VALUE - is read from standard input"},
      {"kv list", "[PREFIX]", 0, 1, {}, "the keys, by name"},
      {"kv watch",
       "KEY",
       1,
       1,
       {"--prefix", "--after"},
       "print each change of a key as it happens"},
      {"kv delete", "KEY", 1, 1, {"--prefix"}, "delete a key"},
      {"close",
       "[JOB]",
       0,
       1,
       {"--reason"},
       "close a job's rendezvous: nobody joins it any more"},
      {"drain",
       "",
       0,
       0,
       {"--reason"},
       "take the coordinator out of service; its process ends"},
      {"completion",
       "SHELL",
       1,
       1,
       {},
       "what bash or zsh is to source for completion"},
      {"version", "", 0, 0, {"--verbose"}, "print the version of this program"},
      {"help", "[COMMAND]", 0, 2, {}, "print this text, or that of a command"},
  };
  return *kCommands;
}

const Command* FindCommand(absl::string_view name) {
  for (const Command& command : Commands()) {
    if (command.name == name) return &command;
  }
  return nullptr;
}

// Whether `word` is the first of two of some command.
bool IsFamily(absl::string_view word) {
  const std::string start = absl::StrCat(word, " ");
  return std::any_of(Commands().begin(), Commands().end(),
                     [&](const Command& command) {
                       return absl::StartsWith(command.name, start);
                     });
}

std::string MembersOf(absl::string_view family) {
  std::vector<absl::string_view> names;
  for (const Command& command : Commands()) {
    const absl::string_view name = command.name;
    if (absl::StartsWith(name, absl::StrCat(family, " "))) {
      names.push_back(name.substr(family.size() + 1));
    }
  }
  return absl::StrJoin(names, ", ");
}

const Option* FindOption(absl::string_view name) {
  for (const Option& option : kCommonOptions) {
    if (option.name == name) return &option;
  }
  for (const Option& option : kOptions) {
    if (option.name == name) return &option;
  }
  return nullptr;
}

absl::Status Misuse(absl::string_view text) {
  return absl::InvalidArgumentError(text);
}

absl::Status NoCommand(absl::string_view name) {
  return Misuse(absl::StrCat("unknown command ", base::Quote(name),
                             "; musterctl help lists them"));
}

absl::StatusOr<milliseconds> ParseMilliseconds(absl::string_view source,
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

absl::StatusOr<int64_t> ParseNumber(absl::string_view source,
                                    const std::string& value) {
  int64_t number = 0;
  if (!absl::SimpleAtoi(value, &number) || number < 0) {
    return Misuse(absl::StrCat(source, " must be a number from 0, got ",
                               base::Quote(value)));
  }
  return number;
}

using Values = std::map<std::string, std::string>;

// Splits the line into words and options, "" being a switch's value.
absl::Status Split(const std::vector<std::string>& arguments,
                   std::vector<std::string>& words, Values& values) {
  bool options = true;
  for (size_t i = 0; i < arguments.size(); ++i) {
    const std::string& argument = arguments[i];
    if (!options || argument.size() < 2 || argument[0] != '-') {
      words.push_back(argument);
      continue;
    }
    if (argument == "--") {
      options = false;
      continue;
    }
    const size_t equals = argument.find('=');
    std::string name = argument.substr(0, equals);
    if (name == "-h") name = "--help";
    if (name == "--version") name = "version";
    if (name == "version") {
      words = {name};
      return absl::OkStatus();
    }
    const Option* const option = FindOption(name);
    if (option == nullptr) {
      return Misuse(absl::StrCat("unknown option ", name,
                                 "; what follows -- is never an option"));
    }
    const bool is_switch = *option->placeholder == '\0';
    std::string value;
    if (equals != std::string::npos) {
      if (is_switch) return Misuse(absl::StrCat(name, " takes no value"));
      value = argument.substr(equals + 1);
    } else if (!is_switch) {
      if (++i == arguments.size()) {
        return Misuse(absl::StrCat(name, " needs a value"));
      }
      value = arguments[i];
    }
    values[name] = value;
  }
  return absl::OkStatus();
}

absl::Status CheckCommand(const Values& values, const CtlOptions& options) {
  const Command* const command = FindCommand(options.command);
  if (command == nullptr) {
    if (IsFamily(options.command)) {
      return Misuse(absl::StrCat(options.command, " needs one of ",
                                 MembersOf(options.command)));
    }
    return NoCommand(options.command);
  }
  if (options.help) return absl::OkStatus();
  for (const Option& option : kOptions) {
    const bool takes =
        std::find(command->options.begin(), command->options.end(),
                  option.name) != command->options.end();
    if (values.contains(option.name) && !takes) {
      return Misuse(
          absl::StrCat(command->name, " has no option ", option.name));
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
  return absl::OkStatus();
}

template <typename T, typename Out>
absl::Status Take(const absl::StatusOr<T>& value, Out& out) {
  if (value.ok()) out = *value;
  return value.status();
}

absl::Status Assign(const std::string& name, const std::string& value,
                    CtlOptions& options) {
  if (name == "--help") options.help = true;
  if (name == "--json") options.json = true;
  if (name == "--names") options.names = true;
  if (name == "--prefix") options.prefix = true;
  if (name == "--coordinator") options.coordinator = value;
  if (name == "--job") options.job = value;
  if (name == "--reason") options.reason = value;
  if (name == "--stacks") options.stacks = true;
  if (name == "--verbose") options.verbose = true;
  if (name == "--output") options.output = value;
  if (name == "--per-rank") options.per_rank = value;
  if (name == "--stuck-after") {
    return Take(ParseMilliseconds(name, value), options.stuck_after);
  }
  if (name == "--after") return Take(ParseNumber(name, value), options.after);
  if (name == "--count") return Take(ParseNumber(name, value), options.count);
  if (name == "--wait") {
    return Take(ParseMilliseconds(name, value), options.wait);
  }
  if (name == "--ttl") return Take(ParseMilliseconds(name, value), options.ttl);
  if (name == "--interval") {
    return Take(ParseMilliseconds(name, value), options.interval);
  }
  if (name == "--timeout") {
    absl::Status status = Take(ParseMilliseconds(name, value), options.timeout);
    if (status.ok() && options.timeout <= milliseconds(0)) {
      status = Misuse(absl::StrCat("--timeout must be above 0, got ", value));
    }
    return status;
  }
  return absl::OkStatus();
}

void TakeFromEnvironment(const Environment& environment, CtlOptions& options) {
  const auto value = [&](const char* name) {
    const char* const text = environment(name);
    return std::string(text == nullptr ? "" : text);
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
  // A host alone, as muster-run has it.
  if (!absl::StrContains(options.coordinator, ':')) {
    options.coordinator += kDefaultPort;
  }
  first(options.job, {"MUSTER_JOB", "TORCHELASTIC_RUN_ID"});
}

std::string Spelling(const Option& option) {
  return *option.placeholder == '\0'
             ? option.name
             : absl::StrCat(option.name, "=", option.placeholder);
}

// Text in lines of at most 80 columns, from column `indent` on.
std::string Fill(absl::string_view text, size_t indent) {
  constexpr size_t kColumns = 80;
  std::string out;
  size_t column = indent;
  for (const absl::string_view word :
       absl::StrSplit(text, ' ', absl::SkipEmpty())) {
    if (column > indent && column + 1 + word.size() > kColumns) {
      absl::StrAppend(&out, "\n", std::string(indent, ' '));
      column = indent;
    }
    if (column > indent) {
      out += ' ';
      ++column;
    }
    absl::StrAppend(&out, word);
    column += word.size();
  }
  return out + "\n";
}

std::string OptionHelp(const Option& option) {
  constexpr size_t kIndent = 26;
  return absl::StrFormat("  %-22s  %s", Spelling(option),
                         Fill(option.help, kIndent));
}

std::string CommandHelp(const Command& command) {
  std::string text =
      absl::StrCat("usage: musterctl ", command.name,
                   *command.arguments == '\0' ? "" : " ", command.arguments,
                   " [OPTIONS]\n\n", Fill(command.help, 0), "\nOptions:\n");
  for (const absl::string_view name : command.options) {
    absl::StrAppend(&text, OptionHelp(*FindOption(name)));
  }
  for (const Option& option : kCommonOptions) {
    absl::StrAppend(&text, OptionHelp(option));
  }
  return text;
}

}  // namespace

absl::StatusOr<CtlOptions> ParseCtlOptions(
    const std::vector<std::string>& arguments, const Environment& environment) {
  CtlOptions options;
  std::vector<std::string> words;
  Values values;
  absl::Status status = Split(arguments, words, values);
  if (!status.ok()) return status;
  for (const auto& [name, value] : values) {
    status = Assign(name, value, options);
    if (!status.ok()) return status;
  }
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
  status = CheckCommand(values, options);
  if (!status.ok()) return status;
  if (options.help) {
    options.arguments = {options.command};
    options.command = "help";
  }
  TakeFromEnvironment(environment, options);
  return options;
}

absl::StatusOr<std::string> CtlHelp(absl::string_view name) {
  const Command* const found = FindCommand(name);
  if (found != nullptr) return CommandHelp(*found);
  if (!name.empty() && !IsFamily(name)) return NoCommand(name);
  std::string text =
      "usage: musterctl COMMAND [ARGUMENTS] [OPTIONS]\n"
      "\n"
      "Looks at a muster coordinator and its jobs.\n"
      "\n"
      "Commands:\n";
  for (const Command& command : Commands()) {
    if (!absl::StartsWith(command.name, name)) continue;
    constexpr size_t kIndent = 26;
    absl::StrAppend(
        &text,
        absl::StrFormat(
            "  %-22s  %s",
            absl::StrCat(command.name, *command.arguments == '\0' ? "" : " ",
                         command.arguments),
            Fill(command.help, kIndent)));
  }
  absl::StrAppend(&text, "\nOptions of every command:\n");
  for (const Option& option : kCommonOptions) {
    absl::StrAppend(&text, OptionHelp(option));
  }
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
      "a wrong\ncommand line; 3: diagnose found something stuck, or nothing "
      "known.\n");
  return text;
}

absl::StatusOr<std::string> CtlCompletion(absl::string_view shell) {
  if (shell != "bash" && shell != "zsh") {
    return Misuse(
        absl::StrCat("completion knows bash and zsh, got \"", shell, "\""));
  }
  std::set<std::string> first;
  std::map<std::string, std::vector<std::string>> second;
  std::string options;
  for (const Command& command : Commands()) {
    const std::vector<std::string> words = absl::StrSplit(command.name, ' ');
    first.insert(words[0]);
    if (words.size() > 1) second[words[0]].push_back(words[1]);
    std::vector<std::string> names(command.options.begin(),
                                   command.options.end());
    if (!names.empty()) {
      absl::StrAppend(&options, "    \"", command.name, "\"*) options+=\" ",
                      absl::StrJoin(names, " "), "\" ;;\n");
    }
  }
  std::vector<std::string> common;
  for (const Option& option : kCommonOptions) common.push_back(option.name);
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
      absl::StrJoin(common, " "),
      "\"\n"
      "  case \"${words[*]}\" in\n",
      options,
      "  esac\n"
      "  case \"${words[*]}\" in\n"
      "    \"\") candidates=\"",
      absl::StrJoin(first, " "), "\" ;;\n", families,
      "    members|groups|barriers|top|diagnose|flight-recorder|trace|close)\n"
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
