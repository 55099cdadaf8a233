#include "client/parallel/checkpoint/manifest.h"

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "muster/base/status.h"

namespace muster::internal {
namespace {

using ::testing::HasSubstr;

Manifest MakeManifest() {
  Manifest manifest = {.step = 7,
                       .world_size = 2,
                       .values = {{"epoch", "3"}},
                       .files = {{"rank-00001.safetensors", 1000}}};
  manifest.tensors["w"] = {.type = dataplane::DataType::kBfloat16,
                           .shape = {4, 8},
                           .shards = {{.file = 0,
                                       .key = "w[0:4,0:4]",
                                       .offset = 64,
                                       .box = {{0, 0}, {4, 4}},
                                       .checksums = {0x0000ABCD}},
                                      {.file = 0,
                                       .key = "w[0:4,4:8]",
                                       .offset = 96,
                                       .box = {{0, 4}, {4, 4}},
                                       .checksums = {0xFFFFFFFF}}}};
  return manifest;
}

TEST(ManifestTest, IsReadAsItWasWritten) {
  const StatusOr<Manifest> read = ParseManifest(ToJson(MakeManifest()));
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(read->step, 7);
  EXPECT_EQ(read->world_size, 2);
  EXPECT_EQ(read->values.at("epoch"), "3");
  EXPECT_EQ(read->files.at(0).bytes, 1000);
  const StoredTensor& tensor = read->tensors.at("w");
  EXPECT_EQ(tensor.type, dataplane::DataType::kBfloat16);
  EXPECT_EQ(tensor.shards.at(0).key, "w[0:4,0:4]");
  EXPECT_EQ(tensor.shards.at(0).offset, 64);
  EXPECT_EQ(tensor.shards.at(0).box, (Box{{0, 0}, {4, 4}}));
  EXPECT_EQ(tensor.shards.at(0).checksums, (std::vector<uint32_t>{0x0000ABCD}));
}

TEST(ManifestTest, EveryFlippedBitAndEveryTruncationIsAnError) {
  const std::string good = ToJson(MakeManifest());
  for (size_t i = 0; i + 1 < good.size(); ++i) {
    EXPECT_FALSE(ParseManifest(good.substr(0, i)).ok()) << i;
    std::string bad = good;
    // One that leaves digits digits.
    bad[i] = static_cast<char>(bad[i] ^ 1);
    EXPECT_FALSE(ParseManifest(bad).ok()) << i;
  }
}

TEST(ManifestTest, ANewerVersionIsNamed) {
  std::string text = ToJson(MakeManifest());
  const std::string version = "\"version\":1";
  const size_t at = text.find(version);
  ASSERT_NE(at, std::string::npos);
  text.replace(at, version.size(), "\"version\":2");
  const Status status = ParseManifest(text).status();
  EXPECT_EQ(status.code(), StatusCode::kUnimplemented);
  EXPECT_THAT(status.message(), HasSubstr("has version 2"));
}

TEST(ManifestTest, WhatContradictsItselfIsNamed) {
  struct Case {
    std::string text;
    std::function<void(Manifest&)> change;
  };
  const auto part = [](Manifest& manifest) -> StoredShard& {
    return manifest.tensors.at("w").shards[1];
  };
  const std::vector<Case> cases = {
      {"step is -1", [](Manifest& m) { m.step = -1; }},
      {"world_size is 0", [](Manifest& m) { m.world_size = 0; }},
      {"files.0.name is \"../x\"",
       [](Manifest& m) { m.files[0].name = "../x"; }},
      {"files.1.name is \"rank-00001.safetensors\"",
       [](Manifest& m) { m.files.push_back(m.files[0]); }},
      {"files.0.bytes is -5", [](Manifest& m) { m.files[0].bytes = -5; }},
      {"tensors.\"w\".shape.0 is -4",
       [](Manifest& m) { m.tensors.at("w").shape[0] = -4; }},
      {"tensors.\"w\".shape is [4611686018427387904,8]",
       [](Manifest& m) { m.tensors.at("w").shape[0] = int64_t{1} << 62; }},
      {"tensors.\"w\".shards have 32 elements of bfloat16[5,8]",
       [](Manifest& m) { m.tensors.at("w").shape[0] = 5; }},
      {"tensors.\"w\".shards have 16 elements of bfloat16[4,8]",
       [](Manifest& m) { m.tensors.at("w").shards.pop_back(); }},
      {"tensors.\"w\".shards overlap: [0:4,0:4] and [0:4,3:7]",
       [&](Manifest& m) {
         part(m).box.offsets[1] = 3;
         part(m).key = "w[0:4,3:7]";
       }},
      {"tensors.\"w\".shards.1 is no part of bfloat16[4,8]",
       [&](Manifest& m) { part(m).box.offsets[1] = 5; }},
      {"tensors.\"w\".shards.1 is no part of bfloat16[4,8]",
       [&](Manifest& m) { part(m).box.lengths[1] = 0; }},
      {"tensors.\"w\".shards.1 is no part of bfloat16[4,8]",
       [&](Manifest& m) { part(m).box.lengths.push_back(1); }},
      {"tensors.\"w\".shards.1.file is 1",
       [&](Manifest& m) { part(m).file = 1; }},
      {"tensors.\"w\".shards.1.offset is 969",
       [&](Manifest& m) { part(m).offset = 1000 - 2 * 16 + 1; }},
      {"tensors.\"w\".shards.1.key is \"v\"",
       [&](Manifest& m) { part(m).key = "v"; }},
      {"tensors.\"w\".shards.1.crc32 is \"\"",
       [&](Manifest& m) { part(m).checksums.clear(); }},
  };
  for (const Case& one : cases) {
    Manifest manifest = MakeManifest();
    one.change(manifest);
    const Status status = ParseManifest(ToJson(manifest)).status();
    EXPECT_EQ(status.code(), StatusCode::kDataLoss);
    EXPECT_EQ(status.message(), "is damaged: checkpoint." + one.text);
  }
}

TEST(ManifestTest, NestingDoesNotTakeTheStack) {
  std::string text = ToJson(MakeManifest());
  const std::string values = "\"values\":{\"epoch\":\"3\"}";
  const size_t at = text.find(values);
  ASSERT_NE(at, std::string::npos);
  constexpr size_t kDepth = 1000000;
  text.replace(
      at, values.size(),
      "\"values\":" + std::string(kDepth, '[') + std::string(kDepth, ']'));
  EXPECT_THAT(ParseManifest(text).status().message(),
              HasSubstr("nested too deep"));
}

TEST(ManifestTest, APartHasItsRangesInTheKey) {
  EXPECT_EQ(MakeKey("w", std::vector<int64_t>{4}, {{0}, {4}}), "w");
  EXPECT_EQ(MakeKey("w", std::vector<int64_t>{4}, {{1}, {3}}), "w[1:4]");
}

}  // namespace
}  // namespace muster::internal
