#include "client/examples/program.h"

#include <cstdio>
#include <map>
#include <vector>

#include "absl/flags/parse.h"
#include "absl/flags/reflection.h"
#include "absl/flags/usage_config.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "muster/launch.h"

namespace muster::examples {
namespace {

void PrintHelp(const Program& program) {
  std::printf("%s\n\nFlags:\n", program.description.c_str());
  std::map<std::string, const absl::CommandLineFlag*> flags;
  for (const auto& [name, flag] : absl::GetAllFlags()) {
    if (absl::EndsWith(flag->Filename(),
                       absl::StrCat("/", program.name, ".cc"))) {
      flags.emplace(name, flag);
    }
  }
  for (const auto& [name, flag] : flags) {
    std::printf("  --%s  %s; default %s\n", name.c_str(), flag->Help().c_str(),
                flag->DefaultValue().c_str());
  }
}

}  // namespace

int RunProgram(int argc, char** argv, const Program& program) {
  // The library's own help exits with 1.
  if (argc == 2 && absl::string_view(argv[1]) == "--help") {
    PrintHelp(program);
    return 0;
  }
  absl::FlagsUsageConfig config;
  config.version_string = [name = program.name] {
    return absl::StrCat(name, " of muster\n");
  };
  absl::SetFlagsUsageConfig(config);
  const std::vector<char*> arguments = absl::ParseCommandLine(argc, argv);
  if (arguments.size() > 1) {
    std::fprintf(stderr,
                 "%s: unexpected argument \"%s\"; --help lists the flags\n",
                 program.name.c_str(), arguments[1]);
    return 1;
  }
  // Prints line by line into the launcher's pipe, too.
  std::setvbuf(stdout, nullptr, _IOLBF, 0);
  return Record(program.run);
}

}  // namespace muster::examples
