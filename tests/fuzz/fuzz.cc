#include "tests/fuzz/fuzz.h"

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>

namespace muster::fuzz {

void Require(bool holds, absl::string_view what) {
  if (holds) return;
  fprintf(stderr, "fuzz: %.*s\n", static_cast<int>(what.size()), what.data());
  abort();
}

}  // namespace muster::fuzz

// The entry point for libFuzzer and replay_main.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  muster::fuzz::FuzzOne({reinterpret_cast<const char*>(data), size});
  return 0;
}
