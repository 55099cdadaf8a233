// A process with a FileStore. Executes commands from standard input and prints
// the results, one line each.
//
//   file_store PATH [WORLD_SIZE]

#include <cstdlib>
#include <iostream>
#include <memory>
#include <string>

#include "muster/errors.h"
#include "muster/file_store.h"

namespace muster::testing {
namespace {

int Main(int argc, char** argv) {
  const std::string path = argc > 1 ? argv[1] : "";
  const int world_size = argc > 2 ? std::atoi(argv[2]) : -1;
  FileStore store(path, world_size);
  std::cout << "open" << std::endl;
  std::string verb;
  std::string key;
  std::string value;
  while (std::cin >> verb >> key >> value) {
    if (verb == "set") {
      store.Set(key, value);
      std::cout << "done" << std::endl;
    } else if (verb == "get") {
      store.SetTimeout(std::chrono::milliseconds(std::stoi(value)));
      std::cout << store.Get(key) << std::endl;
    } else if (verb == "add") {
      // Adds 1 as often as the value says.
      const int times = std::stoi(value);
      int64_t sum = 0;
      for (int i = 0; i < times; ++i) sum = store.Add(key, 1);
      std::cout << sum << std::endl;
    } else if (verb == "fill") {
      // Writes until it is killed.
      std::cout << "filling" << std::endl;
      const std::string large(1 << 12, 'x');
      for (;;) store.Set(key, large);
    }
  }
  return 0;
}

}  // namespace
}  // namespace muster::testing

int main(int argc, char** argv) {
  try {
    return muster::testing::Main(argc, argv);
  } catch (const muster::DistError& error) {
    std::cout << "error " << error.what() << std::endl;
    return 1;
  }
}
