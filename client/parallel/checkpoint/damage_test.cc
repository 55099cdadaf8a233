// Damaged checkpoints, and ones whose metadata contradicts itself: errors, and
// never wrong elements.

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <limits>
#include <memory>
#include <optional>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "client/parallel/checkpoint/manifest.h"
#include "client/parallel/checkpoint/test_parts.h"
#include "client/testing/local_groups.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "muster/base/status.h"
#include "muster/checkpoint.h"
#include "muster/checkpoint_storage.h"
#include "muster/errors.h"
#include "nlohmann/json.hpp"

namespace muster::testing {
namespace {

namespace fs = std::filesystem;

using nlohmann::json;
using ::testing::AnyOf;
using ::testing::Each;
using ::testing::HasSubstr;

Parts MakeState(std::optional<int> rank) {
  Parts parts;
  if (rank.has_value()) {
    parts.Add("w", DataType::kFloat32, {4, 3}, {{2 * *rank, 0}, {2, 3}});
  } else {
    parts.Add("w", DataType::kFloat32, {4, 3});
  }
  parts.Add("b", DataType::kBfloat16, {5})
      .Add("scalar", DataType::kInt64, {})
      .Add("empty", DataType::kUint8, {0, 7});
  return parts;
}

std::string ReadAll(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

void WriteAll(const std::string& path, const std::string& content) {
  std::ofstream(path, std::ios::binary) << content;
}

class DamageTest : public ::testing::Test {
 protected:
  void SetUp() override {
    LocalGroups groups(2);
    ASSERT_THAT(groups.OnEachRank([&](const auto& group, int rank) {
      SaveCheckpoint(*storage_, 5, MakeState(rank).Fill().shards(),
                     {.group = group, .values = {{"epoch", "3"}}});
    }),
                Each(""));
  }

  // Fails if elements are loaded that are not those that were saved. Returns
  // the error.
  Status Load() {
    Parts parts = MakeState(std::nullopt);
    try {
      LoadCheckpoint(*storage_, 5, parts.shards());
    } catch (const DistError& error) {
      return error.status();
    }
    EXPECT_EQ(parts.CountWrong(), 0);
    return OkStatus();
  }
  Status Verify() {
    try {
      VerifyCheckpoint(*storage_, 5);
    } catch (const DistError& error) {
      return error.status();
    }
    return OkStatus();
  }

  const TemporaryFolder folder_;
  const std::string path_ = folder_.path() + "/step-5.1/";
  const std::unique_ptr<CheckpointStorage> storage_ =
      DirectoryStorage(folder_.path());
};

TEST_F(DamageTest, VerifyFindsEveryByteOfEveryFile) {
  EXPECT_TRUE(Verify().ok());
  size_t files = 0;
  for (const auto& entry : fs::directory_iterator(path_)) {
    ++files;
    const std::string file = entry.path().filename().string();
    const std::string good = ReadAll(entry.path().string());
    // The last byte of checkpoint.json ends its line.
    const size_t count = good.size() - (file == "checkpoint.json" ? 1 : 0);
    for (size_t i = 0; i < count; ++i) {
      std::string bad = good;
      bad[i] = static_cast<char>(bad[i] ^ 1);
      WriteAll(entry.path().string(), bad);
      const Status status = Verify();
      ASSERT_THAT(status.code(),
                  AnyOf(StatusCode::kDataLoss, StatusCode::kUnimplemented))
          << file << " " << i;
      ASSERT_THAT(status.message(), HasSubstr(file));
    }
    WriteAll(entry.path().string(), good.substr(0, good.size() / 2));
    EXPECT_EQ(Verify().code(), StatusCode::kDataLoss);
    fs::remove(entry.path());
    EXPECT_EQ(Verify().code(), StatusCode::kDataLoss);
    WriteAll(entry.path().string(), good);
  }
  EXPECT_EQ(files, 3);
  EXPECT_TRUE(Verify().ok());
}

TEST_F(DamageTest, ACheckpointOfAnotherStepIsNotLoaded) {
  fs::rename(path_, folder_.path() + "/step-6.1");
  try {
    LoadCheckpoint(*storage_, 6, {});
    ADD_FAILURE() << "no error";
  } catch (const DistError& error) {
    EXPECT_EQ(error.status().code(), StatusCode::kDataLoss);
    EXPECT_THAT(error.what(), HasSubstr("\"step-6.1/checkpoint.json\" is "
                                        "damaged: its step is 5"));
  }
}

TEST_F(DamageTest, MetadataOfAbsurdSizeTakesNoMemory) {
  // A hole takes no room on the disk.
  fs::resize_file(path_ + "checkpoint.json", int64_t{1} << 40);
  const Status status = Load();
  EXPECT_EQ(status.code(), StatusCode::kDataLoss);
  EXPECT_THAT(status.message(), HasSubstr("has 1099511627776 bytes"));
}

// Values that a field may have after a mutation.
json DrawValue(std::mt19937& random) {
  const std::vector<json> values = {-1,
                                    0,
                                    1,
                                    2,
                                    5,
                                    int64_t{1} << 31,
                                    int64_t{1} << 53,
                                    std::numeric_limits<int64_t>::max(),
                                    std::numeric_limits<int64_t>::min(),
                                    std::numeric_limits<uint64_t>::max(),
                                    1.5,
                                    1e300,
                                    true,
                                    nullptr,
                                    "",
                                    "w",
                                    "../x",
                                    "F32",
                                    "F64",
                                    "00000000",
                                    "0x12 -34",
                                    "rank-00001.safetensors",
                                    json::array(),
                                    json::object(),
                                    json::array({0}),
                                    json::array({4, 3}),
                                    json::array({int64_t{1} << 62, 4}),
                                    json::array({json::array({-1})})};
  return values[random() % values.size()];
}

// All values in it, with those that contain others.
void Collect(json& value, std::vector<json*>& all) {
  all.push_back(&value);
  if (value.is_structured()) {
    for (json& one : value) Collect(one, all);
  }
}

void Mutate(json& whole, std::mt19937& random) {
  std::vector<json*> all;
  Collect(whole, all);
  json& value = *all[random() % all.size()];
  switch (random() % 5) {
    case 0:
      value = DrawValue(random);
      break;
    case 1:
      if (value.is_number_integer()) {
        // Unsigned, because it may be the largest.
        const uint64_t change = random() % 2 == 0 ? 1 : ~uint64_t{0};
        value = static_cast<int64_t>(
            static_cast<uint64_t>(value.get<int64_t>()) + change);
      }
      break;
    case 2: {
      // A copy, because one may contain the other.
      const json other = *all[random() % all.size()];
      value = other;
      break;
    }
    case 3:
      if (value.is_structured() && !value.empty()) {
        auto one = value.begin();
        std::advance(one, random() % value.size());
        value.erase(one);
      }
      break;
    default:
      if (value.is_array()) {
        value.push_back(value.empty() ? DrawValue(random)
                                      : value[random() % value.size()]);
      } else if (value.is_object()) {
        value["more"] =
            value.empty() ? DrawValue(random) : json(*value.begin());
      }
  }
}

// Their checksums are right, so what they say must be checked.
TEST_F(DamageTest, MutatedMetadataIsAnErrorOrLoadsWhatWasSaved) {
  const std::string path = path_ + "checkpoint.json";
  const json good = json::parse(ReadAll(path));
  std::mt19937 random(49);
  int loaded = 0;
  int refused = 0;
  for (int i = 0; i < 2000; ++i) {
    json bad = good;
    json& body = bad["checkpoint"];
    for (uint32_t count = 1 + random() % 3; count > 0; --count) {
      Mutate(body, random);
    }
    const std::string text = body.dump();
    bad["crc32"] = internal::ToHex(
        {internal::ComputeChecksum(std::as_bytes(std::span(text)))});
    SCOPED_TRACE(::testing::Message() << i << ": " << text);
    WriteAll(path, bad.dump());
    for (const Status& status : {Load(), Verify()}) {
      ++(status.ok() ? loaded : refused);
      if (status.ok()) continue;
      // A tensor may be missing, or be another one.
      ASSERT_THAT(status.code(),
                  AnyOf(StatusCode::kDataLoss, StatusCode::kNotFound,
                        StatusCode::kInvalidArgument));
      ASSERT_THAT(status.message(), HasSubstr("step-5.1"));
    }
    ASSERT_FALSE(HasFailure());
  }
  // It tests both.
  EXPECT_GT(loaded, 100);
  EXPECT_GT(refused, 2000);
}

}  // namespace
}  // namespace muster::testing
