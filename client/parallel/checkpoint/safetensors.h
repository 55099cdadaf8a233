// The safetensors file format (Hugging Face): the size of the header as 8 bytes
// little-endian, a header in JSON, and the tensors' bytes without gaps.

#ifndef MUSTER_CLIENT_PARALLEL_CHECKPOINT_SAFETENSORS_H_
#define MUSTER_CLIENT_PARALLEL_CHECKPOINT_SAFETENSORS_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "muster/dataplane/tensor.h"

namespace muster::internal {

// "F32", "BF16", ...; empty if the format lacks the type.
absl::string_view ToSafetensorsType(dataplane::DataType type);
std::optional<dataplane::DataType> FromSafetensorsType(absl::string_view name);

// A tensor of a file.
struct SafetensorsEntry {
  std::string key;
  dataplane::DataType type;
  std::vector<int64_t> shape;
};

// The largest element comes first, so that each tensor is aligned to its
// element.
bool IsStoredBefore(const SafetensorsEntry& a, const SafetensorsEntry& b);

struct SafetensorsLayout {
  // All bytes before those of the first tensor.
  std::string header;
  // Where each entry begins in the file.
  std::vector<int64_t> offsets;
  // The file's size.
  int64_t bytes = 0;
};

// Lays out a file of `entries`, which are stored in this order.
SafetensorsLayout LayOutSafetensors(
    const std::vector<SafetensorsEntry>& entries);

}  // namespace muster::internal

#endif  // MUSTER_CLIENT_PARALLEL_CHECKPOINT_SAFETENSORS_H_
