#include "client/parallel/checkpoint/manifest.h"

#include <zlib.h>

#include <algorithm>
#include <exception>
#include <limits>
#include <memory>
#include <new>
#include <set>
#include <stdexcept>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/text.h"
#include "client/parallel/checkpoint/safetensors.h"
#include "nlohmann/json.hpp"

namespace muster::internal {
namespace {

using dataplane::DataType;
using nlohmann::json;

// The version of checkpoint.json that is written. Older ones are read.
constexpr int64_t kVersion = 1;

// checkpoint.json is nested less deep, and has less bytes.
constexpr int kDepthMax = 16;
constexpr int64_t kManifestBytesMax = int64_t{1} << 32;
constexpr size_t kHexDigits = 8;

std::span<const std::byte> AsBytes(const std::string& text) {
  return std::as_bytes(std::span(text));
}

json ToJson(const StoredShard& shard) {
  return {{"file", shard.file},           {"key", shard.key},
          {"offset", shard.offset},       {"offsets", shard.box.offsets},
          {"lengths", shard.box.lengths}, {"crc32", ToHex(shard.checksums)}};
}

// A value in checkpoint.json that knows where it is. The methods throw
// std::exception if the value is not as it must be.
class Field {
 public:
  Field(const json& value, std::string name)
      : value_(value), name_(std::move(name)) {}
  // A field refers to those above it.
  Field(const Field&) = delete;
  Field& operator=(const Field&) = delete;

  Field operator[](const char* key) const {
    const auto member = Object().find(key);
    if (member == value_.end()) Fail(absl::StrCat("lacks ", key));
    return {*member, key, this};
  }
  // Calls `visit` with each member of an object and its key.
  template <typename Visit>
  void ForEachMember(const Visit& visit) const {
    for (const auto& [key, member] : Object().items()) {
      visit(key, Field(member, base::Quote(key), this));
    }
  }
  // Calls `visit` with each element of an array.
  template <typename Visit>
  void ForEachElement(const Visit& visit) const {
    if (!value_.is_array()) FailValue();
    for (size_t i = 0; i < value_.size(); ++i) {
      visit(Field(value_[i], absl::StrCat(i), this));
    }
  }
  int64_t Integer(int64_t least,
                  int64_t most = std::numeric_limits<int64_t>::max()) const {
    const bool fits =
        value_.is_number_unsigned()
            ? value_.get<uint64_t>() <=
                  static_cast<uint64_t>(std::numeric_limits<int64_t>::max())
            : value_.is_number_integer();
    if (!fits) FailValue();
    const auto integer = value_.get<int64_t>();
    if (integer < least || integer > most) FailValue();
    return integer;
  }
  std::vector<int64_t> Integers() const {
    std::vector<int64_t> integers;
    ForEachElement([&](const Field& one) {
      integers.push_back(one.Integer(/*least=*/0));
    });
    return integers;
  }
  const std::string& Text() const {
    if (!value_.is_string()) FailValue();
    return value_.get_ref<const std::string&>();
  }

  [[noreturn]] void FailValue() const {
    constexpr size_t kBytesMax = 64;
    Fail(absl::StrCat("is ",
                      base::Printable(value_.dump().substr(0, kBytesMax))));
  }
  [[noreturn]] void Fail(const std::string& text) const {
    std::string path = name_;
    // Without the name of the whole.
    for (const Field* field = above_;
         field != nullptr && field->above_ != nullptr; field = field->above_) {
      path = absl::StrCat(field->name_, ".", path);
    }
    throw std::runtime_error(absl::StrCat(path, " ", text));
  }

 private:
  Field(const json& value, std::string name, const Field* above)
      : value_(value), name_(std::move(name)), above_(above) {}

  const json& Object() const {
    if (!value_.is_object()) FailValue();
    return value_;
  }

