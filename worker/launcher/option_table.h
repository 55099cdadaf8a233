#ifndef MUSTER_WORKER_LAUNCHER_OPTION_TABLE_H_
#define MUSTER_WORKER_LAUNCHER_OPTION_TABLE_H_

#include <cstddef>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "absl/flags/commandlineflag.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace muster::worker {

using Environment = std::map<std::string, std::string>;

// OptionTable reads the options of a program into its flags, and knows of each
// how it was given. An option may be spelt with dashes or underscores, with one
// leading dash or two, or by its letter or other name, and its value follows
// after "=" or as the next argument.
class OptionTable {
 public:
  struct Option {
    const char* name;         // of the flag
    const char* placeholder;  // of the value; empty: a switch
    char letter = 0;          // 0: it has none
    // What it is called elsewhere; empty: nothing else.
    const char* other_name = "";
  };
  struct Form {
    // Between the words of a name in help and errors, '-' or '_'.
    char separator = '-';
    // An option that is not given is taken from the variable of its name behind
    // one of these; the first counts.
    std::vector<std::string> variables = {};
    // Where an unknown option may come from; empty for nothing.
    std::string hint = {};
  };

  OptionTable(const std::vector<Option>& options, Form form);

  // Errors: INVALID_ARGUMENT; the text names the variable and its value.
  absl::Status ReadEnvironment(const Environment& environment);

  enum class Argument { kOption, kHelp, kVersion, kOther };
  // Reads arguments[next] and its value, and moves `next` behind them. kOther:
  // it is no option, and `next` stays.
  // Errors: INVALID_ARGUMENT; the text names the option and its value.
  absl::StatusOr<Argument> ReadArgument(
      const std::vector<std::string>& arguments, size_t& next);

  // Whether somebody gave it, if only its default.
  bool IsGiven(absl::string_view name) const;

  // Whether what counts of it is a variable's, and no argument's.
  bool IsFromEnvironment(absl::string_view name) const;

  // As errors call the option: "--node-rank", or "PET_NODE_RANK" where that is
  // how it was given.
  std::string Name(absl::string_view name) const;

  // Every option with its meaning, value and default, for --help.
  std::string Help() const;
  // Appends `words` in lines of at most 78 columns.
  static void AppendWrapped(absl::string_view words, std::string& text);

 private:
  struct Entry {
    absl::CommandLineFlag* flag;
    std::string placeholder;
    char letter;
    std::string other_name;
  };

  const Entry* Find(absl::string_view name) const;
  std::string Spelling(absl::string_view name) const;
  absl::Status Assign(const Entry& entry, absl::string_view value,
                      const std::string& source);

  const Form form_;
  std::vector<Entry> entries_;
  // Of each option that was given, what it was called.
  std::map<std::string, std::string, std::less<>> given_;
};

}  // namespace muster::worker

#endif  // MUSTER_WORKER_LAUNCHER_OPTION_TABLE_H_
