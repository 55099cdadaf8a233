#include "client/examples/transformer/text.h"

#include <zlib.h>

#include <cmath>
#include <cstdint>
#include <fstream>
#include <stdexcept>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace muster::examples {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

constexpr int64_t kLength = 6;

// Without repetition: where a sequence comes from can be seen.
std::string MakeBytes() {
  std::string bytes;
  for (int i = 0; i < 200; ++i) bytes += static_cast<char>(i + 1);
  return bytes;
}

TEST(TextTest, VocabularyIsTheBytesInTheirOrder) {
  const Text text("banana banana");
  EXPECT_EQ(text.vocabulary(), 4);
  EXPECT_EQ(text.ToBytes({0, 1, 2, 3}), " abn");
}

TEST(TextTest, TargetsFollowTheirCharacters) {
  const Text text(MakeBytes());
  for (const Batch& batch : {text.MakeTrainingBatch(1, 0, {0, 8, 8}, kLength),
                             text.MakeHeldOutBatch({0, 8, 8}, kLength)}) {
    ASSERT_EQ(batch.ids.size(), 8 * kLength);
    ASSERT_EQ(batch.targets.size(), 8 * kLength);
    for (size_t i = 0; i < batch.ids.size(); ++i) {
      EXPECT_EQ(batch.targets[i], batch.ids[i] + 1);
    }
  }
}

TEST(TextTest, NoTrainingSequenceHasACharacterThatIsHeldOut) {
  const Text text(MakeBytes());
  for (int64_t step = 0; step < 100; ++step) {
    for (const int64_t id :
         text.MakeTrainingBatch(1, step, {0, 8, 8}, kLength).targets) {
      EXPECT_LT(id, 180);
    }
  }
  const Batch held_out = text.MakeHeldOutBatch({0, 8, 8}, kLength);
  for (const int64_t id : held_out.ids) EXPECT_GE(id, 180);
  EXPECT_EQ(held_out.ids.front(), 180);
}

TEST(TextTest, SequencesDependOnSeedAndStepAndNotOnTheirPart) {
  const Text text(MakeBytes());
  const auto make = [&](uint64_t seed, int64_t step, int64_t first,
                        int64_t count) {
    return text.MakeTrainingBatch(seed, step, {first, count, 8}, kLength).ids;
  };
  const std::vector<int64_t> all = make(1, 5, 0, 8);
  std::vector<int64_t> parts = make(1, 5, 0, 3);
  for (const int64_t id : make(1, 5, 3, 5)) parts.push_back(id);
  EXPECT_EQ(parts, all);
  EXPECT_NE(make(1, 6, 0, 8), all);
  EXPECT_NE(make(2, 5, 0, 8), all);
}

TEST(TextTest, ABigramModelKnowsWhatFollows) {
  std::string bytes;
  for (int i = 0; i < 1000; ++i) bytes += i % 2 == 0 ? 'a' : 'b';
  // 449 or 450 pairs of each kind, and one that there is not.
  EXPECT_NEAR(Text(bytes).ComputeBigramLoss(), std::log(451.5 / 450.5), 1e-4);
}

TEST(TextTest, AFileMayBeCompressed) {
  const std::string path = ::testing::TempDir() + "/text";
  std::ofstream(path, std::ios::binary) << MakeBytes();
  const gzFile file = gzopen((path + ".gz").c_str(), "wb");
  ASSERT_EQ(gzputs(file, MakeBytes().c_str()), 200);
  gzclose(file);
  const Text plain = Text::Read(path);
  EXPECT_EQ(plain.vocabulary(), 200);
  EXPECT_EQ(plain.checksum(), Text::Read(path + ".gz").checksum());
  EXPECT_NE(plain.checksum(), Text("other").checksum());
}

TEST(TextTest, ErrorsNameTheFileAndTheSize) {
  EXPECT_THAT([] { Text::Read("/no/such/text"); },
              ThrowsMessage<std::runtime_error>(
                  AllOf(HasSubstr("\"/no/such/text\" cannot be opened: No such "
                                  "file"),
                        HasSubstr("(package fortunes, or --text)"))));
  EXPECT_THAT([] { Text::Read(::testing::TempDir()); },
              ThrowsMessage<std::runtime_error>(
                  HasSubstr("cannot be read: Is a directory")));
  const Text text("a short text");
  EXPECT_THAT(
      [&] {
        text.MakeTrainingBatch(1, 0, {0, 1, 1}, 8);
      },
      ThrowsMessage<std::runtime_error>(
          HasSubstr("a text of 12 characters is too short for "
                    "sequences of 8")));
  EXPECT_THAT(
      [&] {
        Text("").MakeHeldOutBatch({0, 1, 1}, 1);
      },
      ThrowsMessage<std::runtime_error>(HasSubstr("0 characters")));
}

}  // namespace
}  // namespace muster::examples