  const json& value_;
  const std::string name_;
  const Field* const above_ = nullptr;
};

StoredShard ReadShard(const Field& field, const std::string& name,
                      const StoredTensor& tensor,
                      const std::vector<StoredFile>& files) {
  StoredShard shard = {
      .box = {field["offsets"].Integers(), field["lengths"].Integers()}};
  const int64_t elements =
      IsInside(shard.box, tensor.shape) ? ComputeVolume(shard.box.lengths) : 0;
  if (elements == 0) {
    field.Fail(absl::StrCat("is no part of ",
                            DescribeTensor(tensor.type, tensor.shape)));
  }
  const int64_t bytes =
      elements * static_cast<int64_t>(dataplane::DataTypeBytes(tensor.type));
  shard.file = static_cast<size_t>(
      field["file"].Integer(0, static_cast<int64_t>(files.size()) - 1));
  shard.offset = field["offset"].Integer(0, files[shard.file].bytes - bytes);
  shard.key = field["key"].Text();
  if (shard.key != MakeKey(name, tensor.shape, shard.box)) {
    field["key"].FailValue();
  }
  auto checksums = FromHex(field["crc32"].Text());
  if (!checksums.has_value() || static_cast<int64_t>(checksums->size()) !=
                                    (bytes + kBlockBytes - 1) / kBlockBytes) {
    field["crc32"].FailValue();
  }
  shard.checksums = *std::move(checksums);
  return shard;
}

StoredTensor ReadTensor(const Field& field, const std::string& name,
                        const std::vector<StoredFile>& files) {
  StoredTensor tensor;
  const std::optional<DataType> type =
      FromSafetensorsType(field["dtype"].Text());
  if (!type.has_value()) field["dtype"].FailValue();
  tensor.type = *type;
  tensor.shape = field["shape"].Integers();
  if (!IsPossible(tensor.shape, dataplane::DataTypeBytes(tensor.type))) {
    field["shape"].FailValue();
  }
  std::vector<Box> boxes;
  int64_t covered = 0;
  field["shards"].ForEachElement([&](const Field& one) {
    tensor.shards.push_back(ReadShard(one, name, tensor, files));
    boxes.push_back(tensor.shards.back().box);
  });
  if (const auto overlap = FindOverlap(boxes)) {
    field["shards"].Fail(
        absl::StrCat("overlap: ", ToText(boxes[overlap->first]), " and ",
                     ToText(boxes[overlap->second])));
  }
  for (const Box& box : boxes) covered += ComputeVolume(box.lengths);
  if (covered != ComputeVolume(tensor.shape)) {
    field["shards"].Fail(
        absl::StrCat("have ", covered, " elements of ",
                     DescribeTensor(tensor.type, tensor.shape)));
  }
  return tensor;
}

Manifest ReadManifest(const Field& field) {
  field["block_bytes"].Integer(kBlockBytes, kBlockBytes);
  Manifest manifest = {
      .step = field["step"].Integer(0),
      .world_size = static_cast<int>(
          field["world_size"].Integer(1, std::numeric_limits<int>::max()))};
  field["values"].ForEachMember([&](const std::string& name, const Field& one) {
    manifest.values[name] = one.Text();
  });
  std::set<std::string> names;
  field["files"].ForEachElement([&](const Field& one) {
    const std::string& name = one["name"].Text();
    // It must lie in the checkpoint's folder.
    if (name.empty() || name == "." || name == ".." ||
        name.find('/') != std::string::npos ||
        name.find('\0') != std::string::npos || !names.insert(name).second) {
      one["name"].FailValue();
    }
    manifest.files.push_back({name, one["bytes"].Integer(0)});
  });
  field["tensors"].ForEachMember(
      [&](const std::string& name, const Field& one) {
        manifest.tensors[name] = ReadTensor(one, name, manifest.files);
      });
  return manifest;
}

std::string MakeChecksum(const json& body) {
  return ToHex({ComputeChecksum(AsBytes(body.dump()))});
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

std::optional<std::vector<uint32_t>> FromHex(absl::string_view text) {
  if (text.size() % kHexDigits != 0 ||
      !std::all_of(text.begin(), text.end(), absl::ascii_isxdigit)) {
    return std::nullopt;
  }
  std::vector<uint32_t> checksums;
  for (; !text.empty(); text.remove_prefix(kHexDigits)) {
    checksums.push_back(static_cast<uint32_t>(
        std::stoul(std::string(text.substr(0, kHexDigits)), nullptr, 16)));
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
    // Deeper ones would take the stack of the functions that walk through it.
    const auto limit = [](int depth, json::parse_event_t, json&) {
      if (depth > kDepthMax) throw std::runtime_error("it is nested too deep");
      return true;
    };
    const json whole = json::parse(text, limit);
    const Field field(whole, "it");
    const int64_t version = field["version"].Integer(1);
    if (version > kVersion) {
      return UnimplementedError(absl::StrCat(
          "has version ", version,
          ", which a newer muster has written; this one reads ", kVersion));
    }
    const std::string& checksum = field["crc32"].Text();
    const Field body = field["checkpoint"];
    // The same text as was written: keys are in order, and there are no
    // fractions.
    if (checksum != MakeChecksum(whole.at("checkpoint"))) {
      return DataLossError("is damaged: its checksum differs");
    }
    return ReadManifest(body);
  } catch (const std::bad_alloc&) {
    return ResourceExhaustedError(
        absl::StrCat("has ", text.size(), " bytes: no memory to read it"));
  } catch (const std::exception& error) {
    return DataLossError(absl::StrCat("is damaged: ", error.what()));
  }
}

StatusOr<Manifest> ReadManifest(CheckpointStorage& storage,
                                const CheckpointFolder& folder) {
  const std::string path =
      absl::StrCat(MakeFolderName(folder), "/", kManifestName);
  StatusOr<std::unique_ptr<CheckpointReader>> reader = storage.Open(path);
  if (reader.status().code() == StatusCode::kNotFound) {
    return DataLossError(reader.status().message());
  }
  if (!reader.ok()) return reader.status();
  const int64_t size = (*reader)->size();
  if (size < 0 || size > kManifestBytesMax) {
    return DataLossError(absl::StrCat(base::Quote(path), " has ", size,
                                      " bytes, more than is ever written"));
  }
  std::string text(static_cast<size_t>(size), '\0');
  Status read = (*reader)->Read(0, std::as_writable_bytes(std::span(text)));
  if (!read.ok()) return read;
  StatusOr<Manifest> manifest = ParseManifest(text);
  if (manifest.ok() && manifest->step != folder.step) {
    manifest =
        DataLossError(absl::StrCat("is damaged: its step is ", manifest->step));
  }
  if (manifest.ok()) return manifest;
  return Status(
      manifest.status().code(),
      absl::StrCat(base::Quote(path), " ", manifest.status().message()));
}

}  // namespace muster::internal
