#include "base/options.h"

#include <unistd.h>

#include <algorithm>
#include <optional>

#include "absl/flags/marshalling.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "base/text.h"

namespace muster::base {

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

std::string OptionValue::Text() const {
  return std::visit(
      []<typename T>(const T& value) { return absl::UnparseFlag<T>(value); },
      value_);
}

std::string ToText(const OptionError& error) {
  switch (error.kind) {
    case OptionError::kUnknown:
      return absl::StrCat("unknown option ", Quote(error.source));
    case OptionError::kNeedsValue:
      return absl::StrCat(error.source, " needs a value");
    case OptionError::kTakesNoValue:
      return absl::StrCat(error.source, " takes no value");
    case OptionError::kWrongValue:
      break;
  }
  return absl::StrCat(error.source, " must be ", error.want, ", got ",
                      Quote(error.value));
}

const Option* Options::Find(absl::string_view name) const {
  const auto found =
      std::find_if(options_.begin(), options_.end(),
                   [&](const Option& option) { return option.name == name; });
  return found == options_.end() ? nullptr : &*found;
}

std::string Options::Spelling(absl::string_view name) const {
  const std::string separator(1, form_.separator);
  return absl::StrCat("--", absl::StrReplaceAll(name, {{"_", separator}}));
}

std::string Options::Name(absl::string_view name) const {
  const auto found = given_.find(name);
  return found == given_.end() ? Spelling(name) : found->second;
}

std::string Options::NameAndValue(absl::string_view name) const {
  return absl::StrCat(Name(name), "=", Find(name)->value.Text());
}

bool Options::IsFromEnvironment(absl::string_view name) const {
  return Name(name) != Spelling(name);
}

Status Options::Error(const OptionError& error) const {
  return InvalidArgumentError(form_.to_text(error));
}

Status Options::Assign(Option& option, absl::string_view value,
                       const std::string& source) {
  given_.insert_or_assign(option.name, form_.style == Style::kAbseil
                                           ? Spelling(option.name)
                                           : source);
  std::string ignored;
  return std::visit(
      [&]<typename T>(T& out) {
        if (absl::ParseFlag(value, &out, &ignored)) return OkStatus();
        return Error({.kind = OptionError::kWrongValue,
                      .source = source,
                      .name = option.name,
                      .value = value,
                      .want = std::same_as<T, bool> ? "true or false"
                              : std::same_as<T, absl::Duration>
                                  ? "a duration such as 500ms or 5s"
                                  : "a number"});
      },
      option.value.value_);
}

Status Options::ReadEnvironment(const Environment& environment) {
  for (Option& option : options_) {
    for (const std::string& prefix : form_.variables) {
      const std::string name = prefix + absl::AsciiStrToUpper(option.name);
      auto found = environment.find(name);
      if (found == environment.end() && form_.style == Style::kAbseil) {
        // Like Abseil's flags, ignores case.
        found = std::find_if(
            environment.begin(), environment.end(), [&](const auto& variable) {
              return absl::AsciiStrToUpper(variable.first) == name;
            });
      }
      if (found == environment.end() ||
          (found->second.empty() && form_.style != Style::kAbseil)) {
        continue;
      }
      Status status = Assign(option, found->second, name);
      if (!status.ok()) return status;
      break;
    }
  }
  return OkStatus();
}

// `spelt` is an argument without its value.
Option* Options::FindSpelt(absl::string_view spelt) {
  const absl::string_view name =
      absl::StripPrefix(absl::StripPrefix(spelt, "-"), "-");
  const std::string canonical = absl::StrReplaceAll(name, {{"-", "_"}});
  for (Option& option : options_) {
    const bool is_letter = !name.empty() && name[0] == option.letter;
    switch (form_.style) {
      case Style::kTorchrun:
        if ((is_letter && name.size() == 1) || option.name == canonical ||
            (!name.empty() && option.other_name == canonical)) {
          return &option;
        }
        break;
      case Style::kAbseil:
        if (option.name == name) return &option;
        break;
      case Style::kGnu:
        if ((is_letter && spelt.size() == 2) ||
            spelt == Spelling(option.name)) {
          return &option;
        }
    }
  }
  return nullptr;
}

StatusOr<Options::Asked> Options::ReadOption(
    const std::vector<std::string>& arguments, size_t& next) {
  const std::string& argument = arguments[next++];
  absl::string_view spelt = argument;
  std::optional<absl::string_view> value;
  const size_t equals = spelt.find('=');
  if (equals != absl::string_view::npos) {
    value = spelt.substr(equals + 1);
    spelt = spelt.substr(0, equals);
  }
  const absl::string_view name =
      absl::StripPrefix(absl::StripPrefix(spelt, "-"), "-");
  Option* option = FindSpelt(spelt);
  const bool is_torchrun = form_.style == Style::kTorchrun;
  if (option == nullptr && !value.has_value() &&
      (form_.style != Style::kGnu || absl::StartsWith(spelt, "--"))) {
    if (name == "help" || (name == "h" && is_torchrun)) return Asked::kHelp;
    if (name == "version") return Asked::kVersion;
  }
  if (option == nullptr && is_torchrun && argument[1] != '-' &&
      argument.size() > 2 &&
      absl::ascii_isdigit(static_cast<unsigned char>(argument[2]))) {
    // "-t3".
    option = FindSpelt(spelt.substr(0, 2));
    value = absl::string_view(argument).substr(2);
  }
  if (option == nullptr && form_.style == Style::kAbseil &&
      !value.has_value() && absl::StartsWith(name, "no")) {
    // "--noinsecure".
    option = FindSpelt(name.substr(2));
    if (option != nullptr && !IsSwitch(*option)) option = nullptr;
    value = "false";
  }
  if (option == nullptr) {
    return Error({OptionError::kUnknown, argument, name});
  }
  const std::string spelling = Spelling(option->name);
  if (IsSwitch(*option)) {
    if (value.has_value() && form_.style == Style::kGnu) {
      return Error({OptionError::kTakesNoValue, spelling, option->name});
    }
    if (!value.has_value()) value = "true";
  } else if (!value.has_value()) {
    if (next == arguments.size()) {
      return Error({OptionError::kNeedsValue, spelling, option->name});
    }
    value = arguments[next++];
  }
  Status status = Assign(*option, *value, spelling);
  if (!status.ok()) return status;
  return Asked::kNothing;
}

StatusOr<Options::Asked> Options::Read(
    const std::vector<std::string>& arguments,
    std::vector<std::string>& words) {
  size_t next = 0;
  while (next < arguments.size()) {
    const std::string& argument = arguments[next];
    if (argument.size() > 1 && argument[0] == '-' && argument != "--") {
      StatusOr<Asked> asked = ReadOption(arguments, next);
      if (!asked.ok() || *asked != Asked::kNothing) return asked;
    } else if (argument == "--" || form_.words_last) {
      if (argument == "--") ++next;
      words.insert(words.end(),
                   arguments.begin() + static_cast<ptrdiff_t>(next),
                   arguments.end());
      break;
    } else {
      words.push_back(argument);
      ++next;
    }
  }
  return Asked::kNothing;
}

Status Options::Finish() const {
  for (const Option& option : options_) {
    if (option.value.default_text().empty() && !IsGiven(option.name)) continue;
    Status status = option.value.take_(Name(option.name), option.value.value_);
    if (!status.ok()) return status;
  }
  return OkStatus();
}

std::string FillLines(absl::string_view text, size_t indent, size_t columns) {
  std::string lines;
  size_t column = 0;
  for (const absl::string_view word : absl::StrSplit(text, ' ')) {
    if (column > 0 && indent + column + 1 + word.size() > columns) {
      absl::StrAppend(&lines, "\n", std::string(indent, ' '));
      column = 0;
    }
    absl::StrAppend(&lines, column > 0 ? " " : "", word);
    column += (column > 0 ? 1 : 0) + word.size();
  }
  return lines + "\n";
}

std::string Options::Help() const {
  const bool is_abseil = form_.style == Style::kAbseil;
  std::string text;
  for (const Option& option : options_) {
    const std::string value =
        option.placeholder.empty() ? "" : "=" + option.placeholder;
    absl::StrAppend(&text, "\n  ", Spelling(option.name), value);
    if (!option.other_name.empty()) {
      absl::StrAppend(&text, ", ", Spelling(option.other_name), value);
    }
    if (option.letter != 0) {
      absl::StrAppend(&text, ", -", std::string(1, option.letter), " ",
                      option.placeholder);
    }
    std::string help = option.help;
    if (is_abseil || !IsSwitch(option)) {
      const std::string& initial = option.value.default_text();
      absl::StrAppend(&help, "; default ",
                      initial.empty() && !is_abseil ? "none" : initial);
    }
    absl::StrAppend(&text, "\n      ", FillLines(help, 6, 78));
  }
  return text;
}

}  // namespace muster::base
