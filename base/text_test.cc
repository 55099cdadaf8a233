#include "base/text.h"

#include <chrono>
#include <string>

#include "absl/strings/escaping.h"
#include "absl/strings/string_view.h"
#include "gtest/gtest.h"

namespace muster::base {
namespace {

using std::chrono::milliseconds;

TEST(EscapeTest, WhatShowsStaysAndTheRestIsEscaped) {
  EXPECT_EQ(Escape("plain text"), "plain text");
  EXPECT_EQ(Escape("r\xC3\xA4nge \xE4\xBD\xA0 \xF0\x9F\x98\x80"),
            "r\xC3\xA4nge \xE4\xBD\xA0 \xF0\x9F\x98\x80");
  EXPECT_EQ(Escape("it's \"b\\c"), "it's \\\"b\\\\c");
  EXPECT_EQ(Escape("\033[2Jgone\r\n"), "\\x1b[2Jgone\\r\\n");
  // The 8-bit form of ESC [, as UTF-8 and as a single byte.
  EXPECT_EQ(Escape("\xC2\x9B!"), "\\xc2\\x9b!");
  EXPECT_EQ(Escape("\x9B!"), "\\x9b!");
}

TEST(EscapeTest, DirectionMarksAndOtherFormatCharactersAreEscaped) {
  EXPECT_EQ(Escape("exe\xE2\x80\xAEtxt"), "exe\\xe2\\x80\\xaetxt");
  for (const absl::string_view mark :
       {"\u202A", "\u202B", "\u202C",     "\u202D", "\u202E",
        "\u2066", "\u2067", "\u2068",     "\u2069", "\u200E",
        "\u200F", "\u061C", "\u200B",     "\uFEFF", "\u2028",
        "\u2029", "\u00AD", "\U000E0041", "\uFFFE", "\U0001FFFF"}) {
    EXPECT_EQ(Escape(mark), absl::CHexEscape(mark));
    EXPECT_EQ(Printable(mark), absl::CHexEscape(mark));
  }
}

TEST(EscapeTest, WhatIsNotUtf8IsEscaped) {
  // Truncated, overlong, a surrogate, beyond the last character.
  for (const absl::string_view bytes :
       {"\xE2\x80", "\xC0\xAF", "\xED\xA0\x80", "\xF4\x90\x80\x80", "\xFF"}) {
    EXPECT_EQ(Escape(bytes), absl::CHexEscape(bytes));
  }
}

TEST(EscapeTest, UnescapingGivesTheTextBack) {
  const std::string text =
      "a\"\\\n\x1B"
      "1\xC3\xA4"
      "f\xFF"
      "f\u202Ee";
  std::string back;
  ASSERT_TRUE(absl::CUnescape(Escape(text), &back));
  EXPECT_EQ(back, text);
}

TEST(PrintableTest, QuotesAndBackslashesStay) {
  EXPECT_EQ(Printable("it's \"q\" \\x41\n"), "it's \"q\" \\x41\\n");
  EXPECT_EQ(Printable(""), "");
  EXPECT_EQ(PrintableLines("a\n\tb\033\u202E\n"),
            "a\n\tb\\x1b\\xe2\\x80\\xae\n");
}

TEST(QuoteTest, ALongTextIsCut) {
  EXPECT_EQ(Quote("a\tb"), "\"a\\tb\"");
  EXPECT_EQ(Quote("abcd", 3), "\"abc...\"");
  EXPECT_EQ(Quote("abc", 3), "\"abc\"");
  EXPECT_EQ(Excerpt(std::string(33, 'x')),
            "\"" + std::string(32, 'x') + "\"... (33 bytes)");
}

TEST(LogValueTest, OnlyAWordStandsWithoutQuotes) {
  EXPECT_EQ(LogValue("trainer-3.local:7070"), "trainer-3.local:7070");
  EXPECT_EQ(LogValue("[::1]:7070"), "[::1]:7070");
  EXPECT_EQ(LogValue(""), "\"\"");
  EXPECT_EQ(LogValue("a b"), "\"a b\"");
  EXPECT_EQ(LogValue("a host=b"), "\"a host=b\"");
  EXPECT_EQ(LogValue("a=b"), "\"a=b\"");
  EXPECT_EQ(LogValue("a\nE1127 forged"), "\"a\\nE1127 forged\"");
  EXPECT_EQ(LogValue("\xC3\xA4"), "\"\xC3\xA4\"");
}

TEST(FormatDurationTest, HasTheUnitThatFits) {
  EXPECT_EQ(FormatDuration(milliseconds(250)), "250ms");
  EXPECT_EQ(FormatDuration(milliseconds(1500)), "1.5s");
  EXPECT_EQ(FormatDuration(milliseconds(10000)), "10s");
}

TEST(WaitTimeoutTextTest, NamesEightKeys) {
  EXPECT_EQ(WaitTimeoutText(milliseconds(100), {"a", "b\n"}),
            "wait timeout after 100ms, keys: a, b\\n");
  EXPECT_EQ(WaitTimeoutText(milliseconds(1000), {"1", "2", "3", "4", "5", "6",
                                                 "7", "8", "9", "10"}),
            "wait timeout after 1s, keys: 1, 2, 3, 4, 5, 6, 7, 8 and 2 more");
}

TEST(RanksTextTest, ManyRanksAreCut) {
  EXPECT_EQ(RanksText({7}), "rank 7");
  EXPECT_EQ(RanksText({1, 2, 3, 4, 5, 6, 7, 8}),
            "ranks 1, 2, 3, 4, 5, 6, 7, 8");
  EXPECT_EQ(RanksText({1, 2, 3, 4, 5, 6, 7, 8, 9, 10}),
            "ranks 1, 2, 3, 4, 5, 6, 7, 8 and 2 more");
  EXPECT_EQ(CountedRanksText({0}, 1), "1 rank (0)");
  EXPECT_EQ(CountedRanksText({0, 1, 2, 3, 4, 5, 6, 7}, 90),
            "90 ranks (0, 1, 2, 3, 4, 5, 6, 7 and 82 more)");
}

}  // namespace
}  // namespace muster::base
