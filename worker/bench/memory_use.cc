#include "worker/bench/memory_use.h"

#include <fstream>
#include <iterator>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"

namespace muster::worker::bench {
namespace {

// Parses "   12 kB" and returns bytes.
int64_t Bytes(absl::string_view text) {
  int64_t kib = 0;
  if (!absl::ConsumeSuffix(&text, " kB") ||
      !absl::SimpleAtoi(absl::StripAsciiWhitespace(text), &kib)) {
    return -1;
  }
  return kib << 10;
}

}  // namespace

MemoryUse ParseMemoryUse(absl::string_view status) {
  MemoryUse use;
  for (absl::string_view line : absl::StrSplit(status, '\n')) {
    if (absl::ConsumePrefix(&line, "VmHWM:")) {
      use.resident_max_bytes = Bytes(line);
    } else if (absl::ConsumePrefix(&line, "RssShmem:")) {
      use.shared_bytes = Bytes(line);
    }
  }
  return use;
}

MemoryUse OwnMemoryUse() {
  std::ifstream status("/proc/self/status");
  return ParseMemoryUse(
      std::string(std::istreambuf_iterator<char>(status), {}));
}

}  // namespace muster::worker::bench
