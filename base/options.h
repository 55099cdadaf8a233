// The options of a program: one table, by which they are read and checked, and
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
#include "base/status.h"

namespace muster::base {

using Environment = std::map<std::string, std::string>;

// The variables of this process.
Environment OwnEnvironment();

// The types of values. A bool is a switch, whose value may be left out.
template <typename T>
concept OptionType = std::same_as<T, bool> || std::same_as<T, int> ||
    std::same_as<T, int64_t> || std::same_as<T, double> ||
    std::same_as<T, std::string> || std::same_as<T, absl::Duration>;

// The value of an option: its type, its default, and where it goes.
class OptionValue {
 public:
  // Stays in the table, for Options::Get.
  template <OptionType T>
  OptionValue(T initial)
      : OptionValue(initial, [](auto, const T&) { return OkStatus(); }) {}

  // Goes to `*target`, which holds the default.
  template <OptionType T>
  OptionValue(T* target)
      : OptionValue(*target, [target](auto, const T& value) {
          *target = value;
          return OkStatus();
        }) {}

  // Goes to `take`, an Status(absl::string_view name, T value), which
  // checks it; errors call the option `name`.
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

// A text that goes to `*target` as what `parse` makes of it: an
// StatusOr<T>(absl::string_view name, absl::string_view text).
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

// Tells how an argument or a variable is wrong.
struct OptionError {
  enum Kind { kUnknown, kNeedsValue, kTakesNoValue, kWrongValue };
  Kind kind;
  // The option as errors call it, or the variable; of kUnknown the argument.
  absl::string_view source;
  absl::string_view name;
  absl::string_view value = {};
  absl::string_view want = {};  // "a number"
};

// `--node-rank must be a number, got "x"` and the like.
std::string ToText(const OptionError& error);

class Options {
 public:
  // How options are written; what is no option is a word, and so is all behind
  // "--".
  enum class Style {
    kTorchrun,  // with dashes or underscores, and one leading dash or two
    kAbseil,    // as in --help, with one leading dash or two
    kGnu,       // as in --help, a switch without a value
  };
  struct Form {
    Style style = Style::kTorchrun;
    // Between the words of a name in help and errors, '-' or '_'.
    char separator = '-';
    // All that follows the first word are words.
    bool words_last = false;
    // An option that is not given is taken from the variable of its name behind
    // one of these; the first counts. But for kAbseil, an empty one is none.
    std::vector<std::string> variables = {};
    std::string (*to_text)(const OptionError&) = ToText;
  };

  Options(std::vector<Option> options, Form form)
      : form_(std::move(form)), options_(std::move(options)) {}

  // Errors, here and in Read: INVALID_ARGUMENT, with Form::to_text's text.
  Status ReadEnvironment(const Environment& environment);

  // Reads the options among `arguments` and appends the words to `words`; ends
  // early at --help (-h) and --version, unless they are in the table.
  enum class Asked { kNothing, kHelp, kVersion };
  StatusOr<Asked> Read(const std::vector<std::string>& arguments,
                       std::vector<std::string>& words);

  // When all is read: brings the values to where they go, in the table's order.
  // An option that was not given and has an empty default is left alone.
  // Errors: those of `take`.
  Status Finish() const;

  // Null: there is none of this name.
  const Option* Find(absl::string_view name) const;
  template <OptionType T>
  const T& Get(absl::string_view name) const {
    return std::get<T>(Find(name)->value.value_);
  }
  const std::vector<Option>& table() const { return options_; }

  // Whether somebody gave it, if only its default.
  bool IsGiven(absl::string_view name) const { return given_.contains(name); }
  // Whether what counts of it is a variable's, and no argument's.
  bool IsFromEnvironment(absl::string_view name) const;

  // "--node-rank".
  std::string Spelling(absl::string_view name) const;
  // As errors call the option: its spelling, or "PET_NODE_RANK" where that is
  // how it was given.
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

// `text` for --help: in lines of at most `columns`, all but the first behind
// `indent` blanks.
std::string FillLines(absl::string_view text, size_t indent, size_t columns);

}  // namespace muster::base

#endif  // MUSTER_BASE_OPTIONS_H_
