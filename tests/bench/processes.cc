#include "tests/bench/processes.h"

#include <iostream>
#include <memory>
#include <sstream>
#include <stdexcept>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "tests/bench/callers.h"
#include "tests/bench/child.h"

namespace muster::bench {

using std::chrono::milliseconds;

Figures RunProcesses(const std::string& self, const ProcessLoad& load,
                     milliseconds warm_up, milliseconds duration) {
  std::vector<std::unique_ptr<Child>> callers;
  for (int i = 0; i < load.processes; ++i) {
    callers.push_back(std::make_unique<Child>(std::vector<std::string>{
        self, absl::StrCat("--drive=", load.kind, ";", load.address, ";",
                           load.payload.size(), ";", i, ";", warm_up.count(),
                           ";", duration.count())}));
  }
  for (const auto& caller : callers) caller->ReadLine();
  for (const auto& caller : callers) caller->WriteLine("go");
  std::vector<Figures> each;
  Figures all;
  for (const auto& caller : callers) {
    Figures figures;
    std::istringstream line(caller->ReadLine());
    line >> figures.operations_per_second >> figures.p50_us >> figures.p99_us >>
        figures.client_cpu_us;
    all.operations_per_second += figures.operations_per_second;
    each.push_back(figures);
  }
  const Figures median = Median(each);
  all.p50_us = median.p50_us;
  all.p99_us = median.p99_us;
  all.client_cpu_us = median.client_cpu_us;
  return all;
}

void DriveOneCaller(const std::string& what) {
  const std::vector<std::string> words = absl::StrSplit(what, ';');
  if (words.size() != 6) {
    throw std::runtime_error(absl::StrCat("--drive: \"", what, "\""));
  }
  const Operation operation =
      MakeOperation(words[0], words[1], std::string(std::stoul(words[2]), 'v'),
                    std::stoi(words[3]));
  std::cout << "ready" << std::endl;
  std::string go;
  std::getline(std::cin, go);
  const Figures figures = RunLoad(
      {.name = words[0], .connect = [&](int) { return operation; }},
      milliseconds(std::stoi(words[4])), milliseconds(std::stoi(words[5])));
  std::cout << figures.operations_per_second << " " << figures.p50_us << " "
            << figures.p99_us << " " << figures.client_cpu_us << std::endl;
}

}  // namespace muster::bench
