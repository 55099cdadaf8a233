// checkpoint.json, which says where each part of a checkpoint lies.

#ifndef MUSTER_CLIENT_PARALLEL_CHECKPOINT_MANIFEST_H_
#define MUSTER_CLIENT_PARALLEL_CHECKPOINT_MANIFEST_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "client/parallel/checkpoint/box.h"
#include "client/parallel/checkpoint/folders.h"
#include "muster/base/status.h"
#include "muster/checkpoint_storage.h"
#include "muster/dataplane/tensor.h"

namespace muster::internal {

// Every block of this size of a part of a tensor has a checksum, as has the
// rest.
inline constexpr int64_t kBlockBytes = int64_t{1} << 20;

// The CRC-32 of zlib.
uint32_t ComputeChecksum(std::span<const std::byte> bytes);

// A part of a tensor.
struct StoredShard {
  // An index of Manifest::files.
  size_t file = 0;
  // Its key in that file, and where its bytes begin.
  std::string key = {};
  int64_t offset = 0;
  Box box = {};
  // One for each block.
  std::vector<uint32_t> checksums = {};
};

struct StoredTensor {
  dataplane::DataType type = dataplane::DataType::kFloat32;
  std::vector<int64_t> shape = {};
  std::vector<StoredShard> shards = {};
};

struct StoredFile {
  std::string name = {};
  int64_t bytes = 0;
};

struct Manifest {
  int64_t step = 0;
  int world_size = 0;
  std::map<std::string, std::string> values = {};
  std::vector<StoredFile> files = {};
  std::map<std::string, StoredTensor> tensors = {};
};

// "float32[8,16]".
std::string DescribeTensor(dataplane::DataType type,
                           std::span<const int64_t> shape);

// A part's key in a safetensors file: the tensor's name, with the box unless
// that is the whole tensor.
std::string MakeKey(absl::string_view name, std::span<const int64_t> shape,
                    const Box& box);

// Eight hexadecimal digits for each checksum, as they are stored and sent.
std::string ToHex(const std::vector<uint32_t>& checksums);
// Nullopt if the text is anything else.
std::optional<std::vector<uint32_t>> FromHex(absl::string_view text);

std::string ToJson(const Manifest& manifest);

// Also checks what it says: the parts of each tensor are boxes of it that cover
// it without overlap, and lie in the files.
// Errors: kDataLoss (the text names the field and its value), kUnimplemented (a
//   newer version), kResourceExhausted (no memory); the texts lack the path.
StatusOr<Manifest> ParseManifest(const std::string& text);

// Errors: kDataLoss (also if there is no such file), those of ParseManifest and
//   of the storage.
StatusOr<Manifest> ReadManifest(CheckpointStorage& storage,
                                const CheckpointFolder& folder);

inline constexpr char kManifestName[] = "checkpoint.json";

}  // namespace muster::internal

#endif  // MUSTER_CLIENT_PARALLEL_CHECKPOINT_MANIFEST_H_
