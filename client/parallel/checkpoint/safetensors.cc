#include "client/parallel/checkpoint/safetensors.h"

#include <array>
#include <bit>
#include <cstddef>
#include <utility>

#include "client/parallel/checkpoint/box.h"
#include "nlohmann/json.hpp"

namespace muster::internal {
namespace {

using dataplane::DataType;

static_assert(std::endian::native == std::endian::little,
              "elements are stored as they are in memory");

// The first tensor begins at a multiple of this, for readers that map files.
constexpr size_t kAlignment = 64;

constexpr std::array<std::pair<DataType, absl::string_view>, 16> kTypes = {{
    {DataType::kUint8, "U8"},
    {DataType::kInt8, "I8"},
    {DataType::kInt16, "I16"},
    {DataType::kInt32, "I32"},
    {DataType::kInt64, "I64"},
    {DataType::kFloat16, "F16"},
    {DataType::kBfloat16, "BF16"},
    {DataType::kFloat32, "F32"},
    {DataType::kFloat64, "F64"},
    {DataType::kBool, "BOOL"},
    {DataType::kComplex64, "C64"},
    {DataType::kFloat8E4m3fn, "F8_E4M3"},
    {DataType::kFloat8E5m2, "F8_E5M2"},
    {DataType::kUint16, "U16"},
    {DataType::kUint32, "U32"},
    {DataType::kUint64, "U64"},
}};

}  // namespace

absl::string_view ToSafetensorsType(DataType type) {
  for (const auto& [one, name] : kTypes) {
    if (one == type) return name;
  }
  return "";
}

std::optional<DataType> FromSafetensorsType(absl::string_view name) {
  for (const auto& [type, one] : kTypes) {
    if (one == name) return type;
  }
  return std::nullopt;
}

bool IsStoredBefore(const SafetensorsEntry& a, const SafetensorsEntry& b) {
  return std::pair(dataplane::DataTypeBytes(b.type), a.key) <
         std::pair(dataplane::DataTypeBytes(a.type), b.key);
}

SafetensorsLayout LayOutSafetensors(
    const std::vector<SafetensorsEntry>& entries) {
  nlohmann::json json = nlohmann::json::object();
  SafetensorsLayout layout;
  int64_t at = 0;
  for (const SafetensorsEntry& entry : entries) {
    const int64_t end =
        at + ComputeVolume(entry.shape) *
                 static_cast<int64_t>(dataplane::DataTypeBytes(entry.type));
    json[entry.key] = {
        {"dtype", std::string(ToSafetensorsType(entry.type))},
        {"shape", entry.shape},
        {"data_offsets", {at, end}},
    };
    layout.offsets.push_back(at);
    at = end;
  }
  std::string text = json.dump();
  constexpr size_t kSizeBytes = sizeof(uint64_t);
  // The format allows spaces after the JSON.
  const size_t unaligned = (kSizeBytes + text.size()) % kAlignment;
  if (unaligned != 0) text.append(kAlignment - unaligned, ' ');
  const uint64_t size = text.size();
  layout.header.append(reinterpret_cast<const char*>(&size), kSizeBytes);
  layout.header += text;
  for (int64_t& offset : layout.offsets) {
    offset += static_cast<int64_t>(layout.header.size());
  }
  layout.bytes = at + static_cast<int64_t>(layout.header.size());
  return layout;
}

}  // namespace muster::internal
