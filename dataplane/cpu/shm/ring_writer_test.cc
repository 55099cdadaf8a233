#include "dataplane/cpu/shm/ring_writer.h"

#include <algorithm>
#include <cstddef>
#include <iterator>
#include <numeric>
#include <vector>

#include "gtest/gtest.h"

namespace muster::dataplane::shm {
namespace {

constexpr size_t kBytes = 128 << 10;

TEST(RingWriterTest, CopiesAsMemcpy) {
  RingWriter writer;
  int past = 0;
  std::vector<unsigned char> from(kBytes + 64);
  std::iota(from.begin(), from.end(), 0);
  // So often that the other path is tried.
  for (size_t all = 0, turn = 0; all < 2 * RingWriter::kTerms.first; ++turn) {
    const size_t sizes[] = {0, 1, 4, 8, 4095, 4096, 4097, 50'001, kBytes};
    const size_t bytes = sizes[turn % std::size(sizes)];
    const size_t offset = turn % 61;
    std::vector<unsigned char> to(bytes + 128);
    writer.Copy(to.data() + offset, from.data() + turn % 7, bytes);
    ASSERT_TRUE(std::equal(to.begin() + offset, to.begin() + offset + bytes,
                           from.begin() + turn % 7));
    ASSERT_EQ(std::count(to.begin(), to.begin() + offset, 0), offset);
    ASSERT_EQ(std::count(to.begin() + offset + bytes, to.end(), 0),
              128 - offset);
    if (writer.timed_way() == RingWriter::kPastCaches) ++past;
    all += bytes;
  }
  EXPECT_EQ(past > 0, kWritesPastCaches);
}

}  // namespace
}  // namespace muster::dataplane::shm
