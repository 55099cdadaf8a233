#include "muster/base/inlined_vector.h"

#include <cstddef>
#include <iterator>
#include <memory>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace muster::base {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

using Texts = InlinedVector<std::string, 2>;

// Too long for std::string's inline buffer.
std::string Text(int number) {
  return std::string(40, 'x') + std::to_string(number);
}

Texts Make(int count) {
  Texts texts;
  for (int i = 0; i < count; ++i) texts.push_back(Text(i));
  return texts;
}

TEST(InlinedVectorTest, GrowsPastWhatIsInline) {
  Texts texts = Make(2);
  const void* const inside = texts.data();
  EXPECT_GE(inside, static_cast<const void*>(&texts));
  EXPECT_LT(inside, static_cast<const void*>(&texts + 1));
  texts.push_back(Text(2));
  EXPECT_THAT(texts, ElementsAre(Text(0), Text(1), Text(2)));
  EXPECT_EQ(texts.front(), Text(0));
  EXPECT_EQ(texts.back(), Text(2));
  texts.pop_back();
  texts.resize(4);
  EXPECT_THAT(texts, ElementsAre(Text(0), Text(1), "", ""));
  texts.clear();
  EXPECT_THAT(texts, IsEmpty());
}

TEST(InlinedVectorTest, CopiesAndMovesBothKinds) {
  for (const int count : {0, 1, 2, 3, 9}) {
    for (const int other : {0, 2, 5}) {
      const Texts from = Make(count);
      Texts copy = Make(other);
      copy = from;
      EXPECT_EQ(copy, from);
      Texts moved = Make(other);
      moved = std::move(copy);
      EXPECT_EQ(moved, from);
      copy = Make(1);
      EXPECT_THAT(copy, ElementsAre(Text(0)));
      EXPECT_EQ(Texts(std::move(moved)), from);
      EXPECT_EQ(Texts(from), from);
    }
  }
}

TEST(InlinedVectorTest, AnElementOfItsOwnCanBeAppended) {
  Texts texts = Make(2);
  texts.push_back(texts[0]);
  texts.reserve(16);
  EXPECT_THAT(texts, ElementsAre(Text(0), Text(1), Text(0)));
}

TEST(InlinedVectorTest, AnElementThatThrowsIsNotCounted) {
  struct Thrower {
    explicit Thrower(bool throws) : alive(std::make_unique<int>(1)) {
      if (throws) throw 1;
    }
    std::unique_ptr<int> alive;
  };
  InlinedVector<Thrower, 2> list;
  list.emplace_back(false);
  EXPECT_THROW(list.emplace_back(true), int);
  EXPECT_EQ(list.size(), 1U);
}

TEST(InlinedVectorTest, TakesRangesAndElementsThatOnlyMove) {
  std::istringstream words("a b c");
  Texts texts{std::istream_iterator<std::string>(words),
              std::istream_iterator<std::string>()};
  EXPECT_THAT(texts, ElementsAre("a", "b", "c"));
  InlinedVector<std::unique_ptr<int>, 1> owners(3);
  owners[2] = std::make_unique<int>(7);
  const auto moved = std::move(owners);
  EXPECT_EQ(*moved[2], 7);
}

}  // namespace
}  // namespace muster::base
