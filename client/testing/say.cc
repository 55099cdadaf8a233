#include "client/testing/say.h"

#include <dirent.h>

#include <iostream>
#include <string>

namespace muster::testing {

void Say(const std::string& line) { std::cout << line << std::endl; }

std::string GetClassName(const DistError& error) {
  if (dynamic_cast<const DistNetworkError*>(&error)) return "DistNetworkError";
  if (dynamic_cast<const DistBackendError*>(&error)) return "DistBackendError";
  if (dynamic_cast<const DistStoreError*>(&error)) return "DistStoreError";
  return "DistError";
}

void SayError(const DistError& error) {
  std::string culprits;
  for (const MemberInfo& member : error.culprits()) {
    culprits += (culprits.empty() ? "" : ",") + std::to_string(member.rank);
  }
  Say("error " + GetClassName(error) + " [" + culprits + "] " + error.what());
}

void SayProblem(const std::function<void()>& run) {
  try {
    run();
    Say("no error");
  } catch (const DistError& error) {
    SayError(error);
  }
}

int RunScenario(const std::map<std::string, int (*)()>& scenarios, int argc,
                char** argv) {
  const auto scenario = scenarios.find(argc > 1 ? argv[1] : "");
  if (scenario == scenarios.end()) return 64;
  try {
    return scenario->second();
  } catch (const DistError& error) {
    SayError(error);
    return 4;
  }
}

std::string AwaitLine() {
  std::string line;
  std::getline(std::cin, line);
  return line;
}

int Count(const char* folder) {
  DIR* const dir = opendir(folder);
  int count = 0;
  while (const dirent* entry = readdir(dir)) {
    if (entry->d_name[0] != '.') ++count;
  }
  closedir(dir);
  return count;
}

}  // namespace muster::testing
