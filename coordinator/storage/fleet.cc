#include "coordinator/storage/fleet.h"

namespace muster::coordinator {

uint64_t HashName(absl::string_view name) {
  uint64_t hash = 0xcbf29ce484222325;
  for (const char c : name) {
    hash ^= static_cast<uint8_t>(c);
    hash *= 0x100000001b3;
  }
  return hash;
}

int FindShard(absl::string_view job) {
  return static_cast<int>(HashName(job) % kShards);
}

}  // namespace muster::coordinator
