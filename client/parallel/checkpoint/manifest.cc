#include "client/parallel/checkpoint/manifest.h"

#include <zlib.h>

#include <algorithm>
#include <exception>
#include <memory>
#include <random>
#include <stdexcept>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "base/text.h"
#include "client/parallel/checkpoint/safetensors.h"
#include "nlohmann/json.hpp"

namespace muster::internal {
namespace {

using dataplane::DataType;
using nlohmann::json;

// The version of checkpoint.json that is written. Older ones are read.
constexpr int64_t kVersion = 1;

constexpr absl::string_view kFolderPrefix = "step-";
constexpr absl::string_view kTemporary = ".tmp-";
constexpr size_t kHexDigits = 8;

std::span<const std::byte> AsBytes(const std::string& text) {
  return std::as_bytes(std::span(text));
}

json ToJson(const StoredShard& shard) {
  return {{"file", shard.file},           {"key", shard.key},
          {"offset", shard.offset},       {"offsets", shard.box.offsets},
          {"lengths", shard.box.lengths}, {"crc32", ToHex(shard.checksums)}};
}

// The functions that read JSON throw std::exception.
StoredShard ShardFromJson(const json& object) {
  return {.file = object.at("file"),
          .key = object.at("key"),
          .offset = object.at("offset"),
          .box = {object.at("offsets"), object.at("lengths")},
          .checksums = FromHex(object.at("crc32"))};
}

StoredTensor TensorFromJson(const json& object, size_t files) {
  StoredTensor tensor;
  const std::string dtype = object.at("dtype");
  const std::optional<DataType> type = FromSafetensorsType(dtype);
  if (!type.has_value()) throw std::out_of_range("dtype " + dtype);
  tensor.type = *type;
  object.at("shape").get_to(tensor.shape);
  for (const auto& one : object.at("shards")) {
    StoredShard shard = ShardFromJson(one);
    if (shard.file >= files ||
        shard.box.offsets.size() != tensor.shape.size() ||
        shard.box.lengths.size() != tensor.shape.size()) {
      throw std::out_of_range("shard " + shard.key);
    }
    tensor.shards.push_back(std::move(shard));
  }
  return tensor;
}

Manifest ManifestFromJson(const json& object) {
  if (object.at("block_bytes") != kBlockBytes) {
    throw std::out_of_range("block_bytes");
  }
  Manifest manifest = {.step = object.at("step"),
                       .world_size = object.at("world_size"),
                       .values = object.at("values")};
  for (const auto& file : object.at("files")) {
    manifest.files.push_back({file.at("name"), file.at("bytes")});
    // It must lie in the checkpoint's folder.
    const std::string& name = manifest.files.back().name;
    if (absl::StrContains(name, '/')) throw std::out_of_range("file " + name);
  }
  for (const auto& [name, tensor] : object.at("tensors").items()) {
    manifest.tensors[name] = TensorFromJson(tensor, manifest.files.size());
  }
  return manifest;
}

std::string MakeChecksum(const json& body) {
  return ToHex({ComputeChecksum(AsBytes(body.dump()))});
}

// Returns nullopt for folders that are no checkpoint.
std::optional<int64_t> ParseFolderName(absl::string_view folder) {
  int64_t step = 0;
  absl::string_view number = folder;
  if (!absl::ConsumePrefix(&number, kFolderPrefix) ||
      !absl::SimpleAtoi(number, &step) || MakeFolderName(step) != folder) {
    return std::nullopt;
  }
  return step;
}

}  // namespace

uint32_t ComputeChecksum(std::span<const std::byte> bytes) {
  return static_cast<uint32_t>(
      crc32_z(0, reinterpret_cast<const Bytef*>(bytes.data()), bytes.size()));
}

std::string DescribeTensor(DataType type, std::span<const int64_t> shape) {
  return absl::StrCat(dataplane::DataTypeName(type), "[",
                      absl::StrJoin(shape, ","), "]");
}

std::string MakeKey(absl::string_view name, std::span<const int64_t> shape,
                    const Box& box) {
  if (box == MakeWholeBox(shape)) return std::string(name);
  return absl::StrCat(name, ToText(box));
}

std::string ToHex(const std::vector<uint32_t>& checksums) {
  std::string text;
  text.reserve(checksums.size() * kHexDigits);
  for (const uint32_t checksum : checksums) {
    absl::StrAppend(&text, absl::Hex(checksum, absl::kZeroPad8));
  }
  return text;
}

std::vector<uint32_t> FromHex(const std::string& text) {
  std::vector<uint32_t> checksums;
  for (size_t at = 0; at < text.size(); at += kHexDigits) {
    checksums.push_back(static_cast<uint32_t>(
        std::stoul(text.substr(at, kHexDigits), nullptr, 16)));
  }
  return checksums;
}

std::string ToJson(const Manifest& manifest) {
  json body = {
      {"step", manifest.step},      {"world_size", manifest.world_size},
      {"block_bytes", kBlockBytes}, {"values", manifest.values},
      {"files", json::array()},     {"tensors", json::object()}};
  for (const StoredFile& file : manifest.files) {
    body["files"].push_back({{"name", file.name}, {"bytes", file.bytes}});
  }
  for (const auto& [name, tensor] : manifest.tensors) {
    json& entry = body["tensors"][name];
    entry = {{"dtype", std::string(ToSafetensorsType(tensor.type))},
             {"shape", tensor.shape},
             {"shards", json::array()}};
    for (const StoredShard& shard : tensor.shards) {
      entry["shards"].push_back(ToJson(shard));
    }
  }
  const json whole = {{"version", kVersion},
                      {"crc32", MakeChecksum(body)},
                      {"checkpoint", std::move(body)}};
  return whole.dump() + "\n";
}

StatusOr<Manifest> ParseManifest(const std::string& text) {
  try {
    const json whole = json::parse(text);
    const int64_t version = whole.at("version");
    if (version > kVersion) {
      return UnimplementedError(absl::StrCat(
          "has version ", version,
          ", which a newer muster has written; this one reads ", kVersion));
    }
    if (version < 1) throw std::out_of_range("version");
    // The same text as was written: keys are in order, and there are no
    // fractions.
    const json& body = whole.at("checkpoint");
    if (whole.at("crc32") != MakeChecksum(body)) {
      return DataLossError("is damaged: its checksum differs");
    }
    return ManifestFromJson(body);
  } catch (const std::exception& error) {
    return DataLossError(absl::StrCat("is damaged: ", error.what()));
  }
}

StatusOr<Manifest> ReadManifest(CheckpointStorage& storage, int64_t step) {
  const std::string path =
      absl::StrCat(MakeFolderName(step), "/", kManifestName);
  StatusOr<std::unique_ptr<CheckpointReader>> reader = storage.Open(path);
  if (!reader.ok()) return reader.status();
  std::string text(static_cast<size_t>((*reader)->size()), '\0');
  Status read = (*reader)->Read(0, std::as_writable_bytes(std::span(text)));
  if (!read.ok()) return read;
  StatusOr<Manifest> manifest = ParseManifest(text);
  if (manifest.ok()) return manifest;
  return Status(
      manifest.status().code(),
      absl::StrCat(base::Quote(path), " ", manifest.status().message()));
}

std::string MakeFolderName(int64_t step) {
  return absl::StrCat(kFolderPrefix, step);
}

StatusOr<std::vector<int64_t>> FindSteps(CheckpointStorage& storage) {
  const StatusOr<std::vector<std::string>> folders = storage.ListFolders();
  if (!folders.ok()) return folders.status();
  std::vector<int64_t> steps;
  for (const std::string& folder : *folders) {
    if (const auto step = ParseFolderName(folder)) steps.push_back(*step);
  }
  std::sort(steps.begin(), steps.end());
  return steps;
}

std::string MakeTemporaryName(int64_t step) {
  std::random_device random;
  return absl::StrCat(MakeFolderName(step), kTemporary,
                      absl::Hex(random(), absl::kZeroPad8),
                      absl::Hex(random(), absl::kZeroPad8));
}

bool IsTemporaryName(absl::string_view folder) {
  const size_t at = folder.find(kTemporary);
  if (at == absl::string_view::npos) return false;
  const absl::string_view random = folder.substr(at + kTemporary.size());
  return ParseFolderName(folder.substr(0, at)).has_value() &&
         random.size() == 16 &&
         std::all_of(random.begin(), random.end(), absl::ascii_isxdigit);
}

std::string MakeFileName(int rank) {
  return absl::StrFormat("rank-%05d.safetensors", rank);
}

}  // namespace muster::internal
