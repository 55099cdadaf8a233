#ifndef MUSTER_CLIENT_EXAMPLES_TRANSFORMER_LAYOUT_H_
#define MUSTER_CLIENT_EXAMPLES_TRANSFORMER_LAYOUT_H_

#include <array>
#include <cstdint>
#include <string>
#include <string_view>

#include "muster/device_mesh.h"

namespace muster::examples {

// Layout is how many ranks each kind of parallelism has. Their product is the
// world size.
class Layout {
 public:
  // From the outermost dimension of the mesh: neighbours are tensor parallel.
  // ddp replicates what the others cut, with fsdp as hybrid sharding.
  static constexpr std::array<const char*, 4> kNames = {"ddp", "fsdp", "pp",
                                                        "tp"};

  // `text` has some of the names, with commas between them, and a size after
  // each, "tp=2,pp=2", or not: the ranks are then shared out evenly among the
  // names without a size. Empty: "ddp".
  // Throws std::invalid_argument, with the flag's name and the value.
  static Layout Parse(const std::string& text, int64_t world_size);

  // Collective on the default group. Also sizes of 1 have groups.
  DeviceMesh MakeMesh() const;

  int64_t size(std::string_view name) const;

  // "fsdp=2,tp=2"; "one process".
  std::string ToText() const;

 private:
  std::array<int64_t, kNames.size()> sizes_ = {1, 1, 1, 1};
};

}  // namespace muster::examples

#endif  // MUSTER_CLIENT_EXAMPLES_TRANSFORMER_LAYOUT_H_
