#include "client/parallel/checkpoint/manifest.h"

#include <string>

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
                                       .checksums = {0x0000ABCD, 0xFFFFFFFF}}}};
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
  EXPECT_EQ(tensor.shards.at(0).checksums,
            (std::vector<uint32_t>{0x0000ABCD, 0xFFFFFFFF}));
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

TEST(ManifestTest, APartHasItsRangesInTheKey) {
  EXPECT_EQ(MakeKey("w", std::vector<int64_t>{4}, {{0}, {4}}), "w");
  EXPECT_EQ(MakeKey("w", std::vector<int64_t>{4}, {{1}, {3}}), "w[1:4]");
}

TEST(ManifestTest, ATemporaryNameIsNoCheckpoint) {
  EXPECT_EQ(MakeFolderName(100), "step-100");
  EXPECT_FALSE(IsTemporaryName("step-100"));
  EXPECT_TRUE(IsTemporaryName(MakeTemporaryName(100)));
  EXPECT_NE(MakeTemporaryName(100), MakeTemporaryName(100));
  EXPECT_FALSE(IsTemporaryName("notes.tmp-0123456789abcdef"));
  EXPECT_FALSE(IsTemporaryName("step-100.tmp-backup"));
}

}  // namespace
}  // namespace muster::internal
