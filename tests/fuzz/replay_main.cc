// Runs a fuzz target without a fuzzer: on every file of a corpus, and then on
// inputs made from them by small changes, the same in every run.
//
//   replay [--mutations=N] [--seed=N] CORPUS...

#include <algorithm>
#include <csignal>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

namespace {

constexpr size_t kBytesMax = 4096;

// The current input, to be printed if the process is killed.
std::string running;

// Prints the input in hexadecimal; `xxd -r -p` restores it.
void TellInput(int signal_number) {
  fprintf(stderr, "replay: signal %d with this input:\n", signal_number);
  for (const char c : running) {
    fprintf(stderr, "%02x", static_cast<unsigned char>(c));
  }
  fprintf(stderr, "\n");
  std::signal(signal_number, SIG_DFL);
  raise(signal_number);
}

void Run(const std::string& input) {
  running = input;
  LLVMFuzzerTestOneInput(reinterpret_cast<const uint8_t*>(input.data()),
                         input.size());
}

std::string Mutate(const std::vector<std::string>& corpus,
                   std::mt19937_64& random) {
  const auto below = [&](size_t n) { return n == 0 ? 0 : random() % n; };
  std::string input = corpus[below(corpus.size())];
  for (size_t changes = 1 + below(4); changes > 0; --changes) {
    const size_t at = below(input.size() + 1);
    switch (random() % 4) {
      case 0:
        if (at < input.size()) input[at] = static_cast<char>(random());
        break;
      case 1:
        input.insert(at, 1 + below(4), static_cast<char>(random()));
        break;
      case 2:
        input.erase(at, 1 + below(8));
        break;
      default: {
        const std::string& other = corpus[below(corpus.size())];
        const size_t from = below(other.size() + 1);
        input.insert(at, other, from, 1 + below(64));
        break;
      }
    }
  }
  return input.substr(0, kBytesMax);
}

}  // namespace

int main(int argc, char** argv) {
  std::signal(SIGABRT, TellInput);
  std::signal(SIGSEGV, TellInput);
  int64_t mutations = 0;
  int64_t seed = 1;
  // Sorted by name, so that the mutations are the same everywhere.
  std::vector<std::filesystem::path> files;
  for (int i = 1; i < argc; ++i) {
    absl::string_view argument = argv[i];
    if (absl::ConsumePrefix(&argument, "--mutations=")) {
      if (!absl::SimpleAtoi(argument, &mutations)) return 2;
    } else if (absl::ConsumePrefix(&argument, "--seed=")) {
      if (!absl::SimpleAtoi(argument, &seed)) return 2;
    } else {
      for (const auto& entry : std::filesystem::directory_iterator(argv[i])) {
        files.push_back(entry.path());
      }
    }
  }
  std::sort(files.begin(), files.end());
  std::vector<std::string> corpus;
  for (const std::filesystem::path& path : files) {
    std::ifstream file(path, std::ios::binary);
    corpus.emplace_back(std::istreambuf_iterator<char>(file),
                        std::istreambuf_iterator<char>());
    // If the process ends, the last line names its input.
    fprintf(stderr, "replay: %s\n", path.filename().c_str());
    Run(corpus.back());
  }
  if (corpus.empty()) {
    fprintf(stderr, "replay: no corpus\n");
    return 2;
  }
  std::mt19937_64 random(static_cast<uint64_t>(seed));
  for (int64_t i = 0; i < mutations; ++i) {
    const std::string input = Mutate(corpus, random);
    Run(input);
  }
  fprintf(stderr, "replay: %zu inputs of the corpus, %ld made from them\n",
          corpus.size(), static_cast<long>(mutations));
  return 0;
}
