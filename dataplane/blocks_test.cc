#include "dataplane/blocks.h"

#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace muster::dataplane {
namespace {

using testing::ElementsAre;

constexpr size_t kMost = std::numeric_limits<int64_t>::max();

std::vector<Range> Parts(size_t count, size_t parts) {
  std::vector<Range> ranges;
  for (size_t i = 0; i < parts; ++i) ranges.push_back(CutPart(count, i, parts));
  return ranges;
}

std::vector<Range> Chunks(size_t count, size_t per_chunk) {
  std::vector<Range> ranges;
  for (size_t i = 0; i < ChunksFor(count, per_chunk); ++i) {
    ranges.push_back(CutChunk(count, i, per_chunk));
  }
  return ranges;
}

TEST(BlocksTest, EvenPartsSpreadTheRest) {
  EXPECT_THAT(Parts(12, 3), ElementsAre(Range{0, 4}, Range{4, 4}, Range{8, 4}));
  EXPECT_THAT(Parts(10, 4),
              ElementsAre(Range{0, 2}, Range{2, 3}, Range{5, 2}, Range{7, 3}));
  EXPECT_THAT(Parts(11, 3), ElementsAre(Range{0, 3}, Range{3, 4}, Range{7, 4}));
  EXPECT_THAT(Parts(7, 1), ElementsAre(Range{0, 7}));
}

TEST(BlocksTest, SomeOfMorePartsThanUnitsAreEmpty) {
  EXPECT_THAT(Parts(2, 5), ElementsAre(Range{0, 0}, Range{0, 0}, Range{0, 1},
                                       Range{1, 0}, Range{1, 1}));
  EXPECT_THAT(Parts(0, 2), ElementsAre(Range{0, 0}, Range{0, 0}));
}

TEST(BlocksTest, PartsOfTheMostUnitsDoNotOverflow) {
  // 2^63 - 1 is 7 times 1317624576693539401, without a rest.
  EXPECT_EQ(CutPart(kMost, 6, 7),
            (Range{7'905'747'460'161'236'406, 1'317'624'576'693'539'401}));
  // And 4 times 2305843009213693951, and 3.
  EXPECT_THAT(
      Parts(kMost, 4),
      ElementsAre(Range{0, 2'305'843'009'213'693'951},
                  Range{2'305'843'009'213'693'951, 2'305'843'009'213'693'952},
                  Range{4'611'686'018'427'387'903, 2'305'843'009'213'693'952},
                  Range{6'917'529'027'641'081'855, 2'305'843'009'213'693'952}));
}

TEST(BlocksTest, TheLastChunkHasWhatIsLeft) {
  EXPECT_THAT(Chunks(8, 4), ElementsAre(Range{0, 4}, Range{4, 4}));
  EXPECT_THAT(Chunks(9, 4), ElementsAre(Range{0, 4}, Range{4, 4}, Range{8, 1}));
  EXPECT_THAT(Chunks(3, 4), ElementsAre(Range{0, 3}));
}

TEST(BlocksTest, ThereIsAlwaysAChunkAndThoseBehindTheLastAreEmpty) {
  EXPECT_THAT(Chunks(0, 4), ElementsAre(Range{0, 0}));
  EXPECT_EQ(CutChunk(0, 1, 4), (Range{0, 0}));
  EXPECT_EQ(CutChunk(9, 3, 4), (Range{9, 0}));
}

TEST(BlocksTest, ChunksOfTheMostUnitsDoNotOverflow) {
  EXPECT_THAT(Chunks(kMost, kMost - 1),
              ElementsAre(Range{0, kMost - 1}, Range{kMost - 1, 1}));
  EXPECT_EQ(CutChunk(kMost, 2, kMost - 1), (Range{kMost, 0}));
  EXPECT_EQ(ChunksFor(kMost, 1), kMost);
}

TEST(BlocksTest, PiecesOfABlockLieAtTheirElements) {
  std::byte memory[40];
  const Block whole = {memory, 10};
  const Block part = CutPart(whole, 1, 4, /*element_bytes=*/4);
  EXPECT_EQ(part.data, memory + 8);
  EXPECT_EQ(part.count, 3u);
  const Block chunk = CutChunk(whole, 2, 4, /*element_bytes=*/4);
  EXPECT_EQ(chunk.data, memory + 32);
  EXPECT_EQ(chunk.count, 2u);
}

}  // namespace
}  // namespace muster::dataplane
