#include "worker/launcher/option_table.h"

#include <optional>
#include <utility>

#include "absl/flags/reflection.h"
#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "absl/time/time.h"
#include "base/text.h"

namespace muster::worker {

OptionTable::OptionTable(const std::vector<Option>& options, Form form)
    : form_(std::move(form)) {
  for (const Option& option : options) {
    entries_.push_back({absl::FindCommandLineFlag(option.name),
                        option.placeholder, option.letter, option.other_name});
  }
}

const OptionTable::Entry* OptionTable::Find(absl::string_view name) const {
  const std::string canonical = absl::StrReplaceAll(name, {{"-", "_"}});
  for (const Entry& entry : entries_) {
    if (entry.flag->Name() == canonical ||
        (!canonical.empty() && entry.other_name == canonical) ||
        (canonical.size() == 1 && canonical[0] == entry.letter)) {
      return &entry;
    }
  }
  return nullptr;
}

std::string OptionTable::Spelling(absl::string_view name) const {
  return absl::StrCat(
      "--",
      absl::StrReplaceAll(name, {{"_", std::string(1, form_.separator)}}));
}

bool OptionTable::IsGiven(absl::string_view name) const {
  return given_.find(name) != given_.end();
}

bool OptionTable::IsFromEnvironment(absl::string_view name) const {
  const auto found = given_.find(name);
  return found != given_.end() && found->second != Spelling(name);
}

std::string OptionTable::Name(absl::string_view name) const {
  const auto found = given_.find(name);
  return found == given_.end() ? Spelling(name) : found->second;
}

absl::Status OptionTable::Assign(const Entry& entry, absl::string_view value,
                                 const std::string& source) {
  given_.insert_or_assign(std::string(entry.flag->Name()), source);
  std::string ignored;
  if (entry.flag->ParseFrom(value, &ignored)) return absl::OkStatus();
  absl::string_view want = "true or false";
  if (entry.flag->IsOfType<int>() || entry.flag->IsOfType<double>()) {
    want = "a number";
  }
  if (entry.flag->IsOfType<absl::Duration>()) {
    want = "a duration such as 500ms or 5s";
  }
  return absl::InvalidArgumentError(
      absl::StrCat(source, " must be ", want, ", got ", base::Quote(value)));
}

absl::Status OptionTable::ReadEnvironment(const Environment& environment) {
  for (const Entry& entry : entries_) {
    const std::string suffix = absl::AsciiStrToUpper(entry.flag->Name());
    for (const std::string& prefix : form_.variables) {
      const std::string name = prefix + suffix;
      const auto found = environment.find(name);
      if (found == environment.end() || found->second.empty()) continue;
      absl::Status status = Assign(entry, found->second, name);
      if (!status.ok()) return status;
      break;
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<OptionTable::Argument> OptionTable::ReadArgument(
    const std::vector<std::string>& arguments, size_t& next) {
  const std::string& argument = arguments[next];
  if (argument.size() < 2 || argument[0] != '-' || argument == "--") {
    return Argument::kOther;
  }
  ++next;
  absl::string_view name = argument;
  absl::ConsumePrefix(&name, "-");
  absl::ConsumePrefix(&name, "-");
  if (name == "h" || name == "help") return Argument::kHelp;
  if (name == "version") return Argument::kVersion;
  std::optional<absl::string_view> value;
  const size_t equals = name.find('=');
  if (equals != absl::string_view::npos) {
    value = name.substr(equals + 1);
    name = name.substr(0, equals);
  }
  const Entry* entry = Find(name);
  if (entry == nullptr && argument[1] != '-' && argument.size() > 2 &&
      absl::ascii_isdigit(static_cast<unsigned char>(argument[2]))) {
    // "-t3".
    entry = Find(name.substr(0, 1));
    value = absl::string_view(argument).substr(2);
  }
  if (entry == nullptr) {
    return absl::InvalidArgumentError(
        absl::StrCat("unknown option ", base::Quote(argument),
                     form_.hint.empty() ? "" : " (", form_.hint,
                     form_.hint.empty() ? "" : ")"));
  }
  const std::string spelling = Spelling(entry->flag->Name());
  if (!value.has_value()) {
    if (entry->placeholder.empty()) {
      value = "true";
    } else if (next < arguments.size()) {
      value = arguments[next++];
    } else {
      return absl::InvalidArgumentError(
          absl::StrCat(spelling, " needs a value"));
    }
  }
  absl::Status status = Assign(*entry, *value, spelling);
  if (!status.ok()) return status;
  return Argument::kOption;
}

void OptionTable::AppendWrapped(absl::string_view words, std::string& text) {
  std::string line = "     ";
  for (const absl::string_view word : absl::StrSplit(words, ' ')) {
    if (line.size() + 1 + word.size() > 78) {
      absl::StrAppend(&text, line, "\n");
      line = "     ";
    }
    absl::StrAppend(&line, " ", word);
  }
  absl::StrAppend(&text, line, "\n");
}

std::string OptionTable::Help() const {
  std::string text;
  for (const Entry& entry : entries_) {
    const bool is_switch = entry.placeholder.empty();
    absl::StrAppend(&text, "\n  ", Spelling(entry.flag->Name()),
                    is_switch ? "" : "=", entry.placeholder);
    if (!entry.other_name.empty()) {
      absl::StrAppend(&text, ", ", Spelling(entry.other_name), "=",
                      entry.placeholder);
    }
    if (entry.letter != 0) {
      absl::StrAppend(&text, ", -", std::string(1, entry.letter), " ",
                      entry.placeholder);
    }
    text += '\n';
    std::string help = entry.flag->Help();
    if (!is_switch) {
      const std::string value = entry.flag->DefaultValue();
      absl::StrAppend(&help, "; default ",
                      value.empty() || value == "\"\"" ? "none" : value);
    }
    AppendWrapped(help, text);
  }
  return text;
}

}  // namespace muster::worker
