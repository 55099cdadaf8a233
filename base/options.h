// The options of a program: one table from which they are read and checked, and
// from which --help is made.

#ifndef MUSTER_BASE_OPTIONS_H_
#define MUSTER_BASE_OPTIONS_H_

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "muster/base/status.h"

namespace muster::base {

using Environment = std::map<std::string, std::string>;

// The environment variables of this process.
Environment OwnEnvironment();

// The types of values. A bool is a switch, whose value may be left out.
template <typename T>
concept OptionType = std::same_as<T, bool> || std::same_as<T, int> ||
    std::same_as<T, int64_t> || std::same_as<T, double> ||
    std::same_as<T, std::string> || std::same_as<T, absl::Duration>;

// An option's value: its type, its default, and its target.
class OptionValue {
 public:
  // Keeps the value in the table, for Options::Get.
  template <OptionType T>
  OptionValue(T initial)
      : OptionValue(initial, [](auto, const T&) { return OkStatus(); }) {}

  // Stores the value in `*target`, which holds the default.
  template <OptionType T>
  OptionValue(T* target)
      : OptionValue(*target, [target](auto, const T& value) {
          *target = value;
          return OkStatus();
        }) {}

  // Passes the value to `take`, a Status(absl::string_view name, T value),
  // which checks it. Errors call the option `name`.
  template <OptionType T, typename Take>
  OptionValue(T initial, Take take)
      : value_(std::move(initial)),
        default_text_(Text()),
        take_([take](absl::string_view name, const Value& value) {
          return take(name, std::get<T>(value));
        }) {}
  template <typename Take>
  OptionValue(const char* initial, Take take)
      : OptionValue(std::string(initial), std::move(take)) {}

  std::string Text() const;
  const std::string& default_text() const { return default_text_; }

 private:
  friend class Options;
  using Value =
      std::variant<bool, int, int64_t, double, std::string, absl::Duration>;

  Value value_;
  std::string default_text_;
  std::function<Status(absl::string_view, const Value&)> take_;
};

// Stores the result of `parse`, a StatusOr<T>(absl::string_view name,
// absl::string_view text), in `*target`.
template <typename Parse, typename T>
OptionValue Parsed(const char* initial, Parse parse, T* target) {
  return {initial, [=](absl::string_view name, const std::string& text) {
            auto parsed = parse(name, text);
            if (parsed.ok()) *target = *std::move(parsed);
            return parsed.status();
          }};
}

struct Option {
  std::string name;         // with underscores
  std::string placeholder;  // of the value, in --help
  OptionValue value;
  std::string help;
  char letter = 0;  // 0: it has none
  // A second name, which is read as well; empty: there is none.
  std::string other_name = {};
};

// Describes what is wrong with an argument or a variable.
struct OptionError {
  enum Kind { kUnknown, kNeedsValue, kTakesNoValue, kWrongValue };
  Kind kind;
  // The option as errors call it, or the variable; kUnknown: the argument.
  absl::string_view source;
  absl::string_view name;
  absl::string_view value = {};
  absl::string_view want = {};  // "a number"
};

// `--node-rank must be a number, got "x"` and the like.
std::string ToText(const OptionError& error);

class Options {
 public:
  // How options are written. Other arguments are words, and so are all
  // arguments after "--".
  enum class Style {
    kTorchrun,  // with dashes or underscores, and one leading dash or two
    kAbseil,    // as in --help, with one leading dash or two
    kGnu,       // as in --help, a switch without a value
  };
  struct Form {
    Style style = Style::kTorchrun;
    // Separates the words of a name in help and errors, '-' or '_'.
    char separator = '-';
    // All arguments after the first word are words.
    bool words_last = false;
    // An option that is not given is read from the variable PREFIXNAME, for the
    // first of these prefixes that has one. Except for kAbseil, an empty
    // variable counts as absent.
    std::vector<std::string> variables = {};
    std::string (*to_text)(const OptionError&) = ToText;
  };

  Options(std::vector<Option> options, Form form)
      : form_(std::move(form)), options_(std::move(options)) {}

  // Errors of this function and of Read: INVALID_ARGUMENT with the text of
  //   Form::to_text.
  Status ReadEnvironment(const Environment& environment);

  // Reads the options among `arguments` and appends the words to `words`. Stops
  // at --help (-h) and --version, unless they are in the table.
  enum class Asked { kNothing, kHelp, kVersion };
  StatusOr<Asked> Read(const std::vector<std::string>& arguments,
                       std::vector<std::string>& words);

  // Passes the values to their targets, in the table's order, once all is read.
  // Skips an option that was not given and has an empty default.
  // Errors: those of `take`.
  Status Finish() const;

  // Null: there is no option of this name.
  const Option* Find(absl::string_view name) const;
  template <OptionType T>
  const T& Get(absl::string_view name) const {
    return std::get<T>(Find(name)->value.value_);
  }
  const std::vector<Option>& table() const { return options_; }

  // Whether the option was given, even with its default value.
  bool IsGiven(absl::string_view name) const { return given_.contains(name); }
  // Whether the option's value comes from an environment variable.
  bool IsFromEnvironment(absl::string_view name) const;

  // "--node-rank".
  std::string Spelling(absl::string_view name) const;
  // The option as errors call it: its spelling, or "PET_NODE_RANK" if a
  // variable gave it.
  std::string Name(absl::string_view name) const;
  // "--node-rank=3".
  std::string NameAndValue(absl::string_view name) const;

  // Every option with its meaning, value and default, for --help.
  std::string Help() const;

 private:
  static bool IsSwitch(const Option& option) {
    return std::holds_alternative<bool>(option.value.value_);
  }
  Option* FindSpelt(absl::string_view spelt);
  StatusOr<Asked> ReadOption(const std::vector<std::string>& arguments,
                             size_t& next);
  Status Assign(Option& option, absl::string_view value,
                const std::string& source);
  Status Error(const OptionError& error) const;

  const Form form_;
  std::vector<Option> options_;
  // The argument or variable by which each option was given.
  std::map<std::string, std::string, std::less<>> given_;
};

// Breaks `text` for --help into lines of at most `columns`. All lines but the
// first begin with `indent` blanks.
std::string FillLines(absl::string_view text, size_t indent, size_t columns);

}  // namespace muster::base

#endif  // MUSTER_BASE_OPTIONS_H_
